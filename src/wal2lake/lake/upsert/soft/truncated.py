"""Evaluates a TRUNCATE of a table that keeps deleted rows: it marks all rows.

Comes in: a batch with TRUNCATEs, the table's live files. Goes out: new files, and the present ones
that are removed. Called by ``plan``, which evaluates the changes after the last TRUNCATE, on a
table without rows.

    changes │ T │ changes │ T │ changes after the last one
       ▼      ▼      ▼      ▼        ▼
    rows that end, and those that each T ends, in log order ──▶ the last one of each key
    rows of the table that no change concerns ──▶ marked by the first T, a row group at a time

The changes before each TRUNCATE are evaluated on the rows that the TRUNCATE before it has left: at
first the table's rows, then none. Conflicts among them are not reported, as in any table. In a
table with a key, a row that ends later, or comes after the last TRUNCATE, takes the place of an
earlier one with its key, stored rows included. All of the table is rewritten, but only a row group
is in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal2lake.errors import InternalError
from wal2lake.lake.delta.datafile import TableWriter
from wal2lake.lake.delta.deletionvectors import united_rows
from wal2lake.lake.port import TableState
from wal2lake.lake.staging.layout import TRUNCATE
from wal2lake.lake.tablefiles import AddedFile, DataFile
from wal2lake.lake.upsert.files.livefiles import LiveFiles
from wal2lake.lake.upsert.judging import AS_POSTGRESQL, ConflictRules
from wal2lake.lake.upsert.keys import Index, open_keys
from wal2lake.lake.upsert.lives.endings import endings
from wal2lake.lake.upsert.lives.lives import Lives, net_lives
from wal2lake.lake.upsert.lives.steps import RowRefs
from wal2lake.lake.upsert.locating import LoadedRun, find_rows
from wal2lake.lake.upsert.memory import Share
from wal2lake.lake.upsert.recorded import MetRows, inserted_rows, rows_of_refs
from wal2lake.lake.upsert.soft.kept import kept_rows, marked_rows
from wal2lake.lake.upsert.stored import StoredRows
from wal2lake.pgtypes.equality import loose_columns

Rows = npt.NDArray[np.uint64]

_NO_ROWS: Final = np.zeros(0, np.uint64)


class Truncated:
    """A table that a batch truncates at least once."""

    def __init__(
        self,
        loaded: LoadedRun,
        rules: ConflictRules,
        earlier: Sequence[pa.Table],
        state: TableState,
        files: Sequence[DataFile],
        share: Share,
        directory: str,
    ) -> None:
        """``earlier``: the changes up to the last TRUNCATE, in parts that each end with one."""
        self._loaded = loaded
        self._rules = rules
        self._state = state
        self._files = files
        self._share = share
        self._directory = directory
        self._ended: list[pa.Table] = []
        """Marked rows, in the order in which they ended."""
        self._replaced: dict[str, Rows] = {}
        """Stored rows that a change has ended, by file."""
        live = files
        # Where the first TRUNCATE is: it marks the rows that no change concerns.
        self._first = int(earlier[0].column("lsn")[-1].as_py())
        for part in earlier:
            changes, end = (
                part.slice(0, part.num_rows - 1),
                part.slice(part.num_rows - 1),
            )
            if end.column("op")[0].as_py() != TRUNCATE:
                raise InternalError("changes before a TRUNCATE do not end with one")
            lsn = int(end.column("lsn")[0].as_py())
            if changes.num_rows:
                self._end(replace(loaded, table=changes), live, lsn)
            live = ()

    def _end(
        self, loaded: LoadedRun, files: Sequence[DataFile], truncated: int
    ) -> None:
        """Add the rows that changes end, and those that they leave for the TRUNCATE."""
        shape = loaded.shape
        if not shape.key:
            self._truncate(inserted_rows(shape, loaded.table), truncated)
            return
        rules = replace(AS_POSTGRESQL, soft=self._rules.soft)
        live = LiveFiles(self._state, files)
        located = find_rows(
            loaded, self._state, live, self._share, self._directory, rules, None
        )
        lives = net_lives(located.events, located.present, unique=False, record=True)
        if not isinstance(lives, Lives) or lives.steps is None:
            raise InternalError("changes before a TRUNCATE cannot be reduced")
        met = MetRows(
            located.places, located.stored, range(len(shape.fields)), self._share
        )
        ended = endings(lives.steps, located.events, repeats=shape.repeats)
        lsn = loaded.table.column("lsn").to_numpy()[ended.event]
        self.ended(kept_rows(loaded, ended.rows, lsn, met, self._rules), lsn)
        exists = np.ones(len(lives.last), np.bool_)
        left = RowRefs(exists, lives.base, lives.last, lives.sources)
        if len(lives.last):
            self._truncate(rows_of_refs(loaded, left, met), truncated)
        goes = np.isin(located.places.key, lives.removed)
        for number in np.unique(located.places.file[goes]).tolist():
            here = goes & (located.places.file == number)
            rows = located.places.row[here].astype(np.uint64)
            self._replaced[located.stored.files[number].key] = rows

    def ended(self, rows: pa.Table, lsn: Index) -> None:
        """Add marked rows, which have ended with the transactions at ``lsn``, after all earlier
        ones."""
        if rows.num_rows:
            self._ended.append(self._written(rows, lsn))

    def _truncate(self, rows: pa.Table, lsn: int) -> None:
        """Add rows that a TRUNCATE ends."""
        lsns = np.full(rows.num_rows, lsn, np.int64)
        self.ended(marked_rows(self._loaded, rows, lsns, self._rules), lsns)

    def _written(self, rows: pa.Table, lsn: Index) -> pa.Table:
        commits = self._rules.commits
        return rows if commits is None else commits.of(lsn).appended(rows)

    def write(
        self, present: pa.Table | None
    ) -> tuple[tuple[AddedFile, ...], tuple[tuple[DataFile, Index], ...]]:
        """Write all rows: those that are ``present`` after the batch, and the marked ones. Return
        the new files, and the present files that lose rows, with the rows' numbers."""
        ended = self._last_of_each_key(present)
        adds: tuple[AddedFile, ...] = ()
        stored = StoredRows(self._state, self._files)
        gone: dict[int, list[Rows]] = {}
        with TableWriter(self._state.location, self._state.physical_fields) as writer:
            for rows in ([] if present is None else [present]) + ended:
                writer.write_all(rows)
            for number, places, rows in self._marked_anew(stored):
                gone.setdefault(number, []).append(places)
                if rows is not None:
                    writer.write_all(rows)
            adds = writer.finish()
        return adds, tuple(
            (stored.files[number], np.concatenate(parts).astype(np.int64))
            for number, parts in gone.items()
        )

    def _marked_anew(
        self, stored: StoredRows
    ) -> Iterator[tuple[int, Rows, pa.Table | None]]:
        """Yield, by file, rows that go, and those of them that come back marked."""
        assert self._rules.soft is not None
        column = self._rules.soft.column
        names = [field.name for field in self._state.fields]
        for number, places, rows in stored.live_places(range(len(names))):
            replaced = self._replaced.get(stored.files[number].key, _NO_ROWS)
            has_other = np.isin(places, replaced)
            live = rows.column(column).is_null().to_numpy() & ~has_other
            if not (live | has_other).any():
                continue
            marked: pa.Table | None = None
            if live.any():
                marked = rows.select(names).filter(pa.array(live))
                lsn = np.full(marked.num_rows, self._first, np.int64)
                marked = marked_rows(self._loaded, marked, lsn, self._rules)
                marked = self._written(marked, lsn)
            yield number, places[live | has_other], marked

    def _last_of_each_key(self, present: pa.Table | None) -> list[pa.Table]:
        """Return the marked rows that stay, and note the stored rows with keys of any rows."""
        shape = self._loaded.shape
        key = () if shape.repeats else shape.key
        if not key:
            return self._ended
        count = sum(rows.num_rows for rows in self._ended)
        tables = [*self._ended, *([] if present is None else [present])]
        if not sum(rows.num_rows for rows in tables):
            return []
        columns = [
            pa.chunked_array([c for rows in tables for c in rows.column(i).chunks])
            for i in key
        ]
        loose = loose_columns(shape.fields, key)
        stored = StoredRows(self._state, self._files)
        with open_keys(columns, self._directory, loose=loose) as keys:
            numbers, here = keys.numbers[:count], np.arange(count)
            last = np.full(keys.count, -1, np.int64)
            np.maximum.at(last, numbers, here)
            last[keys.numbers[count:]] = -1
            stays = last[numbers] == here
            places = stored.locate(keys, key)
        for number in np.unique(places.file).tolist():
            rows = places.row[places.file == number].astype(np.uint64)
            name = stored.files[number].key
            removed = self._replaced.get(name, _NO_ROWS)
            self._replaced[name] = united_rows(removed, rows)
        return [pa.concat_tables(self._ended).filter(pa.array(stays))] if count else []
