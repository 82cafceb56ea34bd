"""Applies a batch of any size, in runs that each fit into memory, as one ``Upsert``.

Comes in: staged changes of one table, its state and its live files. Goes out: an ``Upsert``, whose
data files and deletion vectors already lie in the table's directory, or the first event that cannot
be applied. Called by ``batches``.

    staged changes ─▶ runs in log order ─▶ plan_run ─▶ LiveFiles ─▶ one commit
                                              ▲            │
                                              └────────────┘ files as the runs before left them

A batch that fits into memory is one run. A larger one is cut in log order, and each run meets the
table that the runs before it have made (``files.livefiles``): nothing about keys, key changes,
repeated rows or conflicts depends on where it is cut. A run that turns out to need more memory than
there is (the stored values that UPDATEs left out) is halved.

Changes before the last TRUNCATE are passed over. With a history, or deleted rows that stay, they
are runs of their own, which end with a TRUNCATE each.

A TRUNCATE of a table that keeps deleted rows ends a run, and marks all rows behind it
(``soft.truncated``).

If a deferrable key is checked by content, it is counted at the ends of transactions
(``lives.deferral``). Such a batch is cut only if it is one transaction, whose keys are counted when
all runs have been evaluated; otherwise it is divided into its transactions.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, Protocol, TypeVar

import pyarrow as pa

from wal2lake.errors import StorageError
from wal2lake.lake.delta.datafile import TableWriter, discard_added
from wal2lake.lake.delta.deletionvectors import Rows
from wal2lake.lake.keyindex import KeyIndex
from wal2lake.lake.port import TableState
from wal2lake.lake.staging.historyrows import HistoryTarget
from wal2lake.lake.staging.layout import (
    NAMED_CONFLICTS,
    ChangeShape,
    RowConflict,
    RowFailure,
    Uniqueness,
)
from wal2lake.lake.tablefiles import AddedFile, DataFile, Replaced
from wal2lake.lake.upsert.checking import with_demanded
from wal2lake.lake.upsert.files.livefiles import LiveFiles
from wal2lake.lake.upsert.judging import AS_POSTGRESQL, ConflictRules
from wal2lake.lake.upsert.locating import (
    LoadedRun,
    load,
    load_sections,
)
from wal2lake.lake.upsert.memory import Share, TooLarge, UpsertMemory
from wal2lake.lake.upsert.plan import (
    BatchRules,
    RunEffect,
    plan_run,
    repeated_at_the_end,
)
from wal2lake.lake.upsert.recorded import HistoryRecorder
from wal2lake.lake.upsert.runs.cutting import cut_into_runs, has_one_transaction
from wal2lake.lake.upsert.soft.truncated import mark_rows
from wal2lake.lake.upsert.stored import StoredRows, held_rows

_RECORDED: Final = 3
"""Memory of a batch whose changes are recorded, as a multiple of its staged size: the rows before
and after each change are in memory, too."""


class WaitingChanges(Protocol):
    """Staged changes; see ``staging.StagedChanges``."""

    @property
    def shape(self) -> ChangeShape:
        """The contents that the changes can have."""

    @property
    def size(self) -> int:
        """Bytes of all values."""

    @property
    def paths(self) -> Sequence[str]:
        """Staged files."""

    @property
    def held(self) -> Sequence[pa.Table]:
        """Staged tables in memory."""

    def tables(self) -> list[pa.Table]:
        """Return all tables, in no order."""


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
    history: tuple[AddedFile, ...] = ()
    """Files of the history table, in its directory."""
    runs: int = 1
    """Number of runs in which the batch was evaluated."""

    @property
    def changes_table(self) -> bool:
        """Whether there is something to commit."""
        return bool(self.adds or self.replaced or self.truncates)


def plan_upsert(
    changes: WaitingChanges,
    state: TableState,
    files: Sequence[DataFile],
    uniqueness: Uniqueness,
    memory: UpsertMemory,
    directory: str,
    *,
    rules: ConflictRules = AS_POSTGRESQL,
    shows_rows: bool = False,
    index: KeyIndex | None = None,
    history: HistoryTarget | None = None,
) -> Upsert | RowFailure:
    """Evaluate a batch of a table that ``only_spark`` does not refuse. Raises TooLarge if the batch
    does not fit into memory and must be divided, ByContent as in ``plan_run``.

    ``directory`` is for temporary files; for the others see ``BatchRules``.
    """
    batch = BatchRules(
        state,
        files,
        uniqueness,
        directory,
        rules,
        shows_rows,
        index,
        history,
    )
    return plan_batch(changes, batch, memory)


def plan_batch(
    changes: WaitingChanges, batch: BatchRules, memory: UpsertMemory
) -> Upsert | RowFailure:
    """Evaluate a batch, as ``plan_upsert``."""
    return _evaluated(_Runs(changes, batch, memory), _Runs.finish)


def plan_share(
    changes: WaitingChanges, batch: BatchRules, memory: UpsertMemory
) -> ShareEffect | RowFailure:
    """Evaluate the events of some of a batch's keys, as ``plan_upsert``; for ``spread``."""
    return _evaluated(_Runs(changes, batch, memory), _Runs.hand_over)


def _evaluated(runs: _Runs, end: Callable[[_Runs], _Effect]) -> _Effect | RowFailure:
    try:
        failure = runs.evaluate()
        if failure is None:
            return end(runs)
    except BaseException:
        runs.discard()
        raise
    runs.discard()
    return failure


@dataclass(frozen=True, slots=True)
class ShareEffect:
    """The effect of the events of some keys. Picklable."""

    adds: tuple[AddedFile, ...] = ()
    removed: Mapping[str, Rows] = field(default_factory=dict)
    """All deleted rows of the version's files that have lost rows, by the files' keys."""
    conflicts: Sequence[RowConflict] = ()
    passed_over: int = 0
    runs: int = 0


_Effect = TypeVar("_Effect")


class _Runs:
    """The runs of one batch."""

    def __init__(
        self, changes: WaitingChanges, batch: BatchRules, memory: UpsertMemory
    ) -> None:
        self._changes = changes
        self._batch = batch
        self._memory = memory
        self._marks = (
            changes.shape.truncate is not None and batch.conflicts.soft is not None
        )
        """Whether a TRUNCATE marks all rows as deleted."""
        self._truncates = changes.shape.truncate is not None and not self._marks
        self._weight = 1 if batch.history is None else _RECORDED
        self._history: list[AddedFile] = []
        self._most = memory.limit
        """Most bytes of changes in a run."""
        self._begin()

    def _begin(self) -> None:
        passes_over = self._truncates and self._batch.history is None
        files = () if passes_over else self._batch.files
        self._live = LiveFiles(self._batch.state, files)
        self._conflicts: Sequence[RowConflict] = ()
        self._passed_over = 0
        self._count = 0

    def evaluate(self) -> RowFailure | None:
        """Evaluate all runs, up to the first event that cannot be applied."""
        size = self._changes.size * self._weight
        if self._memory.fits(size):
            for alone in (False, True):
                with self._memory.share(size, alone=alone) as share:
                    parts = self._load(self._changes.tables())
                    failure = self._evaluate_parts(parts, share, at_once=True)
                if failure is not None or not parts:
                    return failure
                # The batch is read again, when there is memory for it.
                parts.clear()
                self.discard()
                self._begin()
        counted = self._batch.uniqueness.counted
        if counted and not has_one_transaction(self._changes.held, self._changes.paths):
            raise TooLarge
        if counted:
            # Runs do not end with the transaction.
            uniqueness = replace(self._batch.uniqueness, counted=())
            self._batch = replace(self._batch, uniqueness=uniqueness)
        failure = self._evaluate_runs()
        if failure is None and counted:
            failure = self._repeated_key(counted)
        return failure

    def _evaluate_runs(self) -> RowFailure | None:
        most = self._memory.limit // 2 // self._weight
        self._most = min(most, self._changes.size // 2)
        runs = cut_into_runs(self._changes.held, self._changes.paths, self._most)
        while True:
            # The other half of the memory is for stored values.
            with self._memory.share(self._memory.limit // 2) as share:
                tables = next(runs, None)
                if tables is None:
                    return None
                parts = deque(
                    part
                    for section in self._load(tables)
                    for part in self._parts(section)
                )
                tables.clear()
                failure = self._evaluate_parts(parts, share)
            while parts and failure is None:
                failure = self._evaluate_alone(parts.popleft())
            if failure is not None:
                return failure

    def _repeated_key(self, counted: tuple[int, ...]) -> RowFailure | None:
        """Return the failure of the batch's only transaction if a key that it has put is repeated
        now."""
        for tables in cut_into_runs(
            self._changes.held, self._changes.paths, self._most
        ):
            with self._memory.share(self._memory.limit // 2):
                loaded = load(self._changes.shape, tables)
                tables.clear()
                failure = repeated_at_the_end(loaded, self._live, self._batch, counted)
            if failure is not None:
                return failure
        return None

    def _load(self, tables: Sequence[pa.Table]) -> deque[LoadedRun]:
        """Load staged tables; what is before the last TRUNCATE only if it leaves something."""
        if self._marks or (self._truncates and self._batch.history is not None):
            sections = load_sections(self._changes.shape, tables)
        else:
            sections = [load(self._changes.shape, tables)]
        self._passed_over += sum(section.passed_over for section in sections)
        return deque(self._computed(section) for section in sections)

    def _computed(self, section: LoadedRun) -> LoadedRun:
        """Compute the generated columns of Delta's own."""
        rules, shape = self._batch.conflicts, section.shape
        return replace(
            section,
            table=with_demanded(rules, shape, section.table),
        )

    def _parts(self, loaded: LoadedRun) -> list[LoadedRun]:
        """Divide a run that is larger than the others."""
        rows, size = loaded.table.num_rows, loaded.table.nbytes
        most = max(1, self._most)
        # Row groups are read whole, so a run may be somewhat larger.
        count = 1 if size <= most + most // 2 else -(-size // most)
        step = max(1, -(-rows // count))
        return _divided(loaded, range(0, max(1, rows), step))

    def _evaluate_parts(
        self, parts: deque[LoadedRun], share: Share, *, at_once: bool = False
    ) -> RowFailure | None:
        """Evaluate parts, and remove them, as long as they fit into the share. ``at_once``: the
        parts are the whole batch, and its history becomes one file."""
        recorder = self._recorder()
        is_whole = at_once and len(parts) == 1
        while parts:
            if recorder is not None and not at_once:
                self._history += recorder.write()
                recorder = self._recorder()
            mark = 0 if recorder is None else recorder.mark()
            try:
                effect = plan_run(
                    parts[0],
                    self._live,
                    self._batch,
                    share,
                    recorder,
                    is_whole=is_whole,
                )
            except TooLarge:
                if recorder is not None:
                    recorder.undo(mark)
                break
            if isinstance(effect, RowFailure):
                return effect
            self._take(effect)
            parts.popleft()
        if recorder is not None:
            self._history += recorder.write()
        return None

    def _recorder(self) -> HistoryRecorder | None:
        if self._batch.history is None:
            return None
        return HistoryRecorder(self._batch.history, self._batch.conflicts)

    def _evaluate_alone(self, loaded: LoadedRun) -> RowFailure | None:
        """Evaluate a run with all of the memory, in halves if that is not enough. A single event
        gets what it needs."""
        rows = loaded.table.num_rows
        size = min(loaded.table.nbytes * self._weight, self._memory.limit)
        parts = deque([loaded])
        with self._memory.share(size, alone=True, exceeds=rows <= 1) as share:
            failure = self._evaluate_parts(parts, share)
        if failure is not None or not parts:
            return failure
        if rows <= 1:
            raise StorageError(
                "out of memory while the row of a change was looked for",
                sqlstate="53200",
                detail=f'Keys that do not fit are written to "{self._batch.directory}".',
                hint="Free some space on the disk of that directory.",
            )
        self._most = min(self._most, max(1, loaded.table.nbytes // 2))
        for half in _divided(loaded, (0, rows // 2)):
            failure = self._evaluate_alone(half)
            if failure is not None:
                return failure
        return None

    def _take(self, effect: RunEffect) -> None:
        self._count += 1
        if effect.truncates:
            self._live.empty()
        self._live.add(effect.adds)
        for file, rows in effect.removed:
            self._live.remove(file, rows, held_rows(self._batch.state, file))
        if effect.truncated_at is not None:
            mark_rows(
                self._live,
                self._batch.state,
                self._changes.shape.fields,
                self._batch.conflicts,
                effect.truncated_at,
            )
        self._conflicts = named([*self._conflicts, *effect.conflicts])

    def finish(self) -> Upsert:
        """Return the effect of all runs."""
        adds, replaced = self._live.finish(self._rewrite)
        return Upsert(
            self._batch.state,
            adds,
            replaced,
            self._truncates,
            self._conflicts,
            self._passed_over,
            tuple(self._history),
            max(1, self._count),
        )

    def hand_over(self) -> ShareEffect:
        """Return the effect of all runs on the version's files, whose deletion vectors are not
        written."""
        adds, removed = self._live.hand_over(self._rewrite)
        return ShareEffect(
            adds, removed, self._conflicts, self._passed_over, self._count
        )

    def _rewrite(self, file: DataFile) -> tuple[AddedFile, ...]:
        return rewritten(self._batch.state, self._live, file)

    def discard(self) -> None:
        """Remove the files of the runs."""
        self._live.discard()
        if self._batch.history is not None:
            location = self._batch.history.state.location
            discard_added(location, self._history)
            self._history.clear()


def rewritten(
    state: TableState, live: LiveFiles, file: DataFile
) -> tuple[AddedFile, ...]:
    """Write the rows of a file that are left, a row group at a time, with their writers."""
    rows = StoredRows(state, [file], live).live(range(len(state.fields)))
    with TableWriter(state.location, state.physical_fields) as writer:
        for part in rows:
            writer.write_all(part)
        return writer.finish()


def _divided(loaded: LoadedRun, starts: Sequence[int]) -> list[LoadedRun]:
    """Divide a run at these rows. A TRUNCATE follows the last part."""
    ends = (*starts[1:], loaded.table.num_rows)
    return [
        replace(
            loaded,
            table=loaded.table.slice(start, end - start),
            truncate=loaded.truncate if end == loaded.table.num_rows else None,
        )
        for start, end in zip(starts, ends, strict=True)
    ]


def named(conflicts: Sequence[RowConflict]) -> Sequence[RowConflict]:
    """Return the conflicts of the runs so far; beyond ``NAMED_CONFLICTS`` they are only counted."""
    named = [conflict for conflict in conflicts if conflict.key is not None]
    if len(named) <= NAMED_CONFLICTS:
        return conflicts
    kept = named[:NAMED_CONFLICTS]
    counted: dict[object, RowConflict] = {}
    others = [conflict for conflict in conflicts if conflict.key is None]
    for conflict in [*named[NAMED_CONFLICTS:], *others]:
        kind = conflict.type, conflict.resolution
        before = counted.get(kind)
        if before is None:
            counted[kind] = RowConflict(
                conflict.type,
                conflict.commit_lsn,
                None,
                count=conflict.count,
                resolution=conflict.resolution,
            )
        else:
            counted[kind] = replace(
                before,
                commit_lsn=min(before.commit_lsn, conflict.commit_lsn),
                count=before.count + conflict.count,
            )
    return [*kept, *counted.values()]
