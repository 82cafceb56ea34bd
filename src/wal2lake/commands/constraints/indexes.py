"""CREATE INDEX, DROP INDEX and ALTER INDEX ... RENAME.

Takes a statement; changes the catalog, or raises PostgreSQL's error. An index is a definition:
the system views show it, and programs that make and drop indexes go on. Nothing reads it, and a
NOTICE says so. A unique index is made only if the primary key enforces it
(decision 0040).

Source: DefineIndex() in indexcmds.c, RemoveRelations() and RenameRelation() in tablecmds.c.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

from wal2lake.catalog import Catalog, IndexedColumn, TableDef, TableIndex
from wal2lake.commands.constraints.keyconstraints import is_taken
from wal2lake.errors import (
    DuplicateObjectError,
    FeatureNotSupportedError,
    UndefinedObjectError,
    UsageError,
)
from wal2lake.local.access import check_owner, check_schema
from wal2lake.local.node import (
    Caller,
    EngineParts,
    described,
    find_table,
    need_schema,
    need_table,
)
from wal2lake.local.ports import Definitions, HasCatalog
from wal2lake.model import Oid
from wal2lake.pgtypes.columnnames import derived_name
from wal2lake.pgtypes.keywords import quote_identifier
from wal2lake.pgtypes.registry.pg_type import format_type, type_by_oid
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar.indexing import (
    CreateIndex,
    DropIndex,
    IndexKey,
    RenameIndex,
)
from wal2lake.sql.grammar.statements import QualifiedName

_ORDERED: Final = frozenset({"btree"})
"""Access methods with ASC and DESC (amcanorder)."""

_WITH_COLUMNS: Final = frozenset({"btree", "gist", "spgist"})
"""Access methods with INCLUDE (amcaninclude)."""

_METHODS: Final = frozenset({"btree", "hash", "gist", "gin", "spgist", "brin"})

_NO_ORDER: Final = frozenset({114, 142, 600, 601, 602, 603, 604, 628, 718})
"""Types without a default operator class for btree and hash: json, xml and geometric types."""

_GIN: Final = frozenset({3802, 3614})
"""Types with a default operator class for gin, besides arrays: jsonb and tsvector."""

_NOTICE_DETAIL: Final = (
    "The node keeps its definition. Reads skip files by the minimum and maximum of each"
    " column, and UPDATE, DELETE and replication find rows by the primary key."
)


def create_index(node: Definitions, caller: Caller, statement: CreateIndex) -> str:
    """CREATE INDEX."""
    _refuse_concurrently(caller, "CREATE INDEX", statement.concurrently)
    with node.ddl_lock:
        catalog = node.catalog
        name = statement.table
        if name.schema is not None:
            need_schema(catalog, name.schema)
        table = need_table(catalog, caller, name.schema, name.name)
        check_owner(node, caller, "table", table.name, table.owner)
        check_schema(node, caller, table.namespace, "C")
        _check_method(statement)
        keys = tuple(_indexed(table, statement, key) for key in statement.keys)
        included = tuple(_included(table, column) for column in statement.included)
        if statement.is_partial:
            raise FeatureNotSupportedError("partial indexes are not supported")
        if table.partition_key is not None:
            raise FeatureNotSupportedError(
                "indexes on partitioned tables are not supported"
            )
        index_name = statement.name or _free_name(catalog, table, keys, included)
        if is_taken(catalog, table.namespace, index_name):
            text = f'relation "{index_name}" already exists'
            if not statement.if_not_exists:
                raise DuplicateObjectError(text, sqlstate="42P07")
            caller.notice(Notice(f"{text}, skipping", sqlstate="42P07"))
            return "CREATE INDEX"
        if statement.unique:
            _check_enforced(table, index_name, keys)
        catalog.create_index(
            TableIndex(
                catalog.new_oid(),
                table.oid,
                index_name,
                statement.method,
                keys,
                included,
                statement.unique,
                statement.parameters,
            )
        )
    caller.notice(
        Notice(
            f'index "{index_name}" is not used by any statement', detail=_NOTICE_DETAIL
        )
    )
    return "CREATE INDEX"


def drop_index(node: Definitions, caller: Caller, statement: DropIndex) -> str:
    """DROP INDEX."""
    _refuse_concurrently(caller, "DROP INDEX", statement.concurrently)
    if statement.concurrently and len(statement.names) > 1:
        raise FeatureNotSupportedError(
            "DROP INDEX CONCURRENTLY does not support dropping multiple objects"
        )
    if statement.concurrently and statement.cascade:
        raise FeatureNotSupportedError(
            "DROP INDEX CONCURRENTLY does not support CASCADE"
        )
    with node.ddl_lock:
        dropped: dict[Oid, None] = {}
        for name in statement.names:
            index = _find(node, caller, name, _not_droppable)
            if index is not None:
                dropped[index.oid] = None
                continue
            text = f'index "{name.name}" does not exist'
            if name.schema is not None and not _has_schema(node, name.schema):
                text = f'schema "{name.schema}" does not exist'
                if not statement.if_exists:
                    raise UndefinedObjectError(text, sqlstate="3F000")
            if not statement.if_exists:
                raise UndefinedObjectError(text)
            caller.notice(Notice(f"{text}, skipping"))
        if dropped:
            node.catalog.drop_indexes(list(dropped))
    return "DROP INDEX"


def rename_index(node: Definitions, caller: Caller, statement: RenameIndex) -> str:
    """ALTER INDEX ... RENAME TO."""
    with node.ddl_lock:
        name = statement.index
        index = _find(node, caller, name, _not_renamable)
        if index is None:
            shown = name.name if name.schema is None else f"{name.schema}.{name.name}"
            text = f'relation "{shown}" does not exist'
            if not statement.if_exists:
                raise UndefinedObjectError(text, sqlstate="42P01")
            caller.notice(Notice(f"{text}, skipping"))
            return "ALTER INDEX"
        table = node.catalog.table_by_oid(index.relid)
        assert table is not None
        if is_taken(node.catalog, table.namespace, statement.new_name):
            raise DuplicateObjectError(
                f'relation "{statement.new_name}" already exists', sqlstate="42P07"
            )
        node.catalog.rename_index(index.oid, statement.new_name)
    return "ALTER INDEX"


def _refuse_concurrently(caller: Caller, command: str, concurrently: bool) -> None:
    if concurrently and caller.in_block:
        raise UsageError(
            f"{command} CONCURRENTLY cannot run inside a transaction block",
            sqlstate="25001",
        )


# ---- the definition --------------------------------------------------------------------


def _check_method(statement: CreateIndex) -> None:
    method = statement.method
    if method not in _METHODS:
        raise UndefinedObjectError(f'access method "{method}" does not exist')
    lacks = ""
    if statement.unique and method != "btree":
        lacks = "unique indexes"
    elif statement.included and method not in _WITH_COLUMNS:
        lacks = "included columns"
    elif len(statement.keys) > 1 and method in ("hash", "spgist"):
        lacks = "multicolumn indexes"
    if lacks:
        raise FeatureNotSupportedError(
            f'access method "{method}" does not support {lacks}'
        )


def _indexed(table: TableDef, statement: CreateIndex, key: IndexKey) -> IndexedColumn:
    """Return a key column, with its options as pg_get_indexdef() prints them."""
    method = statement.method
    if key.column is None:
        raise FeatureNotSupportedError("indexes on expressions are not supported")
    column = table.column(key.column)
    if column is None:
        raise UndefinedObjectError(
            f'column "{key.column}" does not exist', sqlstate="42703"
        )
    if not key.operator_class and not _has_default(method, column.type_oid):
        shown = format_type(column.type_oid)
        raise UndefinedObjectError(
            f"data type {shown} has no default operator class for access method"
            f' "{method}"',
            hint="You must specify an operator class for the index or define a default"
            " operator class for the data type.",
        )
    if method not in _ORDERED:
        for is_stated, words in (
            (key.descending is not None, "ASC/DESC"),
            (key.nulls_first is not None, "NULLS FIRST/LAST"),
        ):
            if is_stated:
                raise FeatureNotSupportedError(
                    f'access method "{method}" does not support {words} options'
                )
    suffix = "".join(
        f" {word}"
        for word in (
            f"COLLATE {key.collation}" if key.collation else "",
            key.operator_class,
        )
        if word
    )
    descending = bool(key.descending)
    nulls_first = descending if key.nulls_first is None else key.nulls_first
    suffix += " DESC" if descending else ""
    if nulls_first != descending:
        suffix += " NULLS FIRST" if nulls_first else " NULLS LAST"
    return IndexedColumn(column.name, suffix, descending | nulls_first << 1)


def _has_default(method: str, type_oid: Oid) -> bool:
    """Whether the type has a default operator class, as far as the method has few of them."""
    if method in ("btree", "hash"):
        return type_oid not in _NO_ORDER
    if method == "gin":
        row = type_by_oid(type_oid)
        return type_oid in _GIN or (row is not None and row.is_array)
    return True


def _included(table: TableDef, name: str | None) -> str:
    if name is None:
        raise FeatureNotSupportedError(
            "expressions are not supported in included columns"
        )
    if table.column(name) is None:
        raise UndefinedObjectError(f'column "{name}" does not exist', sqlstate="42703")
    return name


def _check_enforced(
    table: TableDef, name: str, keys: tuple[IndexedColumn, ...]
) -> None:
    """Refuse a unique index, unless rows that differ in the primary key differ in its columns."""
    is_implied = bool(table.key) and not table.key_deferral.deferrable
    if is_implied and {key.name for key in keys} >= set(table.key):
        return
    raise FeatureNotSupportedError(
        f'unique index "{name}" is not supported',
        detail="Only primary keys are kept unique.",
        hint="Create the index without UNIQUE."
        if table.key
        else "Use ALTER TABLE ... ADD PRIMARY KEY, or create the index without UNIQUE.",
    )


def _free_name(
    catalog: Catalog,
    table: TableDef,
    keys: tuple[IndexedColumn, ...],
    included: tuple[str, ...],
) -> str:
    """Choose a name like ChooseIndexName(); numbered if the name is taken."""
    columns = "_".join((*(key.name for key in keys), *included))
    columns = columns.encode()[:63].decode(errors="ignore")
    for number in itertools.count():
        name = derived_name(table.name, columns, f"idx{number or ''}")
        if not is_taken(catalog, table.namespace, name):
            return name
    raise AssertionError


# ---- finding an index ------------------------------------------------------------------


def _find(
    node: HasCatalog,
    caller: Caller,
    name: QualifiedName,
    refusal: Callable[[TableDef, Collection[str]], UsageError],
) -> TableIndex | None:
    """Return an index that the caller owns; None if there is no relation of the name.

    ``refusal``: the error for the index of a primary key."""
    catalog = node.catalog
    tables = {table.oid: table for table in catalog.tables()}
    schemas = caller.search_path if name.schema is None else (name.schema,)
    for schema in schemas:
        for index in catalog.indexes():
            table = tables.get(index.relid)
            if table is None or (table.namespace, index.name) != (schema, name.name):
                continue
            check_owner(node, caller, "index", index.name, table.owner)
            return index
        for table in tables.values():
            is_key = table.namespace == schema and bool(table.key)
            if is_key and table.index_name == name.name:
                check_owner(node, caller, "index", name.name, table.owner)
                raise refusal(table, caller.search_path)
        if find_table(catalog, caller, schema, name.name) is not None:
            raise UsageError(
                f'"{name.name}" is not an index',
                sqlstate="42809",
                hint="Use DROP TABLE to remove a table."
                if refusal is _not_droppable
                else None,
            )
    return None


def names_index(catalog: Catalog, caller: Caller, name: QualifiedName) -> bool:
    """Whether a name is an index's, in the named schema or in one of the search path."""
    schemas = caller.search_path if name.schema is None else (name.schema,)
    tables = {t.oid: t for t in catalog.tables() if t.namespace in schemas}
    return any(
        index.name == name.name and index.relid in tables for index in catalog.indexes()
    ) or any(t.key and t.index_name == name.name for t in tables.values())


def _has_schema(node: HasCatalog, name: str) -> bool:
    return any(schema.name == name for schema in node.catalog.namespaces())


def _not_droppable(table: TableDef, search_path: Collection[str]) -> UsageError:
    name = quote_identifier(table.index_name)
    shown = described(table, search_path)
    constraint = f"constraint {table.index_name} on table {shown}"
    prefix = shown.removesuffix(quote_identifier(table.name))
    return UsageError(
        f"cannot drop index {prefix}{name} because {constraint} requires it",
        sqlstate="2BP01",
        hint=f"You can drop {constraint} instead.",
    )


def _not_renamable(table: TableDef, search_path: Collection[str]) -> UsageError:
    return FeatureNotSupportedError("ALTER INDEX of a primary key is not supported")


COMMANDS: Final[Mapping[type, Callable[[EngineParts, Caller, Any], str]]] = {
    CreateIndex: create_index,
    DropIndex: drop_index,
    RenameIndex: rename_index,
}
"""Commands that a transaction block can roll back."""
