"""The net change of a batch whose keys are numbered: which rows go, which come. Pure.

Comes in: the events of one table in log order, each key as a small number, and which keys
the table holds. Goes out: the keys whose stored rows are removed, and the rows that are
written, each as indices: *last* is the event that gives its values, *sources* the events
that give those columns that ``last`` does not know, ``STORED`` being the stored row of key
``base``; and which events found no row (*missed*). Called by ``plan.py``; the same meaning as
``merge/netchange.py``, which does it in Spark for batches that do not fit into memory.

Why this way. The row that a key holds lives from an INSERT to a DELETE, or comes from the
table. For keys that no key change touches, the last INSERT or DELETE of a key (its *reset*)
and the last known value of each column decide, which NumPy finds for all keys at once; as it does
for key changes between keys that nothing else touches. The others depend on each other in log
order, and are walked one event at a time (about 2 microseconds and 500 bytes each); a batch has
few of them.

Sources: PostgreSQL worker.c (apply_handle_insert, _update, _delete).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from wal2lake.lake.staging.changes import DELETE, INSERT, UPDATE

Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

STORED: Final = -1
"""As the source of a value: what the table holds. As ``base``: no stored row."""

NOT_MOVED: Final = -1


@dataclass(frozen=True, slots=True)
class Events:
    """Events of one table, ascending by (commit LSN, ordinal); no TRUNCATE."""

    op: npt.NDArray[np.int8]
    """ASCII I, U or D."""
    key: Index
    """Number of the key that the event's row has afterwards; D: had."""
    old: Index
    """U that changed the key: the number before; else NOT_MOVED."""
    unknown: Mapping[int, Mask]
    """By column: the event does not tell its value. Only U, only columns with such."""


@dataclass(frozen=True, slots=True)
class Lives:
    """What the events mean."""

    removed: Index
    """Keys whose stored rows go."""
    last: Index
    """Rows to write: the event with the row's key and values."""
    base: Index
    """Rows to write: the key whose stored row they come from; STORED: inserted."""
    sources: Mapping[int, Index]
    """Rows to write, by column of ``Events.unknown``: the event that knows, or STORED."""
    missed: Index
    """Events U and D that found no row and did nothing, ascending."""


@dataclass(frozen=True, slots=True)
class KeyTaken:
    """The first event that puts a row where one is."""

    event: int


def net_lives(events: Events, stored: Mask, *, unique: bool) -> Lives | KeyTaken:
    """Reduce the events; ``stored`` says for each key whether the table has a row.

    With ``unique`` a row that meets another is KeyTaken, else it takes its place.
    """
    linked = np.zeros(len(stored), np.bool_)
    moved = events.old != NOT_MOVED
    touches = np.bincount(events.key, minlength=len(stored))
    touches += np.bincount(events.old[moved], minlength=len(stored))
    alone = moved & (touches[events.key] == 1) & (touches[events.old] == 1)
    tied = moved & ~alone
    linked[events.key[tied]] = True
    linked[events.old[tied]] = True
    walked = linked[events.key]
    plain = np.flatnonzero(~walked & ~alone)
    parts = [_reduce(events, plain, stored, unique=unique)]
    if alone.any():
        parts.append(_moved(events, np.flatnonzero(alone), stored, unique=unique))
    if walked.any():
        walk = _Walk(events, stored, unique=unique)
        parts.append(walk.run(np.flatnonzero(walked)))
    taken = [one.event for one in parts if isinstance(one, KeyTaken)]
    if taken:
        return KeyTaken(min(taken))
    found = [one for one in parts if isinstance(one, Lives)]
    if len(found) == 1:
        return found[0]
    return Lives(
        np.concatenate([one.removed for one in found]),
        np.concatenate([one.last for one in found]),
        np.concatenate([one.base for one in found]),
        {
            column: np.concatenate([one.sources[column] for one in found])
            for column in events.unknown
        },
        np.sort(np.concatenate([one.missed for one in found])),
    )


def _moved(
    events: Events, chosen: Index, stored: Mask, *, unique: bool
) -> Lives | KeyTaken:
    """Key changes between keys that nothing else touches, all at once."""
    old, key = events.old[chosen], events.key[chosen]
    there = stored[old]
    met = there & stored[key]
    if unique and met.any():
        return KeyTaken(int(chosen[met].min()))
    last = chosen[there]
    return Lives(
        removed=np.concatenate([old[there], key[met]]),
        last=last,
        base=old[there],
        sources={
            column: np.where(mask[last], STORED, last)
            for column, mask in events.unknown.items()
        },
        missed=chosen[~there],
    )


def _reduce(
    events: Events, chosen: Index, stored: Mask, *, unique: bool
) -> Lives | KeyTaken:
    """Keys that do not depend on each other, all at once."""
    if not chosen.size:
        none = np.zeros(0, np.int64)
        return Lives(none, none, none, dict.fromkeys(events.unknown, none), none)
    # Stable: a key's events stay in log order.
    order = chosen[np.argsort(events.key[chosen], kind="stable")]
    key, op = events.key[order], events.op[order]
    place = np.arange(len(order))
    starts = np.flatnonzero(np.diff(key, prepend=-1))
    ends = np.append(starts[1:], len(order)) - 1
    group = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(order))))

    reset_at = np.where(op != UPDATE, place, -1)
    before = np.empty_like(reset_at)
    before[0], before[1:] = -1, np.maximum.accumulate(reset_at)[:-1]
    here = before >= starts[group]
    occupied = np.where(here, op[before] == INSERT, stored[key])
    if unique:
        clashes = order[(op == INSERT) & occupied]
        if clashes.size:
            return KeyTaken(int(clashes.min()))

    reset = np.maximum.reduceat(reset_at, starts)
    from_table = reset < 0
    keys = key[starts]
    alive = np.where(from_table, stored[keys], op[reset] == INSERT)
    sources = {}
    for column, mask in events.unknown.items():
        known = np.where(mask[order] | (op == DELETE), -1, place)
        at = np.maximum.reduceat(known, starts)[alive]
        sources[column] = np.where(at < 0, STORED, order[at])
    return Lives(
        removed=keys[stored[keys]],
        last=order[ends[alive]],
        base=np.where(from_table, keys, STORED)[alive],
        sources=sources,
        missed=np.sort(order[(op != INSERT) & ~occupied]),
    )


@dataclass(slots=True)
class _Row:
    base: int
    last: int
    """STORED: no event has touched it yet."""
    sources: list[int]


class _Walk:
    """Keys that key changes tie together, one event at a time."""

    def __init__(self, events: Events, stored: Mask, *, unique: bool) -> None:
        self._events = events
        self._stored = stored
        self._unique = unique
        self._columns = list(events.unknown)
        self._rows: dict[int, _Row | None] = {}
        """What each key holds now; a key that is not here: what the table has."""
        self._missed: list[int] = []

    def run(self, chosen: Index) -> Lives | KeyTaken:
        """Apply the chosen events in order."""
        events, width = self._events, len(self._columns)
        masks = [events.unknown[column][chosen].tolist() for column in self._columns]
        steps = zip(
            chosen.tolist(),
            events.op[chosen].tolist(),
            events.key[chosen].tolist(),
            events.old[chosen].tolist(),
            strict=True,
        )
        for step, (event, op, key, old) in enumerate(steps):
            if op == INSERT:
                if self._unique and self._at(key) is not None:
                    return KeyTaken(event)
                self._rows[key] = _Row(STORED, event, [event] * width)
            elif op == DELETE:
                if self._at(key) is None:
                    self._missed.append(event)
                self._rows[key] = None
            else:
                source = key if old == NOT_MOVED else old
                row = self._at(source)
                if row is None:
                    self._missed.append(event)
                    continue
                if source != key:
                    if self._unique and self._at(key) is not None:
                        return KeyTaken(event)
                    self._rows[source] = None
                self._rows[key] = _Row(
                    row.base,
                    event,
                    [row.sources[i] if masks[i][step] else event for i in range(width)],
                )
        return self._result()

    def _at(self, key: int) -> _Row | None:
        if key not in self._rows:
            found = bool(self._stored[key])
            self._rows[key] = (
                _Row(key, STORED, [STORED] * len(self._columns)) if found else None
            )
        return self._rows[key]

    def _result(self) -> Lives:
        touched = {
            key: row
            for key, row in self._rows.items()
            if row is None or row.last != STORED
        }
        written = [row for row in touched.values() if row is not None]
        return Lives(
            removed=_indices([key for key in touched if self._stored[key]]),
            last=_indices([row.last for row in written]),
            base=_indices([row.base for row in written]),
            sources={
                column: _indices([row.sources[i] for row in written])
                for i, column in enumerate(self._columns)
            },
            missed=_indices(self._missed),
        )


def _indices(values: list[int]) -> Index:
    return np.array(values, np.int64)
