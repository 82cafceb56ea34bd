"""The commands' access to a publisher: connections, publications, slots.

Takes connection strings and names. Returns the publisher's answers. Its errors have the texts of
PostgreSQL's subscriber, each with a remedy; notices go to the caller.

A publisher may hang. ``check`` ends every wait for it by raising if the statement is cancelled. A
connection attempt ends at its time-out, and an answer's wait after wal_receiver_timeout
(PostgreSQL waits forever). Creating and dropping a slot have no limit, because they wait for other
transactions and walsenders. No caller holds ``ddl_lock``.

Source: subscriptioncmds.c; libpqwalreceiver.c.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from wal2lake.catalog import Subscription
from wal2lake.commands.preflight.ask import ask_server, ask_tables, ask_unpublished
from wal2lake.commands.preflight.finding import merge_findings, notices
from wal2lake.commands.preflight.pooler import Connect, ask_pooler
from wal2lake.commands.preflight.server import (
    Needs,
    judge_server,
    missing_publications,
)
from wal2lake.commands.preflight.stored import judge_stored
from wal2lake.commands.preflight.tablefindings import judge_tables, judge_unpublished
from wal2lake.errors import FeatureNotSupportedError, PublisherError
from wal2lake.local.node import Caller
from wal2lake.local.ports import HasCatalog, HasSettings
from wal2lake.model import Lsn
from wal2lake.observe import failpoint
from wal2lake.pg import (
    Check,
    Publisher,
    RemoteTable,
    Session,
    connect,
    list_obstacles,
    published_formats,
)
from wal2lake.pgtypes import RemoteType
from wal2lake.sql.backend import Notice

PROTOCOL_VIOLATION: Final = "08P01"
_CONNECTION_FAILURE: Final = "08006"


def connect_publisher(
    node: HasSettings,
    name: str,
    conninfo: str,
    *,
    check: Check,
    must_use_password: bool = False,
) -> Session:
    """Connect under the subscription's name; 08006 if that fails."""
    try:
        return _connect(
            node, name, conninfo, check=check, must_use_password=must_use_password
        )
    except PublisherError as error:
        raise PublisherError(
            f'subscription "{name}" could not connect to the publisher:'
            f" {error.message}",
            sqlstate=_CONNECTION_FAILURE,
            detail=error.detail,
            hint=error.hint or _connect_hint(error.message),
        ) from None


def _connect_hint(message: str) -> str:
    # The messages since PostgreSQL 16, and before.
    refused = ("permission denied to start WAL sender", "to start walsender")
    if any(text in message for text in refused):
        return (
            "ALTER ROLE ... REPLICATION on the publisher (on a managed service, grant its"
            " replication role instead)."
        )
    return (
        "Check host, port, user and password in the connection string, and pg_hba.conf on"
        " the publisher."
    )


def run_preflight(
    node: HasCatalog,
    caller: Caller,
    publisher: Publisher,
    publications: Sequence[str],
    remotes: Mapping[tuple[str, str], RemoteTable],
    needs: Needs,
    *,
    ordinary: Connect | None = None,
) -> PublisherError | None:
    """Send the caller notices about the server, ``remotes``, and their existing local tables.

    Returns the error with which the server would refuse CREATE_REPLICATION_SLOT, or None.
    ``ordinary`` opens a connection without replication, to detect a pooler. None: an earlier
    command has looked for a pooler.
    """
    session = publisher.session
    pooler = None if ordinary is None else ask_pooler(session, ordinary)
    # Our own walsender will be gone when the subscription's begins.
    server = judge_server(ask_server(session, pooler=pooler, own_senders=1), needs)
    tables = ask_tables(session, remotes, publications)
    table_findings = judge_tables(tables, copy=needs.copy)
    for (namespace, name), remote in remotes.items():
        table = node.catalog.table(namespace, name)
        if table is not None:
            table_findings += judge_stored(remote, table)
    if needs.stream:
        table_findings += judge_unpublished(ask_unpublished(session, publications))
    for notice in notices([*server, *merge_findings(table_findings)]):
        caller.notice(notice)
    return next((finding.blocks for finding in server if finding.blocks), None)


def connect_ordinary(
    node: HasSettings,
    name: str,
    conninfo: str,
    answer_seconds: float,
    *,
    check: Check,
    must_use_password: bool,
) -> Session:
    """Connect without replication, with another limit for answers; errors are unchanged."""
    return _connect(
        node,
        name,
        conninfo,
        check=check,
        must_use_password=must_use_password,
        replication=False,
        answer_seconds=answer_seconds,
    )


def _connect(
    node: HasSettings,
    name: str,
    conninfo: str,
    *,
    check: Check,
    must_use_password: bool,
    replication: bool = True,
    answer_seconds: float | None = None,
) -> Session:
    silence_ms = node.settings.subscription.wal_receiver_timeout_ms
    return connect(
        conninfo,
        application_name=name,
        replication=replication,
        answer_timeout_seconds=answer_seconds or silence_ms / 1000 or None,
        must_use_password=must_use_password,
        check=check,
    )


def warn_of_missing(caller: Caller, publisher: Publisher, names: Sequence[str]) -> None:
    """Send a WARNING for publications that do not exist yet, as PostgreSQL does."""
    there = publisher.existing_publications(tuple(names))
    missing = [n for n in names if n not in there]
    if not missing:
        return
    text = missing_publications(missing).text
    caller.notice(Notice(text, severity="WARNING", sqlstate="42704"))


def check_origin_none(
    caller: Caller,
    publisher: Publisher,
    subscription: str,
    publications: Sequence[str],
    *,
    copy_data: bool,
    excluded: Sequence[tuple[str, str]] = (),
) -> None:
    """Refuse origin = none for a publisher without support, and warn about copies.

    A copy is not filtered, so it may bring rows of other origins. Tables in ``excluded`` are not
    copied.

    Source: check_publications_origin().
    """
    if not publisher.knows_origin:
        # The error that pgoutput would return for START_REPLICATION.
        raise FeatureNotSupportedError(
            "unrecognized pgoutput option: origin",
            detail="The publisher is older than PostgreSQL 16.",
            hint="Leave origin at its default, any.",
        )
    if not copy_data:
        return
    written_to = publisher.publications_written_to(tuple(publications), tuple(excluded))
    if not written_to:
        return
    shown = ", ".join(f'"{name}"' for name in written_to)
    tables = (
        f"a publication ({shown}) that contains tables"
        if len(written_to) == 1
        else f"publications ({shown}) that contain tables"
    )
    caller.notice(
        Notice(
            f'subscription "{subscription}" requested copy_data with origin = NONE but'
            " might copy data that had a different origin",
            severity="WARNING",
            sqlstate="55000",
            detail=f"The subscription being created subscribes to {tables} that are"
            " written to by other subscriptions.",
            hint="Verify that initial data copied from the publisher tables did not"
            " come from other origins.",
        )
    )


def notify_format(
    caller: Caller, publisher: Publisher, subscription: str, names: Sequence[str]
) -> tuple[RemoteType, ...]:
    """Return what decoders must know of the published types, for binary = true.

    Sends a NOTICE if a published column has no decoder, so that changes arrive as text."""
    formats = published_formats(publisher, names)
    if formats.obstacles:
        caller.notice(
            Notice(
                f'subscription "{subscription}" receives changes in text format',
                detail=list_obstacles(formats.obstacles),
                hint="The publisher sends all columns in one format. Leave these out of"
                " the publication to receive the others in binary format.",
            )
        )
    return formats.types


def create_slot(
    notice: Callable[[Notice], None],
    publisher: Publisher,
    slot: str,
    *,
    two_phase: bool,
    failover: bool,
) -> Lsn:
    """Create the subscription's slot and return its consistent point."""
    try:
        created = publisher.create_slot(slot, two_phase=two_phase, failover=failover)
    except PublisherError as error:
        raise slot_refused(slot, error) from None
    notice(Notice(f'created replication slot "{slot}" on publisher'))
    failpoint("subscription.slot_created")
    return created.consistent_point


def slot_refused(slot: str, error: PublisherError) -> PublisherError:
    """Wrap the publisher's refusal in the message of PostgreSQL's subscriber."""
    return PublisherError(
        f'could not create replication slot "{slot}": ERROR:  {error.message}',
        sqlstate=PROTOCOL_VIOLATION,
        detail=error.detail,
        hint=error.hint or _slot_hint(error.sqlstate),
    )


def _slot_hint(sqlstate: str) -> str | None:
    return {
        "42710": "Drop the slot on the publisher, choose another slot_name, or use"
        " create_slot = false to take it over.",
        "53400": 'Free one or increase "max_replication_slots" on the publisher.',
        "55000": 'Set "wal_level" to "logical" on the publisher and restart it.',
    }.get(sqlstate)


def connect_to_drop(
    node: HasSettings, subscription: Subscription, check: Check
) -> Session:
    """Connect to drop the subscription's slot."""
    try:
        return _connect(
            node,
            subscription.name,
            subscription.conninfo,
            check=check,
            must_use_password=node.catalog.must_use_password(subscription),
        )
    except PublisherError as error:
        raise PublisherError(
            "could not connect to publisher when attempting to drop replication slot"
            f' "{subscription.slot_name}": {error.message}',
            sqlstate=_CONNECTION_FAILURE,
            hint="Use ALTER SUBSCRIPTION ... DISABLE to disable the subscription, and"
            " then use ALTER SUBSCRIPTION ... SET (slot_name = NONE) to disassociate"
            " it from the slot.",
        ) from None


def drop_slot(session: Session, slot: str, *, missing_ok: bool) -> bool:
    """Drop a slot; False if it did not exist, which is an error without ``missing_ok``."""
    try:
        return Publisher(session).drop_slot(slot, missing_ok=missing_ok)
    except PublisherError as error:
        raise PublisherError(
            f'could not drop replication slot "{slot}" on publisher: ERROR: '
            f" {error.message}",
            sqlstate=_CONNECTION_FAILURE,
            detail=error.detail,
            hint=error.hint,
        ) from None
