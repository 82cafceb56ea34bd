"""Histories of a table whose key has equal values that are written differently.

Comes in: histories of ``wal2lake.testing.rowmodel``, whose key is two numbers. Goes out: the same,
the second number as an interval that each event writes as it likes; and a model that knows what is
meant.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

import pyarrow as pa

from wal2lake.lake.port import FieldSpec
from wal2lake.lake.staging.layout import ChangeShape, Seq
from wal2lake.model import Oid
from wal2lake.testing.rowmodel import KEY, UNCHANGED, Key, Row, RowEvent, TableModel

FIELDS: Final = (
    FieldSpec("grp", "int", pg_type_oid=Oid(23)),
    FieldSpec("number", "string", pg_type_oid=Oid(1186)),
    FieldSpec("a", "string", pg_type_oid=Oid(25)),
    FieldSpec("b", "string", pg_type_oid=Oid(25)),
)
ARROW: Final = pa.schema(
    [("grp", pa.int32()), *((name, pa.string()) for name in ("number", "a", "b"))]
)

_SPELLED: Final = {
    n: (
        f"{n} days",
        f"{24 * n}:00:00",
        f"{n + 1} days -24:00:00",
        f"1 mon {n - 30} days",
    )
    for n in range(1, 20)
} | {0: ("00:00:00", "1 day -24:00:00")}
_MEANT: Final = {text: n for n, texts in _SPELLED.items() for text in texts}


def spelled(key: Key, rng: random.Random) -> Key:
    """One way to write it."""
    number = key[1]
    assert isinstance(number, int)
    return (key[0], rng.choice(_SPELLED[number]), *key[2:])


def meant(key: Key) -> Key:
    """What it is."""
    return (key[0], _MEANT[str(key[1])], *key[2:])


def spelled_events(events: Iterable[RowEvent], rng: random.Random) -> list[RowEvent]:
    """Each key as the event likes it; some UPDATEs send the old key because it is written
    differently, and for nothing else."""
    found = []
    for event in events:
        new = None if event.new is None else spelled(event.new, rng)
        old = None if event.old is None else spelled(event.old, rng)
        if event.kind == "U" and old is None and new is not None and rng.random() < 0.5:
            old = spelled(meant(new)[:2], rng)
        found.append(replace(event, new=new, old=old))
    return found


class SpelledModel(TableModel):
    """Rows by what their key means."""

    __slots__ = ()

    def key_of(self, row: Row) -> Key:
        """See the base."""
        return meant(row[:2])

    def apply(self, event: RowEvent) -> None:
        """See the base."""
        TableModel.apply(
            self, event if event.old is None else replace(event, old=meant(event.old))
        )


def moved(event: RowEvent) -> bool:
    """As staging says it: the texts differ."""
    return (
        event.kind == "U"
        and event.old is not None
        and event.new is not None
        and event.new[:2] != event.old
    )


def shape_of(events: Sequence[RowEvent]) -> ChangeShape:
    """What the batch contains."""
    truncates = [Seq(e.lsn, e.ordinal) for e in events if e.kind == "T"]
    unchanged = (i for e in events for i, v in enumerate(e.new or ()) if v is UNCHANGED)
    return ChangeShape(
        FIELDS,
        KEY,
        frozenset(unchanged),
        any(map(moved, events)),
        max(truncates, default=None),
    )


def staged_rows(
    events: Sequence[RowEvent], shape: ChangeShape
) -> list[dict[str, object]]:
    """In the layout of staged changes."""
    rows = []
    for e in events:
        new = e.new if e.new is not None else (*(e.old or (None, None)), None, None)
        row: dict[str, object] = {
            "lsn": e.lsn,
            "ord": e.ordinal,
            "op": ord(e.kind),
            "moved": moved(e),
        }
        row |= {f"n{i}": None if v is UNCHANGED else v for i, v in enumerate(new)}
        row |= {f"u{i}": new[i] is UNCHANGED for i in sorted(shape.unchanged)}
        if shape.moved:
            old = e.old if moved(e) and e.old is not None else (None, None)
            row |= {f"o{i}": value for i, value in enumerate(old)}
        rows.append(row)
    return rows
