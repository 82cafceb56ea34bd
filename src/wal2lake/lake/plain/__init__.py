"""Tables on this machine without Spark: rows that are read, and a few that are changed.

Takes: a table's place, names of columns, places of rows. Gives: record batches with the values
that Spark would give, or one commit; or nothing, if only Spark can do it.
Owns: which tables those are. Never: a table that asks something of readers or writers that we do
not do in exactly one way.
"""

from wal2lake.lake.plain.change import FoundRows, PlainChange
from wal2lake.lake.plain.read import PlainRead
from wal2lake.lake.plain.widen import widened

__all__ = ["FoundRows", "PlainChange", "PlainRead", "widened"]
