"""Keeps the rows and the position of a cursor (DECLARE, FETCH, MOVE, CLOSE).

Comes in: the Outcome of a cursor's query, and the directions of FETCH and MOVE. Goes out: rows.
The executor calls this module; ``prepared`` has the cursors by name, among the portals.

A cursor reads its query as far as FETCH asks. Rows are kept only if they can be asked for again
(SCROLL), or after the end of the transaction (WITH HOLD): a few megabytes in memory, and beyond
that in a temporary file, which has no name.

    position          0 before the first row, n on row n
    at_start, at_end  whether the position is before the first row, behind the last one

Source: src/backend/tcop/pquery.c (DoPortalRunFetch, PortalRunSelect), portalcmds.c.
"""

from __future__ import annotations

import pickle
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, Final

from wal2lake.door.session.commands import Fetch, FetchDirection
from wal2lake.errors import UsageError
from wal2lake.sql.backend import Outcome, ResultBatch

_KEPT_BYTES: Final = 4 << 20
"""The bytes of kept rows that stay in memory. PostgreSQL's work_mem is as large."""


class QueryCursor:
    """The cursor of one portal."""

    __slots__ = (
        "_at_end",
        "_at_start",
        "_failed",
        "_outcome",
        "_position",
        "_rows",
        "scroll",
    )

    def __init__(self, outcome: Outcome, *, scroll: bool) -> None:
        """``scroll``: the cursor can go backward."""
        self.scroll = scroll
        self._outcome = outcome
        self._rows = _CursorRows(outcome, keep=scroll)
        self._position = 0
        self._at_start, self._at_end = True, False
        self._failed = False

    def fetch(self, command: Fetch) -> Iterator[ResultBatch]:
        """Return the rows of a FETCH, which are read as the iterator is. Raises 55000; as in
        PostgreSQL, a cursor that has failed and is still there returns nothing more."""
        if self._failed:
            raise UsageError(f'portal "{command.name}" cannot be run', sqlstate="55000")
        try:
            return self._fetch(command)
        except BaseException:
            self._failed = True
            raise

    def _fetch(self, command: Fetch) -> Iterator[ResultBatch]:
        count = command.count
        match command.direction:
            case FetchDirection.ABSOLUTE:
                return self._absolute(count)
            case FetchDirection.RELATIVE if count:
                skipped = abs(count) - 1
                if count > 0:
                    self._skip(self._forward(skipped) if skipped else iter(()))
                    return self._forward(1)
                self._skip(self._backward(skipped) if skipped else iter(()))
                return self._backward(1)
        is_forward = command.direction is not FetchDirection.BACKWARD
        if count is not None and count < 0:
            is_forward, count = not is_forward, -count
        if count == 0:
            return self._again(is_moved=command.move)
        return self._forward(count) if is_forward else self._backward(count)

    def move(self, command: Fetch) -> int:
        """Move as FETCH does; return the number of rows that FETCH would have returned."""
        return self._skip(self.fetch(command))

    def hold(self) -> None:
        """Keep all rows that can still be asked for; the query ends."""
        self._rows.keep_rest()
        self._outcome.close()

    def close(self) -> None:
        """Discard the rows."""
        self._rows.close()
        self._outcome.close()

    def _absolute(self, count: int | None) -> Iterator[ResultBatch]:
        """FETCH ABSOLUTE, FIRST and LAST."""
        assert count is not None
        if count < 0:
            self._skip(self._forward(None))
            if count < -1:
                self._skip(self._backward(-count - 1))
            return self._backward(1)
        if count > 0 and count > self._position and not self._at_end:
            if count > self._position + 1:
                self._skip(self._forward(count - 1 - self._position))
            return self._forward(1)
        self._rewind()
        if count == 0:
            return iter(())
        if count > 1:
            self._skip(self._forward(count - 1))
        return self._forward(1)

    def _again(self, *, is_moved: bool) -> Iterator[ResultBatch]:
        """FETCH 0: the row at the position once more; MOVE 0 only says whether there is one."""
        if self._at_start or self._at_end:
            return iter(())
        if is_moved:
            return iter((ResultBatch(1, ()),))
        self._skip(self._backward(1))
        return self._forward(1)

    def _rewind(self) -> None:
        if not (self._at_start and not self._at_end and self._position == 0):
            self._check_scroll()
        self._position = 0
        self._at_start, self._at_end = True, False

    def _check_scroll(self) -> None:
        if not self.scroll:
            raise UsageError(
                "cursor can only scan forward",
                sqlstate="55000",
                hint="Declare it with SCROLL option to enable backward scan.",
            )

    def _forward(self, count: int | None) -> Iterator[ResultBatch]:
        """Go forward by ``count`` rows; None: to the end."""
        if self._at_end:
            return iter(())
        return self._run_forward(count)

    def _run_forward(self, count: int | None) -> Iterator[ResultBatch]:
        first, done = self._position, 0
        try:
            for batch in self._rows.forward(first, count):
                done += batch.rows
                yield batch
            self._at_end = count is None or done < count
        finally:
            self._position = first + done
            self._at_start = self._at_start and not done

    def _backward(self, count: int | None) -> Iterator[ResultBatch]:
        """Go backward by ``count`` rows; None: before the first one."""
        self._check_scroll()
        if self._at_start:
            return iter(())
        return self._run_backward(count)

    def _run_backward(self, count: int | None) -> Iterator[ResultBatch]:
        # Before the first row that is returned. Behind the end the last row comes first.
        behind = self._position if self._at_end else self._position - 1
        wanted = behind if count is None else min(count, behind)
        done = 0
        try:
            for batch in self._rows.backward(behind, wanted):
                done += batch.rows
                yield batch
        finally:
            if done:
                self._at_end = False
            if count is None or done < count:
                self._position, self._at_start = 0, True
            else:
                self._position = behind + 1 - done

    def _skip(self, rows: Iterator[ResultBatch]) -> int:
        return sum(batch.rows for batch in rows)


class _CursorRows:
    """The rows of a query, by their numbers from 0 on."""

    __slots__ = ("_batches", "_closed", "_kept", "_pending", "_read")

    def __init__(self, outcome: Outcome, *, keep: bool) -> None:
        self._batches = iter(outcome.batches)
        self._kept = _KeptRows(0) if keep else None
        self._pending: ResultBatch | None = None
        """Rows that were read and not returned, if none are kept."""
        self._read = 0
        """Rows that were returned, if none are kept."""
        self._closed = False

    def forward(self, first: int, count: int | None) -> Iterator[ResultBatch]:
        """Yield ``count`` rows from row ``first`` on; fewer at the end."""
        left = count
        while left is None or left > 0:
            self._check_open()
            batch = self._from(first)
            if batch is None:
                return
            if left is not None and batch.rows > left:
                if self._kept is None:
                    self._pending = _cut(batch, left, batch.rows)
                batch = _cut(batch, 0, left)
            first += batch.rows
            self._read = first
            if left is not None:
                left -= batch.rows
            yield batch

    def backward(self, behind: int, count: int) -> Iterator[ResultBatch]:
        """Yield the ``count`` rows before row ``behind``, the last one first."""
        assert self._kept is not None
        while count > 0:
            self._check_open()
            batch = self._kept.before(behind)
            batch = _cut(batch, max(0, batch.rows - count), batch.rows)
            columns = tuple(tuple(reversed(column)) for column in batch.columns)
            behind -= batch.rows
            count -= batch.rows
            yield ResultBatch(batch.rows, columns)

    def keep_rest(self) -> None:
        """Read all rows, and keep those that can be asked for."""
        if self._kept is None:
            self._kept = _KeptRows(self._read)
            if self._pending is not None:
                self._kept.append(self._pending)
                self._pending = None
        for batch in self._batches:
            self._kept.append(batch)

    def close(self) -> None:
        """Discard all rows."""
        self._closed = True
        self._batches, self._pending = iter(()), None
        if self._kept is not None:
            self._kept.close()

    def _check_open(self) -> None:
        """Raise 34000 in a FETCH that a row limit has interrupted and whose cursor is gone."""
        if self._closed:
            raise UsageError("the cursor of this FETCH was closed", sqlstate="34000")

    def _from(self, number: int) -> ResultBatch | None:
        """Return rows that begin with this one, or None at the end."""
        if self._kept is None:
            batch, self._pending = self._pending, None
            return batch or self._next()
        while number >= self._kept.end:
            batch = self._next()
            if batch is None:
                return None
            self._kept.append(batch)
        return self._kept.after(number)

    def _next(self) -> ResultBatch | None:
        return next((batch for batch in self._batches if batch.rows), None)


@dataclass(frozen=True, slots=True)
class _Part:
    """Kept rows: a batch, or its place in the file."""

    first: int
    rows: int
    batch: ResultBatch | None
    place: int


class _KeptRows:
    """Rows that may be read again, in memory or in a temporary file."""

    __slots__ = ("_bytes", "_file", "_parts", "end")

    def __init__(self, first: int) -> None:
        """``first``: number of the first row that is kept."""
        self.end = first
        """Number of the row behind the last one."""
        self._parts: list[_Part] = []
        self._bytes = 0
        self._file: IO[bytes] | None = None

    def append(self, batch: ResultBatch) -> None:
        """Keep the next rows."""
        if not batch.rows:
            return
        columns = tuple(tuple(column) for column in batch.columns)
        size = sum(len(v) for column in columns for v in column if v is not None)
        self._bytes += size
        part = _Part(self.end, batch.rows, ResultBatch(batch.rows, columns), 0)
        if self._bytes > _KEPT_BYTES:
            part = _Part(self.end, batch.rows, None, self._write(columns))
        self._parts.append(part)
        self.end += batch.rows

    def after(self, number: int) -> ResultBatch:
        """Return kept rows that begin with row ``number``."""
        part = self._part_of(number)
        return _cut(self._batch(part), number - part.first, part.rows)

    def before(self, number: int) -> ResultBatch:
        """Return kept rows that end before row ``number``."""
        part = self._part_of(number - 1)
        return _cut(self._batch(part), 0, number - part.first)

    def close(self) -> None:
        """Discard the rows."""
        self._parts.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    def _part_of(self, number: int) -> _Part:
        low, high = 0, len(self._parts)
        while high - low > 1:
            middle = (low + high) // 2
            if self._parts[middle].first <= number:
                low = middle
            else:
                high = middle
        return self._parts[low]

    def _write(self, columns: tuple[tuple[bytes | None, ...], ...]) -> int:
        if self._file is None:
            self._file = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the cursor
        place = self._file.seek(0, 2)
        pickle.dump(columns, self._file, pickle.HIGHEST_PROTOCOL)
        return place

    def _batch(self, part: _Part) -> ResultBatch:
        if part.batch is not None:
            return part.batch
        assert self._file is not None
        self._file.seek(part.place)
        columns: tuple[Any, ...] = pickle.load(self._file)
        return ResultBatch(part.rows, columns)


def _cut(batch: ResultBatch, start: int, stop: int) -> ResultBatch:
    if start == 0 and stop == batch.rows:
        return batch
    columns = tuple(column[start:stop] for column in batch.columns)
    return ResultBatch(stop - start, columns)
