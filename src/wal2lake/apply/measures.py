"""Measurements of one apply worker: rows, bytes and batches by table, and the time from a commit at
the source until readers see it.

    BatchApplier ── committed(table, part) ───▶ counters of the table
                 ── published(manifests) ─────▶ histogram commit -> visible
    ApplyWorker  ── failed(error) ────────────▶ errors by SQLSTATE

Rows are counted as the log has them: a row that a batch inserts and deletes counts twice, and a
change that a conflict leaves out counts, too. The numbers come from manifests. Only if a table's
part begins or ends inside a file is the file's column of operations read.

A transaction's commit time is in the transactions file of its segment. Of a batch of many segments,
which is behind by more than they last, each transaction counts with the time of its segment's last
commit, so that no file is read for the sake of a histogram.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from wal2lake.catalog import TableDef, WorkerKind
from wal2lake.changelog import LogReader, Manifest, RowsFile
from wal2lake.errors import Wal2LakeError, sqlstate_of
from wal2lake.model import Coercion, Conflict, Lsn
from wal2lake.observe.ages import ages
from wal2lake.observe.telemetry import Telemetry

_EXACT_SEGMENTS: Final = 8
"""Most segments of a batch whose transactions are measured one by one. A batch that keeps up has
one to four."""

_KINDS: Final = ("inserted", "updated", "deleted", "truncated")
_OPERATIONS: Final = np.frombuffer(b"IUDT", np.uint8)


class ApplyMeasures:
    """Measurements of one subscription's apply worker. Safe for its threads."""

    def __init__(self, telemetry: Telemetry, reader: LogReader) -> None:
        self.subscription = ""
        """Name that labels all series. The worker sets it at each step: it may change."""
        self._telemetry = telemetry
        self._reader = reader

    def committed(
        self,
        table: TableDef,
        files: Sequence[RowsFile],
        above: Lsn,
        below: Lsn | None,
        method: str | None,
    ) -> None:
        """Count a commit with the rows of ``files`` whose commit LSN is at or above ``above`` and
        below ``below``. ``method``: the way it was written; None: there was nothing to write."""
        labels = {
            "subscription": self.subscription,
            "table": table.qualified,
        }
        total = np.zeros(len(_KINDS), np.int64)
        size = 0.0
        for file in files:
            counts = self._rows(file, above, below)
            total += counts
            size += file.file.size * (int(counts.sum()) / max(1, file.rows))
        for kind, rows in zip(_KINDS, total.tolist(), strict=True):
            if rows:
                self._telemetry.count("rows_total", rows, kind=kind, **labels)
        self._telemetry.count("applied_bytes_total", round(size), **labels)
        if method is not None:
            self._telemetry.count("batches_total", 1, method=method, **labels)

    def _rows(self, file: RowsFile, above: Lsn, below: Lsn | None) -> NDArray[np.int64]:
        """Return the rows of a file by kind."""
        whole = np.array(
            [file.inserts, file.updates, file.deletes, file.truncates], np.int64
        )
        begins = file.min_commit_lsn >= above
        if begins and (below is None or file.max_commit_lsn < below):
            return whole
        try:
            lsns, operations = self._reader.operations(file)
        except Wal2LakeError:
            # The commit has been made; a count is no reason to fail.
            return whole
        inside = lsns >= int(above)
        if below is not None:
            inside &= lsns < int(below)
        counts = np.bincount(operations[inside], minlength=256)
        return counts[_OPERATIONS].astype(np.int64)

    def coerced(self, table: TableDef, coercions: Sequence[Coercion]) -> None:
        """Count values that policies have changed."""
        for coercion in coercions:
            self._telemetry.count(
                "coercions_total",
                coercion.count,
                subscription=self.subscription,
                table=table.qualified,
                kind=coercion.policy,
            )

    def conflicted(self, table: TableDef, conflict: Conflict) -> None:
        """Count a conflict, or all that it stands for."""
        self._telemetry.count(
            "conflicts_total",
            conflict.count,
            subscription=self.subscription,
            table=table.qualified,
            kind=conflict.type.value,
        )

    def published(
        self, manifests: Sequence[Manifest], above: Lsn, below: Lsn, began: float
    ) -> None:
        """Observe the transactions with changes whose commit LSN is at or above ``above`` and below
        ``below``, now that readers see them. ``began``: monotonic time of the batch's begin."""
        self._telemetry.observe(
            "batch_seconds",
            time.monotonic() - began,
            subscription=self.subscription,
        )
        concerned = [
            manifest
            for manifest in manifests
            if manifest.transactions
            and manifest.last_commit_lsn >= above
            and manifest.first_commit_lsn < below
        ]
        if len(concerned) > _EXACT_SEGMENTS:
            times = np.repeat(
                np.array([m.last_commit_time for m in concerned], np.int64),
                [m.transactions for m in concerned],
            )
        else:
            parts = [self._times(manifest, above, below) for manifest in concerned]
            times = np.concatenate([np.zeros(0, np.int64), *parts])
        if len(times):
            self._telemetry.observe_all(
                "commit_to_visible_seconds",
                *ages(times, time.time()),
                subscription=self.subscription,
            )

    def _times(self, manifest: Manifest, above: Lsn, below: Lsn) -> NDArray[np.int64]:
        try:
            table = self._reader.read(
                manifest.transactions_file, ["commit_lsn", "commit_time", "changes"]
            )
        except Wal2LakeError:
            # Published already: the receiver may have removed the segment.
            return np.zeros(0, np.int64)
        lsns = table.column("commit_lsn").to_numpy()
        inside = (lsns >= int(above)) & (lsns < int(below))
        inside &= table.column("changes").to_numpy() > 0
        times: NDArray[np.int64] = table.column("commit_time").to_numpy()[inside]
        return times

    def failed(self, error: Exception) -> None:
        """Count a failed attempt."""
        self._telemetry.count(
            "errors_total",
            subscription=self.subscription,
            worker=WorkerKind.APPLY.value,
            sqlstate=sqlstate_of(error),
        )
