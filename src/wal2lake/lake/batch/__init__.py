"""The port that applies batches of the change log, and the choice of a method.

batchport  the port; ``lake.spark.batches`` implements it
methods    the methods with their costs
reads      versions that batches read
"""

from wal2lake.lake.batch.batchport import BatchPort, Staged, StageRequest
from wal2lake.lake.batch.methods import Method, Total
from wal2lake.lake.batch.reads import BatchReads

__all__ = ["BatchPort", "BatchReads", "Method", "StageRequest", "Staged", "Total"]
