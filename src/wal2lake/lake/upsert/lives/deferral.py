"""Checks keys at the end of each transaction. Pure.

Comes in: the events of one table in log order, each key as a small number, which keys the table
holds, and which events found no row. Goes out: the first event whose key two rows have when its
transaction ends. Called by ``plan``.

Why this way. A batch is first evaluated with one row for each key, which is right as long as no
event meets a taken key. If one does, the key alone does not tell which row the next event means.
Then the batch is evaluated again as one of a table without a key, where the whole old row
identifies a row (``ByContent``), and the keys are counted here.

Source: unique_key_recheck() in constraint.c, which checks each row again at the commit.
"""

from __future__ import annotations

import numpy as np

from wal2lake.lake.staging.layout import DELETE, INSERT
from wal2lake.lake.upsert.lives.lives import NOT_MOVED, Events, Index, Mask


class ByContent(Exception):
    """A key is repeated before its transaction ends: rows must be found by their content."""


def first_repeated(
    events: Events, stored: Mask, missed: Index, lsn: Index
) -> int | None:
    """Return the first event, in log order, whose row's key another row has at the end of the
    event's transaction."""
    counts = stored.astype(np.int64)
    idle = np.zeros(len(events.op), np.bool_)
    idle[missed] = True
    ends = np.append(np.flatnonzero(np.diff(lsn)), len(lsn) - 1)
    begin = 0
    for end in ends.tolist():
        part = slice(begin, end + 1)
        begin = end + 1
        works = ~idle[part]
        op = events.op[part][works]
        key, old = events.key[part][works], events.old[part][works]
        source = np.where(old == NOT_MOVED, key, old)
        np.add.at(counts, source[op != INSERT], -1)
        np.add.at(counts, key[op != DELETE], 1)
        puts = np.flatnonzero(works)[op != DELETE]
        repeated = puts[counts[key[op != DELETE]] > 1]
        if repeated.size:
            return int(part.start + repeated[0])
    return None
