"""Changes as a Spark stream: the data source ``wal2lake``.

    from wal2lake.datasource import Wal2LakeDataSource
    spark.dataSource.register(Wal2LakeDataSource)
    spark.readStream.format("wal2lake").option("conninfo", ...).option("subscription", "s")

Takes: a node's connection, the name of a subscription or publication. Gives: row changes from the
durable log, in whole transactions, each once. Never: writes, or holds anything at the node.

    source     Spark's classes
    positions  offsets, and the parts of the log between them
    rows       a part of the log as Arrow batches
    values     columns of the log as JSON, or typed
    node       questions to the node
"""

from wal2lake.datasource.source import Wal2LakeDataSource

__all__ = ["Wal2LakeDataSource"]
