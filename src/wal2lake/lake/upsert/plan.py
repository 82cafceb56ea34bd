"""One keyed batch that fits into memory, made ready for one commit.

Comes in: staged changes, the table's state and its live files. Goes out: an ``Upsert``, whose
data file and deletion vectors already lie in the table's directory, or the first event that
cannot be applied. Called by ``batches.py``.

    events ─▶ number keys ─▶ find them in the files ─▶ net lives ─▶ rows to write ─▶ data file
                              (key columns only)                ─▶ rows to remove ─▶ vectors

Why this way. A MERGE of a hundred rows is thirteen Spark jobs, and the first ones of a JVM cost
many CPU-seconds; for 600,000 changed rows in a table of a million it took 8 s, this
0.8 s. So Spark keeps what does not fit into memory, or would read too many keys here.

Only files whose key columns can hold one of the batch's keys are read, and only their key
columns; of the columns that an UPDATE left out (unchanged TOAST), only row groups with such a row.

Without a primary key (``shape.repeats``) a row is named by its content, and its occurrences are
numbered (``occurrences``). Contents are compared bit by bit: of (1, 0.0) and (1, -0.0) the
right one goes. Only where an event finds no identical row, one that is equal by its type is taken
(``pgtypes.equality``), as PostgreSQL does always. Primary keys are compared by their types from the
beginning: 1.0 and 1.00 are one key.
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
from wal2lake.lake.staging.changes import (
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
from wal2lake.lake.staging.convert import mapping_of
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
"""Keys read here for one batch at most, not compressed: 32 M of bigint, about 0.8 s. A
guess at where Spark's cores, if it has more of them, begin to win."""

_LOOKED_AT: Final = 2
"""Columns of a key whose statistics are asked which files may hold it."""


@dataclass(frozen=True, slots=True)
class Upsert:
    """A batch's effect on one version of a table, waiting for its commit."""

    state: TableState
    adds: tuple[AddedFile, ...]
    replaced: tuple[Replaced, ...]
    truncates: bool
    """True if all rows that the table held go, too."""
    conflicts: Sequence[RowConflict] = ()
    """Events that met another state than the publisher's, in log order."""
    passed_over: int = 0
    """Changes before the last TRUNCATE, whose state nobody has looked at."""

    @property
    def changes_table(self) -> bool:
        """There is something to commit."""
        return bool(self.adds or self.replaced or self.truncates)


@dataclass(frozen=True, slots=True)
class Loaded:
    """Staged changes in memory: those after the last TRUNCATE, in log order."""

    shape: ChangeShape
    table: pa.Table
    """In the layout of ``changes.py``, optional columns included."""
    passed_over: int
    """Number of events before the last TRUNCATE."""


def load(shape: ChangeShape, tables: Sequence[pa.Table]) -> Loaded:
    """Bring staged tables together; each may lack columns that it has no use for."""
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
    wanted = pc.not_equal(table.column("op"), TRUNCATE)
    changes = pc.sum(wanted).as_py() or 0
    if shape.truncate is not None:
        lsn, ordinal = table.column("lsn"), table.column("ord")
        after = pc.and_(
            pc.equal(lsn, shape.truncate.commit_lsn),
            pc.greater(ordinal, shape.truncate.ordinal),
        )
        later = pc.greater(lsn, shape.truncate.commit_lsn)
        wanted = pc.and_(wanted, pc.or_(later, after))
    if shape.truncate is not None or not pc.all(wanted).as_py():
        table = table.filter(wanted)
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
    """Evaluate the batch; TooLarge: this table or batch is for Spark.

    ``share`` has room for the staged changes; temporary files go below ``directory``. With
    ``shows_rows`` conflicts have the texts of the rows. ``index`` knows where keys
    are, and learns it.
    """
    by = rules.commits
    truncates = loaded.shape.truncate is not None
    in_place = bool(loaded.shape.key) and not truncates
    why = only_spark(state, files, in_place=in_place)
    if why is not None:
        raise NotForUs(why)
    if not loaded.table.num_rows:
        return Upsert(state, (), (), truncates, passed_over=loaded.passed_over)
    if not loaded.shape.key:
        if uniqueness.counted:
            at = _counted(
                loaded,
                uniqueness.counted,
                np.zeros(0, np.int64),
                state,
                () if truncates else files,
                directory,
            )
            if at is not None:
                return _repeated(loaded, at, uniqueness.counted, uniqueness, shows_rows)
        inserted = _inserted(loaded)
        if by is not None:
            inserted = by.of(loaded.table.column("lsn").to_numpy()).appended(inserted)
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
            # The key is written differently, and the row is where it was.
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
        if loose and _misses(by_occurrence(events, places, count)):
            stored = StoredRows(state, [] if truncates else files)
            known = _by_equality(
                loaded, key_columns, stored, loose, share, directory, inserts=inserts
            )
        else:
            known = by_occurrence(events, places, count, inserts=inserts)
        events, places, count = known.events, known.places, known.count
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
            raise InternalError("a conflict is asked for without a judge")
        loaded = _answered(loaded, lives, events, judge, met, rules)
        lives = net_lives(events, present, unique=unique, judge=judge, watched=watched)
    lsn = loaded.table.column("lsn").to_numpy()
    if lives.watched:
        made = _held(loaded, [r for _, r in lives.watched], list(events.unknown), met)
        of = [event for event, _ in lives.watched]
        unfit = first_unfit(rules, loaded.shape, loaded.table, of, made)
        if unfit and (isinstance(lives, Lives) or unfit[0] <= lives.event):
            return unfit[1]
    if isinstance(lives, Stopped) and uniqueness.deferrable:
        if not pc.all(pc.equal(loaded.table.column("op"), INSERT)).as_py():
            raise ByContent
        # Nothing takes a row away: a key that is there twice stays so.
        at = first_repeated(events, present, np.zeros(0, np.int64), lsn)
        if at is not None:
            return _repeated(loaded, at, loaded.shape.key, uniqueness, shows_rows)
    if isinstance(lives, Stopped):
        if judge is None or lives.met is None:
            failure = _conflict(loaded, lives.event, uniqueness)
            at = _untouched(events, lives.event, present)
        else:
            failure = stop(loaded.shape, loaded.table, lives.met, judge, uniqueness)
            at = lives.met.stored
        if not shows_rows:
            return failure
        (local,) = _stored_texts([at], places, stored, state, share)
        return shown(failure, loaded.shape, loaded.table, lives.event, local)
    if uniqueness.counted:
        at = _counted(
            loaded,
            uniqueness.counted,
            _found_nothing(lives),
            state,
            () if truncates else files,
            directory,
        )
        if at is not None:
            return _repeated(loaded, at, uniqueness.counted, uniqueness, shows_rows)
    rows = _rows(loaded, lives, places, stored, share)
    rows = generated_anew(rules, loaded.shape, rows, lives, events)
    if by is not None:
        rows = by.of(lsn[lives.last]).appended(rows)
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


def _misses(known: Occurrences) -> bool:
    """Whether some event finds no identical row."""
    present = np.zeros(known.count, np.bool_)
    present[known.places.key] = True
    found = net_lives(known.events, present, unique=False)
    return isinstance(found, Lives) and bool(found.missed.size)


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
    """A batch of a table without a key once more, with the rows that are equal to those that its
    events name. Statistics of files know nothing of that: all are looked through."""
    given, moved = key_columns
    key = loaded.shape.key
    with open_keys(given, directory, bitwise=True, loose=loose) as keys:
        classes = keys.numbers
        places = stored.without_deleted(keys.locate(stored.scan(key)))
    if places.key.size:
        held = stored.fetch(places.file, places.row, key, share)
        given = [
            pa.chunked_array([*column.chunks, *held.column(i).chunks], column.type)
            for i, column in enumerate(given)
        ]
    with open_keys(given, directory, bitwise=True) as keys:
        numbers, count = keys.numbers, keys.count
    width = len(classes)
    class_of = np.zeros(count, np.int64)
    class_of[numbers[:width]] = classes
    class_of[numbers[width:]] = places.key
    events = _numbered(_events(loaded)[0], numbers[:width], moved)
    exact = Places(numbers[width:], places.file, places.row)
    return by_occurrence(events, exact, count, class_of, inserts=inserts)


def _found_nothing(lives: Lives) -> npt.NDArray[np.int64]:
    """Events of a batch without resolutions that changed no row."""
    if not lives.met:
        return lives.missed
    kinds = (ConflictType.UPDATE_MISSING, ConflictType.DELETE_MISSING)
    return np.array([m.event for m in lives.met if m.type in kinds], np.int64)


def _counted(
    loaded: Loaded,
    key: tuple[int, ...],
    missed: npt.NDArray[np.int64],
    state: TableState,
    files: Sequence[DataFile],
    directory: str,
) -> int | None:
    """The first event whose key is there twice at the end of its transaction, of a batch whose rows
    were found by their content."""
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
    """Events without numbers yet; all key columns, new ones first, then old ones, and
    which events the old ones belong to."""
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
    """Files that may hold one of the keys, by their partitions and by the statistics of their
    first columns."""
    found = list(files)
    for i, column in zip(shape.key, key_columns[0], strict=True):
        physical = state.physical_fields[i]
        if physical.is_partition and not column.null_count:
            found = in_partitions(found, physical, column)
    loose = loose_columns(shape.fields, shape.key)
    first = list(zip(shape.key, key_columns[0], strict=True))[:_LOOKED_AT]
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
        found = [file for file in found if _may_hold(file.bounds(name), values)]
    return found


def in_partitions(
    files: Sequence[DataFile], physical: PhysicalField, column: pa.ChunkedArray
) -> list[DataFile]:
    """Files whose rows have one of the column's values."""
    wanted = values_in(column)
    return [
        file
        for file in files
        if value_of(file.partition.get(physical.physical_name), column.type) in wanted
    ]


def _may_hold(bounds: tuple[Any, Any] | None, values: npt.NDArray[Any]) -> bool:
    """``values``: all of them (integers), or the lowest and the highest (text)."""
    if bounds is None or type(bounds[0]) is not type(bounds[1]):
        return True
    if values.dtype == object:
        if not isinstance(bounds[0], str):
            return True
        return not (values[1] < bounds[0] or values[0] > bounds[1])
    if not isinstance(bounds[0], int):
        return True
    at = int(np.searchsorted(values, bounds[0]))
    return at < len(values) and int(values[at]) <= bounds[1]


def _conflict(loaded: Loaded, event: int, uniqueness: Uniqueness) -> RowFailure:
    table = loaded.table
    inserted = table.column("op")[event].as_py() == INSERT
    return key_taken(
        Seq(table.column("lsn")[event].as_py(), table.column("ord")[event].as_py()),
        uniqueness,
        inserted=inserted,
        key=new_keys_of(loaded.shape, table.slice(event, 1))[0],
    )


def _untouched(events: Events, event: int, present: Mask) -> int:
    """The key that an event's row gets, if the table has a row of it and nothing before the event
    is about that; else STORED."""
    key = int(events.key[event])
    before = slice(0, event)
    touched = (events.key[before] == key) | (events.old[before] == key)
    return key if present[key] and not touched.any() else STORED


def _inserted(loaded: Loaded) -> pa.Table:
    """The rows of a table without a key: nothing but inserts is left, and each is a row."""
    if not pc.all(pc.equal(loaded.table.column("op"), INSERT)).as_py():
        raise InternalError("a row of a table without a key is updated or deleted")
    fields = loaded.shape.fields
    return pa.table(
        [loaded.table.column(f"n{i}") for i in range(len(fields))],
        names=[field.name for field in fields],
    )


class _MetRows:
    """Stored rows that an expression is to see: each is read, and counted, once, however often
    in a row it is met."""

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
        """Return all columns of the keys that the table has; TooLarge as ``StoredRows.fetch``."""
        new = [key for key in dict.fromkeys(keys) if key not in self._at]
        if new:
            places = self._places
            order = np.argsort(places.key, kind="stable")
            found = np.searchsorted(places.key, np.array(new), sorter=order)
            at = order[found]
            rows = self._stored.fetch(
                places.file[at], places.row[at], self._columns, self._share
            )
            if self._rows is not None:
                rows = pa.concat_tables([self._rows, rows])
            self._rows = rows
            self._at |= {key: len(self._at) + i for i, key in enumerate(new)}
        if self._rows is None:
            raise InternalError("no stored row is asked for")
        return self._rows.take(pa.array([self._at[key] for key in keys]))


def _answered(
    loaded: Loaded,
    asked: KeyQuestions,
    events: Events,
    judge: TableJudge,
    met: _MetRows,
    rules: ConflictRules,
) -> Loaded:
    """The judge knows more; the rows that it has merged follow those of the events."""

    def rows_of(rows: Sequence[HeldRow]) -> pa.Table:
        held = _held(loaded, rows, list(events.unknown), met)
        return judged_rows(rules, loaded.shape, held, rows)

    merged = judge.answer(loaded.shape, asked.questions, rows_of)
    if merged is None:
        return loaded
    values, of = merged
    more = loaded.table.take(pa.array(of))
    for i in range(len(loaded.shape.fields)):
        at = more.column_names.index(f"n{i}")
        kind = loaded.table.schema.field(f"n{i}").type
        more = more.set_column(at, f"n{i}", values.column(i).cast(kind))
    return replace(loaded, table=pa.concat_tables([loaded.table, more]))


def _held(
    loaded: Loaded,
    rows: Sequence[HeldRow],
    unknown: Sequence[int],
    met: _MetRows,
) -> pa.Table:
    """The values of rows, all columns."""
    last = np.array([row.last for row in rows], np.int64)
    sources = {
        column: np.array([row.sources[i] for row in rows], np.int64)
        for i, column in enumerate(unknown)
    }
    taken = [sources.get(i, last) for i in range(len(loaded.shape.fields))]
    taken = [np.where(last == STORED, STORED, one) for one in taken]
    needs = np.zeros(len(rows), np.bool_)
    for one in taken:
        needs |= one == STORED
    asked = np.flatnonzero(needs)
    columns = list(range(len(taken)))
    old: pa.Table | None = None
    if asked.size:
        old = met.of([rows[i].base for i in asked.tolist()])
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
    """The rows to write, in the target's columns."""
    needs = np.zeros(len(lives.last), np.bool_)
    for source in lives.sources.values():
        needs |= source == STORED
    asked = np.flatnonzero(needs)
    columns = list(lives.sources)
    old: pa.Table | None = None
    if asked.size:
        first = np.full(int(places.key.max()) + 1, -1, np.int64)
        # The first place of a key, should the table have it twice.
        first[places.key[::-1]] = np.arange(len(places.key))[::-1]
        at = first[lives.base[asked]]
        old = stored.fetch(places.file[at], places.row[at], columns, share)
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
    """The rows that keys had in the table, as text; None for STORED, and for all if there is no
    room for them: what is told of a batch must not be why it takes another way."""
    wanted = sorted({key for key in keys if key != STORED})
    if not wanted:
        return [None] * len(keys)
    order = np.argsort(places.key)
    place = order[np.searchsorted(places.key, np.array(wanted), sorter=order)]
    columns = range(len(state.fields))
    try:
        rows = stored.fetch(places.file[place], places.row[place], columns, share)
    except TooLarge:
        return [None] * len(keys)
    texts = dict(zip(wanted, row_texts(state.fields, rows), strict=True))
    return [texts.get(key) for key in keys]


def _write(rows: pa.Table, state: TableState) -> tuple[AddedFile, ...]:
    with TableWriter(state.location, state.physical_fields) as writer:
        writer.write_all(rows)
        return writer.finish()


def _replaced(lives: Lives, places: Places, stored: StoredRows) -> tuple[Replaced, ...]:
    """Files that lose rows, with their new deletion vectors."""
    gone_keys = np.zeros(int(places.key.max(initial=-1)) + 1, np.bool_)
    gone_keys[lives.removed] = True
    going = gone_keys[places.key]
    gone = {
        number: places.row[going & (places.file == number)].astype(np.uint64)
        for number in np.unique(places.file[going]).tolist()
    }
    return stored.without(gone)
