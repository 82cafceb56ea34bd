"""The tables and schemas that a publication statement names.

Takes objects of the grammar and the caller; returns catalog rows. The order is PostgreSQL's:
schemas are looked up first, then tables; filters, column lists and owners are checked afterwards.

Source: ObjectsInPublicationToOids(), OpenTableList(), TransformPubWhereClauses(),
CheckPubRelationColumnList() in publicationcmds.c; publication_add_relation(),
pub_collist_validate(), check_publication_add_relation(), check_publication_add_schema() in
pg_publication.c.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from wal2lake.catalog import Namespace, PublishedSchema, PublishedTable, TableDef
from wal2lake.commands.publication.filters import analyse
from wal2lake.errors import DuplicateObjectError, UndefinedObjectError, UsageError
from wal2lake.lake import CommitConflict
from wal2lake.local.access import check_owner
from wal2lake.local.node import Caller, find_table, need_schema
from wal2lake.local.ports import HasCatalog, TableLocks
from wal2lake.model import SYSTEM_COLUMNS, Oid
from wal2lake.pgtypes.expressions import Expression, encode
from wal2lake.sql.grammar.publishing.publicationstatements import (
    PublicationObject,
    PublicationSchema,
    PublicationTable,
)
from wal2lake.sql.grammar.statements import QualifiedName

_SYSTEM_SCHEMAS: Final = {
    "pg_catalog": Oid(11),
    "information_schema": Oid(13000),
    "wal2lake": Oid(14000),
}
"""Schemas that contain no table of the catalog."""


@dataclass(frozen=True, slots=True)
class NamedTable:
    """A table and the clause that names it."""

    table: TableDef
    clause: PublicationTable


def named_schemas(
    node: HasCatalog, caller: Caller, objects: Sequence[PublicationObject]
) -> list[Namespace]:
    """Return each named schema once; 3F000 if one does not exist."""
    schemas: list[Namespace] = []
    for clause in objects:
        if isinstance(clause, PublicationSchema):
            schema = _schema(node, caller, clause.name)
            if schema not in schemas:
                schemas.append(schema)
    return schemas


def _schema(node: HasCatalog, caller: Caller, name: str | None) -> Namespace:
    if name in _SYSTEM_SCHEMAS:
        return Namespace(_SYSTEM_SCHEMAS[name], name, Oid(10))
    if name is not None:
        return need_schema(node.catalog, name)
    namespaces = {schema.name: schema for schema in node.catalog.namespaces()}
    for candidate in caller.search_path:
        if candidate in namespaces:
            return namespaces[candidate]
    raise UndefinedObjectError(
        "no schema has been selected for CURRENT_SCHEMA", sqlstate="3F000"
    )


def named_tables(
    node: HasCatalog, caller: Caller, objects: Sequence[PublicationObject]
) -> list[NamedTable]:
    """Return each named table once; 42710 for a repetition with WHERE or a column list."""
    tables: dict[Oid, NamedTable] = {}
    for clause in objects:
        if not isinstance(clause, PublicationTable):
            continue
        table = _table(node, caller, clause.name)
        earlier = tables.get(table.oid)
        if earlier is None:
            tables[table.oid] = NamedTable(table, clause)
            continue
        if clause.where is not None or earlier.clause.where is not None:
            raise DuplicateObjectError(
                f'conflicting or redundant WHERE clauses for table "{table.name}"'
            )
        if clause.columns is not None or earlier.clause.columns is not None:
            raise DuplicateObjectError(
                f'conflicting or redundant column lists for table "{table.name}"'
            )
    return list(tables.values())


def _table(node: HasCatalog, caller: Caller, name: QualifiedName) -> TableDef:
    if name.schema == "pg_catalog" or (
        name.schema is None and name.name.startswith("pg_")
    ):
        raise UsageError(
            f'cannot add relation "{name.name}" to publication',
            detail="This operation is not supported for system tables.",
        )
    if name.schema in _SYSTEM_SCHEMAS:
        raise UsageError(
            f'cannot add relation "{name.name}" to publication',
            detail="This operation is not supported for views.",
        )
    if name.schema is not None:
        need_schema(node.catalog, name.schema)
    table = find_table(node.catalog, caller, name.schema, name.name)
    if table is not None:
        return table
    schemas = caller.search_path if name.schema is None else (name.schema,)
    for candidate in node.catalog.tables():
        if (
            candidate.key
            and (candidate.namespace in schemas)
            and candidate.index_name == name.name
        ):
            raise UsageError(
                f'cannot open relation "{name.name}"',
                sqlstate="42809",
                detail="This operation is not supported for indexes.",
            )
    shown = name.name if name.schema is None else f"{name.schema}.{name.name}"
    raise UndefinedObjectError(f'relation "{shown}" does not exist', sqlstate="42P01")


def published(
    caller: Caller,
    name: str,
    tables: Sequence[NamedTable],
    *,
    via_root: bool,
    with_schemas: bool,
) -> list[PublishedTable]:
    """Return the rows to keep for tables, after all checks but the owner's.

    ``name``: the publication's. ``with_schemas``: the publication has, or gets, TABLES IN
    SCHEMA."""
    filters: list[tuple[Expression, tuple[str, ...]] | None] = []
    for named in tables:
        where = named.clause.where
        if where is None:
            filters.append(None)
            continue
        if named.table.partition_key is not None and not via_root:
            raise UsageError(
                f'cannot use publication WHERE clause for relation "{named.table.name}"',
                detail="WHERE clause cannot be used for a partitioned table when"
                " publish_via_partition_root is false.",
            )
        filters.append(analyse(where.expression, named.table, caller.zone))
    for named in tables:
        _check_column_list(named, name, via_root=via_root, with_schemas=with_schemas)
    rows = []
    for named, filter_ in zip(tables, filters, strict=True):
        columns = _columns(named)
        if filter_ is None:
            rows.append(PublishedTable(named.table.oid, columns))
            continue
        tree, read = filter_
        rows.append(PublishedTable(named.table.oid, columns, encode(tree), read))
    if caller.block is not None:
        listed = {row.relid for row in rows if row.columns or row.filter}
        shown = [named.table for named in tables if named.table.oid in listed]
        caller.block.under_lock.append(partial(_same_columns, shown))
    return rows


@contextmanager
def _same_columns(tables: Sequence[TableDef], node: TableLocks) -> Iterator[None]:
    """Check, at the commit of a block, that the published tables still have the same columns.

    Column lists and filters depend on them. 40001 if a table has changed. PostgreSQL locks the
    tables instead."""
    with ExitStack() as held:
        names = {relid for table in tables for relid in node.catalog.sharing(table)}
        # An apply worker that follows its publisher alters tables without the DDL lock.
        for subid in sorted({r.subid for r in node.catalog.rels() if r.relid in names}):
            held.enter_context(node.locks.of(subid))
        for table in tables:
            now = node.catalog.table_by_oid(table.oid)
            # The block may have created the table itself. A dropped table is detected later.
            if now is not None and _typed(now) != _typed(table):
                raise CommitConflict(
                    "could not serialize access due to concurrent update",
                    detail="Columns of a published table have changed.",
                    hint="The transaction might succeed if retried.",
                )
        yield


def _typed(table: TableDef) -> list[tuple[str, Oid, int, str | None]]:
    return [(c.name, c.type_oid, c.typmod, c.type_name) for c in table.columns]


def _check_column_list(
    named: NamedTable, name: str, *, via_root: bool, with_schemas: bool
) -> None:
    if named.clause.columns is None:
        return
    if with_schemas:
        detail = (
            "Column lists cannot be specified in publications containing FOR TABLES IN"
            " SCHEMA elements."
        )
    elif named.table.partition_key is not None and not via_root:
        detail = (
            "Column lists cannot be specified for partitioned tables when"
            " publish_via_partition_root is false."
        )
    else:
        return
    raise UsageError(
        f'cannot use column list for relation "{named.table.qualified}" in publication'
        f' "{name}"',
        detail=detail,
    )


def _columns(named: NamedTable) -> tuple[str, ...] | None:
    listed = named.clause.columns
    if listed is None:
        return None
    for position, name in enumerate(listed):
        if named.table.column(name) is None:
            if name in SYSTEM_COLUMNS:
                raise UsageError(
                    f'cannot use system column "{name}" in publication column list',
                    sqlstate="42P10",
                )
            raise UndefinedObjectError(
                f'column "{name}" of relation "{named.table.name}" does not exist',
                sqlstate="42703",
            )
        if name in listed[:position]:
            raise DuplicateObjectError(
                f'duplicate column "{name}" in publication column list'
            )
    return tuple(c.name for c in named.table.columns if c.name in listed)


def check_owners(
    node: HasCatalog, caller: Caller, tables: Sequence[NamedTable]
) -> None:
    """Check that the caller owns the tables: only an owner may publish a table."""
    for named in tables:
        check_owner(node, caller, "table", named.table.name, named.table.owner)


def check_schemas(schemas: Sequence[Namespace]) -> list[PublishedSchema]:
    """Return the rows to keep for schemas."""
    for schema in schemas:
        if schema.name in _SYSTEM_SCHEMAS:
            raise UsageError(
                f'cannot add schema "{schema.name}" to publication',
                detail="This operation is not supported for system schemas.",
            )
    return [PublishedSchema(schema.oid) for schema in schemas]
