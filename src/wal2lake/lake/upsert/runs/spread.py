"""Spreads a large batch over Spark's executors: each task has the events of some keys.

Comes in: staged files of a batch, the table's files. Goes out: an ``Upsert``, as of a batch that
one process has evaluated, or the first event that cannot be applied. Called by ``batches`` if the
master is a cluster.

    staged files ─▶ task 0: its keys' events ─▶ plan_share ─▶ new files, rows that go ─┐
                 ─▶ task 1: ...                                                       ─┴▶ commit

Why this way. Events of different keys do not depend on each other, so each task evaluates its
share with the functions that evaluate a whole batch, within memory of its own. A key belongs to
the task that its hash names. Keys that UPDATEs have changed are tied to each other: all of them
belong to the first task. A file that several tasks have taken rows from gets one deletion vector,
written here. The events of a share that does not fit into the task's memory, as one hot key makes
it, wait in files of the task's machine.

A batch is not spread if its events depend on each other in another way, or need this process: no
key, a deferrable one, a history, deleted rows that stay, expressions of Spark's, many key changes.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Final

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.errors import Wal2LakeError
from wal2lake.lake.delta.datafile import DataFileWriter, discard_added
from wal2lake.lake.delta.durability import settle_files
from wal2lake.lake.executors import Executors
from wal2lake.lake.parquet import open_parquet
from wal2lake.lake.staging.layout import ChangeShape, RowFailure
from wal2lake.lake.staging.stage import read_staged
from wal2lake.lake.store import store_at
from wal2lake.lake.tablefiles import DataFile
from wal2lake.lake.upsert.files.livefiles import LiveFiles
from wal2lake.lake.upsert.memory import UpsertMemory
from wal2lake.lake.upsert.plan import BatchRules
from wal2lake.lake.upsert.runs.whole import (
    ShareEffect,
    Upsert,
    WaitingChanges,
    named,
    plan_share,
    rewritten,
)
from wal2lake.lake.upsert.stored import held_rows
from wal2lake.pgtypes.equality import alike, loose_columns

_MOST_TIED: Final = 100_000
"""Most changes of keys of a batch that is spread: all their keys belong to one task."""

Hashes = npt.NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class KeyTasks:
    """Where large batches are evaluated."""

    executors: Executors
    tasks: int
    """Number of tasks at once."""
    task_bytes: int
    """Memory of each task."""


@dataclass(frozen=True, slots=True)
class _Share:
    """The keys of one task."""

    number: int
    count: int
    """Number of tasks."""
    tied: Hashes
    """Hashes of keys that belong to the first task."""


@dataclass(frozen=True, slots=True)
class _Answer:
    """Result of a task. An error raised in an executor would arrive as a failure of Spark."""

    effect: ShareEffect | RowFailure | None
    error: Wal2LakeError | None = None


@dataclass(frozen=True, slots=True)
class _Changes:
    """The events of one task."""

    shape: ChangeShape
    held: Sequence[pa.Table]
    paths: Sequence[str]
    """Files that have the other events."""
    size: int
    """Bytes of all values."""

    def tables(self) -> list[pa.Table]:
        """Return all tables."""
        return [*self.held, *map(read_staged, self.paths)]


def plan_spread(
    changes: WaitingChanges, batch: BatchRules, spread: KeyTasks
) -> Upsert | RowFailure | None:
    """Evaluate a batch in tasks; None if it must not be spread, or is too small to be."""
    if not _can_be_spread(changes, batch):
        return None
    tied = _tied_keys(changes)
    if tied is None:
        return None
    # Half of a task's memory is for stored values.
    least = -(-changes.size // max(1, spread.task_bytes // 2))
    count = max(spread.tasks, least)
    shares = [_Share(number, count, tied) for number in range(count)]
    rules = replace(batch.conflicts, expressions=None)
    files = [DataFile(file.action) for file in batch.files]
    sent = replace(batch, conflicts=rules, files=files, index=None)
    run = partial(
        _evaluate, sent, changes.shape, tuple(changes.paths), spread.task_bytes
    )
    answers = spread.executors.map(run, shares, "applying a batch of changes")
    effects = [a.effect for a in answers if isinstance(a.effect, ShareEffect)]
    failures = [a.effect for a in answers if isinstance(a.effect, RowFailure)]
    error = next((a.error for a in answers if a.error is not None), None)
    if failures or error is not None:
        _discard(batch, effects)
        if error is not None:
            raise error
        return min(failures, key=lambda failure: failure.seq)
    try:
        return _united(changes.shape, batch, effects)
    except BaseException:
        _discard(batch, effects)
        raise


def _can_be_spread(changes: WaitingChanges, batch: BatchRules) -> bool:
    shape, rules, uniqueness = changes.shape, batch.conflicts, batch.uniqueness
    return bool(
        changes.paths
        and not changes.held
        and shape.key
        and not shape.repeats
        and batch.history is None
        and rules.soft is None
        and rules.demands is None
        and not rules.resolutions.expressions
        and not uniqueness.deferrable
        and not uniqueness.counted
    )


def _tied_keys(changes: WaitingChanges) -> Hashes | None:
    """Return the hashes of all keys that events have changed, old and new; None if there are
    many."""
    shape = changes.shape
    none = np.zeros(0, np.uint64)
    if not shape.moved:
        return none
    new, old = ([f"{side}{i}" for i in shape.key] for side in "no")
    hashes = [none]
    for path in changes.paths:
        for table in _groups(path, ["moved", *new, *old]):
            if not set(old) <= set(table.column_names):
                continue
            moved = table.filter(pc.fill_null(table.column("moved"), False))
            for names in (new, old):
                columns = [moved.column(name) for name in names]
                hashes.append(_hashes(shape, columns))
        if sum(map(len, hashes)) > 2 * _MOST_TIED:
            return None
    return np.unique(np.concatenate(hashes))


def _groups(path: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    with open_parquet(path) as parquet:
        names = [n for n in parquet.names if columns is None or n in columns]
        yield from parquet.each_group(parquet.groups, names)


def _hashes(shape: ChangeShape, columns: Sequence[pa.ChunkedArray]) -> Hashes:
    """Return a number for each key, the same for keys that are equal by their types."""
    loose = loose_columns(shape.fields, shape.key)
    names = [f"k{i}" for i in range(len(columns))]
    keys = pa.table(dict(zip(names, alike(list(columns), loose), strict=True)))
    if not keys.num_rows:
        return np.zeros(0, np.uint64)
    with duckdb.connect(":memory:", config={"threads": 1}) as database:
        database.register("keys", keys)
        query = f"select hash({', '.join(names)}) as h from keys"
        hashes: Hashes = database.execute(query).fetchnumpy()["h"].astype(np.uint64)
        return hashes


def _evaluate(
    batch: BatchRules,
    shape: ChangeShape,
    paths: Sequence[str],
    task_bytes: int,
    share: _Share,
) -> _Answer:
    """Evaluate the events of one task's keys. Runs in an executor."""
    try:
        with tempfile.TemporaryDirectory(prefix="wal2lake-") as directory:
            events = _events_of(shape, paths, share)
            # Half of a task's memory is for stored values.
            changes = _gathered(shape, events, directory, max(1, task_bytes // 2))
            if not changes.size:
                return _Answer(ShareEffect())
            here = replace(batch, directory=f"{directory}/keys")
            effect = plan_share(changes, here, UpsertMemory(task_bytes))
        if isinstance(effect, ShareEffect):
            # The commit's own sync does not reach what another machine has in memory.
            paths = [added.path for added in effect.adds]
            vectors = [added.vector for added in effect.adds]
            settle_files(store_at(batch.state.location), paths, vectors)
        return _Answer(effect)
    except Wal2LakeError as error:
        return _Answer(None, error)


def _events_of(
    shape: ChangeShape, paths: Sequence[str], share: _Share
) -> Iterator[pa.Table]:
    """Yield the events of one task's keys."""
    for path in paths:
        for table in _groups(path):
            columns = [table.column(f"n{i}") for i in shape.key]
            rows = table.filter(pa.array(_belongs(_hashes(shape, columns), share)))
            if rows.num_rows:
                yield rows


def _gathered(
    shape: ChangeShape, events: Iterator[pa.Table], directory: str, most_bytes: int
) -> _Changes:
    """Keep the events of a task; what exceeds ``most_bytes`` waits in files. A share has any size:
    all events of a key belong to one task, and so do those of keys that are tied together."""
    held: list[pa.Table] = []
    spilled: list[str] = []
    size = waiting = 0
    for table in events:
        held.append(table)
        size += table.nbytes
        if size > most_bytes:
            spilled += _spilled(held, directory)
            held.clear()
            waiting, size = waiting + size, 0
    return _Changes(shape, held, spilled, waiting + size)


def _spilled(tables: Sequence[pa.Table], directory: str) -> Iterator[str]:
    """Write tables, a file for each run of equal columns; yield the paths."""
    for _, alike_tables in groupby(tables, lambda table: table.column_names):
        with DataFileWriter(directory, durable=False) as writer:
            for table in alike_tables:
                writer.write(table)
            if writer.finish() is not None:
                yield writer.path


def _belongs(hashes: Hashes, share: _Share) -> npt.NDArray[np.bool_]:
    numbers = (hashes % np.uint64(share.count)).astype(np.int64)
    if len(share.tied):
        numbers[np.isin(hashes, share.tied)] = 0
    here: npt.NDArray[np.bool_] = numbers == share.number
    return here


def _united(
    shape: ChangeShape, batch: BatchRules, effects: Sequence[ShareEffect]
) -> Upsert:
    """Return the effect of all tasks; each file that has lost rows gets one deletion vector."""
    truncates = shape.truncate is not None
    live = LiveFiles(batch.state, () if truncates else batch.files)
    by_key: Mapping[str, DataFile] = {file.key: file for file in batch.files}
    removed = [
        (by_key[k], rows) for effect in effects for k, rows in effect.removed.items()
    ]
    for file, rows in removed:
        live.remove(file, rows.astype(np.int64), held_rows(batch.state, file))
    try:
        adds, replaced = live.finish(partial(rewritten, batch.state, live))
    except BaseException:
        live.discard()
        raise
    conflicts = [conflict for effect in effects for conflict in effect.conflicts]
    conflicts.sort(key=lambda conflict: conflict.commit_lsn)
    return Upsert(
        batch.state,
        (*(added for effect in effects for added in effect.adds), *adds),
        replaced,
        truncates,
        named(conflicts),
        sum(effect.passed_over for effect in effects),
        runs=sum(effect.runs for effect in effects),
    )


def _discard(batch: BatchRules, effects: Sequence[ShareEffect]) -> None:
    for effect in effects:
        discard_added(batch.state.location, effect.adds)
