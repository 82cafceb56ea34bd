"""Keys that are judged at the end of each transaction. Pure.

Comes in: the events of one table in log order, each key as a small number, which keys the table
holds, and which events found no row. Goes out: the first event whose key two rows have when its
transaction ends. Called by ``plan.py``.

Why this way. A batch is first evaluated with one row for each key, which is right as long as no
event meets a key that is taken. If one does, a key alone does not tell which row the next event
means: the batch is evaluated again as one of a table without a key, where the whole old row tells
it (``ByContent``), and the keys are counted here.

Source: unique_key_recheck() in constraint.c, which looks at each row once more at the commit.
"""

from __future__ import annotations

import numpy as np

from wal2lake.lake.staging.changes import DELETE, INSERT
from wal2lake.lake.upsert.lives.lives import NOT_MOVED, Events, Index, Mask


class ByContent(Exception):
    """A key is there twice before its transaction ends: rows have to be found by their content."""


def first_repeated(
    events: Events, stored: Mask, missed: Index, lsn: Index
) -> int | None:
    """The first event, in log order, that puts a row to a key which another row has at the end of
    the event's transaction."""
    counts = stored.astype(np.int64)
    nothing = np.zeros(len(events.op), np.bool_)
    nothing[missed] = True
    ends = np.append(np.flatnonzero(np.diff(lsn)), len(lsn) - 1)
    begin = 0
    for end in ends.tolist():
        part = slice(begin, end + 1)
        begin = end + 1
        works = ~nothing[part]
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
