"""Positions in the publisher's log. Pure.

A transaction of at most n changes that begins where the one before it ended, at s:

    s + 8 k              change k, from 0
    s + 8 (n + 1)        its commit
    s + 8 (n + 1) + 48   its end, where the next one begins

A message that belongs to no transaction and comes behind s is at s + 8; the next one begins at
s + 16. Whoever has reached its position has read it.

They have PostgreSQL's order (begin, changes, commit, end) and mean nothing else: nobody finds
anything by them but where to go on.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from wal2lake.model import Lsn

FIRST: Final = Lsn(0x100_0000)
"""Where a log begins: as PostgreSQL's first segment that is used."""

CHANGE_BYTES: Final = 8
COMMIT_BYTES: Final = 48


def commit_of(start: Lsn, changes: int) -> Lsn:
    """Where the commit of a transaction of at most so many changes is."""
    return Lsn(start + CHANGE_BYTES * (changes + 1))


def commits_of(start: Lsn, changes: Any) -> Any:
    """The same of transactions that follow each other; an array of what each has at most."""
    sizes = CHANGE_BYTES * (changes.astype(np.int64) + 1) + COMMIT_BYTES
    return int(start) + np.cumsum(sizes) - COMMIT_BYTES


def end_of(commit: Lsn) -> Lsn:
    """Where the transaction ends."""
    return Lsn(commit + COMMIT_BYTES)


def end_of_message(lsn: Lsn) -> Lsn:
    """Where what comes behind a message of no transaction begins."""
    return Lsn(lsn + CHANGE_BYTES)


def start_of(commit: Lsn, changes: int) -> Lsn:
    """Where a transaction that has so many may be said to begin: no lower than it did."""
    return Lsn(commit - CHANGE_BYTES * (changes + 1))
