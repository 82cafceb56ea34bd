"""Branches: the writes of a transaction before it commits, one Delta table for each table.

Takes: a branch's log, rows of its files. Gives: its net change, and the first row that violates a
constraint. Owns: nothing. Never: Spark; ``lake.spark.branch`` opens and writes branches.

    netchange     the net change of a branch's log (pure)
    branchchecks  finds rows of a branch that violate a constraint
    lookup        finds few keys in files
"""

from wal2lake.lake.branch.branchchecks import added_violation, row_violation, rows_of
from wal2lake.lake.branch.netchange import Action, BranchChange, others_rows

__all__ = [
    "Action",
    "BranchChange",
    "added_violation",
    "others_rows",
    "row_violation",
    "rows_of",
]
