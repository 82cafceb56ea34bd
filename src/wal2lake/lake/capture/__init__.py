"""Reads the changes of rows from a table's commits.

Takes: a table's log and files, a range of versions. Gives: the changed rows of each commit, with
what the commit says about its transaction. Owns: the pairs of rows whose key has changed. Never:
Spark, or the publisher's log.

    commits      a commit's actions: which files were added or removed, or lost rows (pure)
    commitfacts  facts about a transaction in a commit's user metadata (pure)
    changedrows  the changed rows, as INSERT, UPDATE and DELETE
    comparison   compares the rows that a commit has removed and added, and pairs them
    moves        pairs of rows whose key has changed (pure)
    apart        keeps large values in a file while their rows are compared
    replay       a batch of a subscription as the publisher's transactions made it
"""

from wal2lake.lake.capture.changedrows import most_changes, row_changes
from wal2lake.lake.capture.commitfacts import (
    CommitRemarks,
    Emitted,
    OriginMark,
    SentBatch,
    relation_mark,
    with_remarks,
)
from wal2lake.lake.capture.commits import ALTERS, TableCommit, read_commit, updated_by
from wal2lake.lake.capture.comparison import ComparisonMemory
from wal2lake.lake.capture.moves import MOST_ROWS, KeyMoves, MovedKey, moved_from
from wal2lake.lake.capture.replay import NotAsSent, SentTable, sent_changes

__all__ = [
    "ALTERS",
    "MOST_ROWS",
    "CommitRemarks",
    "ComparisonMemory",
    "Emitted",
    "KeyMoves",
    "MovedKey",
    "NotAsSent",
    "OriginMark",
    "SentBatch",
    "SentTable",
    "TableCommit",
    "most_changes",
    "moved_from",
    "read_commit",
    "relation_mark",
    "row_changes",
    "sent_changes",
    "updated_by",
    "with_remarks",
]
