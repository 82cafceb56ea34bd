"""Converts rows of the change log to typed Parquet, on Spark's executors.

Comes in: row files of the log for one table, the table, and the transactions that count. Goes out:
either data files in the table's directory, ready for one commit (``stage_inserts``), or staged
changes, in memory or in a directory of the caller's, ready for the net change (``stage_changes``);
and the rows that cannot be applied. Called by ``lake.spark.batches``.

Why this way. The log keeps the values that the publisher sent, so conversion, the expensive part,
happens here, where it scales out: one task per core, each with its share of the row groups, and
PyArrow does the work without a Python object per row. A batch of a few thousand rows is converted
faster than a Spark job starts: with ``parallelism`` 0 the same function runs in this process
(local paths only).

The first row of a part that cannot be applied ends that part, because no later row will be applied
in this batch. The caller cuts the batch below the smallest failure and stages again. If there are
failures, the files of the result have been removed.

A task returns errors as values; raised inside an executor they would arrive as the text of a Java
exception.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from wal2lake.errors import InternalError, Wal2LakeError
from wal2lake.lake.delta.datafile import (
    DataFileWriter,
    TableWriter,
    discard_added,
)
from wal2lake.lake.executors import Executors
from wal2lake.lake.parquet import open_parquet
from wal2lake.lake.staging.defaults import have_sequences
from wal2lake.lake.staging.layout import INSERT, ChangeShape, RowFailure, Seq
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
from wal2lake.lake.store import local_path, remove_file
from wal2lake.lake.tablefiles import AddedFile

_FAILURES_KEPT: Final = 10
"""Most failures of a whole batch that are kept; the first one decides, the others help the
operator."""


@dataclass(frozen=True, slots=True)
class StagedInserts:
    """Rows in the table's directory that wait for ``commit_files``."""

    files: tuple[AddedFile, ...]
    contents: StagedContents
    failures: tuple[RowFailure, ...]
    """Ascending; if there are any, ``files`` is empty."""


_RUN_BYTES: Final = 16 << 20
"""Bytes of rows that are converted together; beyond them the fixed cost of a conversion is
small."""

_HELD_BYTES: Final = 16 << 20
"""Most staged changes of one table that stay in memory if this process stages them. Writing and
reading a few rows again would cost more than everything else that is done with them. A guess."""


@dataclass(frozen=True, slots=True)
class StagedChanges:
    """Changes that wait for the net change, in memory or in a staging directory."""

    paths: tuple[str, ...]
    """Files of the changes; empty if they are few."""
    size: int
    """Bytes of all values, uncompressed."""
    contents: StagedContents
    shape: ChangeShape
    failures: tuple[RowFailure, ...]
    """Ascending; if there are any, ``paths`` is empty."""
    held: tuple[pa.Table, ...] = ()
    """Staged tables in memory; empty if ``paths`` has them."""

    def tables(self) -> list[pa.Table]:
        """Return all tables, in no order. Raises StorageError."""
        return [*self.held, *map(read_staged, self.paths)]


def stage_inserts(
    executors: Executors,
    sources: Sequence[LogSource],
    target: StageTarget,
    span: LsnRange,
    *,
    parallelism: int,
) -> StagedInserts:
    """Write a batch of INSERTs as data files of the table; InternalError for other events.

    Nothing is visible before ``commit_files``. A file that another process has written is fsynced;
    ``commit_files`` syncs those of this one. ``parallelism``: tasks of the Spark job, 0 for none.
    Raises CorruptLogError, StorageError.
    """
    run = partial(_insert_task, target, span, parallelism > 0)
    answers = _run(executors, run, _tasks(sources, target, parallelism), parallelism)
    files = tuple(f for a in answers for f in a.files)
    failures = _first_failures(f for a in answers for f in a.failures)
    error = next((a.error for a in answers if a.error is not None), None)
    if error is not None or failures:
        discard_added(target.location, files)
        if error is not None:
            raise error
        files = ()
    return StagedInserts(files, _sum_of(answers), failures)


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

    The caller removes the directory when the batch is committed. Everything else is as in
    ``stage_inserts``.
    """
    held = _HELD_BYTES if parallelism == 0 else 0
    run = partial(_change_task, target, span, directory, held)
    answers = _run(executors, run, _tasks(sources, target, parallelism), parallelism)
    paths = tuple(p for a in answers for p in a.paths)
    failures = _first_failures(f for a in answers for f in a.failures)
    error = next((a.error for a in answers if a.error is not None), None)
    if error is not None or failures:
        for path in paths:
            remove_file(path)
        if error is not None:
            raise error
        paths = ()
    contents = _sum_of(answers)
    by_content = not target.key and bool(contents.updates or contents.deletes)
    shape = ChangeShape(
        target.fields,
        target.identity_positions if target.key or by_content else (),
        frozenset(contents.unchanged),
        contents.moved,
        contents.last_truncate,
        by_content,
    )
    tables = () if failures else tuple(t for a in answers for t in a.held)
    size = sum(a.size for a in answers)
    return StagedChanges(paths, size, contents, shape, failures, tables)


def _tasks(
    sources: Sequence[LogSource], target: StageTarget, parallelism: int
) -> list[tuple[LogPart, ...]]:
    # A part of a file cannot use a sequence: only whole files know how many inserts precede.
    return plan_parts(sources, parallelism, whole=have_sequences(target.fills))


def read_staged(path: str) -> pa.Table:
    """Read a whole staged file."""
    local = local_path(path)
    if local is not None:
        return pq.read_table(str(local), partitioning=None)
    with open_parquet(path) as parquet:
        return parquet.read_groups(parquet.groups)


def staged_pieces(path: str) -> Iterator[pa.Table]:
    """Read a staged file one row group at a time."""
    with open_parquet(path) as parquet:
        for group in parquet.groups:
            yield parquet.read_group(group)


@dataclass(slots=True)
class _Answer:
    """Result of a task."""

    files: list[AddedFile]
    paths: list[str]
    """Paths of staged changes."""
    contents: StagedContents
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
    target: StageTarget, span: LsnRange, durable: bool, parts: tuple[LogPart, ...]
) -> _Answer:
    """Convert parts of the log into one data file, or one for each partition. Runs in an
    executor."""
    answer = _Answer([], [], StagedContents(), [])
    try:
        with TableWriter(target.location, target.physical, durable=durable) as writer:
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
        failures = _misfit(batch, part, target)
        if not failures:
            op = batch.column("op").to_numpy()
            if (op != INSERT).any():
                raise InternalError(
                    f'change log file "{part.source.path}" has other events than '
                    "inserts in a batch of inserts"
                )
            table, contents, failures = insert_rows(batch, relation, target)
            if not failures and not answer.failures:
                writer.write(table)
            answer.contents.add(contents)
            target = target.behind(contents.inserts)
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
    """Convert parts of the log into a staged file per set of columns, or into memory as long as
    they have at most ``most_held`` bytes. Runs in an executor."""
    answer = _Answer([], [], StagedContents(), [])
    try:
        with ExitStack() as stack:
            writers: dict[tuple[str, ...], DataFileWriter] = {}

            def write(table: pa.Table) -> None:
                columns = tuple(table.column_names)
                if columns not in writers:
                    # Staged files need not survive a crash.
                    writer = DataFileWriter(directory, durable=False)
                    writers[columns] = stack.enter_context(writer)
                writers[columns].write(table)

            for part, batch, behind in _runs(parts, span, target):
                failures = _change_rows(part, batch, behind, answer)
                answer.failures += failures
                if answer.failures:
                    # Continue, since an earlier failure may still follow; keep no rows.
                    answer.held.clear()
                elif answer.size > most_held:
                    for table in answer.held:
                        write(table)
                    answer.held.clear()
            for writer in writers.values():
                if answer.failures:
                    writer.discard()
                else:
                    if writer.finish() is not None:
                        answer.paths.append(writer.path)
    except Wal2LakeError as error:
        answer.error = error
        answer.paths.clear()
    return answer


def _runs(
    parts: Sequence[LogPart], span: LsnRange, target: StageTarget
) -> Iterator[tuple[LogPart, pa.RecordBatch, StageTarget]]:
    """Yield the rows of parts, joined across files as long as they are of one relation and below a
    limit. Each conversion has a fixed cost, which dominates for a few rows."""
    if have_sequences(target.fills):
        for part in parts:
            behind = target.behind(part.source.inserts_before)
            for batch in _rows(part, span, target):
                yield part, batch, behind
                behind = behind.behind(_inserts(batch))
        return
    last_part: LogPart | None = None
    run: list[pa.RecordBatch] = []
    for part in parts:
        for batch in _rows(part, span, target):
            rows = batch.num_rows + sum(joined.num_rows for joined in run)
            size = batch.nbytes + sum(joined.nbytes for joined in run)
            if last_part is not None and (
                last_part.source.relation != part.source.relation
                or rows > BATCH_ROWS
                or size > _RUN_BYTES
            ):
                yield last_part, _join_batches(run), target
                run = []
            last_part = part
            run.append(batch)
    if last_part is not None and run:
        yield last_part, _join_batches(run), target


def _rows(
    part: LogPart, span: LsnRange, target: StageTarget
) -> Iterator[pa.RecordBatch]:
    choose = partial(columns_wanted, part.source.relation, target)
    return read_rows(part, span, choose)


def _join_batches(run: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Join batches of one relation. A flag or an old value that a batch lacks is null."""
    if len(run) == 1:
        return run[0]
    tables = [pa.Table.from_batches([batch_of_run]) for batch_of_run in run]
    table = pa.concat_tables(tables, promote_options="default").combine_chunks()
    (batch,) = table.to_batches()
    return batch


def _inserts(batch: pa.RecordBatch) -> int:
    return int(np.count_nonzero(batch.column("op").to_numpy() == INSERT))


def _change_rows(
    part: LogPart, batch: pa.RecordBatch, target: StageTarget, answer: _Answer
) -> tuple[RowFailure, ...]:
    failures = _misfit(batch, part, target)
    if failures:
        return failures
    table, contents, failures = change_rows(batch, part.source.relation, target)
    answer.contents.add(contents)
    if not failures:
        answer.held.append(table)
        answer.size += table.nbytes
    return failures


def _misfit(
    batch: pa.RecordBatch, part: LogPart, target: StageTarget
) -> tuple[RowFailure, ...]:
    """Return the failure of the batch's first row if its relation does not fit the target at
    all."""
    error = check_columns(part.source.relation, target)
    if error is None:
        return ()
    first = Seq(
        batch.column("commit_lsn")[0].as_py(), batch.column("ordinal")[0].as_py()
    )
    op = batch.column("op")[0].as_py()
    return (RowFailure(first, None, *error, op=op),)


def _sum_of(answers: Iterable[_Answer]) -> StagedContents:
    contents = StagedContents()
    for answer in answers:
        contents.add(answer.contents)
    return contents


def _first_failures(failures: Iterable[RowFailure]) -> tuple[RowFailure, ...]:
    ordered = sorted(failures, key=lambda f: f.seq)
    return tuple(ordered[:_FAILURES_KEPT])
