"""Records the rows of a copy in the history of their table.

In: the files of a finished copy, which belong to no version of the table yet. Out: files of the
history table with a row ``snapshot`` for each copied row, and the two commits in their order
(``apply.local.histories``). A copy that replaces the table's rows begins with a row ``truncate``.

Each file of the copy is read again, and written with the other columns, a piece at a time. Few rows
are written by this process, more by Spark's executors, a file for each task.

Called by ``group``.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

import numpy as np
import pyarrow as pa

from wal2lake.apply.local.histories import (
    finish_histories,
    fitted,
    histories_of,
    pending_of,
)
from wal2lake.catalog import Catalog, Subscription, SubscriptionRel, TableDef
from wal2lake.errors import InternalError, StorageError, Wal2LakeError
from wal2lake.lake import (
    AddedFile,
    Cursor,
    DataFile,
    Executors,
    Pool,
    TablePort,
    TableState,
    add_action,
)
from wal2lake.lake.delta import TableWriter, discard_added
from wal2lake.lake.staging import (
    HISTORY_WORD,
    NO_COMMITS,
    HistoryOp,
    HistoryTarget,
    history_rows,
)
from wal2lake.lake.upsert import StoredRows
from wal2lake.observe import failpoint

_IN_PROCESS_BYTES: Final = 16 << 20
"""Bytes of files that this process writes faster than a Spark job does. A guess."""


@dataclass(frozen=True, slots=True)
class SnapshotTask:
    """A file of a copy, whose rows are recorded."""

    table: TableState
    file: AddedFile
    history: TableState
    lsn: int
    first: int
    """Ordinal of the file's first row."""


SnapshotFiles = tuple[AddedFile, ...] | Wal2LakeError
"""Files of a task, or its error."""


def record_snapshots(tasks: tuple[SnapshotTask, ...]) -> list[SnapshotFiles]:
    """Write the history of files. A failed task leaves no file."""
    results: list[SnapshotFiles] = []
    for task in tasks:
        try:
            results.append(_record(task))
        except StorageError as error:
            results.append(error)
    return results


def _record(task: SnapshotTask) -> tuple[AddedFile, ...]:
    names = [field.name for field in task.table.fields]
    target = HistoryTarget(task.history, NO_COMMITS)
    stored = StoredRows(task.table, [DataFile(add_action(task.file, data_change=True))])
    ordinal = task.first
    with TableWriter(task.history.location, task.history.physical_fields) as writer:
        for piece in stored.live(range(len(names))):
            count = piece.num_rows
            rows = piece.select(range(len(names))).rename_columns(names)
            writer.write_all(
                history_rows(
                    target,
                    [HistoryOp.SNAPSHOT] * count,
                    np.full(count, task.lsn, np.int64),
                    np.arange(ordinal, ordinal + count),
                    None,
                    rows,
                )
            )
            ordinal += count
        return writer.finish()


@dataclass(frozen=True, slots=True)
class CopyHistory:
    """History of one copy, waiting for its commit."""

    rel: SubscriptionRel
    table: TableDef
    """The history table."""
    files: tuple[AddedFile, ...]
    cursor: Cursor


class CopyRecorder:
    """Records copies. Thread-safe."""

    def __init__(
        self, catalog: Catalog, port: TablePort, executors: Executors, writers: int
    ) -> None:
        """``writers``: files that are written at the same time."""
        self._catalog = catalog
        self._port = port
        self._executors = executors
        self._writers = writers

    def write(
        self,
        subscription: Subscription,
        rel: SubscriptionRel,
        table: TableDef,
        files: Sequence[AddedFile],
        cursor: Cursor,
    ) -> CopyHistory | None:
        """Write the history of a copy, durably. None if the table has no history."""
        current = self._catalog.subscription(subscription.oid) or subscription
        oid = histories_of(self._catalog, current).get(rel.relid)
        history = None if oid is None else self._catalog.table_by_oid(oid)
        if history is None:
            return None
        mirror = self._port.state(table.location)
        finish_histories(self._catalog, self._port, rel.subid, rel.relid, mirror)
        state = fitted(self._catalog, self._port, history, table)
        tasks = []
        ordinal = 1
        for file in files:
            tasks.append(SnapshotTask(mirror, file, state, cursor.version, ordinal))
            ordinal += _rows_in(file)
        written = self._run(tasks)
        if rel.replaces:
            try:
                written = (*_truncation(state, cursor.version), *written)
            except BaseException:
                discard_added(state.location, written)
                raise
        return CopyHistory(rel, history, written, cursor)

    def _run(self, tasks: Sequence[SnapshotTask]) -> tuple[AddedFile, ...]:
        if sum(task.file.size for task in tasks) <= _IN_PROCESS_BYTES:
            results = record_snapshots(tuple(tasks))
        else:
            with ThreadPoolExecutor(self._writers, "copy-history") as threads:
                parts = threads.map(
                    lambda task: self._executors.run(
                        Pool.SYNC, record_snapshots, (task,)
                    ),
                    tasks,
                )
                results = [result for part in parts for result in part]
        files = tuple(
            file for result in results if isinstance(result, tuple) for file in result
        )
        for result in results:
            if isinstance(result, Wal2LakeError):
                discard_added(tasks[0].history.location, files)
                raise result
        return files

    def expect(self, history: CopyHistory) -> None:
        """Put the history on record, before the table's commit."""
        self._catalog.expect_history(
            history.rel.subid,
            [
                pending_of(
                    history.rel.relid, history.table, history.cursor, history.files
                )
            ],
        )

    def commit(self, history: CopyHistory) -> None:
        """Commit the history, after the table's commit."""
        failpoint("copy.history_waits")
        self._port.commit_files(
            history.table.location,
            history.files,
            history.cursor,
            operation=HISTORY_WORD,
        )


def _rows_in(file: AddedFile) -> int:
    rows = DataFile(add_action(file, data_change=True)).rows
    if rows is None:
        raise InternalError("a file of a copy has no number of rows")
    return rows


def _truncation(state: TableState, lsn: int) -> tuple[AddedFile, ...]:
    """Write the row that ends the rows before a copy."""
    target = HistoryTarget(state, NO_COMMITS)
    where = np.array([lsn], np.int64), np.zeros(1, np.int64)
    row: pa.Table = history_rows(target, [HistoryOp.TRUNCATE], *where, None, None)
    with TableWriter(state.location, state.physical_fields) as writer:
        writer.write_all(row)
        return writer.finish()
