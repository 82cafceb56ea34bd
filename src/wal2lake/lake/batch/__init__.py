"""The port that applies batches of the change log, and the methods.

Takes: batches that were committed, versions that batches read. Gives: totals by method. Owns: the
record of versions that are read between staging and commit. Never: Spark, or a batch's rows.

    batchport  the port; ``lake.spark.batches`` implements it
    methods    the methods, and how often each was used
    reads      versions that batches read
"""

from wal2lake.lake.batch.batchport import (
    BatchPort,
    RepairOrigin,
    Staged,
    StageRequest,
)
from wal2lake.lake.batch.methods import Method, Total
from wal2lake.lake.batch.reads import BatchReads

__all__ = [
    "BatchPort",
    "BatchReads",
    "Method",
    "RepairOrigin",
    "StageRequest",
    "Staged",
    "Total",
]
