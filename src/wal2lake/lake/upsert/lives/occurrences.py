"""Gives keys to rows that a table may hold many times. Pure.

Comes in: the events of a table without a primary key, each row content as a small number, and
where contents are stored. Goes out: the same events and places by *occurrence*. The n-th of the
rows with one content is a key like any other, which holds at most one row. Called by ``plan``,
between finding contents and the net change by keys.

Why this way. It makes no difference which of several identical rows an UPDATE or DELETE takes, so
they may form a stack: an insert pushes a row, a delete pops the topmost. The stack's height is
the number of stored rows plus those pushed minus those popped, a cumulative sum for all contents
at once. The sum is wrong only if an event finds no row, because such an event does nothing. Then
the events are walked one by one (about half a microsecond each).

Source: execReplication.c, RelationFindReplTupleSeq (the first row that is equal is taken).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from wal2lake.lake.staging.layout import DELETE, INSERT, UPDATE
from wal2lake.lake.upsert.keys import Index, Places
from wal2lake.lake.upsert.lives.lives import NOT_MOVED, Events


@dataclass(frozen=True, slots=True)
class Occurrences:
    """A batch whose keys are occurrences."""

    events: Events
    places: Places
    count: int
    """Number of keys."""


def by_occurrence(
    events: Events,
    places: Places,
    contents: int,
    classes: Index | None = None,
    *,
    inserts: bool = False,
) -> Occurrences:
    """Number the occurrences of ``contents`` contents.

    An event that finds no row gets a key that never holds a row; with ``inserts`` an UPDATE that
    finds none still inserts its row. ``classes``: for each content the number of its class of
    equal contents; if there is no identical row, an event takes an equal one.
    """
    stored = np.bincount(places.key, minlength=contents)
    # An UPDATE is two steps: first it takes a row, then it puts one.
    takes = np.flatnonzero(events.op != INSERT)
    puts = np.flatnonzero(events.op != DELETE)
    source = np.where(events.old == NOT_MOVED, events.key, events.old)
    height = _heights(events, source, takes, puts, stored)
    if height is None:
        taken, put, source = _walk(events, source, stored, classes, inserts=inserts)
    else:
        taken, put = height
    most = stored.copy()
    np.maximum.at(most, source[takes], taken[takes])
    np.maximum.at(most, events.key[puts], put[puts])
    # Occurrence n of a content, counted from 1, is key first + n - 1.
    first = np.cumsum(most) - most
    no_row = int(most.sum())
    old = np.full(len(events.op), NOT_MOVED, np.int64)
    old[takes] = np.where(
        taken[takes] > 0, first[source[takes]] + taken[takes] - 1, no_row
    )
    key = np.full(len(events.op), no_row, np.int64)
    key[puts] = np.where(put[puts] > 0, first[events.key[puts]] + put[puts] - 1, no_row)
    gone = events.op == DELETE
    key[gone], old[gone] = old[gone], NOT_MOVED
    old[old == key] = NOT_MOVED
    order = np.argsort(places.key, kind="stable")
    ranks = np.arange(len(order)) - (np.cumsum(stored) - stored)[places.key[order]]
    return Occurrences(
        Events(events.op, key, old, events.unknown),
        Places(first[places.key[order]] + ranks, places.file[order], places.row[order]),
        no_row + 1,
    )


_Heights = tuple[Index, Index]
"""By event: height of the stack that a row is taken from, and after one is put; 0: none."""


def _heights(
    events: Events,
    source: Index,
    takes: Index,
    puts: Index,
    stored: npt.NDArray[np.int64],
) -> _Heights | None:
    """Compute all heights at once; None if some event finds no row."""
    content = np.concatenate([source[takes], events.key[puts]])
    step = np.concatenate([takes * 2, puts * 2 + 1])
    change = np.concatenate(
        [np.full(len(takes), -1, np.int64), np.ones(len(puts), np.int64)]
    )
    order = np.lexsort((step, content))
    content, change = content[order], change[order]
    total = np.cumsum(change)
    starts = np.flatnonzero(np.diff(content, prepend=-1))
    before = np.repeat(
        total[starts] - change[starts], np.diff(np.append(starts, len(content)))
    )
    after = stored[content] + total - before
    if after.size and int(after.min()) < 0:
        return None
    height = np.empty(len(order), np.int64)
    height[order] = np.where(change < 0, after + 1, after)
    taken = np.zeros(len(events.op), np.int64)
    put = np.zeros(len(events.op), np.int64)
    taken[takes] = height[: len(takes)]
    put[puts] = height[len(takes) :]
    return taken, put


def _walk(
    events: Events,
    source: Index,
    stored: npt.NDArray[np.int64],
    classes: Index | None,
    *,
    inserts: bool,
) -> tuple[Index, Index, Index]:
    """Apply one event after the other; the third result is the content that each event took."""
    height = stored.tolist()
    equal: dict[int, list[int]] = {}
    class_of = [] if classes is None else classes.tolist()
    for content, number in enumerate(class_of):
        equal.setdefault(number, []).append(content)
    source = source.copy()
    taken, put = [0] * len(events.op), [0] * len(events.op)
    steps = zip(events.op.tolist(), source.tolist(), events.key.tolist(), strict=True)
    for event, (op, start, end) in enumerate(steps):
        if op != INSERT:
            if not height[start] and class_of:
                candidates = equal[class_of[start]]
                start = next(
                    (candidate for candidate in candidates if height[candidate]), start
                )
                source[event] = start
            if height[start]:
                taken[event] = height[start]
                height[start] -= 1
            elif not (inserts and op == UPDATE):
                continue
        if op != DELETE:
            height[end] += 1
            put[event] = height[end]
    return np.array(taken, np.int64), np.array(put, np.int64), source
