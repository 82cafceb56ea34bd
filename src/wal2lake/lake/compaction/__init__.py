"""Small files of tables as larger ones, beside the batches that leave them.

Takes: locations of tables that have had many commits. Gives: files with the same rows, and what one
commit must say to have them, whatever has changed meanwhile.
Owns: which files are worth it, and where each row was.
Never: commits, or anything that a batch waits for.
"""

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
    "compact",
    "worth_compacting",
]
