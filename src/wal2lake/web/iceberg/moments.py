"""Says which moment a warehouse's name means. Pure.

    latest                           the newest moment, at each request
    now                              the newest moment, when the client asks for its configuration
    lsn-0-16B3748                    the newest one at or below the LSN 0/16B3748
    lsn-0-16B3748@shop               the same, if the node has several subscriptions
    at-2026-11-25T10:00:00Z          the newest one that was published at or before this time
    moment-1764064800000             the one with this number

A client gets the last form as its prefix, so all that it reads is of one moment; only ``latest``
stays what it is. A moment that is no longer kept, or that has not come yet, is an error and never
another moment.

Positions are compared from the newest moment backwards while they fall: a higher one before belongs
to the WAL of an earlier source.

Called by: ``routes``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from wal2lake.catalog import MirrorMoment
from wal2lake.model import Lsn, Oid
from wal2lake.web.iceberg.answers import CatalogRefusal, bad_request

LATEST: Final = "latest"
NOW: Final = "now"

_LSN: Final = re.compile(r"lsn-([0-9A-Fa-f]{1,8})-([0-9A-Fa-f]{1,8})(?:@(.+))?", re.S)
_NUMBER: Final = re.compile(r"moment-([0-9]{1,18})")

FORMS: Final = (
    "latest, now, lsn-0-16B3748, lsn-0-16B3748@subscription or at-2026-11-25T10:00:00Z"
)
"""The names, for messages."""

Moments = Sequence[MirrorMoment]


class NoSuchMoment(CatalogRefusal):
    """A moment that is not kept any more, has not come, or never will."""

    def __init__(self, message: str) -> None:
        super().__init__(404, "NoSuchWarehouseException", message)


def moment_of(
    name: str, moments: Moments, subscriptions: Mapping[Oid, str]
) -> MirrorMoment | None:
    """Return the moment that a name means; None for the newest one of a node that has none yet.
    ``moments``: oldest first. Raises NoSuchMoment, or CatalogRefusal (400) for a
    name that says too little."""
    if name in (LATEST, NOW):
        return moments[-1] if moments else None
    numbered = _NUMBER.fullmatch(name)
    if numbered is not None:
        return _numbered(int(numbered[1]), moments)
    position = _LSN.fullmatch(name)
    if position is not None:
        lsn = Lsn(int(position[1], 16) << 32 | int(position[2], 16))
        return _at_position(lsn, position[3], moments, subscriptions)
    if name.startswith("at-"):
        return _at_time(name.removeprefix("at-"), moments)
    raise NoSuchMoment(f'there is no warehouse "{name}": it is {FORMS}')


def prefix_of(name: str, moment: MirrorMoment | None) -> str:
    """Return the prefix of the paths of a client that has asked for a moment."""
    if name == LATEST or moment is None:
        return LATEST
    return f"moment-{moment.number}"


def _numbered(number: int, moments: Moments) -> MirrorMoment:
    for moment in reversed(moments):
        if moment.number == number:
            return moment
    raise _gone(f"moment {number}")


def _at_position(
    lsn: Lsn,
    name: str | None,
    moments: Moments,
    subscriptions: Mapping[Oid, str],
) -> MirrorMoment:
    if not moments:
        raise _ahead(f"LSN {lsn}", "nothing is mirrored yet")
    subid = _subscription(name, moments[-1], subscriptions)
    newest = moments[-1].positions[subid][1]
    if lsn > newest:
        raise _ahead(f"LSN {lsn}", f"the newest moment is at {newest}")
    last = newest
    for moment in reversed(moments):
        if subid not in moment.positions or moment.positions[subid][1] > last:
            break
        first, last = moment.positions[subid]
        if first <= lsn:
            return moment
        last = first
    raise _gone(f"LSN {lsn}")


def _subscription(
    name: str | None, newest: MirrorMoment, subscriptions: Mapping[Oid, str]
) -> Oid:
    """Return the subscription whose positions are meant."""
    mirrored = {
        subscriptions[subid]: subid
        for subid in newest.positions
        if subid in subscriptions
    }
    if name is not None:
        if name not in mirrored:
            raise NoSuchMoment(f'subscription "{name}" has no mirrored tables')
        return mirrored[name]
    if len(mirrored) != 1:
        choice = (
            " or ".join(f"@{choosable}" for choosable in sorted(mirrored)) or "none"
        )
        raise bad_request(
            "an LSN is a position of one subscription's source: add the subscription to the"
            f" warehouse's name ({choice})"
        )
    return next(iter(mirrored.values()))


def _at_time(text: str, moments: Moments) -> MirrorMoment:
    try:
        time = datetime.fromisoformat(text)
        if time.tzinfo is None:
            raise ValueError("no time zone")
        time_ms = int(time.timestamp() * 1000)
    except (ValueError, OverflowError):
        raise bad_request(
            f'"{text}" is no time with a time zone, like 2026-11-25T10:00:00Z'
        ) from None
    if not moments:
        raise _ahead(text, "nothing is mirrored yet")
    if time_ms > moments[-1].until_ms:
        until = datetime.fromtimestamp(moments[-1].until_ms / 1000, UTC)
        raise _ahead(text, f"the newest moment is known until {_shown(until)}")
    for moment in reversed(moments):
        if moment.since_ms <= time_ms:
            return moment
    raise _gone(text)


def _shown(time: datetime) -> str:
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _gone(what: str) -> NoSuchMoment:
    return NoSuchMoment(
        f"{what} is no longer kept: moments stay for iceberg.history_ms, and begin with the first"
        " mirror"
    )


def _ahead(what: str, newest: str) -> NoSuchMoment:
    return NoSuchMoment(f"{what} lies ahead: {newest}")
