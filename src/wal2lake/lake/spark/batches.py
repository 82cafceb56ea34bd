"""The batch port on Spark and Delta: staging, net change, commit.

Inserts that cannot meet an existing row become data files at once. All other changes are staged,
reduced to the net change per key, and applied by one commit. The caller decides which of the two a
batch is (``StageRequest.append``); this module decides by the number of rows how many tasks convert
it, and whether a Spark job does. ``upsert/`` applies a batch in parts that fit into memory: in this
process, or with a cluster's master, if executors have staged the batch and its keys can be divided,
in tasks (``runs.spread``). A table of types that this node does not write is refused.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyspark.sql import SparkSession

from wal2lake.errors import FeatureNotSupportedError, StorageError
from wal2lake.lake.batch.batchport import Staged, StageRequest
from wal2lake.lake.batch.methods import Method, MethodTotals, Total
from wal2lake.lake.batch.reads import BatchReads
from wal2lake.lake.capture.commitfacts import (
    NO_REMARKS,
    CommitRemarks,
    OriginMark,
    sent,
    with_remarks,
)
from wal2lake.lake.compaction import Compactor
from wal2lake.lake.delta.datafile import discard_added
from wal2lake.lake.executors import Pool
from wal2lake.lake.keyindex import KeyIndex
from wal2lake.lake.partitions import text_partitions
from wal2lake.lake.port import CommitConflict, Committed, Cursor, TableState
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.executors import SparkExecutors
from wal2lake.lake.spark.expressions import DemandsOfTables, SparkExpressions
from wal2lake.lake.spark.session import use_pool
from wal2lake.lake.staging.historyrows import HISTORY_WORD
from wal2lake.lake.staging.layout import (
    RowConflict,
    RowFailure,
    Uniqueness,
)
from wal2lake.lake.staging.rowchanges import StageTarget
from wal2lake.lake.staging.stage import (
    StagedChanges,
    StagedInserts,
    stage_changes,
    stage_inserts,
    staged_pieces,
)
from wal2lake.lake.store import remove_file, store_at
from wal2lake.lake.tablefiles import AddedFile
from wal2lake.lake.upsert import TooLarge, Upsert, UpsertMemory
from wal2lake.lake.upsert.conflicts import uncounted, unwritable
from wal2lake.lake.upsert.judging import ConflictRules
from wal2lake.lake.upsert.lives.deferral import ByContent
from wal2lake.lake.upsert.lives.marks import DeletionMarks
from wal2lake.lake.upsert.plan import BatchRules
from wal2lake.lake.upsert.recorded import append_recorded
from wal2lake.lake.upsert.runs.spread import KeyTasks, plan_spread
from wal2lake.lake.upsert.runs.whole import plan_batch
from wal2lake.lake.upsert.stored import is_plainly_written, only_spark
from wal2lake.model import DELETED_AT, Coercion, ReplicaIdentity, merged

_IN_PROCESS_ROWS: Final = 256 * 1024
_IN_PROCESS_BYTES: Final = 16 << 20
"""Rows, and bytes of log files, up to which this process converts them: 1.25 us for a row, while a
Spark job takes 60 ms, the first one half a second, and cannot divide a row group of the log, which
has as many rows."""

_LEAST_BYTES: Final = 1 << 20
"""Least memory for changes, whatever is set: each run of a batch searches the table and writes a
file."""


@dataclass(slots=True, eq=False, weakref_slot=True)
class _Staged:
    """The port's ``Staged``. One of ``inserts`` and ``upsert`` is set, unless staging failed or
    there is nothing to do."""

    state: TableState
    failures: Sequence[RowFailure]
    inserts: StagedInserts | None = None
    upsert: Upsert | None = None
    coercions: Sequence[Coercion] = ()
    conflicts: Sequence[RowConflict] = ()
    directory: Path | None = None
    """Directory of temporary files, and of the staged changes if executors share it; removed when
    they are committed or discarded."""
    paths: Sequence[str] = ()
    """Files of the staged changes."""
    key: tuple[int, ...] = ()
    """Positions of the table's primary key."""
    changes: int = 0
    """Number of rows of the log."""
    seconds: float = 0.0
    """Duration of the evaluation."""
    appends: bool = False
    """Whether the rows of ``upsert`` are only added."""
    history_of: TableState | None = None
    """State of the table's history; None if there is none."""
    remarks: CommitRemarks = NO_REMARKS
    """Remarks that the commit carries in its user metadata."""
    committed: bool = field(default=False)

    @property
    def history(self) -> Sequence[AddedFile]:
        """Files of the table's history."""
        return () if self.upsert is None else self.upsert.history


class DeltaBatches:
    """The port on Delta tables. Thread-safe."""

    def __init__(
        self,
        spark: SparkSession,
        tables: DeltaTables,
        staging: Path,
        cores: int,
        upsert_bytes: int,
        spreads: bool = False,
        index: KeyIndex | None = None,
        compactor: Compactor | None = None,
        shared: str | None = None,
    ) -> None:
        """Empty ``staging``, because whatever an earlier process staged was not committed.

        ``shared``: URL below which executors find staged changes that do not fit into memory; None:
        they find them in ``staging``.

        Changes of up to ``upsert_bytes``, all tables together, are in memory at a time.
        ``spreads``: large batches are evaluated by tasks on executors, ``cores`` at once, each with
        as much memory.
        """
        self._spark = spark
        self._expressions = SparkExpressions(spark)
        self._executors = SparkExecutors(spark)
        self._tables = tables
        self._demands = DemandsOfTables(spark)
        self._staging = staging
        self._cores = cores
        self._memory = UpsertMemory(max(_LEAST_BYTES, upsert_bytes))
        self._spread: KeyTasks | None = None
        if spreads:
            self._spread = KeyTasks(self._executors, cores, self._memory.limit)
        self._methods = MethodTotals()
        self._reads = BatchReads()
        self._index = index
        self._compactor = compactor or Compactor(tables)
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        self._shared = shared
        if shared is not None:
            _empty(shared)

    def reads(self, location: str) -> list[int]:
        """Return the versions of a table that batches read."""
        return self._reads.versions(location)

    def methods(self, writer: str, location: str) -> Mapping[Method, Total]:
        """Return how a subscription's batches of one table were written; see
        ``MethodTotals.of``."""
        return self._methods.of(writer, location)

    def stage(self, request: StageRequest) -> Staged:
        """Convert and write a batch, as in BatchPort."""
        by_content = False
        with self._reads.of(request.state):
            try:
                staged = self._stage(request)
            except ByContent:
                by_content = True
                staged = self._stage(
                    replace(
                        request,
                        key=(),
                        append=False,
                        deferrable=False,
                        counted=request.key,
                    )
                )
            self._reads.keep(staged)
        if request.repairs is not None:
            origin = request.repairs
            mark = OriginMark(origin.name, origin.lsn, origin.time_us)
            staged.remarks = CommitRemarks(origin=mark)
        elif not (staged.failures or by_content) and _is_as_sent(request, staged):
            relations = [source.relation for source in request.sources]
            as_sent = sent(
                request.span.cursor,
                staged.changes,
                relations,
                # Finding a row by its key does not show what other writers changed in it.
                found_whole=request.has_their_rows or not request.key,
            )
            staged.remarks = CommitRemarks(sent=as_sent)
        names = [field.name for field in request.state.fields]
        staged.key = tuple(names.index(name) for name in request.key)
        return staged

    def _stage(self, request: StageRequest) -> _Staged:
        use_pool(self._spark, Pool.APPLY)
        target = StageTarget(
            request.namespace,
            request.name,
            request.state.location,
            request.state.fields,
            request.state.physical_fields,
            request.key,
            request.types,
            request.rules,
            _content_columns(request),
            request.fills,
            request.commits,
        )
        rows = sum(source.rows for source in request.sources)
        size = sum(source.size for source in request.sources)
        small = rows <= _IN_PROCESS_ROWS and size <= _IN_PROCESS_BYTES
        parallelism = 0 if small else self._cores
        if not small and request.place is not None:
            request = replace(request, sources=request.place(request.sources))
        if request.append and not self._only_adds(request):
            request = replace(request, append=False)
        is_plain = is_plainly_written(request.state)
        if is_plain and request.append and request.history is None:
            inserts = stage_inserts(
                self._executors,
                request.sources,
                target,
                request.span,
                parallelism=parallelism,
            )
            return _Staged(
                request.state,
                inserts.failures,
                inserts=inserts,
                coercions=merged(inserts.contents.coercions),
                changes=inserts.contents.rows,
            )
        directory = self._staging / uuid.uuid4().hex
        place = f"{self._shared or self._staging}/{directory.name}"
        try:
            changes = stage_changes(
                self._executors,
                request.sources,
                target,
                request.span,
                place,
                parallelism=parallelism,
            )
            staged = _Staged(
                request.state,
                changes.failures,
                coercions=merged(changes.contents.coercions),
                directory=directory,
                paths=changes.paths,
                changes=changes.contents.rows,
            )
            if request.history is not None:
                staged.history_of = request.history.state
            if not changes.failures and (changes.paths or changes.held):
                began = time.monotonic()
                planned: Upsert | RowFailure
                if is_plain and request.append:
                    staged.appends = True
                    planned = _append_recorded(request, changes)
                else:
                    planned = self._plan(request, changes, directory)
                staged.seconds = time.monotonic() - began
                if isinstance(planned, RowFailure):
                    staged.failures = (planned,)
                else:
                    staged.upsert = planned
                    staged.conflicts = planned.conflicts
        except BaseException:
            shutil.rmtree(directory, ignore_errors=True)
            if self._shared is not None:
                with suppress(StorageError):
                    _empty(place)
            raise
        return staged

    def _plan(
        self, request: StageRequest, changes: StagedChanges, directory: Path
    ) -> Upsert | RowFailure:
        name = f"{request.namespace}.{request.name}"
        why = only_spark(request.state)
        if why is not None:
            return unwritable(name, _positions(changes), why)
        try:
            demands = self._demands.of(request.state, _sent_columns(request))
        except FeatureNotSupportedError as error:
            why = " ".join(filter(None, (f"{error.message}.", error.detail)))
            return unwritable(name, _positions(changes), why)
        files = self._tables.files(request.state)
        if files is None:
            raise CommitConflict(
                "could not serialize access due to concurrent update",
                detail=f'Table at "{request.state.location}" has been written meanwhile.',
            )
        uniqueness = Uniqueness(
            request.trusted,
            request.constraint,
            name,
            _defers_key(request),
            tuple(
                i
                for column in request.counted
                for i, field in enumerate(request.state.fields)
                if field.name == column
            ),
        )
        rules = ConflictRules(
            request.resolutions,
            request.commits,
            _unsent_columns(request),
            self._expressions,
            request.rules.required,
            request.rules.checks,
            request.name,
            request.rules.generated,
            _deletion_marks(request),
            demands,
            text_partitions(request.state.fields, request.state.physical_fields),
        )
        batch = BatchRules(
            request.state,
            files,
            uniqueness,
            str(directory),
            rules,
            request.shows_rows,
            self._index,
            request.history,
        )
        try:
            planned = None
            if self._spread is not None:
                planned = plan_spread(changes, batch, self._spread)
            return planned or plan_batch(changes, batch, self._memory)
        except TooLarge:
            return uncounted(name, _positions(changes))

    def _only_adds(self, request: StageRequest) -> bool:
        """Whether a batch of inserts may be added as it is: no marked row has one of its keys."""
        if request.soft is None:
            return True
        if DELETED_AT in request.fills:
            return False
        files = self._tables.files(request.state)
        column = request.state.physical_fields[_mark_position(request)].physical_name
        return not request.key or (
            files is not None and all(file.is_null(column) for file in files)
        )

    def commit(self, staged: Staged, cursor: Cursor) -> Committed:
        """Make one durable commit, as in BatchPort."""
        assert isinstance(staged, _Staged)
        use_pool(self._spark, Pool.APPLY)
        began = time.monotonic()
        try:
            done = self._commit(staged, cursor)
        finally:
            # Each attempt stages anew, so the staged changes go. Data files stay unless it is
            # certain that no commit names them (``discard``).
            self._remove(staged)
        staged.committed = True
        if done is None:
            # All changes in the files were below the table's position, so nothing changes.
            return Committed(staged.state.version)
        self._record_method(staged, cursor, time.monotonic() - began)
        state = replace(staged.state, version=done.version)
        after = self._compactor.behind(state, staged.key, cursor)
        return replace(
            done,
            version=after.version,
            interlopers=(*done.interlopers, *after.interlopers),
            method=_method(staged),
        )

    def _record_method(self, staged: _Staged, cursor: Cursor, seconds: float) -> None:
        """Record the method of a batch, and its duration."""
        self._methods.count(
            cursor.app_id,
            staged.state.location,
            _method(staged),
            staged.changes,
            seconds + staged.seconds,
        )

    def _commit(self, staged: _Staged, cursor: Cursor) -> Committed | None:
        location, version = staged.state.location, staged.state.version
        # A row inserted and deleted in the same batch leaves no trace in the table, but
        # subscribers that replay individual changes must see both: commit even if empty.
        is_replayed = staged.remarks.sent is not None and staged.changes > 0
        is_replayed = is_replayed or bool(staged.history)
        if staged.upsert is not None and (staged.upsert.changes_table or is_replayed):
            word = "append" if staged.appends else "upsert"
            if staged.upsert.truncates:
                word = "truncate"
            return self._tables.commit_files(
                location,
                staged.upsert.adds,
                cursor,
                read_version=version,
                replace=staged.upsert.truncates,
                replaced=staged.upsert.replaced,
                operation=with_remarks(word, staged.remarks),
            )
        if staged.inserts is not None and staged.inserts.files:
            return self._tables.commit_files(
                location,
                staged.inserts.files,
                cursor,
                read_version=version,
                operation=with_remarks("append", staged.remarks),
            )
        return None

    def record(self, staged: Staged, cursor: Cursor) -> Committed:
        """Append the history, as in BatchPort."""
        assert isinstance(staged, _Staged) and staged.history_of is not None
        state = staged.history_of
        done = self._tables.commit_files(
            state.location, staged.history, cursor, operation=HISTORY_WORD
        )
        if done.already_done:
            return done
        return self._compactor.behind(replace(state, version=done.version), (), cursor)

    def wait(self) -> None:
        """Wait until all background work of batches is written (not: committed)."""
        self._compactor.wait()

    def discard(self, staged: Staged) -> None:
        """Remove what was staged, as in BatchPort."""
        assert isinstance(staged, _Staged)
        if staged.inserts is not None and not staged.committed:
            discard_added(staged.state.location, staged.inserts.files)
        if staged.upsert is not None and not staged.committed:
            discard_added(staged.state.location, staged.upsert.adds)
            if staged.history_of is not None:
                discard_added(staged.history_of.location, staged.history)
        self._remove(staged)

    def _remove(self, staged: _Staged) -> None:
        if staged.directory is not None and staged.directory.exists():
            shutil.rmtree(staged.directory, ignore_errors=True)
        if self._shared is not None:
            for path in staged.paths:
                remove_file(path)


def _empty(location: str) -> None:
    """Remove all files below a URL. Raises StorageError."""
    store = store_at(location)
    if store is not None:
        store.delete_all(list(store.list_below("", lambda folder: True)))


def _append_recorded(request: StageRequest, changes: StagedChanges) -> Upsert:
    assert request.history is not None
    adds, history = append_recorded(
        changes.shape,
        chain(changes.held, *map(staged_pieces, changes.paths)),
        request.state,
        request.history,
        request.commits,
    )
    return Upsert(request.state, adds, (), False, history=history)


def _is_as_sent(request: StageRequest, staged: _Staged) -> bool:
    """Whether each change found the row that the publisher had, and made the same row of it.

    If so, a subscriber that applies the same changes to the same rows has the same table. False if
    it is not certain.
    """
    if staged.coercions or staged.conflicts or request.fills:
        return False
    if request.soft is not None:
        # The publisher has not sent the marks.
        return False
    if request.rules.generated:
        # The publisher sent the rows without generated columns.
        return False
    if any(field.generation for field in request.state.fields):
        return False
    if staged.inserts is not None or request.trusted:
        return True
    # Changes before a TRUNCATE are not checked for their rows.
    return staged.upsert is not None and not (request.key and staged.upsert.passed_over)


def _mark_position(request: StageRequest) -> int:
    return [field.name for field in request.state.fields].index(DELETED_AT)


def _deletion_marks(request: StageRequest) -> DeletionMarks | None:
    if request.soft is None:
        return None
    return DeletionMarks(_mark_position(request), request.soft)


def _positions(changes: StagedChanges) -> pa.Table:
    """Return lsn and ord of all events."""
    rows = (table.select(["lsn", "ord"]) for table in changes.tables())
    return pa.concat_tables(rows)


def _defers_key(request: StageRequest) -> bool:
    """Whether a taken key may be free again when the transaction ends. Old rows must be sent
    whole, since they tell which of two rows with one key is meant."""
    if request.soft is not None:
        # A marked row keeps its key, so that the key cannot be given away and come back.
        return False
    return request.deferrable and all(
        source.relation.identity is ReplicaIdentity.FULL
        and set(request.key) <= {c.name for c in source.relation.columns}
        for source in request.sources
    )


def _method(staged: _Staged) -> Method:
    if staged.upsert is None or staged.appends:
        return Method.APPEND
    return Method.TRUNCATE if staged.upsert.truncates else Method.UPSERT


def _sent_columns(request: StageRequest) -> frozenset[str]:
    """Return the columns that a relation of the batch has."""
    names = (
        column.name for source in request.sources for column in source.relation.columns
    )
    return frozenset(filter(None, names))


def _unsent_columns(request: StageRequest) -> frozenset[int]:
    """Return the positions of the table's columns that no relation of the batch has, and that are
    null in a row without them."""
    fields = request.state.fields
    nulls = request.nulls - _sent_columns(request)
    return frozenset(i for i, column in enumerate(fields) if column.name in nulls)


def _content_columns(request: StageRequest) -> tuple[str, ...]:
    """Return the columns of the batch's first relation. A batch is cut where they change."""
    if request.key or request.append or not request.sources:
        return ()
    sent = {c.name for c in request.sources[0].relation.columns if c.name}
    return tuple(f.name for f in request.state.fields if f.name in sent)
