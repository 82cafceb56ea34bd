"""Maps a published column to a local column. Pure.

In: a column's entry in the publisher's catalog, the subscription's options. Out: a ``ColumnDef``.
Called when a table is created for a subscription, and for columns added later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wal2lake.catalog import ColumnDef
from wal2lake.model import Domain, Oid, RemoteAttribute
from wal2lake.pgtypes import SourceColumn, TypeMappings, ValuePolicies
from wal2lake.pgtypes.registry.pg_type import type_by_oid

_TEXT: Final = Oid(25)


@dataclass(frozen=True, slots=True)
class Likeness:
    """A local column modelled on the publisher's."""

    column: ColumnDef
    dimensions: int
    """Declared dimensions of an array, as in pg_attribute.attndims."""


def source_column(namespace: str, table: str, column: RemoteAttribute) -> SourceColumn:
    """Describe a column for the options of a subscription."""
    return SourceColumn(
        namespace,
        table,
        column.name,
        int(column.type_oid),
        column.typmod,
        None if type_by_oid(int(column.type_oid)) else column.type_name,
        column.dimensions,
        column.domain,
    )


def column_like(
    source: SourceColumn,
    remote: RemoteAttribute,
    mappings: TypeMappings,
    policies: ValuePolicies,
) -> Likeness:
    """Build a column with the type that the options name, or with the publisher's type."""
    chosen = mappings.stored_type(source, policies)
    built_in = type_by_oid(int(remote.type_oid)) is not None
    type_oid = remote.type_oid if built_in else _TEXT
    typmod = remote.typmod if built_in else -1
    if chosen is not None:
        type_oid, typmod = Oid(chosen[0]), chosen[1]
    return Likeness(
        ColumnDef(
            name=remote.name,
            type_oid=type_oid,
            typmod=typmod,
            type_name=None if built_in or chosen else remote.type_name,
            not_null=remote.not_null,
            default=_portable_default(remote.default) if chosen is None else None,
            domain=_domain(remote),
        ),
        remote.dimensions if chosen is None else 0,
    )


def _domain(remote: RemoteAttribute) -> Domain | None:
    if remote.domain is None:
        return None
    return Domain(remote.domain, remote.type_oid, remote.typmod)


def _portable_default(expression: str | None) -> str | None:
    """Return the default if this node can compute it. Sequences stay at the publisher."""
    if expression is None or "nextval(" in expression:
        return None
    return expression
