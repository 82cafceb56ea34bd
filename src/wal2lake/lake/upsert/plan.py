"""Prepares one keyed batch that fits into memory for one commit.

Comes in: staged changes, the table's state and its live files. Goes out: an ``Upsert``, whose data
file and deletion vectors already lie in the table's directory, or the first event that cannot be
applied. Called by ``batches``.

    events ─▶ number keys ─▶ find them in the files ─▶ net lives ─▶ rows to write ─▶ data file
                              (key columns only)                ─▶ rows to remove ─▶ vectors

Why this way. A MERGE of a hundred rows is thirteen Spark jobs, and the first jobs of a JVM cost
many CPU-seconds. 600,000 changed rows in a table of a million took MERGE 8 s, this module 0.8 s.
Spark still applies batches that do not fit into memory, or would read too many keys here.

Only files whose key columns can hold one of the batch's keys are read, and only those columns.
Columns that an UPDATE left out (unchanged TOAST) are read from the row groups of such rows.

Without a primary key (``shape.repeats``) a row is identified by its content, and its occurrences
are numbered (``occurrences``). Contents are compared bit by bit: of (1, 0.0) and (1, -0.0) the
right row is removed. If an event finds no identical row, it takes a row that is equal by its types
(``pgtypes.equality``), as PostgreSQL always does. Primary keys are always compared by their types:
1.0 and 1.00 are one key.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.errors import InternalError
from wal2lake.lake.delta.datafile import TableWriter, discard_added
from wal2lake.lake.keyindex import KeyIndex
from wal2lake.lake.partitions import value_of, values_in
from wal2lake.lake.port import PhysicalField, TableState
from wal2lake.lake.rowtexts import row_texts
from wal2lake.lake.staging.convert import mapping_of
from wal2lake.lake.staging.layout import (
    COMMIT,
    INSERT,
    TRUNCATE,
    ChangeShape,
    RowConflict,
    RowFailure,
    Seq,
    Uniqueness,
    key_taken,
)
from wal2lake.lake.tablefiles import AddedFile, DataFile, Replaced
from wal2lake.lake.upsert.checking import (
    first_unfit,
    generated_anew,
    judged_rows,
    watched_events,
)
from wal2lake.lake.upsert.conflicts import (
    met_rows,
    missing_rows,
    new_keys_of,
    shown,
    stop,
)
from wal2lake.lake.upsert.judging import (
    AS_POSTGRESQL,
    ConflictRules,
    TableJudge,
    judge_for,
)
from wal2lake.lake.upsert.keys import Looseness, Places, open_keys
from wal2lake.lake.upsert.lives.deferral import ByContent, first_repeated
from wal2lake.lake.upsert.lives.lives import (
    NOT_MOVED,
    STORED,
    Events,
    HeldRow,
    KeyQuestions,
    Lives,
    Mask,
    Stopped,
    net_lives,
)
from wal2lake.lake.upsert.lives.occurrences import Occurrences, by_occurrence
from wal2lake.lake.upsert.memory import NotForUs, Share, TooLarge
from wal2lake.lake.upsert.stored import StoredRows, only_spark
from wal2lake.model import ConflictType, Resolution
from wal2lake.pgtypes.equality import loose_columns

MAX_SCANNED_BYTES: Final = 256 << 20
"""Most key bytes read for one batch, uncompressed: 32 M of bigint, about 0.8 s. A guess at the
size from which Spark's cores, if it has more of them, are faster."""

_CHECKED_COLUMNS: Final = 2
"""Number of key columns whose statistics are checked for files that may hold the keys."""


@dataclass(frozen=True, slots=True)
class Upsert:
    """A batch's effect on one version of a table, waiting for its commit."""

    state: TableState
    adds: tuple[AddedFile, ...]
    replaced: tuple[Replaced, ...]
    truncates: bool
    """True if all rows that the table held are removed, too."""
    conflicts: Sequence[RowConflict] = ()
    """Events that met another state than the publisher's, in log order."""
    passed_over: int = 0
    """Number of changes before the last TRUNCATE, which were not checked for conflicts."""

    @property
    def changes_table(self) -> bool:
        """Whether there is something to commit."""
        return bool(self.adds or self.replaced or self.truncates)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Staged changes in memory: those after the last TRUNCATE, in log order."""

    shape: ChangeShape
    table: pa.Table
    """Rows in the layout of ``staging.layout``, optional columns included."""
    passed_over: int
    """Number of events before the last TRUNCATE."""


def load(shape: ChangeShape, tables: Sequence[pa.Table]) -> Loaded:
    """Concatenate staged tables; a table may lack optional columns."""
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
    table = pa.concat_tables(whole)
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
    order = np.lexsort((table.column("ord").to_numpy(), table.column("lsn").to_numpy()))
    if not bool(np.all(order[1:] > order[:-1])):
        table = table.take(pa.array(order))
    return Loaded(shape, table, changes - table.num_rows)


def plan_upsert(
    loaded: Loaded,
    state: TableState,
    files: Sequence[DataFile],
    uniqueness: Uniqueness,
    share: Share,
    directory: str,
    *,
    rules: ConflictRules = AS_POSTGRESQL,
    shows_rows: bool = False,
    index: KeyIndex | None = None,
) -> Upsert | RowFailure:
    """Evaluate the batch. Raises TooLarge if Spark must apply it.

    ``share`` has room for the staged changes; ``directory`` is for temporary files.
    ``shows_rows``: conflicts carry the texts of rows. ``index`` finds keys, and learns from files
    that are read.
    """
    batch = rules.commits
    truncates = loaded.shape.truncate is not None
    in_place = bool(loaded.shape.key) and not truncates
    why = only_spark(state, files, in_place=in_place)
    if why is not None:
        raise NotForUs(why)
    if not loaded.table.num_rows:
        return Upsert(state, (), (), truncates, passed_over=loaded.passed_over)
    if not loaded.shape.key:
        if uniqueness.counted:
            twice = _find_repeated(
                loaded,
                uniqueness.counted,
                np.zeros(0, np.int64),
                state,
                () if truncates else files,
                directory,
            )
            if twice is not None:
                return _repeated(
                    loaded, twice, uniqueness.counted, uniqueness, shows_rows
                )
        inserted = _inserted(loaded)
        if batch is not None:
            inserted = batch.of(loaded.table.column("lsn").to_numpy()).appended(
                inserted
            )
        adds = _write(inserted, state)
        return Upsert(state, adds, (), truncates, passed_over=loaded.passed_over)
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
        stored = StoredRows(
            state,
            [] if truncates else candidates(loaded.shape, state, files, key_columns),
        )
        bounded = not (repeats or rules.looks_at_rows or rules.resolutions.chosen)
        places = stored.locate(
            keys,
            loaded.shape.key,
            index,
            most_bytes=MAX_SCANNED_BYTES if bounded else None,
        )
        count = keys.count
    if repeats:
        missing = rules.resolutions.of(ConflictType.UPDATE_MISSING)
        inserts = missing is Resolution.APPLY_REMOTE
        if loose and _misses_rows(by_occurrence(events, places, count)):
            stored = StoredRows(state, [] if truncates else files)
            numbered = _by_equality(
                loaded, key_columns, stored, loose, share, directory, inserts=inserts
            )
        else:
            numbered = by_occurrence(events, places, count, inserts=inserts)
        events, places, count = numbered.events, numbered.places, numbered.count
    present = np.zeros(count, np.bool_)
    present[places.key] = True
    lsn = loaded.table.column("lsn").to_numpy()
    judge = judge_for(rules, lsn, places, count, stored, repeats=repeats)
    unique = not uniqueness.trusted
    watched = watched_events(rules, loaded.shape, loaded.table, events)
    lives = net_lives(events, present, unique=unique, judge=judge, watched=watched)
    met = _MetRows(places, stored, range(len(loaded.shape.fields)), share)
    while isinstance(lives, KeyQuestions):
        if judge is None:
            raise InternalError("a conflict needs a decision, and there is no judge")
        loaded = _ask_judge(loaded, lives, events, judge, met, rules)
        lives = net_lives(events, present, unique=unique, judge=judge, watched=watched)
    lsn = loaded.table.column("lsn").to_numpy()
    if lives.watched:
        made = _fetch(loaded, [r for _, r in lives.watched], list(events.unknown), met)
        makers = [event for event, _ in lives.watched]
        unfit = first_unfit(rules, loaded.shape, loaded.table, makers, made)
        if unfit and (isinstance(lives, Lives) or unfit[0] <= lives.event):
            return unfit[1]
    if isinstance(lives, Stopped) and uniqueness.deferrable:
        if not pc.all(pc.equal(loaded.table.column("op"), INSERT)).as_py():
            raise ByContent
        # No event removes a row, so a repeated key stays repeated.
        twice = first_repeated(events, present, np.zeros(0, np.int64), lsn)
        if twice is not None:
            return _repeated(loaded, twice, loaded.shape.key, uniqueness, shows_rows)
    if isinstance(lives, Stopped):
        if judge is None or lives.met is None:
            failure = _conflict(loaded, lives.event, uniqueness)
            met_key = _untouched_key(events, lives.event, present)
        else:
            failure = stop(loaded.shape, loaded.table, lives.met, judge, uniqueness)
            met_key = lives.met.stored
        if not shows_rows:
            return failure
        (local,) = _stored_texts([met_key], places, stored, state, share)
        return shown(failure, loaded.shape, loaded.table, lives.event, local)
    if uniqueness.counted:
        twice = _find_repeated(
            loaded,
            uniqueness.counted,
            _events_without_row(lives),
            state,
            () if truncates else files,
            directory,
        )
        if twice is not None:
            return _repeated(loaded, twice, uniqueness.counted, uniqueness, shows_rows)
    rows = _rows(loaded, lives, places, stored, share)
    rows = generated_anew(rules, loaded.shape, rows, lives, events)
    if batch is not None:
        rows = batch.of(lsn[lives.last]).appended(rows)
    adds = _write(rows, state)
    try:
        replaced = _replaced(lives, places, stored)
    except BaseException:
        discard_added(state.location, adds)
        raise
    conflicts: Sequence[RowConflict] = ()
    if lives.missed.size:
        conflicts = missing_rows(
            loaded.shape, loaded.table, lives.missed, values=shows_rows
        )
    if judge is not None and lives.met:

        def texts_of(keys: Sequence[int]) -> Sequence[str | None]:
            return _stored_texts(keys, places, stored, state, share)

        conflicts = met_rows(
            loaded.shape, loaded.table, lives.met, judge, texts_of, values=shows_rows
        )
    return Upsert(state, adds, replaced, truncates, conflicts, loaded.passed_over)


_KeyColumns = tuple[list[pa.ChunkedArray], npt.NDArray[np.int64]]


def _misses_rows(occurrences: Occurrences) -> bool:
    """Whether some event finds no identical row."""
    present = np.zeros(occurrences.count, np.bool_)
    present[occurrences.places.key] = True
    lives = net_lives(occurrences.events, present, unique=False)
    return isinstance(lives, Lives) and bool(lives.missed.size)


def _by_equality(
    loaded: Loaded,
    key_columns: _KeyColumns,
    stored: StoredRows,
    loose: Looseness,
    share: Share,
    directory: str,
    *,
    inserts: bool,
) -> Occurrences:
    """Number occurrences again, with stored rows equal to those of the events; reads all files."""
    columns, moved = key_columns
    key = loaded.shape.key
    with open_keys(columns, directory, bitwise=True, loose=loose) as keys:
        classes = keys.numbers
        places = stored.without_deleted(keys.locate(stored.scan(key)))
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


def _events_without_row(lives: Lives) -> npt.NDArray[np.int64]:
    """Return the events of a batch without resolutions that changed no row."""
    if not lives.met:
        return lives.missed
    kinds = (ConflictType.UPDATE_MISSING, ConflictType.DELETE_MISSING)
    return np.array([m.event for m in lives.met if m.type in kinds], np.int64)


def _find_repeated(
    loaded: Loaded,
    key: tuple[int, ...],
    missed: npt.NDArray[np.int64],
    state: TableState,
    files: Sequence[DataFile],
    directory: str,
) -> int | None:
    """Return the first event whose key is repeated when its transaction ends, by rows'
    contents."""
    shape = replace(loaded.shape, key=key, repeats=False)
    events, key_columns = _events(replace(loaded, shape=shape))
    loose = loose_columns(shape.fields, key)
    with open_keys(key_columns[0], directory, bitwise=False, loose=loose) as keys:
        events = _numbered(events, keys.numbers, key_columns[1])
        stored = StoredRows(state, candidates(shape, state, files, key_columns))
        places = stored.locate(keys, key)
        present = np.zeros(keys.count, np.bool_)
    present[places.key] = True
    return first_repeated(
        events, present, missed, loaded.table.column("lsn").to_numpy()
    )


def _repeated(
    loaded: Loaded,
    event: int,
    key: tuple[int, ...],
    uniqueness: Uniqueness,
    shows_rows: bool,
) -> RowFailure:
    """Return PostgreSQL's error at the COMMIT for a repeated key."""
    row = loaded.table.slice(event, 1)
    shape = replace(loaded.shape, key=key, repeats=False)
    text = f"Key {new_keys_of(shape, row)[0]} already exists."
    return RowFailure(
        Seq(row.column("lsn")[0].as_py(), row.column("ord")[0].as_py()),
        None,
        "23505",
        f'duplicate key value violates unique constraint "{uniqueness.constraint}"',
        detail=text if shows_rows else None,
        op=COMMIT,
    )


def _events(loaded: Loaded) -> tuple[Events, _KeyColumns]:
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
    for i, column in zip(shape.key, key_columns[0], strict=True):
        physical = state.physical_fields[i]
        if physical.is_partition and not column.null_count:
            remaining = in_partitions(remaining, physical, column)
    loose = loose_columns(shape.fields, shape.key)
    first = list(zip(shape.key, key_columns[0], strict=True))[:_CHECKED_COLUMNS]
    for place, (i, column) in enumerate(first):
        if column.null_count or (place in loose and not shape.repeats):
            continue
        if pa.types.is_integer(column.type):
            values = np.unique(column.to_numpy())
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


def _conflict(loaded: Loaded, event: int, uniqueness: Uniqueness) -> RowFailure:
    table = loaded.table
    inserted = table.column("op")[event].as_py() == INSERT
    return key_taken(
        Seq(table.column("lsn")[event].as_py(), table.column("ord")[event].as_py()),
        uniqueness,
        inserted=inserted,
        key=new_keys_of(loaded.shape, table.slice(event, 1))[0],
    )


def _untouched_key(events: Events, event: int, present: Mask) -> int:
    """Return the key of an event's row if the table holds it and no earlier event touches it, or
    STORED."""
    key = int(events.key[event])
    before = slice(0, event)
    touched = (events.key[before] == key) | (events.old[before] == key)
    return key if present[key] and not touched.any() else STORED


def _inserted(loaded: Loaded) -> pa.Table:
    """Return the rows of a table without a key; only inserts are left, and each is a row."""
    if not pc.all(pc.equal(loaded.table.column("op"), INSERT)).as_py():
        raise InternalError("a row of a table without a key is updated or deleted")
    fields = loaded.shape.fields
    return pa.table(
        [loaded.table.column(f"n{i}") for i in range(len(fields))],
        names=[field.name for field in fields],
    )


class _MetRows:
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


def _ask_judge(
    loaded: Loaded,
    pending: KeyQuestions,
    events: Events,
    judge: TableJudge,
    met: _MetRows,
    rules: ConflictRules,
) -> Loaded:
    """Let the judge answer; the rows that it merges are appended to the events' rows."""

    def rows_of(rows: Sequence[HeldRow]) -> pa.Table:
        held = _fetch(loaded, rows, list(events.unknown), met)
        return judged_rows(rules, loaded.shape, held, rows)

    merged = judge.answer(loaded.shape, pending.questions, rows_of)
    if merged is None:
        return loaded
    values, event_numbers = merged
    extra = loaded.table.take(pa.array(event_numbers))
    for i in range(len(loaded.shape.fields)):
        index = extra.column_names.index(f"n{i}")
        kind = loaded.table.schema.field(f"n{i}").type
        extra = extra.set_column(index, f"n{i}", values.column(i).cast(kind))
    return replace(loaded, table=pa.concat_tables([loaded.table, extra]))


def _fetch(
    loaded: Loaded,
    rows: Sequence[HeldRow],
    unknown: Sequence[int],
    met: _MetRows,
) -> pa.Table:
    """Return the values of rows, all columns."""
    last = np.array([row.last for row in rows], np.int64)
    sources = {
        column: np.array([row.sources[i] for row in rows], np.int64)
        for i, column in enumerate(unknown)
    }
    taken = [sources.get(i, last) for i in range(len(loaded.shape.fields))]
    taken = [np.where(last == STORED, STORED, source) for source in taken]
    needs = np.zeros(len(rows), np.bool_)
    for source in taken:
        needs |= source == STORED
    stored_rows = np.flatnonzero(needs)
    columns = list(range(len(taken)))
    old: pa.Table | None = None
    if stored_rows.size:
        old = met.of([rows[i].base for i in stored_rows.tolist()])
    place = np.cumsum(needs) - 1 + loaded.table.num_rows
    arrays = []
    for i in columns:
        values = loaded.table.column(f"n{i}")
        if old is not None:
            chunks = [*values.chunks, *old.column(i).chunks]
            values = pa.chunked_array(chunks, values.type)
        arrays.append(
            values.take(pa.array(np.where(taken[i] == STORED, place, taken[i])))
        )
    return pa.table(arrays, names=[field.name for field in loaded.shape.fields])


def _rows(
    loaded: Loaded, lives: Lives, places: Places, stored: StoredRows, share: Share
) -> pa.Table:
    """Return the rows to write, in the target's columns."""
    needs = np.zeros(len(lives.last), np.bool_)
    for source in lives.sources.values():
        needs |= source == STORED
    stored_rows = np.flatnonzero(needs)
    columns = list(lives.sources)
    old: pa.Table | None = None
    if stored_rows.size:
        first = np.full(int(places.key.max()) + 1, -1, np.int64)
        # Take the first place of a key that the table holds twice.
        first[places.key[::-1]] = np.arange(len(places.key))[::-1]
        located = first[lives.base[stored_rows]]
        old = stored.fetch(places.file[located], places.row[located], columns, share)
    place = np.cumsum(needs) - 1 + loaded.table.num_rows
    arrays = []
    for i in range(len(loaded.shape.fields)):
        values = loaded.table.column(f"n{i}")
        taken = lives.last
        if i in lives.sources:
            taken = lives.sources[i]
            if old is not None:
                chunks = [*values.chunks, *old.column(columns.index(i)).chunks]
                values = pa.chunked_array(chunks, values.type)
                taken = np.where(taken == STORED, place, taken)
        arrays.append(values.take(pa.array(taken)))
    return pa.table(arrays, names=[field.name for field in loaded.shape.fields])


def _stored_texts(
    keys: Sequence[int],
    places: Places,
    stored: StoredRows,
    state: TableState,
    share: Share,
) -> list[str | None]:
    """Return the rows that the table held for keys, as text. None for STORED, and for all if
    memory has no room for the rows: reporting a batch must not change how it is applied."""
    stored_keys = sorted({key for key in keys if key != STORED})
    if not stored_keys:
        return [None] * len(keys)
    order = np.argsort(places.key)
    place = order[np.searchsorted(places.key, np.array(stored_keys), sorter=order)]
    columns = range(len(state.fields))
    try:
        rows = stored.fetch(places.file[place], places.row[place], columns, share)
    except TooLarge:
        return [None] * len(keys)
    texts = dict(zip(stored_keys, row_texts(state.fields, rows), strict=True))
    return [texts.get(key) for key in keys]


def _write(rows: pa.Table, state: TableState) -> tuple[AddedFile, ...]:
    with TableWriter(state.location, state.physical_fields) as writer:
        writer.write_all(rows)
        return writer.finish()


def _replaced(lives: Lives, places: Places, stored: StoredRows) -> tuple[Replaced, ...]:
    """Write the new deletion vectors of files that lose rows."""
    gone_keys = np.zeros(int(places.key.max(initial=-1)) + 1, np.bool_)
    gone_keys[lives.removed] = True
    going = gone_keys[places.key]
    gone = {
        number: places.row[going & (places.file == number)].astype(np.uint64)
        for number in np.unique(places.file[going]).tolist()
    }
    return stored.without(gone)
