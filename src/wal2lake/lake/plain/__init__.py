"""Reads tables on this machine without Spark, and changes a few rows of them.

Takes: a table's location, names of columns, positions of rows. Gives: record batches with the
values that Spark would give, or one commit; or nothing, if only Spark can do it. Owns: which
tables qualify. Never: a table that requires something of readers or writers that this node does
not do in exactly one way.

    read     columns of a version, from its Parquet files
    change   deletes, adds or rewrites a few rows
    widen    rewrites all rows with other columns
"""

from wal2lake.lake.plain.change import FoundKeys, FoundRows, PlainChange
from wal2lake.lake.plain.read import PlainRead
from wal2lake.lake.plain.widen import widened

__all__ = ["FoundKeys", "FoundRows", "PlainChange", "PlainRead", "widened"]
