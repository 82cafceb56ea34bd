"""``type_mappings``: the Spark types that columns are stored as instead of their defaults.

Comes in: the option's text; a column of the publisher. Goes out: the PostgreSQL type that the
column gets here. Called when options are read (which refuses what cannot be), and when
tables are created or checked.

Why a PostgreSQL type: a table of ours has columns of PostgreSQL types, and each has one Spark
type (``pgtypes.mapping``). So a choice is nothing but another column type: ``numeric =
decimal(38,10)`` makes a column numeric(38,10), ``date = string`` one of type text, as if
somebody had made the table by hand. Conversion, local writes, queries and the types that
clients are told follow from that, and nothing else has to know that there was a choice.

``numeric`` alone is numeric without precision: numeric(10,2) is stored as itself, and named as
itself by who wants it otherwise. Other types are meant with all of their modifiers.

A policy ``text`` is a choice too: text, where the type's own Spark type does not hold every value.
``lossless`` is the same but for numeric(p,s) and timestamps: as text nobody could compute with
them, and all that they lack is NaN and the thirty years behind 294246.
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
"""numeric, numeric[]."""

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
"""Kinds that hold every value of the type whose default they are."""

_ENOUGH: Final = _COMPLETE | {
    ConversionKind.DECIMAL,
    ConversionKind.TIMESTAMP,
    ConversionKind.TIMESTAMPTZ,
}
"""Kinds that hold all but NaN, and timestamps that hardly anybody has."""


@dataclass(frozen=True, slots=True)
class TypeMappings:
    """All entries; empty: the defaults."""

    entries: tuple[ChoiceEntry[str], ...] = ()

    @classmethod
    def parse(cls, text: str) -> TypeMappings:
        """Raises UsageError (22023), or 0A000 for what Spark has and the node has not."""
        return cls(parse_entries(TYPE_MAPPINGS, text, _read))

    def stored_type(
        self, column: SourceColumn, policies: ValuePolicies
    ) -> tuple[int, int] | None:
        """(type OID, typmod) that the column is to have here; None: its own.

        Raises UsageError (22023) if that type cannot be stored so.
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
        """Whether an entry is about this column."""
        return self._entry(column) is not None

    def _entry(self, column: SourceColumn) -> ChoiceEntry[str] | None:
        found = best_entry(self.entries, column)
        if found is None or found.target.match is Match.COLUMN:
            return found
        if column.dimensions > 1:
            # Text, whatever the array type is stored as: its values have another shape.
            return None
        if found.target.match is not Match.TYPE:
            return found
        # numeric(10,2) is another type than numeric in all but name: it has a Spark type.
        of_numeric = found.target.type_oid in _NUMERIC
        limited = of_numeric and column.typmod >= 0
        return None if limited else found


def unmatched(
    entries: Iterable[ChoiceEntry[Any]], columns: Iterable[SourceColumn]
) -> list[str]:
    """Targets, as they were written, that are about none of the columns."""
    known = list(columns)
    return [e.target.text for e in entries if not any(e.target.fits(c) for c in known)]


WIDENING: Final = frozenset((ValuePolicy.LOSSLESS, ValuePolicy.TEXT))
"""Policies that may make a column text."""


def _is_widened(default: TypeMapping, policy: ValuePolicy) -> bool:
    """Whether a column becomes text because its type does not hold what comes."""
    if policy not in WIDENING:
        return False
    return default.kind not in (
        _ENOUGH if policy is ValuePolicy.LOSSLESS else _COMPLETE
    )


def _same(one: TypeMapping, other: TypeMapping) -> bool:
    return bool(one.arrow_type == other.arrow_type)


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
    """A stored type as messages have it: PostgreSQL's name, and Spark's."""
    return f"{format_type(oid, typmod)} ({mapping_for(oid, typmod).spark_ddl})"
