"""Checks that the slot can continue the received stream. Pure.

In: the slot as the publisher shows it, and the position up to which everything was received. Out:
the slot's position, or an error with PostgreSQL's text and a remedy. Called at every connect,
before START_REPLICATION: a slot that was dropped, invalidated, or created again under its name
cannot send the transactions committed meanwhile. PostgreSQL's subscriber does not check this; with
a slot that was created again it silently continues above the gap.

*Received* is the end of the log, or a higher position that was confirmed while nothing was pending
(``changelog.confirmed``). Before the first start it is the consistent point of a slot that CREATE
SUBSCRIPTION created, and None for an existing slot. It does not apply to a slot that replaced the
subscription's slot, and the log of an older version lacks the record: then the slot's own position
is taken instead.

Source: reference 4.1 (errors of replication commands); ReplicationSlotAcquire() in slot.c,
CreateDecodingContext() in logical.c, PostgreSQL 18.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from wal2lake.errors import PublisherError, Retry
from wal2lake.model import INVALID_LSN, Lsn

_AGAIN: Final = (
    "ALTER SUBSCRIPTION ... REFRESH PUBLICATION WITH (recopy = true), which makes a new slot"
    " and copies every table again. Readers have the old rows until then."
)

_OTHER_SLOT: Final = (
    "Name the subscription's own slot with ALTER SUBSCRIPTION ... SET (slot_name = ...)."
    f" If there is none, name one that is not there, and then: {_AGAIN}"
)


class UnusableSlot(PublisherError):
    """Raised if the slot cannot send the missing changes; an operator must follow the hint."""

    sqlstate = "55000"
    retry = Retry.NEVER


def check_slot(
    slot: Mapping[str, str | None] | None,
    *,
    name: str,
    database: str | None,
    received: Lsn | None,
    same: bool,
) -> Lsn:
    """Check a slot and return its confirmed position. Raises UnusableSlot.

    ``slot`` is the result of ``Publisher.slot``. ``database`` is the connected database. ``same``:
    the received changes came from this slot, judging by its name."""
    if slot is None:
        raise _missing(name, received)
    if slot["slot_type"] == "physical":
        raise UnusableSlot(
            "cannot use physical replication slot for logical decoding",
            detail=f'The slot is "{name}".',
            hint=_OTHER_SLOT,
        )
    if slot["database"] != database:
        raise UnusableSlot(
            f'replication slot "{name}" was not created in this database',
            detail=f'It belongs to database "{slot["database"]}".',
            hint=_OTHER_SLOT,
        )
    if slot["plugin"] != "pgoutput":
        raise UnusableSlot(
            f'replication slot "{name}" uses output plugin "{slot["plugin"]}", and not'
            ' "pgoutput"',
            hint=_OTHER_SLOT,
        )
    cause = slot["invalidation_reason"]
    if cause is not None or slot["wal_status"] == "lost":
        # Before PostgreSQL 17 a slot does not show the cause. On a primary there is only one.
        raise UnusableSlot(
            f'can no longer access replication slot "{name}"',
            detail="This replication slot has been invalidated due to"
            f' "{cause or "wal_removed"}".',
            hint=f"What was committed since cannot be received any more: {_AGAIN}",
        )
    confirmed = Lsn.parse(slot["confirmed_flush_lsn"] or str(INVALID_LSN))
    if same and received is not None and confirmed > received:
        raise UnusableSlot(
            f'replication slot "{name}" starts at {confirmed}, above {received}, up to'
            " where everything has been received",
            detail="It was dropped and created again, or advanced by hand: what was"
            " committed in between will not be sent.",
            hint=f"To have it all: {_AGAIN} To go on without it: ALTER SUBSCRIPTION"
            " ... SET (slot_name = ...) with another slot.",
        )
    return confirmed


def _missing(name: str, received: Lsn | None) -> UnusableSlot:
    if received is None:
        hint = (
            "Create it on the publisher: SELECT pg_create_logical_replication_slot"
            f"('{name}', 'pgoutput')."
        )
    else:
        hint = f"A new one would not send what was committed since: {_AGAIN}"
    return UnusableSlot(
        f'replication slot "{name}" does not exist', sqlstate="42704", hint=hint
    )
