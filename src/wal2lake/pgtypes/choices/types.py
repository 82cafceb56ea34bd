"""``type_mappings``: Spark types of columns that differ from the defaults.

Comes in: the option's text; a column of the publisher. Goes out: the PostgreSQL type of the
column here. Called when options are read, which refuses impossible choices, and when tables are
created or checked.

Why a PostgreSQL type: lake tables have columns of PostgreSQL types, and each has one Spark
type (``pgtypes.mapping``). So a choice is just another column type: ``numeric = decimal(38,10)``
makes a column numeric(38,10), ``date = string`` one of type text, as if the user had created the
table. Conversion, local writes, queries and the types that clients see follow from the column type,
and no other code depends on the choice.

``numeric`` alone means numeric without precision: numeric(10,2) has a Spark type, and an entry must
name it to store it differently. Other type names include all modifiers.

Policy ``text`` is a choice, too: the column is text if the type's own Spark type does not hold
every value. ``lossless`` is the same except for numeric(p,s) and timestamps: as text they could not
be used in computations, and they lack only NaN and the thirty years after 294246.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from wal2lake.errors import FeatureNotSupportedError, UndefinedObjectError, UsageError
from wal2lake.pgtypes.choices.entries import (
    ChoiceEntry,
    ChoiceTarget,
    Match,
    SourceColumn,
    best_entry,
    parse_entries,
)
from wal2lake.pgtypes.choices.policies import ValuePolicies, ValuePolicy
from wal2lake.pgtypes.mapping import (
    ConversionKind,
    TypeMapping,
    choose,
    mapping_for,
    possible_choices,
    result_type,
)
from wal2lake.pgtypes.registry.pg_type import format_type
from wal2lake.pgtypes.spark_ddl import arrow_from_ddl, ddl_from_arrow

TYPE_MAPPINGS: Final = "type_mappings"

_NUMERIC: Final = (1700, 1231)
"""numeric and numeric[]."""

_COMPLETE: Final = frozenset(
    (
        ConversionKind.BOOL,
        ConversionKind.INTEGER,
        ConversionKind.FLOAT,
        ConversionKind.DATE,
        ConversionKind.TEXT,
        ConversionKind.BYTEA,
        ConversionKind.HSTORE,
    )
)
"""Kinds that hold every value of the types for which they are the default."""

_ENOUGH: Final = _COMPLETE | {
    ConversionKind.DECIMAL,
    ConversionKind.TIMESTAMP,
    ConversionKind.TIMESTAMPTZ,
}
"""Kinds that hold all values except NaN and timestamps that hardly occur."""


@dataclass(frozen=True, slots=True)
class TypeMappings:
    """All entries; without entries all columns have the defaults."""

    entries: tuple[ChoiceEntry[str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> TypeMappings:
        """Parse the option; raises UsageError (22023), or 0A000 for a Spark type that the node does
        not support."""
        return cls(parse_entries(TYPE_MAPPINGS, text, _read))

    def stored_type(
        self, column: SourceColumn, policies: ValuePolicies
    ) -> tuple[int, int] | None:
        """Return (type OID, typmod) of the column here; None: its own type.

        Raises UsageError (22023) if its type cannot be stored so.
        """
        default = mapping_for(
            column.type_oid,
            column.typmod,
            type_name=column.type_name,
            attndims=column.dimensions,
        )
        entry = self._entry(column)
        policy, level = policies.entry_for(column)
        if entry is None:
            return _type_of("STRING") if _is_widened(default, policy) else None
        chosen = choose(column.type_oid, column.typmod, default, entry.choice)
        whole = chosen.kind is ConversionKind.TEXT or (
            _same(chosen, default) and not _is_widened(default, policy)
        )
        if policy in WIDENING and level > Match.ALL and not whole:
            raise UsageError(
                f'column "{column.qualified}" cannot be {policy.value} as'
                f" {chosen.spark_ddl}",
                hint=f'Leave out the entry of "{TYPE_MAPPINGS}", or choose STRING.',
            )
        if _same(chosen, default):
            return None
        return _type_of(chosen.spark_ddl)

    def names(self, column: SourceColumn) -> bool:
        """Return whether an entry includes this column."""
        return self._entry(column) is not None

    def _entry(self, column: SourceColumn) -> ChoiceEntry[str] | None:
        entry = best_entry(self.entries, column)
        if entry is None or entry.target.match is Match.COLUMN:
            return entry
        if column.dimensions > 1:
            # The column is text for any choice, because its values have another shape.
            return None
        if entry.target.match is not Match.TYPE:
            return entry
        # numeric(10,2) differs from numeric: it has a Spark type.
        of_numeric = entry.target.type_oid in _NUMERIC
        limited = of_numeric and column.typmod >= 0
        return None if limited else entry


def unmatched(
    entries: Iterable[ChoiceEntry[Any]], columns: Iterable[SourceColumn]
) -> list[str]:
    """Return the texts of targets that include none of the columns."""
    checked_columns = list(columns)
    return [
        e.target.text
        for e in entries
        if not any(e.target.fits(c) for c in checked_columns)
    ]


WIDENING: Final = frozenset((ValuePolicy.LOSSLESS, ValuePolicy.TEXT))
"""Policies that may make a column text."""


def _is_widened(default: TypeMapping, policy: ValuePolicy) -> bool:
    """Return whether a column becomes text because its type does not hold all values."""
    if policy not in WIDENING:
        return False
    return default.kind not in (
        _ENOUGH if policy is ValuePolicy.LOSSLESS else _COMPLETE
    )


def _same(first: TypeMapping, second: TypeMapping) -> bool:
    return bool(first.arrow_type == second.arrow_type)


def _type_of(ddl: str) -> tuple[int, int]:
    oid, typmod = result_type(ddl)
    return int(oid), typmod


def _read(target: ChoiceTarget, text: str) -> str:
    if target.match is Match.ALL:
        raise UsageError(
            f'"*" in "{TYPE_MAPPINGS}" is neither a type nor a column',
            hint="One type cannot hold the values of all; name types or columns.",
        )
    try:
        ddl = ddl_from_arrow(arrow_from_ddl(text))
    except UndefinedObjectError:
        raise FeatureNotSupportedError(
            f'cannot store {target.text} as "{text}": the type is not supported',
            hint=f"Possible: {_possible(target)}.",
        ) from None
    if target.type_oid:
        oid, typmod = target.type_oid, target.typmod
        choose(oid, typmod, mapping_for(oid, typmod), ddl)
    return ddl


def _possible(target: ChoiceTarget) -> str:
    if target.type_oid:
        return possible_choices(target.type_oid)
    return (
        "STRING for every type; DECIMAL(p,s), DOUBLE, BIGINT and others as the column's"
        " type allows"
    )


def shown_type(oid: int, typmod: int) -> str:
    """Return a stored type for messages: PostgreSQL's name and Spark's."""
    return f"{format_type(oid, typmod)} ({mapping_for(oid, typmod).spark_ddl})"
