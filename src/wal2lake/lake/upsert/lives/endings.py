"""Finds the rows that end in a batch and whose keys stay free, for tables that keep them. Pure.

Comes in: the effects of a batch's events. Goes out: the events that end these rows, and where the
rows' values are. Called by ``soft``.

A row ends when it is deleted, and when an UPDATE moves it away from its key. A key at which two
rows end keeps the later one; a key that is taken again keeps none. In a table without a key every
deleted row is kept, and an UPDATE ends no row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from wal2lake.lake.upsert.lives.lives import NOT_MOVED, Events, Index
from wal2lake.lake.upsert.lives.steps import LifeSteps, RowRefs


@dataclass(frozen=True, slots=True)
class Endings:
    """Rows that end, and are to be kept as marked ones."""

    event: Index
    """For each row, the event that ends it."""
    rows: RowRefs
    """The rows as the events found them."""
    touched: Index
    """Keys that any event has changed; empty for a table without a key."""


def endings(steps: LifeSteps, events: Events, *, repeats: bool) -> Endings:
    """Return the rows that end. ``repeats``: the table has no key."""
    ends = steps.before.exists & ~steps.after.exists
    if repeats:
        chosen = np.flatnonzero(ends)
        none = np.zeros(0, np.int64)
        return Endings(steps.event[chosen], steps.before.take(chosen), none)
    key, old = events.key[steps.event], events.old[steps.event]
    leaves = steps.before.exists & steps.after.exists & (old != NOT_MOVED)
    begins = np.flatnonzero(steps.after.exists)
    end_at = np.concatenate([np.flatnonzero(ends), np.flatnonzero(leaves)])
    end_key = np.concatenate([key[ends], old[leaves]])
    changed = np.concatenate([end_key, key[begins]])
    count = int(changed.max()) + 1 if changed.size else 0
    is_touched = np.zeros(count, np.bool_)
    is_touched[changed] = True
    touched = np.flatnonzero(is_touched)
    last_end = np.full(count, -1, np.int64)
    last_begin = np.full(count, -1, np.int64)
    np.maximum.at(last_end, end_key, end_at)
    np.maximum.at(last_begin, key[begins], begins)
    stays = (last_end[end_key] == end_at) & (last_end > last_begin)[end_key]
    chosen = np.sort(end_at[stays])
    return Endings(steps.event[chosen], steps.before.take(chosen), touched)
