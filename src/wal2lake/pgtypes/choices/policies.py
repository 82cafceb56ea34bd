"""``value_policies``: the treatment of values that their column cannot hold.

    error      the transaction is not applied (the default)
    null       NULL is stored
    clamp      the nearest value that the column can hold is stored; NULL for NaN
    lossless   as error, and the column is created as text if its own type needs it (``types``)
    text       as error, and the column is created as text if its own type does not hold every
               value, even a rare one
    widen      as error, but such a value in the first copy of an empty table makes the column
               text (``tablesync/widening``)

Comes in: the option's text; a column of the publisher. Goes out: the column's policy. Values that
are stored differently are counted (``wal2lake.coercions``). Picklable for executors.
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
    """The value is stored as NULL."""
    CLAMP = "clamp"
    """The value is stored as the nearest possible value."""
    LOSSLESS = "lossless"
    """The column is created as text if its type has values of another form. numeric(p,s) and
    timestamps keep their types: NaN, and timestamps after 294246, are errors."""
    TEXT = "text"
    """The column is created so that it can hold every value; otherwise an error."""
    WIDEN = "widen"
    """The column becomes text if the first copy of its table, which is empty, has such a value.
    Later such values are errors."""


_NUMBERS: Final = ("int2", "int4", "int8", "oid", "xid", "xid8", "cid", "numeric")
_FLOATS: Final = ("float4", "float8")
_MOMENTS: Final = ("date", "timestamp", "timestamptz")
_WITH_NEAREST: Final = frozenset((*_NUMBERS, *_FLOATS, *_MOMENTS))
"""Types with ordered values that may be out of the range of the stored type."""


@dataclass(frozen=True, slots=True)
class ValuePolicies:
    """All entries; without entries every column has policy ``error``."""

    entries: tuple[ChoiceEntry[ValuePolicy], ...] = ()

    @classmethod
    def parse(cls, text: str) -> ValuePolicies:
        """Parse the option; raises UsageError (22023)."""
        return cls(parse_entries(VALUE_POLICIES, text, _read))

    def of(self, column: SourceColumn) -> ValuePolicy:
        """Return the column's policy."""
        return self.entry_for(column)[0]

    def entry_for(self, column: SourceColumn) -> tuple[ValuePolicy, int]:
        """Return the column's policy, and how specific its entry is (0: no entry)."""
        entry = best_entry(self.entries, column)
        return (
            (ValuePolicy.ERROR, 0)
            if entry is None
            else (entry.choice, entry.target.match)
        )

    def naming(self, column: SourceColumn) -> ValuePolicy | None:
        """Return the policy of the entry that names this column; None: there is none."""
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
    pg_type = type_by_oid(target.type_oid)
    if pg_type is not None and pg_type.is_array:
        pg_type = type_by_oid(pg_type.element_oid)
    return pg_type is not None and pg_type.name in _WITH_NEAREST
