"""From rows of the change log to typed Parquet, on Spark's executors.

Comes in: rows files of the log for one table, the table, and which transactions count.
Goes out: either data files in the table's directory, ready for one commit
(``stage_inserts``), or staged changes, in memory or in a directory of the caller's, ready for the
net change (``stage_changes``); and the rows that cannot be applied. Called by apply.

Why this way. The log keeps what the publisher sent, so conversion, the costly part, happens here
where it scales out: a task per core, each with its share of the row groups, PyArrow doing
the work without a Python object per row. A batch of a few thousand rows is converted
faster than a Spark job starts: ``parallelism`` 0 runs the same function in this process
(local paths only).

The first row of a part that cannot be applied ends that part: what follows it will not be
applied in this batch. The caller cuts the batch below the smallest one and stages again.
Files of a result with failures are removed already.

A task reports errors as values; raised inside an executor they would arrive as the text of a
Java exception.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from wal2lake.errors import InternalError, Wal2LakeError
from wal2lake.lake.delta.datafile import (
    DataFileWriter,
    TableWriter,
    discard_added,
    remove_file,
)
from wal2lake.lake.delta.durability import local_path
from wal2lake.lake.executors import Executors
from wal2lake.lake.staging.changes import INSERT, ChangeShape, RowFailure, Seq
from wal2lake.lake.staging.defaults import have_sequences
from wal2lake.lake.staging.logrows import (
    BATCH_ROWS,
    LogPart,
    LogSource,
    LsnRange,
    plan_parts,
    read_rows,
)
from wal2lake.lake.staging.rowchanges import (
    StagedContents,
    StageTarget,
    change_rows,
    check_columns,
    columns_wanted,
    insert_rows,
)
from wal2lake.lake.tablefiles import AddedFile

_FAILURES_KEPT: Final = 10
"""Failures of a whole batch that are kept; the first decides, the others help the operator."""


@dataclass(frozen=True, slots=True)
class StagedInserts:
    """Rows that lie in the table's directory and wait for ``commit_files``."""

    files: tuple[AddedFile, ...]
    found: StagedContents
    failures: tuple[RowFailure, ...]
    """Ascending; not empty: then ``files`` is."""


_RANGED: Final = {"smallint": int, "int": int, "bigint": int, "string": str}

_RUN_BYTES: Final = 16 << 20
"""Bytes of rows that are converted together; with more the fixed cost of a conversion is small."""

_HELD_BYTES: Final = 16 << 20
"""Staged changes of one table that stay in memory, where this process stages them: written and read
again, a few rows would cost more than all that is done with them. A guess."""

KeyRange = tuple[int | str, int | str]
"""Lowest and highest value, or a bit beyond."""


@dataclass(frozen=True, slots=True)
class StagedChanges:
    """Changes that wait for the net change, in memory or in a staging directory."""

    paths: tuple[str, ...]
    """Their files; none if they are few."""
    size: int
    """Bytes of all values, not compressed."""
    found: StagedContents
    shape: ChangeShape
    first_key: KeyRange | None
    """Bounds of all keys' first column, new and old, if the files' statistics tell."""
    failures: tuple[RowFailure, ...]
    """Ascending; not empty: then ``paths`` is."""
    held: tuple[pa.Table, ...] = ()
    """Staged tables in memory; none if ``paths`` has them."""

    def tables(self) -> list[pa.Table]:
        """All of them, in no order. Raises StorageError."""
        return [*self.held, *map(read_staged, self.paths)]

    def written(self, directory: str) -> StagedChanges:
        """The same with all of them in files below ``directory``. Raises StorageError."""
        paths = list(self.paths)
        for table in self.held:
            with DataFileWriter(directory, durable=False) as writer:
                writer.write(table)
                if writer.finish() is not None:
                    paths.append(writer.path)
        return replace(self, paths=tuple(paths), held=())


def stage_inserts(
    executors: Executors,
    sources: Sequence[LogSource],
    target: StageTarget,
    span: LsnRange,
    *,
    parallelism: int,
) -> StagedInserts:
    """Write a batch of INSERTs as data files of the table; InternalError for others.

    Nothing is visible before ``commit_files``; each file is fsynced. ``parallelism``:
    tasks of the Spark job, 0 for none. Raises CorruptLogError, StorageError.
    """
    run = partial(_insert_task, target, span)
    answers = _run(executors, run, _tasks(sources, target, parallelism), parallelism)
    files = tuple(f for a in answers for f in a.files)
    failures = _first(f for a in answers for f in a.failures)
    error = next((a.error for a in answers if a.error is not None), None)
    if error is not None or failures:
        discard_added(target.location, files)
        if error is not None:
            raise error
        files = ()
    return StagedInserts(files, _found(answers), failures)


def stage_changes(
    executors: Executors,
    sources: Sequence[LogSource],
    target: StageTarget,
    span: LsnRange,
    directory: str,
    *,
    parallelism: int,
) -> StagedChanges:
    """Stage a batch of any events, below ``directory`` if it is large.

    The caller removes the directory when the batch is committed. Otherwise as
    ``stage_inserts``.
    """
    held = _HELD_BYTES if parallelism == 0 else 0
    run = partial(_change_task, target, span, directory, held)
    answers = _run(executors, run, _tasks(sources, target, parallelism), parallelism)
    paths = tuple(p for a in answers for p in a.paths)
    failures = _first(f for a in answers for f in a.failures)
    error = next((a.error for a in answers if a.error is not None), None)
    if error is not None or failures:
        for path in paths:
            remove_file(path)
        if error is not None:
            raise error
        paths = ()
    found = _found(answers)
    by_content = not target.key and bool(found.updates or found.deletes)
    shape = ChangeShape(
        target.fields,
        target.identity_positions if target.key or by_content else (),
        frozenset(found.unchanged),
        found.moved,
        found.last_truncate,
        by_content,
    )
    tables = () if failures else tuple(t for a in answers for t in a.held)
    stats = [f.stats for a in answers for f in a.files]
    first_key = _range_of(tables, shape) if tables else _key_range(stats, shape)
    size = sum(a.size for a in answers)
    return StagedChanges(paths, size, found, shape, first_key, failures, tables)


def _tasks(
    sources: Sequence[LogSource], target: StageTarget, parallelism: int
) -> list[tuple[LogPart, ...]]:
    # Where the values of a part's rows begin is known of whole files.
    return plan_parts(sources, parallelism, whole=have_sequences(target.fills))


def read_staged(path: str) -> pa.Table:
    """A staged file, whole."""
    local = local_path(path)
    if local is not None:
        return pq.read_table(str(local), partitioning=None)
    files, name = fs.FileSystem.from_uri(path)
    return pq.read_table(name, filesystem=files, partitioning=None)


@dataclass(slots=True)
class _Answer:
    """Answer of a task."""

    files: list[AddedFile]
    paths: list[str]
    """Paths of staged changes; ``files`` then has their statistics."""
    found: StagedContents
    failures: list[RowFailure]
    held: list[pa.Table] = field(default_factory=list)
    """Staged changes in memory."""
    size: int = 0
    error: Wal2LakeError | None = None


def _run(
    executors: Executors,
    run: Callable[[tuple[LogPart, ...]], _Answer],
    tasks: Sequence[tuple[LogPart, ...]],
    parallelism: int,
) -> list[_Answer]:
    if parallelism == 0 or not tasks:
        return [run(task) for task in tasks]
    return executors.map(run, tasks, "staging a batch of changes")


def _insert_task(
    target: StageTarget, span: LsnRange, parts: tuple[LogPart, ...]
) -> _Answer:
    """Runs in an executor: parts of the log into one data file, or one for each partition."""
    answer = _Answer([], [], StagedContents(), [])
    try:
        with TableWriter(target.location, target.physical) as writer:
            for part in parts:
                _insert_part(target, span, part, writer, answer)
            if answer.failures:
                writer.discard()
            else:
                answer.files.extend(writer.finish())
    except Wal2LakeError as error:
        answer.error = error
    return answer


def _insert_part(
    target: StageTarget,
    span: LsnRange,
    part: LogPart,
    writer: TableWriter,
    answer: _Answer,
) -> None:
    relation = part.source.relation
    target = target.behind(part.source.inserts_before)
    for batch in read_rows(part, span, partial(columns_wanted, relation, target)):
        failures = _unfit(batch, part, target)
        if not failures:
            op = batch.column("op").to_numpy()
            if (op != INSERT).any():
                raise InternalError(
                    f'change log file "{part.source.path}" has other events than '
                    "inserts in a batch of inserts"
                )
            table, found, failures = insert_rows(batch, relation, target)
            if not failures and not answer.failures:
                writer.write(table)
            answer.found.add(found)
            target = target.behind(found.inserts)
        if failures:
            answer.failures += failures
            return


def _change_task(
    target: StageTarget,
    span: LsnRange,
    directory: str,
    most_held: int,
    parts: tuple[LogPart, ...],
) -> _Answer:
    """Runs in an executor: parts of the log into a staged file per set of columns, or into memory
    as long as they have at most ``most_held`` bytes."""
    answer = _Answer([], [], StagedContents(), [])
    try:
        with ExitStack() as stack:
            writers: dict[tuple[str, ...], DataFileWriter] = {}

            def write(table: pa.Table) -> None:
                columns = tuple(table.column_names)
                if columns not in writers:
                    # Gone after a crash: nothing has to survive it.
                    writer = DataFileWriter(directory, durable=False)
                    writers[columns] = stack.enter_context(writer)
                writers[columns].write(table)

            for part, batch, behind in _runs(parts, span, target):
                failures = _change_rows(part, batch, behind, answer)
                answer.failures += failures
                if answer.failures:
                    # The first failure may still be to come; nothing will be kept.
                    answer.held.clear()
                elif answer.size > most_held:
                    for table in answer.held:
                        write(table)
                    answer.held.clear()
            for writer in writers.values():
                if answer.failures:
                    writer.discard()
                else:
                    added = writer.finish()
                    if added is not None:
                        answer.files.append(added)
                        answer.paths.append(writer.path)
    except Wal2LakeError as error:
        answer.error = error
        answer.paths.clear()
    return answer


def _runs(
    parts: Sequence[LogPart], span: LsnRange, target: StageTarget
) -> Iterator[tuple[LogPart, pa.RecordBatch, StageTarget]]:
    """The rows of parts: those of one relation together, up to a bound, whatever files they are
    in. Each conversion has a fixed cost, which is most of what a few rows cost."""
    if have_sequences(target.fills):
        for part in parts:
            behind = target.behind(part.source.inserts_before)
            for batch in _rows(part, span, target):
                yield part, batch, behind
                behind = behind.behind(_inserts(batch))
        return
    of: LogPart | None = None
    run: list[pa.RecordBatch] = []
    for part in parts:
        for batch in _rows(part, span, target):
            rows = batch.num_rows + sum(one.num_rows for one in run)
            size = batch.nbytes + sum(one.nbytes for one in run)
            if of is not None and (
                of.source.relation != part.source.relation
                or rows > BATCH_ROWS
                or size > _RUN_BYTES
            ):
                yield of, _joined(run), target
                run = []
            of = part
            run.append(batch)
    if of is not None and run:
        yield of, _joined(run), target


def _rows(
    part: LogPart, span: LsnRange, target: StageTarget
) -> Iterator[pa.RecordBatch]:
    wanted = partial(columns_wanted, part.source.relation, target)
    return read_rows(part, span, wanted)


def _joined(run: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Batches of one relation as one. A flag or an old value that one of them lacks is null."""
    if len(run) == 1:
        return run[0]
    tables = [pa.Table.from_batches([one]) for one in run]
    table = pa.concat_tables(tables, promote_options="default").combine_chunks()
    (batch,) = table.to_batches()
    return batch


def _inserts(batch: pa.RecordBatch) -> int:
    return int(np.count_nonzero(batch.column("op").to_numpy() == INSERT))


def _change_rows(
    part: LogPart, batch: pa.RecordBatch, target: StageTarget, answer: _Answer
) -> tuple[RowFailure, ...]:
    failures = _unfit(batch, part, target)
    if failures:
        return failures
    table, found, failures = change_rows(batch, part.source.relation, target)
    answer.found.add(found)
    if not failures:
        answer.held.append(table)
        answer.size += table.nbytes
    return failures


def _unfit(
    batch: pa.RecordBatch, part: LogPart, target: StageTarget
) -> tuple[RowFailure, ...]:
    """The batch's first row, if its relation does not fit the target at all."""
    wrong = check_columns(part.source.relation, target)
    if wrong is None:
        return ()
    first = Seq(
        batch.column("commit_lsn")[0].as_py(), batch.column("ordinal")[0].as_py()
    )
    op = batch.column("op")[0].as_py()
    return (RowFailure(first, None, *wrong, op=op),)


def _found(answers: Iterable[_Answer]) -> StagedContents:
    found = StagedContents()
    for answer in answers:
        found.add(answer.found)
    return found


def _key_range(stats: Iterable[str | None], shape: ChangeShape) -> KeyRange | None:
    """From the statistics of the staged files; None if one does not say, or no files."""
    if not shape.key:
        return None
    # Of other types the statistics are text or rounded numbers, which a literal is not.
    kind = _RANGED.get(shape.fields[shape.key[0]].spark_ddl.lower())
    if kind is None:
        return None
    low: list[int | str] = []
    high: list[int | str] = []
    for text in stats:
        known = json.loads(text or "{}")
        for name in (f"n{shape.key[0]}", f"o{shape.key[0]}"):
            nulls = known.get("nullCount", {}).get(name)
            if nulls is None and name[0] == "o":
                continue
            if nulls is not None and nulls == known["numRecords"]:
                continue
            if name not in known.get("minValues", {}):
                return None
            low.append(known["minValues"][name])
            high.append(known["maxValues"][name])
    if not low or any(type(value) is not kind for value in (*low, *high)):
        return None
    return min(low), max(high)


def _range_of(tables: Sequence[pa.Table], shape: ChangeShape) -> KeyRange | None:
    """Return the key range as ``_key_range`` does, from the changes themselves."""
    if not shape.key:
        return None
    if _RANGED.get(shape.fields[shape.key[0]].spark_ddl.lower()) is None:
        return None
    low: list[int | str] = []
    high: list[int | str] = []
    for table in tables:
        for name in (f"n{shape.key[0]}", f"o{shape.key[0]}"):
            if name in table.column_names:
                bounds = pc.min_max(table.column(name)).as_py()
                if bounds["min"] is not None:
                    low.append(bounds["min"])
                    high.append(bounds["max"])
    return (min(low), max(high)) if low else None


def _first(failures: Iterable[RowFailure]) -> tuple[RowFailure, ...]:
    ordered = sorted(failures, key=lambda f: f.seq)
    return tuple(ordered[:_FAILURES_KEPT])
