"""Reads whole rows of a batch, event by event, and records them for the table's history.

Comes in: a loaded run, and the rows that its events found and made (``lives``). Goes out: rows of
the history table, in log order. Called by ``plan`` and ``runs.whole``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from wal2lake.errors import InternalError
from wal2lake.lake.delta.datafile import TableWriter
from wal2lake.lake.origins import BatchCommits
from wal2lake.lake.port import TableState
from wal2lake.lake.staging.historyrows import HistoryOp, HistoryTarget, history_rows
from wal2lake.lake.staging.layout import ChangeShape
from wal2lake.lake.tablefiles import AddedFile
from wal2lake.lake.upsert.judging import ConflictRules
from wal2lake.lake.upsert.keys import Places
from wal2lake.lake.upsert.lives.lives import (
    STORED,
    HeldRow,
    Index,
)
from wal2lake.lake.upsert.lives.steps import LifeSteps, RowRefs
from wal2lake.lake.upsert.locating import LoadedRun, in_log_order
from wal2lake.lake.upsert.memory import Share
from wal2lake.lake.upsert.stored import StoredRows

WALKED_AT_ONCE: Final = 100_000
"""Most events whose rows are looked at together. It bounds the memory of the walk's values."""


class MetRows:
    """Stored rows that an expression will see. Each row is read, and its memory counted, once."""

    def __init__(
        self, places: Places, stored: StoredRows, columns: Sequence[int], share: Share
    ) -> None:
        self._places = places
        self._stored = stored
        self._columns = list(columns)
        self._share = share
        self._at: dict[int, int] = {}
        self._rows: pa.Table | None = None

    def of(self, keys: Sequence[int]) -> pa.Table:
        """Return all columns of keys that the table holds; TooLarge as in ``fetch``."""
        new = [key for key in dict.fromkeys(keys) if key not in self._at]
        if new:
            places = self._places
            order = np.argsort(places.key, kind="stable")
            ranks = np.searchsorted(places.key, np.array(new), sorter=order)
            numbers = order[ranks]
            rows = self._stored.fetch(
                places.file[numbers], places.row[numbers], self._columns, self._share
            )
            if self._rows is not None:
                rows = pa.concat_tables([self._rows, rows])
            self._rows = rows
            self._at |= {key: len(self._at) + i for i, key in enumerate(new)}
        if self._rows is None:
            raise InternalError("no stored row is requested")
        return self._rows.take(pa.array([self._at[key] for key in keys]))


def rows_of_lives(
    loaded: LoadedRun,
    rows: Sequence[HeldRow],
    unknown: Sequence[int],
    met: MetRows,
) -> pa.Table:
    """Return the values of rows, all columns."""
    return rows_of_refs(loaded, RowRefs.of(rows, unknown), met)


def rows_of_refs(loaded: LoadedRun, rows: RowRefs, met: MetRows) -> pa.Table:
    """Return the values of rows that all exist, all columns."""
    last = rows.last
    taken = [rows.sources.get(i, last) for i in range(len(loaded.shape.fields))]
    taken = [np.where(last == STORED, STORED, source) for source in taken]
    needs = np.zeros(len(last), np.bool_)
    for source in taken:
        needs |= source == STORED
    old: pa.Table | None = None
    if needs.any():
        old = met.of(rows.base[needs].tolist())
    place = np.cumsum(needs) - 1 + loaded.table.num_rows
    arrays = []
    for i, source in enumerate(taken):
        values = loaded.table.column(f"n{i}")
        if old is not None:
            chunks = [*values.chunks, *old.column(i).chunks]
            values = pa.chunked_array(chunks, values.type)
        arrays.append(values.take(pa.array(np.where(source == STORED, place, source))))
    return pa.table(arrays, names=[field.name for field in loaded.shape.fields])


def append_recorded(
    shape: ChangeShape,
    tables: Iterable[pa.Table],
    state: TableState,
    target: HistoryTarget,
    commits: BatchCommits | None,
) -> tuple[tuple[AddedFile, ...], tuple[AddedFile, ...]]:
    """Write INSERTs that meet no row, and their history: files of the table, and of the history
    table. One staged table is in memory at a time."""
    with (
        TableWriter(state.location, state.physical_fields) as rows,
        TableWriter(target.state.location, target.state.physical_fields) as history,
    ):
        for table in map(in_log_order, tables):
            new = inserted_rows(shape, table)
            lsn = table.column("lsn").to_numpy()
            ordinal = table.column("ord").to_numpy()
            ops = [HistoryOp.INSERT] * table.num_rows
            history.write_all(history_rows(target, ops, lsn, ordinal, None, new))
            rows.write_all(new if commits is None else commits.of(lsn).appended(new))
        return rows.finish(), history.finish()


def inserted_rows(shape: ChangeShape, table: pa.Table) -> pa.Table:
    """Return the new rows of staged INSERTs, in the table's columns."""
    return pa.table(
        [table.column(f"n{i}") for i in range(len(shape.fields))],
        names=[field.name for field in shape.fields],
    )


class HistoryRecorder:
    """Collects the history of one batch of one table."""

    def __init__(self, target: HistoryTarget, rules: ConflictRules) -> None:
        self._target = target
        self._rules = rules
        self._parts: list[pa.Table] = []

    def mark(self) -> int:
        """Return a mark for ``undo``."""
        return len(self._parts)

    def undo(self, mark: int) -> None:
        """Forget what was recorded since ``mark``."""
        del self._parts[mark:]

    def truncate(self, event: pa.Table) -> None:
        """Record a TRUNCATE."""
        self._add(event, [HistoryOp.TRUNCATE], [0], None, None)

    def insert(self, loaded: LoadedRun) -> None:
        """Record a batch of INSERTs of which each is a row."""
        table = loaded.table
        new = inserted_rows(loaded.shape, table)
        count = table.num_rows
        events = range(count)
        self._add(table, [HistoryOp.INSERT] * count, events, None, new)

    def change(self, loaded: LoadedRun, steps: LifeSteps | None, met: MetRows) -> None:
        """Record the effects of events."""
        if steps is None:
            raise InternalError("the effects of events were not recorded")
        for start in range(0, len(steps.event), WALKED_AT_ONCE):
            part = steps.take(slice(start, start + WALKED_AT_ONCE))
            existed, made = part.before.exists, part.after.exists
            ops = np.where(existed, HistoryOp.DELETE.value, HistoryOp.INSERT.value)
            ops = np.where(existed & made, HistoryOp.UPDATE.value, ops)
            old = self._rows(loaded, part.before, met)
            new = self._rows(loaded, part.after, met)
            self._add(loaded.table, ops.tolist(), part.event, old, new)

    def _rows(self, loaded: LoadedRun, rows: RowRefs, met: MetRows) -> pa.Table | None:
        """Return the rows' values, null where there is no row."""
        if not rows.exists.any():
            return None
        held = rows.take(np.flatnonzero(rows.exists))
        values = rows_of_refs(loaded, held, met)
        made = held.last != STORED
        fields = loaded.shape.fields
        values = self._rules.computed(fields, values, made)[0]
        places = np.cumsum(rows.exists) - 1
        return values.take(pa.array(places, mask=~rows.exists))

    def _add(
        self,
        table: pa.Table,
        ops: Sequence[str],
        events: Sequence[int] | Index,
        old: pa.Table | None,
        new: pa.Table | None,
    ) -> None:
        where = np.asarray(events, np.int64)
        self._parts.append(
            history_rows(
                self._target,
                ops,
                table.column("lsn").to_numpy()[where],
                table.column("ord").to_numpy()[where],
                old,
                new,
            )
        )

    def write(self) -> tuple[AddedFile, ...]:
        """Write the rows to files in the history table's directory, which are durable but not
        part of the table."""
        state = self._target.state
        with TableWriter(state.location, state.physical_fields) as writer:
            for part in self._parts:
                writer.write_all(part)
            return writer.finish()
