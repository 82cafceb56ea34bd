"""Small files of tables as larger ones, beside the batches that leave them.

Takes: locations of tables that have had many commits. Gives: files with the same rows, and what one
commit must say to have them, whatever has changed meanwhile.
Owns: which files are worth it, and where each row was; the order of clustered tables.
Never: commits, or anything that a batch waits for.
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
