"""A table as its changes are sent. Pure."""

from __future__ import annotations

from wal2lake.catalog import TableDef
from wal2lake.lake import TableState
from wal2lake.model import Column, Relation


def relation_of(table: TableDef, state: TableState) -> Relation:
    """A table as its changes are sent: the columns that both know."""
    present = {field.name for field in state.fields}
    keys = table.identity_columns
    return Relation(
        relid=table.oid,
        namespace=table.namespace,
        name=table.name,
        identity=table.replica_identity,
        columns=tuple(
            Column(c.name, c.type_oid, c.typmod, keys is None or c.name in keys)
            for c in table.columns
            if c.name in present
        ),
    )


def key_of(table: TableDef, relation: Relation) -> list[int]:
    """The positions of the primary key; none, if somebody else has dropped a part of it."""
    names = set(table.key)
    key = [i for i, c in enumerate(relation.columns) if c.name in names]
    return key if len(key) == len(names) else []
