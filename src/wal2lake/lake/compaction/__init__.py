"""Rewrites small files of tables as larger ones, beside the commits that leave them.

Takes: tables that have had a commit. Gives: files with the same rows, and the commit that replaces
the old files by them, whatever has changed meanwhile. Owns: the choice of files, the old position
of each row, and the order of clustered tables. Never: rewrites while a batch or a statement waits
for it.

    compactor   compacts all tables, beside apply
    rewrite     small files as one
    clustered   files of a clustered table, so that rows that are near each other share a file
"""

from wal2lake.lake.compaction.clustered import cluster, worth_clustering
from wal2lake.lake.compaction.compactor import Compactor
from wal2lake.lake.compaction.rewrite import (
    Carried,
    Compaction,
    carried,
    compact,
    worth_compacting,
)

__all__ = [
    "Carried",
    "Compaction",
    "Compactor",
    "carried",
    "cluster",
    "compact",
    "worth_clustering",
    "worth_compacting",
]
