"""Batches that only Spark writes, as for a table that demands more of its writers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from wal2lake.lake.batch.batchport import StageRequest
from wal2lake.lake.spark.batches import DeltaBatches, Planned
from wal2lake.lake.staging.stage import StagedChanges
from wal2lake.lake.tablefiles import DataFile


class SparkBatches(DeltaBatches):
    """The port for such tables, whatever they are."""

    def _plan(
        self,
        request: StageRequest,
        changes: StagedChanges,
        files: Sequence[DataFile] | None,
        directory: Path,
    ) -> Planned:
        return super()._plan(request, changes, None, directory)
