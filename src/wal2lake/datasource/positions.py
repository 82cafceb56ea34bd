"""Positions of a stream in a change log, and the parts of the log between two of them.

Comes in: a ``LogReader``. Goes out: positions, and ``LogSlice``s, one for each segment. A position
P has been read if every transaction whose commit LSN is below P has been; P is the end of the last
one. A micro-batch therefore has whole transactions, and a position that Spark's checkpoint has
kept means the same after a restart.

The log keeps segments for a time only (``[log] history_bytes``, and what apply still needs). A
position carries the number of the last segment that has been read as a whole, because segments are
numbered without a gap: if the next one is missing, transactions are missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from wal2lake.changelog import LogReader, Manifest, Step
from wal2lake.errors import UsageError
from wal2lake.lake.staging import LogSource
from wal2lake.model import INVALID_LSN, Lsn

EARLIEST = "earliest"
LATEST = "latest"


@dataclass(frozen=True, slots=True)
class LogPosition:
    """A place between two transactions of a log."""

    lsn: Lsn = INVALID_LSN
    """Transactions that commit at or above it follow."""
    segment: int = 0
    """Number of the last segment that lies below it as a whole; 0 for none."""

    def to_json(self) -> dict[str, Any]:
        """Return the offset that Spark keeps in a checkpoint."""
        return {"lsn": str(self.lsn), "segment": self.segment}

    @classmethod
    def from_json(cls, offset: Mapping[str, Any]) -> LogPosition:
        """Read an offset. UsageError (22023) if it is not one."""
        try:
            return cls(Lsn.parse(offset["lsn"]), int(offset["segment"]))
        except (KeyError, TypeError, ValueError, UsageError) as error:
            raise UsageError(
                f"the checkpoint has an offset that is not of this source: {offset}",
                sqlstate="22023",
                hint="Start the query with a new checkpoint location.",
            ) from error


@dataclass(frozen=True, slots=True)
class LogSlice:
    """The transactions of one segment with begin <= commit LSN < end."""

    number: int
    transactions: str
    """Path of the transactions file."""
    files: tuple[LogSource, ...]
    begin: Lsn
    end: Lsn | None
    """None for the end of the segment."""
    left_out: frozenset[int] = frozenset()
    """Commit LSNs of transactions that are no commits: PREPARE and ROLLBACK PREPARED."""


def starting_position(reader: LogReader, start: str) -> LogPosition:
    """Return the position that an option names: earliest, latest or an LSN.

    UsageError 22023 if it is not one of these, 55000 if the log does not reach back to the LSN.
    """
    if start.lower() == LATEST:
        newest = reader.newest()
        if newest is None:
            return LogPosition()
        return LogPosition(newest.sealed_lsn, newest.number)
    if start.lower() == EARLIEST:
        return _oldest(reader)
    try:
        lsn = Lsn.parse(start)
    except (ValueError, UsageError) as error:
        raise UsageError(
            f'invalid value for option "startingLsn": "{start}"',
            sqlstate="22023",
            hint='Valid values are "earliest", "latest" and a position such as "0/15E2A8".',
        ) from error
    oldest = _oldest(reader)
    if lsn < oldest.lsn and oldest.segment:
        raise _given_up(lsn, oldest)
    return held_position(reader, lsn)


def held_position(reader: LogReader, lsn: Lsn) -> LogPosition:
    """Return a position from which the log is known to be complete, because a slot holds it."""
    following = reader.above(lsn)
    if following:
        return LogPosition(lsn, following[0].number - 1)
    newest = reader.newest()
    return LogPosition(lsn, 0 if newest is None else newest.number)


def ending_position(reader: LogReader, end: str) -> LogPosition:
    """Return the position that a batch read ends at: latest or an LSN (exclusive)."""
    newest = starting_position(reader, LATEST)
    if end.lower() == LATEST:
        return newest
    try:
        lsn = Lsn.parse(end)
    except (ValueError, UsageError) as error:
        raise UsageError(
            f'invalid value for option "endingLsn": "{end}"',
            sqlstate="22023",
            hint='Valid values are "latest" and a position such as "0/15E2A8".',
        ) from error
    if lsn > newest.lsn:
        raise UsageError(
            f"the change log ends at {newest.lsn}, before {lsn}",
            sqlstate="55000",
            hint="Wait until the node has received the position, or read to an earlier one.",
        )
    following = reader.above(lsn)
    number = following[0].number - 1 if following else newest.segment
    return LogPosition(lsn, number)


def advanced(reader: LogReader, start: LogPosition, rows: int | None) -> LogPosition:
    """Return the position after at most ``rows`` row changes, in whole transactions.

    A transaction that has more is read alone. None: the end of the log.
    """
    if rows is None:
        newest = reader.newest()
        if newest is None or newest.number <= start.segment:
            return start
        return LogPosition(max(start.lsn, newest.sealed_lsn), newest.number)
    position, room = start, rows
    for manifest in _following(reader, start):
        ends, changes = _transactions(reader, manifest, start.lsn)
        total = int(changes.sum())
        if total > room:
            return _inside(position, ends, changes, room, begun=room < rows)
        room -= total
        position = LogPosition(max(position.lsn, manifest.sealed_lsn), manifest.number)
    return position


def slices(reader: LogReader, start: LogPosition, end: LogPosition) -> list[LogSlice]:
    """Return the parts of the log between two positions. UsageError (55000) if the log has given
    up some of it."""
    if start.lsn >= end.lsn:
        return []
    parts = []
    for manifest in _following(reader, start):
        is_whole = manifest.number <= end.segment
        part = _slice(reader, manifest, start.lsn, None if is_whole else end)
        if part.files:
            parts.append(part)
        if not is_whole:
            break
    return parts


def _following(reader: LogReader, start: LogPosition) -> Iterator[Manifest]:
    """Yield the segments that are not below a position as a whole."""
    number = start.segment
    for manifest in reader.after(number):
        if manifest.number != number + 1:
            raise _given_up(start.lsn, _oldest(reader))
        number = manifest.number
        yield manifest
    newest = reader.newest()
    if newest is not None and newest.number < start.segment:
        raise UsageError(
            f"the change log was begun anew behind position {start.lsn}",
            sqlstate="55000",
            detail="The subscription has been copied again, or was created again.",
            hint="Read the tables once more, and start the query with a new checkpoint"
            f" location from {_oldest(reader).lsn} on.",
        )


def _slice(
    reader: LogReader, manifest: Manifest, begin: Lsn, end: LogPosition | None
) -> LogSlice:
    cut = None if end is None else end.lsn
    files = tuple(
        LogSource(
            str(reader.path(rows.file)),
            rows.relation,
            rows.rows,
            rows.file.size,
            None if rows.commit_lsn is None else int(rows.commit_lsn),
            rows.rolled_back,
        )
        for rows in manifest.files
        if rows.max_commit_lsn >= begin and (cut is None or rows.min_commit_lsn < cut)
    )
    steps = {} if manifest.captured is None else manifest.captured.steps
    left_out = frozenset(
        int(lsn) for lsn, (step, _) in steps.items() if step is not Step.COMMIT
    )
    path = str(reader.path(manifest.transactions_file))
    return LogSlice(manifest.number, path, files, begin, cut, left_out)


def _transactions(reader: LogReader, manifest: Manifest, begin: Lsn) -> tuple[Any, Any]:
    """Return end LSN and number of changes of a segment's transactions from a position on."""
    table = reader.read(
        manifest.transactions_file, ["commit_lsn", "end_lsn", "changes"]
    )
    first = np.searchsorted(table.column("commit_lsn").to_numpy(), int(begin))
    table = table.slice(int(first))
    return table.column("end_lsn").to_numpy(), table.column("changes").to_numpy()


def _inside(
    position: LogPosition, ends: Any, changes: Any, room: int, *, begun: bool
) -> LogPosition:
    """Return the position within the next segment after as many transactions as there is room
    for, at least one if none has been chosen yet."""
    count = int(np.searchsorted(np.cumsum(changes), room, side="right"))
    if count == 0:
        if begun:
            return position
        count = 1
    return LogPosition(Lsn(int(ends[count - 1])), position.segment)


def _oldest(reader: LogReader) -> LogPosition:
    """Return the first position from which the log is complete."""
    numbers = reader.numbers()
    for manifest in reader.load(numbers):
        lsn = manifest.first_commit_lsn or manifest.sealed_lsn
        return LogPosition(lsn, manifest.number - 1)
    return LogPosition()


def _given_up(lsn: Lsn, oldest: LogPosition) -> UsageError:
    return UsageError(
        f"the change log no longer has the changes from {lsn} on",
        sqlstate="55000",
        detail=f"Its first transaction commits at {oldest.lsn}.",
        hint="Read the tables once more, and start the query with a new checkpoint location"
        f' and startingLsn "{oldest.lsn}". A larger log.history_bytes keeps more.',
    )
