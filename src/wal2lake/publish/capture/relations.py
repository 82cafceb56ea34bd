"""Describes a table as the relation of its changes. Pure."""

from __future__ import annotations

from wal2lake.catalog import TableDef
from wal2lake.lake import TableState
from wal2lake.model import Column, Relation


def relation_of(table: TableDef, state: TableState) -> Relation:
    """Describe a table as a relation, with the columns that definition and state share."""
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
    """Return the positions of the primary key's columns; none if another writer has dropped a part
    of the key."""
    names = set(table.key)
    key = [i for i, c in enumerate(relation.columns) if c.name in names]
    return key if len(key) == len(names) else []
