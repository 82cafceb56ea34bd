"""The port that applies batches of the change log, and the choice of a method.

Takes: what each method has cost so far, versions that batches read. Gives: the method of the next
batch. Owns: the record of versions that are read between staging and commit. Never: Spark, or
a batch's rows.

    batchport  the port; ``lake.spark.batches`` implements it
    methods    the methods with their costs
    reads      versions that batches read
"""

from wal2lake.lake.batch.batchport import BatchPort, Staged, StageRequest
from wal2lake.lake.batch.methods import Method, Total
from wal2lake.lake.batch.reads import BatchReads

__all__ = ["BatchPort", "BatchReads", "Method", "StageRequest", "Staged", "Total"]
