"""Our column for a published one. Pure.

In: what a publisher's catalog says of a column, the subscription's choices. Out: a ``ColumnDef``.
Called for tables that are made for a subscription, and for columns that come later.
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
    """A column that is to be as the publisher's."""

    column: ColumnDef
    dimensions: int
    """For an array: see pg_attribute.attndims."""


def source_column(namespace: str, table: str, column: RemoteAttribute) -> SourceColumn:
    """Describe a column as the options of a subscription see it."""
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
    """With the type that the options name, or its own."""
    chosen = mappings.stored_type(source, policies)
    known = type_by_oid(int(remote.type_oid)) is not None
    type_oid = remote.type_oid if known else _TEXT
    typmod = remote.typmod if known else -1
    if chosen is not None:
        type_oid, typmod = Oid(chosen[0]), chosen[1]
    return Likeness(
        ColumnDef(
            name=remote.name,
            type_oid=type_oid,
            typmod=typmod,
            type_name=None if known or chosen else remote.type_name,
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
    """A default that this node can compute; sequences stay at the publisher."""
    if expression is None or "nextval(" in expression:
        return None
    return expression
