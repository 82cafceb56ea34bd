"""Evaluates one run of a batch: events that fit into memory, on the table as it is before them.

Comes in: staged changes in log order, the table's live files. Goes out: a ``RunEffect``, whose data
file already lies in the table's directory, or the first event that cannot be applied. Called by
``runs.whole``; a batch that fits into memory is one run.

    events ─▶ number keys ─▶ find them in the files ─▶ net lives ─▶ rows to write ─▶ data file
                              (key columns only)                ─▶ rows to remove

Why this way. A MERGE of a hundred rows is thirteen Spark jobs, and the first jobs of a JVM cost
many CPU-seconds. 600,000 changed rows in a table of a million took MERGE 8 s, this module 0.8 s.

Only files whose key columns can hold one of the run's keys are read, and only those columns.
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
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.errors import InternalError
from wal2lake.lake.delta.datafile import TableWriter
from wal2lake.lake.keyindex import KeyIndex
from wal2lake.lake.port import TableState
from wal2lake.lake.rowtexts import row_texts
from wal2lake.lake.staging.historyrows import HistoryTarget
from wal2lake.lake.staging.layout import (
    COMMIT,
    INSERT,
    RowConflict,
    RowFailure,
    Seq,
    Uniqueness,
    key_taken,
)
from wal2lake.lake.tablefiles import AddedFile, DataFile
from wal2lake.lake.upsert.checking import (
    first_unfit,
    first_unfit_insert,
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
from wal2lake.lake.upsert.files.livefiles import LiveFiles
from wal2lake.lake.upsert.judging import (
    AS_POSTGRESQL,
    ConflictRules,
    TableJudge,
    judge_for,
)
from wal2lake.lake.upsert.keys import Places, distinct
from wal2lake.lake.upsert.lives.deferral import ByContent, first_repeated
from wal2lake.lake.upsert.lives.endings import endings
from wal2lake.lake.upsert.lives.lives import (
    STORED,
    Events,
    HeldRow,
    Index,
    KeyQuestions,
    Lives,
    Mask,
    Stopped,
    net_lives,
)
from wal2lake.lake.upsert.locating import (
    LoadedRun,
    LocatedRows,
    find_present_twice,
    find_repeated,
    find_rows,
)
from wal2lake.lake.upsert.memory import Share, TooLarge
from wal2lake.lake.upsert.recorded import (
    HistoryRecorder,
    MetRows,
    inserted_rows,
    rows_of_lives,
)
from wal2lake.lake.upsert.soft.kept import kept_rows
from wal2lake.lake.upsert.stored import StoredRows
from wal2lake.model import ConflictType


@dataclass(frozen=True, slots=True)
class RunEffect:
    """Effect of one run on the table's files."""

    adds: tuple[AddedFile, ...] = ()
    removed: tuple[tuple[DataFile, Index], ...] = ()
    """Files that lose rows, with the rows' numbers."""
    conflicts: Sequence[RowConflict] = ()
    """Events that met another state than the publisher's, in log order."""
    truncates: bool = False
    """True if the table has no rows afterwards."""
    truncated_at: int | None = None
    """Commit LSN of a TRUNCATE that marks all rows as deleted; None: there is none."""


@dataclass(frozen=True, slots=True)
class BatchRules:
    """Everything about a batch that is the same for all of its runs."""

    state: TableState
    files: Sequence[DataFile]
    """Live files of that version."""
    uniqueness: Uniqueness
    directory: str
    """Directory for temporary files."""
    conflicts: ConflictRules = AS_POSTGRESQL
    shows_rows: bool = False
    """True if conflicts carry the texts of rows."""
    index: KeyIndex | None = None
    """Finds keys, and learns from files that are read."""
    history: HistoryTarget | None = None
    """The table that records each change."""


def plan_run(
    loaded: LoadedRun,
    live: LiveFiles,
    batch: BatchRules,
    share: Share,
    recorder: HistoryRecorder | None,
    *,
    is_whole: bool,
) -> RunEffect | RowFailure:
    """Evaluate one run on the table's live files. Raises TooLarge if its rows do not fit into the
    share, which has room for the staged changes.

    ``recorder`` collects the history. ``is_whole``: the run is the whole batch.
    """
    if loaded.is_overtaken:
        return _plan_overtaken(loaded, live, batch, share, recorder)
    if not loaded.table.num_rows:
        return RunEffect()
    if not loaded.shape.key:
        return _plan_inserts(loaded, live, batch, recorder)
    return _plan_keyed(loaded, live, batch, share, recorder, is_whole=is_whole)


def _plan_overtaken(
    loaded: LoadedRun,
    live: LiveFiles,
    batch: BatchRules,
    share: Share,
    recorder: HistoryRecorder | None,
) -> RunEffect:
    """Evaluate changes before the last TRUNCATE. No conflict of theirs is looked for, and they are
    not checked. They are recorded. Rows are written for later runs to meet them, and if the
    TRUNCATE marks them."""
    truncate, soft = loaded.truncate, batch.conflicts.soft
    leaves_rows = truncate is None or soft is not None
    effect = RunEffect()
    if loaded.table.num_rows and not loaded.shape.key:
        if recorder is not None:
            recorder.insert(loaded)
        if leaves_rows:
            effect = _inserted_rows(loaded, batch)
    elif loaded.table.num_rows:
        rules = replace(AS_POSTGRESQL, soft=soft)
        located = find_rows(
            loaded, batch.state, live, share, batch.directory, rules, None
        )
        lives = net_lives(located.events, located.present, unique=False, record=True)
        if not isinstance(lives, Lives):
            raise InternalError("changes before a TRUNCATE cannot be reduced")
        columns = range(len(loaded.shape.fields))
        met = MetRows(located.places, located.stored, columns, share)
        if recorder is not None:
            recorder.change(loaded, lives.steps, met)
        if leaves_rows:
            effect = _outcome(loaded, lives, located, batch, met, share)
    if truncate is None:
        return effect
    if recorder is not None:
        recorder.truncate(truncate)
    if soft is None:
        return RunEffect(truncates=True)
    return replace(effect, truncated_at=truncate.column("lsn")[0].as_py())


def _plan_inserts(
    loaded: LoadedRun,
    live: LiveFiles,
    batch: BatchRules,
    recorder: HistoryRecorder | None,
) -> RunEffect | RowFailure:
    """Evaluate INSERTs into a table without a key."""
    if batch.uniqueness.counted:
        none = np.zeros(0, np.int64)
        failure = _repeated_key(loaded, live, batch, none)
        if failure is not None:
            return failure
    failure = first_unfit_insert(batch.conflicts, loaded.shape, loaded.table)
    if failure is not None:
        return failure
    if recorder is not None:
        recorder.insert(loaded)
    return _inserted_rows(loaded, batch)


def _inserted_rows(loaded: LoadedRun, batch: BatchRules) -> RunEffect:
    """Write the rows of INSERTs into a table without a key."""
    rules = batch.conflicts
    inserted = _inserted(loaded)
    if rules.soft is not None:
        inserted = rules.soft.unmarked(inserted)
    if rules.commits is not None:
        lsn = loaded.table.column("lsn").to_numpy()
        inserted = rules.commits.of(lsn).appended(inserted)
    return RunEffect(_write(inserted, batch.state))


def _plan_keyed(
    loaded: LoadedRun,
    live: LiveFiles,
    batch: BatchRules,
    share: Share,
    recorder: HistoryRecorder | None,
    *,
    is_whole: bool,
) -> RunEffect | RowFailure:
    """Evaluate events of rows that are found by their keys, or by their contents."""
    rules, uniqueness = batch.conflicts, batch.uniqueness
    located = find_rows(
        loaded, batch.state, live, share, batch.directory, rules, batch.index
    )
    events, places, stored = located.events, located.places, located.stored
    lsn = loaded.table.column("lsn").to_numpy()
    judge = judge_for(
        rules, lsn, places, located.count, stored, repeats=loaded.shape.repeats
    )
    reduce = partial(
        net_lives,
        events,
        located.present,
        unique=not uniqueness.trusted,
        judge=judge,
        watched=watched_events(rules, loaded.shape, loaded.table, events),
        record=recorder is not None or rules.soft is not None,
    )
    lives = reduce()
    met = MetRows(places, stored, range(len(loaded.shape.fields)), share)
    while isinstance(lives, KeyQuestions):
        if judge is None:
            raise InternalError("a conflict needs a decision, and there is no judge")
        loaded = _ask_judge(loaded, lives, events, judge, met, rules)
        lives = reduce()
    if lives.watched:
        made = rows_of_lives(
            loaded, [r for _, r in lives.watched], list(events.unknown), met
        )
        makers = [event for event, _ in lives.watched]
        unfit = first_unfit(rules, loaded.shape, loaded.table, makers, made)
        if unfit and (isinstance(lives, Lives) or unfit[0] <= lives.event):
            return unfit[1]
    if isinstance(lives, Stopped):
        failure = None
        if uniqueness.deferrable:
            failure = _judged_at_the_end(loaded, located, batch, is_whole=is_whole)
        return failure or _stopped(loaded, lives, located, judge, batch, share)
    if uniqueness.counted:
        missed = _events_without_row(lives)
        failure = _repeated_key(loaded, live, batch, missed)
        if failure is not None:
            return failure
    if recorder is not None:
        recorder.change(loaded, lives.steps, met)
    conflicts = _conflicts(loaded, lives, located, judge, batch, share)
    effect = _outcome(loaded, lives, located, batch, met, share)
    return replace(effect, conflicts=conflicts)


def _outcome(
    loaded: LoadedRun,
    lives: Lives,
    located: LocatedRows,
    batch: BatchRules,
    met: MetRows,
    share: Share,
) -> RunEffect:
    """Write the rows that a run leaves, those that stay as deleted ones included."""
    rules, events, places = batch.conflicts, located.events, located.places
    rows = _rows(loaded, lives, places, located.stored, share)
    rows = generated_anew(rules, loaded.shape, rows, lives, events)
    lsn = loaded.table.column("lsn").to_numpy()
    writers, gone = lsn[lives.last], lives.removed
    if rules.soft is not None and lives.steps is not None:
        ended = endings(lives.steps, events, repeats=loaded.shape.repeats)
        ended_at = lsn[ended.event]
        kept = kept_rows(loaded, ended.rows, ended_at, met, rules)
        rows = pa.concat_tables([rules.soft.unmarked(rows), kept])
        writers = np.concatenate([writers, ended_at])
        gone = np.concatenate([gone, ended.touched])
        places = Places.joined([places, located.marked])
    if rules.commits is not None:
        rows = rules.commits.of(writers).appended(rows)
    removed = _removed(gone, places, located.stored)
    return RunEffect(_write(rows, batch.state), removed)


def _stopped(
    loaded: LoadedRun,
    stopped: Stopped,
    located: LocatedRows,
    judge: TableJudge | None,
    batch: BatchRules,
    share: Share,
) -> RowFailure:
    """Return the failure of the event that cannot be applied."""
    if judge is None or stopped.met is None:
        failure = _conflict(loaded, stopped.event, batch.uniqueness)
        met_key = _untouched_key(located.events, stopped.event, located.present)
    else:
        failure = stop(loaded.shape, loaded.table, stopped.met, judge, batch.uniqueness)
        met_key = stopped.met.stored
    if not batch.shows_rows:
        return failure
    (local,) = _stored_texts([met_key], located, batch.state, share)
    return shown(failure, loaded.shape, loaded.table, stopped.event, local)


def _judged_at_the_end(
    loaded: LoadedRun, located: LocatedRows, batch: BatchRules, *, is_whole: bool
) -> RowFailure | None:
    """Return the failure of a batch that meets a taken key, if the key is checked at the end of
    each transaction. Raises ByContent if a later event may still free the key."""
    inserts = pc.all(pc.equal(loaded.table.column("op"), INSERT)).as_py()
    if not (is_whole and inserts):
        raise ByContent
    # No event removes a row, so a repeated key stays repeated.
    lsn = loaded.table.column("lsn").to_numpy()
    none = np.zeros(0, np.int64)
    twice = first_repeated(located.events, located.present, none, lsn)
    return None if twice is None else _repeated(loaded, twice, loaded.shape.key, batch)


def _conflicts(
    loaded: LoadedRun,
    lives: Lives,
    located: LocatedRows,
    judge: TableJudge | None,
    batch: BatchRules,
    share: Share,
) -> Sequence[RowConflict]:
    """Return the conflicts that did not stop the run."""
    shape, table = loaded.shape, loaded.table
    if judge is not None and lives.met:

        def texts_of(keys: Sequence[int]) -> Sequence[str | None]:
            return _stored_texts(keys, located, batch.state, share)

        return met_rows(
            shape, table, lives.met, judge, texts_of, values=batch.shows_rows
        )
    if lives.missed.size:
        return missing_rows(shape, table, lives.missed, values=batch.shows_rows)
    return ()


def _events_without_row(lives: Lives) -> Index:
    """Return the events of a batch without resolutions that changed no row."""
    if not lives.met:
        return lives.missed
    kinds = (ConflictType.UPDATE_MISSING, ConflictType.DELETE_MISSING)
    return np.array([m.event for m in lives.met if m.type in kinds], np.int64)


def _repeated_key(
    loaded: LoadedRun, live: LiveFiles, batch: BatchRules, missed: Index
) -> RowFailure | None:
    """Return the failure of the first transaction that ends with a counted key twice."""
    counted = batch.uniqueness.counted
    twice = find_repeated(loaded, counted, missed, batch.state, live, batch.directory)
    return None if twice is None else _repeated(loaded, twice, counted, batch)


def repeated_at_the_end(
    loaded: LoadedRun, live: LiveFiles, batch: BatchRules, key: tuple[int, ...]
) -> RowFailure | None:
    """Return the failure of a transaction that has ended, if the table has twice a key that one of
    these events has put."""
    twice = find_present_twice(loaded, key, batch.state, live, batch.directory)
    return None if twice is None else _repeated(loaded, twice, key, batch)


def _repeated(
    loaded: LoadedRun, event: int, key: tuple[int, ...], batch: BatchRules
) -> RowFailure:
    """Return PostgreSQL's error at the COMMIT for a repeated key."""
    row = loaded.table.slice(event, 1)
    shape = replace(loaded.shape, key=key, repeats=False)
    text = f"Key {new_keys_of(shape, row)[0]} already exists."
    return RowFailure(
        Seq(row.column("lsn")[0].as_py(), row.column("ord")[0].as_py()),
        None,
        "23505",
        "duplicate key value violates unique constraint"
        f' "{batch.uniqueness.constraint}"',
        detail=text if batch.shows_rows else None,
        op=COMMIT,
    )


def _conflict(loaded: LoadedRun, event: int, uniqueness: Uniqueness) -> RowFailure:
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


def _inserted(loaded: LoadedRun) -> pa.Table:
    """Return the rows of a table without a key; only inserts are left, and each is a row."""
    if not pc.all(pc.equal(loaded.table.column("op"), INSERT)).as_py():
        raise InternalError("a row of a table without a key is updated or deleted")
    return inserted_rows(loaded.shape, loaded.table)


def _ask_judge(
    loaded: LoadedRun,
    pending: KeyQuestions,
    events: Events,
    judge: TableJudge,
    met: MetRows,
    rules: ConflictRules,
) -> LoadedRun:
    """Let the judge answer; the rows that it merges are appended to the events' rows."""

    def rows_of(rows: Sequence[HeldRow]) -> pa.Table:
        held = rows_of_lives(loaded, rows, list(events.unknown), met)
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


def _rows(
    loaded: LoadedRun, lives: Lives, places: Places, stored: StoredRows, share: Share
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
    keys: Sequence[int], located: LocatedRows, state: TableState, share: Share
) -> list[str | None]:
    """Return the rows that the table held for keys, as text. None for STORED, and for all if
    memory has no room for the rows: reporting a batch must not change how it is applied."""
    stored_keys = sorted({key for key in keys if key != STORED})
    if not stored_keys:
        return [None] * len(keys)
    places, stored = located.places, located.stored
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
    """Write rows as files of the table that the batch's commit makes durable."""
    physical = state.physical_fields
    with TableWriter(state.location, physical, durable=False) as writer:
        writer.write_all(rows)
        return writer.finish()


def _removed(
    removed: Index, places: Places, stored: StoredRows
) -> tuple[tuple[DataFile, Index], ...]:
    """Return the files that lose the rows of keys, with the rows' numbers."""
    gone_keys = np.zeros(int(places.key.max(initial=-1)) + 1, np.bool_)
    gone_keys[removed[removed < len(gone_keys)]] = True
    going = gone_keys[places.key]
    return tuple(
        (stored.files[number], places.row[going & (places.file == number)])
        for number in distinct(places.file[going])
    )
