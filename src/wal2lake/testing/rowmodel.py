"""A model of a table: rows in a dict by key, changed by one event at a time.

Tests compare every faster way of applying changes with this model. A generator makes histories
that visit corner cases: chains of unchanged values, key changes and swaps through a third key,
insert-delete-insert, events on missing rows, TRUNCATE. A history consists of many *groups* with
disjoint keys, so that one run of a slow engine checks hundreds of small cases, and a failure
names one of them.

Pure: no clock, no I/O, randomness from the caller.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import pairwise
from typing import Any, Final

Key = tuple[Any, ...]
Row = tuple[Any, ...]


class UnchangedValue(Enum):
    """The marker of an unchanged TOAST value, which is not sent."""

    UNCHANGED = "unchanged"

    def __repr__(self) -> str:
        return "UNCHANGED"


UNCHANGED: Final = UnchangedValue.UNCHANGED


@dataclass(frozen=True, slots=True)
class RowEvent:
    """One row change as the log has it."""

    lsn: int
    """Commit LSN of its transaction."""
    ordinal: int
    kind: str
    """I, U, D or T."""
    new: Row | None = None
    """Values of I and U; U may contain UNCHANGED."""
    old: Key | None = None
    """The key of D; for U the old key, only if it was sent."""


class KeyTaken(Exception):
    """An event writes a key that another row has: insert_exists or update_exists."""

    def __init__(self, event: RowEvent) -> None:
        super().__init__(event)
        self.event = event


@dataclass(slots=True)
class TableModel:
    """Rows by key, and the events that found no row."""

    key: tuple[int, ...]
    """Positions of the key's columns."""
    rows: dict[Key, Row] = field(default_factory=dict)
    missing: list[tuple[int, str, Key]] = field(default_factory=list)
    """Commit LSN, U or D, and key of each missing row since the last TRUNCATE."""

    def key_of(self, row: Row) -> Key:
        """Return the key of a row."""
        return tuple(row[i] for i in self.key)

    def apply(self, event: RowEvent) -> None:
        """Apply one event; if it raises KeyTaken, nothing has changed."""
        if event.kind == "T":
            self.rows.clear()
            self.missing.clear()
            return
        if event.kind == "D":
            assert event.old is not None
            if self.rows.pop(event.old, None) is None:
                self.missing.append((event.lsn, "D", event.old))
            return
        assert event.new is not None
        target = self.key_of(event.new)
        if event.kind == "I":
            if target in self.rows:
                raise KeyTaken(event)
            self.rows[target] = event.new
            return
        source = target if event.old is None else event.old
        stored = self.rows.get(source)
        if stored is None:
            self.missing.append((event.lsn, "U", source))
            return
        if target != source and target in self.rows:
            raise KeyTaken(event)
        del self.rows[source]
        self.rows[target] = tuple(
            old if new is UNCHANGED else new
            for old, new in zip(stored, event.new, strict=True)
        )

    def apply_all(self, events: Iterable[RowEvent]) -> None:
        """Apply events in the order given."""
        for event in events:
            self.apply(event)


@dataclass(slots=True)
class MarkedTableModel:
    """A table that keeps deleted rows: those of the publisher, and marked ones."""

    live: TableModel
    marked: dict[Key, tuple[Row, int]] = field(default_factory=dict)
    """By key, the last row that had it, and the commit LSN of its end. No key of ``live``."""

    def apply(self, event: RowEvent) -> None:
        """Apply one event; if it raises KeyTaken, nothing has changed."""
        if event.kind == "T":
            ended = self.live.rows.copy()
            self.live.apply(event)
            self.marked |= {key: (row, event.lsn) for key, row in ended.items()}
            return
        target = None if event.new is None else self.live.key_of(event.new)
        source = target if event.old is None else event.old
        row = None if source is None else self.live.rows.get(source)
        self.live.apply(event)
        if event.kind == "I" or row is not None:
            if source is not None and row is not None and source != target:
                self.marked[source] = (row, event.lsn)
            if target is not None:
                self.marked.pop(target, None)

    def apply_all(self, events: Iterable[RowEvent]) -> None:
        """Apply events in the order given."""
        for event in events:
            self.apply(event)


@dataclass(frozen=True, slots=True)
class HistoryShape:
    """Size and corner cases of a generated history. Rows are (group, number, text, text)."""

    groups: int
    transactions: int
    moves: bool = True
    unchanged: bool = True
    truncates: int = 0
    """Number of TRUNCATEs, each at a random place."""
    missing: bool = False
    """UPDATE and DELETE may name rows that do not exist."""
    conflicts: bool = False
    """INSERT and key changes may use keys of existing rows."""
    keys_per_group: int = 4


KEY: Final = (0, 1)
"""The key of generated rows: group and number."""


def initial_rows(shape: HistoryShape, rng: random.Random) -> dict[Key, Row]:
    """Make a table's content before the history: about half of the keys have rows."""
    return {
        (g, k): (g, k, f"base {g}/{k}", _text(rng))
        for g in range(shape.groups)
        for k in range(shape.keys_per_group)
        if rng.random() < 0.5
    }


def history(
    shape: HistoryShape, start: dict[Key, Row], rng: random.Random, first_lsn: int = 100
) -> list[RowEvent]:
    """Make events in log order. They are valid on ``start`` unless ``shape`` allows others.

    An event that conflicts is part of the history and does not change the model.
    """
    model = TableModel(KEY, dict(start))
    every = shape.groups * 2
    cut_at = {rng.randrange(shape.transactions * every) for _ in range(shape.truncates)}
    events: list[RowEvent] = []
    lsn, step = first_lsn, 0
    for _ in range(shape.transactions):
        lsn += rng.randint(1, 1000)
        ordinal = 0
        for _ in range(every):
            step += 1
            ordinal += rng.randint(1, 3)
            event: RowEvent | None
            if step - 1 in cut_at:
                event = RowEvent(lsn, ordinal, "T")
            else:
                group = rng.randrange(shape.groups)
                event = _event(shape, model, group, lsn, ordinal, rng)
            if event is None:
                continue
            try:
                model.apply(event)
            except KeyTaken:
                assert shape.conflicts
            events.append(event)
    return events


def batches(
    events: Sequence[RowEvent], rng: random.Random, parts: int
) -> list[list[RowEvent]]:
    """Split events at transaction boundaries; a part may be empty."""
    lsns = sorted({e.lsn for e in events})
    cuts = sorted(rng.choice([*lsns, lsns[-1] + 1]) for _ in range(parts - 1))
    bounds = [0, *cuts, lsns[-1] + 1]
    return [
        [e for e in events if low <= e.lsn < high] for low, high in pairwise(bounds)
    ]


def _event(
    shape: HistoryShape,
    model: TableModel,
    group: int,
    lsn: int,
    ordinal: int,
    rng: random.Random,
) -> RowEvent | None:
    keys = [(group, k) for k in range(shape.keys_per_group)]
    stored = [k for k in keys if k in model.rows]
    absent = [k for k in keys if k not in model.rows]
    sources = keys if shape.missing and rng.random() < 0.3 else stored
    targets = keys if shape.conflicts and rng.random() < 0.03 else absent
    kind = rng.choice("IIUUUMMD" if shape.moves else "IIUUUUD")
    if kind == "I":
        if not targets:
            return None
        new = (*rng.choice(targets), _text(rng), _text(rng))
        return RowEvent(lsn, ordinal, "I", new)
    if not sources:
        return None
    source = rng.choice(sources)
    if kind == "D":
        return RowEvent(lsn, ordinal, "D", old=source)
    target = source
    if kind == "M":
        others = [k for k in targets if k != source]
        if not others:
            return None
        target = rng.choice(others)
    new = (*target, _value(shape, rng), _value(shape, rng))
    # The old key is also sent if it did not change but is external, or with FULL.
    sent = source != target or rng.random() < 0.1
    return RowEvent(lsn, ordinal, "U", new, old=source if sent else None)


def _value(shape: HistoryShape, rng: random.Random) -> object:
    if shape.unchanged and rng.random() < 0.4:
        return UNCHANGED
    return _text(rng)


def _text(rng: random.Random) -> object:
    return None if rng.random() < 0.1 else f"v{rng.randrange(10**6)}"
