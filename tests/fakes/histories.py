"""Batches of events as staging describes them: for each way of reducing them to a net change."""

from __future__ import annotations

from collections.abc import Sequence

from wal2lake.lake.port import FieldSpec
from wal2lake.lake.staging.layout import ChangeShape, Seq, Uniqueness
from wal2lake.testing.rowmodel import KEY, UNCHANGED, RowEvent

FIELDS = (
    FieldSpec("grp", "int"),
    FieldSpec("number", "int"),
    FieldSpec("a", "string"),
    FieldSpec("b", "string"),
)
TRUSTED = Uniqueness(trusted=True, constraint="t_pkey", relation="public.t")
UNTRUSTED = Uniqueness(trusted=False, constraint="t_pkey", relation="public.t")


def shape_of(events: Sequence[RowEvent]) -> ChangeShape:
    """What the batch contains."""
    truncates = [Seq(e.lsn, e.ordinal) for e in events if e.kind == "T"]
    return ChangeShape(
        FIELDS,
        KEY,
        frozenset(
            i for e in events for i, v in enumerate(e.new or ()) if v is UNCHANGED
        ),
        any(moved(e) for e in events),
        max(truncates, default=None),
    )


def moved(event: RowEvent) -> bool:
    """An UPDATE that changed the key."""
    return (
        event.kind == "U"
        and event.old is not None
        and event.new is not None
        and event.new[:2] != event.old
    )
