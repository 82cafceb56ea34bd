"""Reads the changes of rows from a table's commits.

commits   a commit's actions: which files came, went, or lost rows (pure)
moves     which rows of a commit are one, though their key has changed (pure)
rows      the rows behind them, as INSERT, UPDATE and DELETE
replay    a batch of a subscription as the publisher's transactions made it
"""

from wal2lake.lake.capture.commits import ALTERS, TableCommit, read_commit, updated_by
from wal2lake.lake.capture.comparison import ComparisonMemory
from wal2lake.lake.capture.messages import (
    Emitted,
    More,
    OriginMark,
    Sent,
    relation_mark,
    with_more,
)
from wal2lake.lake.capture.moves import MOST_ROWS, KeyMoves, MovedKey, moved_from
from wal2lake.lake.capture.replay import NotAsSent, SentTable, sent_changes
from wal2lake.lake.capture.rows import most_changes, row_changes

__all__ = [
    "ALTERS",
    "MOST_ROWS",
    "ComparisonMemory",
    "Emitted",
    "KeyMoves",
    "More",
    "MovedKey",
    "NotAsSent",
    "OriginMark",
    "Sent",
    "SentTable",
    "TableCommit",
    "most_changes",
    "moved_from",
    "read_commit",
    "relation_mark",
    "row_changes",
    "sent_changes",
    "updated_by",
    "with_more",
]
