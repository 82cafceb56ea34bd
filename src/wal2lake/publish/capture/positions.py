"""Assigns positions in the publisher's log. Pure.

A transaction of at most n changes that begins where the one before it ended, at s:

    s + 8 k              change k, from 0
    s + 8 (n + 1)        its commit
    s + 8 (n + 1) + 48   its end, where the next transaction begins

A non-transactional message after s is at s + 8, and the next transaction or message begins at s +
16. A client that has reached the message's position has read it.

Positions have PostgreSQL's order (begin, changes, commit, end) and no other meaning. They are used
only to find where to continue.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from wal2lake.model import Lsn

FIRST: Final = Lsn(0x100_0000)
"""First position of a log: PostgreSQL's first used segment."""

CHANGE_BYTES: Final = 8
COMMIT_BYTES: Final = 48


def commit_of(start: Lsn, changes: int) -> Lsn:
    """Return the commit position of a transaction of at most ``changes`` changes."""
    return Lsn(start + CHANGE_BYTES * (changes + 1))


def commits_of(start: Lsn, changes: Any) -> Any:
    """Return the commit positions of consecutive transactions. ``changes``: array of the maximum
    number of changes of each."""
    sizes = CHANGE_BYTES * (changes.astype(np.int64) + 1) + COMMIT_BYTES
    return int(start) + np.cumsum(sizes) - COMMIT_BYTES


def end_of(commit: Lsn) -> Lsn:
    """Return the end of the transaction."""
    return Lsn(commit + COMMIT_BYTES)


def end_of_message(lsn: Lsn) -> Lsn:
    """Return the position after a non-transactional message."""
    return Lsn(lsn + CHANGE_BYTES)


def start_of(commit: Lsn, changes: int) -> Lsn:
    """Return a start for a transaction of ``changes`` changes, no lower than its real start."""
    return Lsn(commit - CHANGE_BYTES * (changes + 1))
