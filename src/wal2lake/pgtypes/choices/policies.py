"""``value_policies``: what happens to a value that its column cannot hold.

    error      the transaction is not applied (the default)
    null       NULL is stored
    clamp      the nearest value that the column can hold; NULL for NaN, which has none
    lossless   as error, and the column is made as text if its own type needs it (``types``)
    text       as error, and the column is made as text if its own type does not hold every value,
               be it one that hardly comes
    widen      as error, but a value that the first copy of an empty table meets makes the column
               text (``tablesync/widening``)

Comes in: the option's text; a column of the publisher. Goes out: its policy. What is stored
instead is counted (``wal2lake.coercions``). Picklable: executors ask it, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Final

from wal2lake.errors import UsageError
from wal2lake.pgtypes.choices.entries import (
    ChoiceEntry,
    ChoiceTarget,
    Match,
    SourceColumn,
    best_entry,
    parse_entries,
)
from wal2lake.pgtypes.registry.pg_type import type_by_oid

VALUE_POLICIES: Final = "value_policies"


class ValuePolicy(Enum):
    """Policies for a value that its column cannot hold."""

    ERROR = "error"
    """The subscription stops at its transaction."""
    NULL = "null"
    """It is stored as NULL."""
    CLAMP = "clamp"
    """It is stored as the nearest value that there is."""
    LOSSLESS = "lossless"
    """The column is made as text where values of its type are of shapes that it does not hold.
    Numbers and timestamps stay what they are: NaN and what is after 294246 are an error."""
    TEXT = "text"
    """The column is made so that there is no such value; if there is one, an error."""
    WIDEN = "widen"
    """The column becomes text if the first copy of its table, which is empty, has such a value.
    Later ones are an error."""


_NUMBERS: Final = ("int2", "int4", "int8", "oid", "xid", "xid8", "cid", "numeric")
_FLOATS: Final = ("float4", "float8")
_MOMENTS: Final = ("date", "timestamp", "timestamptz")
_WITH_NEAREST: Final = frozenset((*_NUMBERS, *_FLOATS, *_MOMENTS))
"""Types whose values have an order, and lie beyond the ends of what they are stored as."""


@dataclass(frozen=True, slots=True)
class ValuePolicies:
    """All entries; empty: every column is ``error``."""

    entries: tuple[ChoiceEntry[ValuePolicy], ...] = ()

    @classmethod
    def parse(cls, text: str) -> ValuePolicies:
        """Raises UsageError (22023)."""
        return cls(parse_entries(VALUE_POLICIES, text, _read))

    def of(self, column: SourceColumn) -> ValuePolicy:
        """The column's policy."""
        return self.entry_for(column)[0]

    def entry_for(self, column: SourceColumn) -> tuple[ValuePolicy, int]:
        """The column's policy, and how specific the entry is that says so (0: none)."""
        found = best_entry(self.entries, column)
        return (
            (ValuePolicy.ERROR, 0)
            if found is None
            else (found.choice, found.target.match)
        )

    def naming(self, column: SourceColumn) -> ValuePolicy | None:
        """The policy of the entry that names this very column; None: there is none."""
        policy, level = self.entry_for(column)
        return policy if level == Match.COLUMN else None


NO_POLICIES: Final = ValuePolicies()


def _read(target: ChoiceTarget, text: str) -> ValuePolicy:
    try:
        policy = ValuePolicy(text.lower())
    except ValueError:
        raise UsageError(
            f'unrecognized value policy: "{text}"',
            hint=f"Available policies: {', '.join(p.value for p in ValuePolicy)}.",
        ) from None
    if policy is ValuePolicy.CLAMP and not _has_nearest(target):
        raise UsageError(
            f'value policy "clamp" is not possible for type {target.text}',
            detail="Its values have no nearest value that could be stored instead.",
            hint="Available policies: error, null, lossless, text, widen.",
        )
    return policy


def _has_nearest(target: ChoiceTarget) -> bool:
    if target.match in (Match.ALL, Match.COLUMN):
        return True
    known = type_by_oid(target.type_oid)
    if known is not None and known.is_array:
        known = type_by_oid(known.element_oid)
    return known is not None and known.name in _WITH_NEAREST
