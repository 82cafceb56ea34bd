"""Applies keyed batches in memory: one commit of new rows and deletion vectors.

Takes: staged changes of one table, its state and its live files. Gives: a data file and deletion
vectors in the table's directory, and the arguments of the commit that names them. Owns: the net
change by numbered keys, and finding keys in files. Never: Spark, commits, or a batch larger than
``apply.upsert_bytes``.
"""

from wal2lake.lake.upsert.locating import load, passed_over
from wal2lake.lake.upsert.memory import NotForUs, TooLarge, UpsertMemory
from wal2lake.lake.upsert.plan import Upsert, plan_upsert
from wal2lake.lake.upsert.stored import StoredRows, is_readable

__all__ = [
    "NotForUs",
    "StoredRows",
    "TooLarge",
    "Upsert",
    "UpsertMemory",
    "is_readable",
    "load",
    "passed_over",
    "plan_upsert",
]
