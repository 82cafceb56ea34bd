"""The tables and schemas that a statement about a publication names.

Comes in: objects of the grammar, who asks. Goes out: ``Objects``: records to be kept. In
PostgreSQL's order: schemas are looked up, then tables; then filters, column lists, owners.

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
from wal2lake.local.node import Caller, EngineParts, find_table, need_schema
from wal2lake.model import SYSTEM_COLUMNS, Oid
from wal2lake.pgtypes.expressions import Expression, encode
from wal2lake.sql.grammar.publishing.statements import (
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
    """A table, and what is said of it."""

    table: TableDef
    clause: PublicationTable


def named_schemas(
    node: EngineParts, caller: Caller, objects: Sequence[PublicationObject]
) -> list[Namespace]:
    """Each once; 3F000 if there is none."""
    found: list[Namespace] = []
    for one in objects:
        if isinstance(one, PublicationSchema):
            schema = _schema(node, caller, one.name)
            if schema not in found:
                found.append(schema)
    return found


def _schema(node: EngineParts, caller: Caller, name: str | None) -> Namespace:
    if name in _SYSTEM_SCHEMAS:
        return Namespace(_SYSTEM_SCHEMAS[name], name, Oid(10))
    if name is not None:
        return need_schema(node.catalog, name)
    known = {schema.name: schema for schema in node.catalog.namespaces()}
    for candidate in caller.search_path:
        if candidate in known:
            return known[candidate]
    raise UndefinedObjectError(
        "no schema has been selected for CURRENT_SCHEMA", sqlstate="3F000"
    )


def named_tables(
    node: EngineParts, caller: Caller, objects: Sequence[PublicationObject]
) -> list[NamedTable]:
    """Each once; 42710 if it is named twice and not as a whole."""
    found: dict[Oid, NamedTable] = {}
    for one in objects:
        if not isinstance(one, PublicationTable):
            continue
        table = _table(node, caller, one.name)
        before = found.get(table.oid)
        if before is None:
            found[table.oid] = NamedTable(table, one)
            continue
        if one.where is not None or before.clause.where is not None:
            raise DuplicateObjectError(
                f'conflicting or redundant WHERE clauses for table "{table.name}"'
            )
        if one.columns is not None or before.clause.columns is not None:
            raise DuplicateObjectError(
                f'conflicting or redundant column lists for table "{table.name}"'
            )
    return list(found.values())


def _table(node: EngineParts, caller: Caller, name: QualifiedName) -> TableDef:
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
    for other in node.catalog.tables():
        if other.key and (other.namespace in schemas) and other.index_name == name.name:
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
    """Return the rows to keep about tables, all checks done but the owner's. ``name`` is the
    publication's; ``with_schemas``: it has, or gets, TABLES IN SCHEMA."""
    filters: list[tuple[Expression, tuple[str, ...]] | None] = []
    for one in tables:
        where = one.clause.where
        if where is None:
            filters.append(None)
            continue
        if one.table.partition_key is not None and not via_root:
            raise UsageError(
                f'cannot use publication WHERE clause for relation "{one.table.name}"',
                detail="WHERE clause cannot be used for a partitioned table when"
                " publish_via_partition_root is false.",
            )
        filters.append(analyse(where.expression, one.table, caller.zone))
    for one in tables:
        _check_column_list(one, name, via_root=via_root, with_schemas=with_schemas)
    found = []
    for one, filter_ in zip(tables, filters, strict=True):
        columns = _columns(one)
        if filter_ is None:
            found.append(PublishedTable(one.table.oid, columns))
            continue
        tree, read = filter_
        found.append(PublishedTable(one.table.oid, columns, encode(tree), read))
    if caller.block is not None:
        listed = {one.relid for one in found if one.columns or one.filter}
        shown = [one.table for one in tables if one.table.oid in listed]
        caller.block.under_lock.append(partial(_same_columns, shown))
    return found


@contextmanager
def _same_columns(tables: Sequence[TableDef], node: EngineParts) -> Iterator[None]:
    """At the commit of a block that has named columns of these tables, and types in filters of
    their rows; 40001 if a table has others by now. PostgreSQL locks the tables instead."""
    with ExitStack() as held:
        names = {relid for table in tables for relid in node.catalog.sharing(table)}
        # A worker that follows its publisher alters tables without the DDL lock.
        for subid in sorted({r.subid for r in node.catalog.rels() if r.relid in names}):
            held.enter_context(node.locks.of(subid))
        for table in tables:
            now = node.catalog.table_by_oid(table.oid)
            # The block itself may have made the table; one that has gone is found later.
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
    one: NamedTable, name: str, *, via_root: bool, with_schemas: bool
) -> None:
    if one.clause.columns is None:
        return
    if with_schemas:
        detail = (
            "Column lists cannot be specified in publications containing FOR TABLES IN"
            " SCHEMA elements."
        )
    elif one.table.partition_key is not None and not via_root:
        detail = (
            "Column lists cannot be specified for partitioned tables when"
            " publish_via_partition_root is false."
        )
    else:
        return
    raise UsageError(
        f'cannot use column list for relation "{one.table.qualified}" in publication'
        f' "{name}"',
        detail=detail,
    )


def _columns(one: NamedTable) -> tuple[str, ...] | None:
    listed = one.clause.columns
    if listed is None:
        return None
    for at, name in enumerate(listed):
        if one.table.column(name) is None:
            if name in SYSTEM_COLUMNS:
                raise UsageError(
                    f'cannot use system column "{name}" in publication column list',
                    sqlstate="42P10",
                )
            raise UndefinedObjectError(
                f'column "{name}" of relation "{one.table.name}" does not exist',
                sqlstate="42703",
            )
        if name in listed[:at]:
            raise DuplicateObjectError(
                f'duplicate column "{name}" in publication column list'
            )
    return tuple(c.name for c in one.table.columns if c.name in listed)


def check_owners(
    node: EngineParts, caller: Caller, tables: Sequence[NamedTable]
) -> None:
    """Only the owner of a table may publish it."""
    for one in tables:
        check_owner(node, caller, "table", one.table.name, one.table.owner)


def check_schemas(schemas: Sequence[Namespace]) -> list[PublishedSchema]:
    """Return the rows to keep about schemas."""
    for schema in schemas:
        if schema.name in _SYSTEM_SCHEMAS:
            raise UsageError(
                f'cannot add schema "{schema.name}" to publication',
                detail="This operation is not supported for system schemas.",
            )
    return [PublishedSchema(schema.oid) for schema in schemas]
