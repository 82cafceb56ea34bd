"""ALTER TABLE ... ADD and DROP of constraints, and the names in SET CONSTRAINTS.

Takes a clause and the table as earlier clauses leave it; returns changes of the definition, or
raises PostgreSQL's error. Called by ``altertable``, which checks the rows.

Source: tablecmds.c (ATExecDropConstraint), index.c (index_check_primary_key), parse_utilcmd.c
(transformIndexConstraint).
"""

from __future__ import annotations

from collections.abc import Sequence

from wal2lake.catalog import (
    Catalog,
    ColumnChange,
    DropCheck,
    SetKey,
    SetNotNull,
    TableDef,
)
from wal2lake.errors import (
    DuplicateObjectError,
    FeatureNotSupportedError,
    UndefinedObjectError,
    UsageError,
)
from wal2lake.local.node import Caller, need_schema
from wal2lake.local.ports import HasCatalog
from wal2lake.model import Deferral, Oid
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar.altering.alterstatements import (
    AddKeyClause,
    DropConstraintClause,
)
from wal2lake.sql.grammar.constraints import ConstraintModes


def added_key(node: HasCatalog, table: TableDef, clause: AddKeyClause) -> SetKey:
    """Return the change that gives the table the key."""
    if table.key:
        raise UsageError(
            f'multiple primary keys for table "{table.name}" are not allowed',
            sqlstate="42P16",
        )
    for index, name in enumerate(clause.columns):
        if table.column(name) is None:
            raise UndefinedObjectError(
                f'column "{name}" of relation "{table.name}" does not exist',
                sqlstate="42703",
            )
        if name in clause.columns[:index]:
            raise UsageError(
                f'column "{name}" appears twice in primary key constraint',
                sqlstate="42701",
            )
    key_name = clause.name
    if key_name is not None:
        # The same statement has dropped the table's former key.
        refuse_taken(node.catalog, table.namespace, key_name, dropped=table.oid)
    partitioned = () if table.partition_key is None else table.partition_key.columns
    for column in partitioned:
        if column not in clause.columns:
            raise FeatureNotSupportedError(
                "unique constraint on partitioned table must include all partitioning"
                " columns",
                detail=f'PRIMARY KEY constraint on table "{table.name}" lacks column'
                f' "{column}" which is part of the partition key.',
            )
    return SetKey(clause.columns, key_name, clause.deferral)


def is_taken(
    catalog: Catalog, schema: str, name: str, *, dropped: Oid | None = None
) -> bool:
    """True if a table, key or index of the schema has the name; they share a namespace.

    ``dropped``: a table whose key does not count."""
    relids = set()
    for table in catalog.tables():
        if table.namespace != schema:
            continue
        relids.add(table.oid)
        has_key = table.key and table.oid != dropped
        if table.name == name or (has_key and table.index_name == name):
            return True
    return any(i.name == name and i.relid in relids for i in catalog.indexes())


def refuse_taken(
    catalog: Catalog, schema: str, name: str, *, dropped: Oid | None = None
) -> None:
    """42P07 if the name ``is_taken``."""
    if is_taken(catalog, schema, name, dropped=dropped):
        raise DuplicateObjectError(
            f'relation "{name}" already exists', sqlstate="42P07"
        )


def deferrable_tables(
    node: HasCatalog, caller: Caller, modes: ConstraintModes
) -> set[Oid] | None:
    """Return the tables whose keys SET CONSTRAINTS names; None for all tables."""
    oids: set[Oid] = set()
    for constraint in modes.names:
        if constraint.schema is not None:
            need_schema(node.catalog, constraint.schema)
        path = caller.search_path if constraint.schema is None else (constraint.schema,)
        keyed = [
            table
            for table in node.catalog.tables()
            if table.key and table.index_name == constraint.name
        ]
        # Only the first schema of the path with the name counts.
        schema = next((s for s in path if any(t.namespace == s for t in keyed)), None)
        named = [table for table in keyed if table.namespace == schema]
        if not named:
            raise UndefinedObjectError(
                f'constraint "{constraint.name}" does not exist', sqlstate="42704"
            )
        for table in named:
            if table.key_deferral.deferrable:
                oids.add(table.oid)
            elif modes.deferred:
                raise UsageError(
                    f'constraint "{constraint.name}" is not deferrable',
                    sqlstate="42809",
                )
    return oids if modes.names else None


def dropped_constraint(
    caller: Caller, table: TableDef, clause: DropConstraintClause
) -> Sequence[ColumnChange]:
    """Return the changes of DROP CONSTRAINT. The key's columns stay NOT NULL."""
    if table.key and clause.name == table.index_name:
        return [SetKey((), None, Deferral.NO)]
    if any(clause.name == check.name for check in table.checks):
        return [DropCheck(clause.name)]
    for column in table.columns:
        if column.not_null and clause.name == f"{table.name}_{column.name}_not_null":
            # SetNotNull refuses columns of a key. PostgreSQL checks for the key first.
            if column.identity and column.name not in table.key:
                raise UsageError(
                    f'column "{column.name}" of relation "{table.name}" is an identity'
                    " column",
                    sqlstate="55000",
                )
            return [SetNotNull(column.name, not_null=False)]
    text = f'constraint "{clause.name}" of relation "{table.name}" does not exist'
    if not clause.if_exists:
        raise UndefinedObjectError(text, sqlstate="42704")
    caller.notice(Notice(f"{text}, skipping"))
    return []
