"""Loads a staged batch, and finds the stored rows that its events mean.

Comes in: staged changes, the table's state and its live files. Goes out: the events in log order
with numbered keys, and the places of those keys in the files. Called by ``plan`` and ``recorded``.

Only files whose key columns can hold one of the batch's keys are read, and only those columns.
Rows of a table without a key are numbered by their contents (``occurrences``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.lake.keyindex import KeyIndex
from wal2lake.lake.partitions import value_of, values_in
from wal2lake.lake.port import PhysicalField, TableState
from wal2lake.lake.staging.convert import mapping_of
from wal2lake.lake.staging.layout import DELETE, TRUNCATE, ChangeShape, Seq
from wal2lake.lake.tablefiles import DataFile
from wal2lake.lake.upsert.files.livefiles import LiveFiles
from wal2lake.lake.upsert.judging import ConflictRules
from wal2lake.lake.upsert.keys import Looseness, Places, open_keys
from wal2lake.lake.upsert.lives.deferral import first_repeated
from wal2lake.lake.upsert.lives.lives import (
    NOT_MOVED,
    Events,
    Lives,
    Mask,
    net_lives,
)
from wal2lake.lake.upsert.lives.marks import NO_PLACES, DeletionMarks, split_places
from wal2lake.lake.upsert.lives.occurrences import Occurrences, by_occurrence
from wal2lake.lake.upsert.memory import Share
from wal2lake.lake.upsert.stored import StoredRows
from wal2lake.model import ConflictType, Resolution
from wal2lake.pgtypes.equality import loose_columns

_CHECKED_COLUMNS: Final = 2
"""Number of key columns whose statistics are checked for files that may hold the keys."""


@dataclass(frozen=True, slots=True)
class LoadedRun:
    """Staged changes in memory, in log order: some of those after the last TRUNCATE, or, for a
    history or deleted rows that stay, some of those before it."""

    shape: ChangeShape
    table: pa.Table
    """Rows in the layout of ``staging.layout``, optional columns included; no TRUNCATE."""
    passed_over: int
    """Number of events before the last TRUNCATE."""
    is_overtaken: bool = False
    """Whether the changes are before the last TRUNCATE."""
    truncate: pa.Table | None = None
    """The row of the TRUNCATE that follows changes which are overtaken, if it is loaded, too."""


def load(shape: ChangeShape, tables: Sequence[pa.Table]) -> LoadedRun:
    """Concatenate staged tables, without what the last TRUNCATE overtakes; a table may lack
    optional columns."""
    table = _joined(shape, tables)
    counts = pc.not_equal(table.column("op"), TRUNCATE)
    changes = pc.sum(counts).as_py() or 0
    if shape.truncate is not None:
        lsn, ordinal = table.column("lsn"), table.column("ord")
        after = pc.and_(
            pc.equal(lsn, shape.truncate.commit_lsn),
            pc.greater(ordinal, shape.truncate.ordinal),
        )
        later = pc.greater(lsn, shape.truncate.commit_lsn)
        counts = pc.and_(counts, pc.or_(later, after))
    if shape.truncate is not None or not pc.all(counts).as_py():
        table = table.filter(counts)
    return LoadedRun(shape, in_log_order(table), changes - table.num_rows)


def load_sections(shape: ChangeShape, tables: Sequence[pa.Table]) -> list[LoadedRun]:
    """Concatenate staged tables, and divide them behind each TRUNCATE."""
    table = in_log_order(_joined(shape, tables))
    ends = np.flatnonzero(table.column("op").to_numpy() == TRUNCATE).tolist()
    sections = []
    start = 0
    for end in (*ends, None):
        part = table.slice(start, None if end is None else end - start)
        truncate = None if end is None else table.slice(end, 1)
        overtaken = truncate is not None or _is_overtaken(shape, part)
        if part.num_rows or truncate is not None:
            count = part.num_rows if overtaken else 0
            sections.append(LoadedRun(shape, part, count, overtaken, truncate))
        start = 0 if end is None else end + 1
    return sections


def _is_overtaken(shape: ChangeShape, part: pa.Table) -> bool:
    """Whether changes without a TRUNCATE are before the last one of the batch."""
    if shape.truncate is None or not part.num_rows:
        return False
    first = Seq(part.column("lsn")[0].as_py(), part.column("ord")[0].as_py())
    return first < shape.truncate


def _joined(shape: ChangeShape, tables: Sequence[pa.Table]) -> pa.Table:
    kinds = {f"u{i}": pa.bool_() for i in sorted(shape.unchanged)}
    if shape.moved:
        kinds |= {f"o{i}": mapping_of(shape.fields[i]).arrow_type for i in shape.key}
    names = ["lsn", "ord", "op", "moved", *(f"n{i}" for i in range(len(shape.fields)))]
    whole = []
    for table in tables:
        for name, kind in kinds.items():
            if name not in table.column_names:
                table = table.append_column(name, pa.nulls(table.num_rows, kind))
        whole.append(table.select([*names, *kinds]))
    return pa.concat_tables(whole)


def in_log_order(table: pa.Table) -> pa.Table:
    """Sort staged changes by commit LSN and ordinal."""
    order = np.lexsort((table.column("ord").to_numpy(), table.column("lsn").to_numpy()))
    if bool(np.all(order[1:] > order[:-1])):
        return table
    return table.take(pa.array(order))


@dataclass(frozen=True, slots=True)
class LocatedRows:
    """Events of a batch by numbered keys, and where the table holds those keys."""

    events: Events
    places: Places
    count: int
    """Number of keys."""
    stored: StoredRows
    marked: Places = NO_PLACES
    """Places of rows that are marked as deleted; none in a table without a key."""

    @property
    def present(self) -> Mask:
        """Whether the table holds a row, by key."""
        present = np.zeros(self.count, np.bool_)
        present[self.places.key] = True
        return present


def find_rows(
    loaded: LoadedRun,
    state: TableState,
    live: LiveFiles,
    share: Share,
    directory: str,
    rules: ConflictRules,
    index: KeyIndex | None,
) -> LocatedRows:
    """Number the keys of at least one event, and find them in the live files."""
    repeats = loaded.shape.repeats
    loose = loose_columns(loaded.shape.fields, loaded.shape.key)
    events, key_columns = _events(loaded)
    with open_keys(
        key_columns[0], directory, bitwise=repeats, loose={} if repeats else loose
    ) as keys:
        events = _numbered(events, keys.numbers, key_columns[1])
        if loose and not repeats:
            # The key is only written differently, so the row keeps its place.
            stays = events.old == events.key
            events = replace(events, old=np.where(stays, NOT_MOVED, events.old))
        files = candidates(loaded.shape, state, live.files, key_columns)
        stored = StoredRows(state, files, live)
        places = stored.locate(keys, loaded.shape.key, index)
        count = keys.count
    marked = NO_PLACES
    if rules.soft is not None:
        places, marked = split_places(rules.soft, stored, places, share)
    if repeats:
        # A marked row stays, whatever rows of its content come and go.
        marked = NO_PLACES
        missing = rules.resolutions.of(ConflictType.UPDATE_MISSING)
        inserts = missing is Resolution.APPLY_REMOTE
        if loose and _misses_rows(by_occurrence(events, places, count)):
            stored = StoredRows(state, live.files, live)
            numbered = _by_equality(
                loaded,
                key_columns,
                stored,
                loose,
                share,
                directory,
                rules.soft,
                inserts=inserts,
            )
        else:
            numbered = by_occurrence(events, places, count, inserts=inserts)
        events, places, count = numbered.events, numbered.places, numbered.count
    return LocatedRows(events, places, count, stored, marked)


_KeyColumns = tuple[list[pa.ChunkedArray], npt.NDArray[np.int64]]


def _misses_rows(occurrences: Occurrences) -> bool:
    """Whether some event finds no identical row."""
    present = np.zeros(occurrences.count, np.bool_)
    present[occurrences.places.key] = True
    lives = net_lives(occurrences.events, present, unique=False)
    return isinstance(lives, Lives) and bool(lives.missed.size)


def _by_equality(
    loaded: LoadedRun,
    key_columns: _KeyColumns,
    stored: StoredRows,
    loose: Looseness,
    share: Share,
    directory: str,
    marks: DeletionMarks | None,
    *,
    inserts: bool,
) -> Occurrences:
    """Number occurrences again, with stored rows equal to those of the events; reads all files."""
    columns, moved = key_columns
    key = loaded.shape.key
    with open_keys(columns, directory, bitwise=True, loose=loose) as keys:
        classes = keys.numbers
        places = stored.without_deleted(keys.locate(stored.scan(key)))
    if marks is not None:
        places, _ = split_places(marks, stored, places, share)
    if places.key.size:
        held = stored.fetch(places.file, places.row, key, share)
        columns = [
            pa.chunked_array([*column.chunks, *held.column(i).chunks], column.type)
            for i, column in enumerate(columns)
        ]
    with open_keys(columns, directory, bitwise=True) as keys:
        numbers, count = keys.numbers, keys.count
    width = len(classes)
    class_of = np.zeros(count, np.int64)
    class_of[numbers[:width]] = classes
    class_of[numbers[width:]] = places.key
    events = _numbered(_events(loaded)[0], numbers[:width], moved)
    exact = Places(numbers[width:], places.file, places.row)
    return by_occurrence(events, exact, count, class_of, inserts=inserts)


def find_repeated(
    loaded: LoadedRun,
    key: tuple[int, ...],
    missed: npt.NDArray[np.int64],
    state: TableState,
    live: LiveFiles,
    directory: str,
) -> int | None:
    """Return the first event whose key is repeated when its transaction ends, by rows'
    contents."""
    shape = replace(loaded.shape, key=key, repeats=False)
    events, key_columns = _events(replace(loaded, shape=shape))
    loose = loose_columns(shape.fields, key)
    with open_keys(key_columns[0], directory, bitwise=False, loose=loose) as keys:
        events = _numbered(events, keys.numbers, key_columns[1])
        files = candidates(shape, state, live.files, key_columns)
        places = StoredRows(state, files, live).locate(keys, key)
        present = np.zeros(keys.count, np.bool_)
    present[places.key] = True
    return first_repeated(
        events, present, missed, loaded.table.column("lsn").to_numpy()
    )


def find_present_twice(
    loaded: LoadedRun,
    key: tuple[int, ...],
    state: TableState,
    live: LiveFiles,
    directory: str,
) -> int | None:
    """Return the first event whose new key two rows of the table have."""
    shape = replace(loaded.shape, key=key, repeats=False, moved=False)
    events, key_columns = _events(replace(loaded, shape=shape))
    loose = loose_columns(shape.fields, key)
    with open_keys(key_columns[0], directory, bitwise=False, loose=loose) as keys:
        files = candidates(shape, state, live.files, key_columns)
        places = StoredRows(state, files, live).locate(keys, key)
        counts = np.bincount(places.key, minlength=keys.count)
        twice = np.flatnonzero((events.op != DELETE) & (counts[keys.numbers] > 1))
    return int(twice[0]) if twice.size else None


def _events(loaded: LoadedRun) -> tuple[Events, _KeyColumns]:
    """Return the events, not yet numbered; all key columns, new keys before old ones; old keys'
    events."""
    table, shape = loaded.table, loaded.shape
    count = table.num_rows
    none = np.full(count, NOT_MOVED, np.int64)
    unknown = {
        i: pc.fill_null(table.column(f"u{i}"), False).to_numpy().astype(np.bool_)
        for i in sorted(shape.unchanged)
    }
    columns = [table.column(f"n{i}") for i in shape.key]
    moved = np.zeros(0, np.int64)
    if shape.moved:
        flags = pc.fill_null(table.column("moved"), False).to_numpy()
        moved = np.flatnonzero(flags)
        columns = [
            pa.chunked_array(
                [*column.chunks, *table.column(f"o{i}").take(pa.array(moved)).chunks],
                column.type,
            )
            for i, column in zip(shape.key, columns, strict=True)
        ]
    op = table.column("op").to_numpy().astype(np.int8)
    return Events(op, none, none, unknown), (columns, moved)


def _numbered(
    events: Events, numbers: npt.NDArray[np.int64], moved: npt.NDArray[np.int64]
) -> Events:
    count = len(events.op)
    old = events.old.copy()
    old[moved] = numbers[count:]
    return Events(events.op, numbers[:count], old, events.unknown)


def candidates(
    shape: ChangeShape,
    state: TableState,
    files: Sequence[DataFile],
    key_columns: _KeyColumns,
) -> list[DataFile]:
    """Return the files that may hold one of the keys, by partitions and by statistics."""
    remaining = list(files)
    loose = loose_columns(shape.fields, shape.key)
    for place, (i, column) in enumerate(zip(shape.key, key_columns[0], strict=True)):
        physical = state.physical_fields[i]
        is_exact = place not in loose or shape.repeats
        if physical.is_partition and is_exact and not column.null_count:
            remaining = in_partitions(remaining, physical, column)
    first = list(zip(shape.key, key_columns[0], strict=True))[:_CHECKED_COLUMNS]
    for place, (i, column) in enumerate(first):
        if column.null_count or (place in loose and not shape.repeats):
            continue
        if pa.types.is_integer(column.type):
            values = np.sort(column.to_numpy())
        elif pa.types.is_string(column.type):
            bounds = pc.min_max(column)
            values = np.array([bounds["min"].as_py(), bounds["max"].as_py()], object)
        else:
            continue
        name = state.physical_fields[i].physical_name
        remaining = [file for file in remaining if _may_hold(file.bounds(name), values)]
    return remaining


def in_partitions(
    files: Sequence[DataFile], physical: PhysicalField, column: pa.ChunkedArray
) -> list[DataFile]:
    """Return the files whose rows have one of the column's values."""
    values = values_in(column)
    return [
        file
        for file in files
        if value_of(file.partition.get(physical.physical_name), column.type) in values
    ]


def _may_hold(bounds: tuple[Any, Any] | None, values: npt.NDArray[Any]) -> bool:
    """``values``: all keys (integers), or the lowest and the highest (text)."""
    if bounds is None or type(bounds[0]) is not type(bounds[1]):
        return True
    if values.dtype == object:
        if not isinstance(bounds[0], str):
            return True
        return not (values[1] < bounds[0] or values[0] > bounds[1])
    if not isinstance(bounds[0], int):
        return True
    place = int(np.searchsorted(values, bounds[0]))
    return place < len(values) and int(values[place]) <= bounds[1]
