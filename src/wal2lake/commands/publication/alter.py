"""ALTER and COMMENT ON PUBLICATION.

Takes statements; returns command tags. All changes of a statement are one catalog transaction.

Source: AlterPublication() and its parts, AlterPublicationOwner_internal() in publicationcmds.c;
AlterObjectRename_internal() in alter.c; CommentObject() in comment.c.
"""

from __future__ import annotations

from collections.abc import Sequence

from wal2lake.catalog import (
    PUBLICATION_CATALOG,
    Namespace,
    Publication,
    PublishedSchema,
    PublishedTable,
)
from wal2lake.commands.publication.objects import (
    NamedTable,
    check_owners,
    check_schemas,
    named_schemas,
    named_tables,
    published,
)
from wal2lake.commands.publication.options import publication_options
from wal2lake.commands.roles.names import check_can_set_role, need_role
from wal2lake.errors import (
    DuplicateObjectError,
    SqlSyntaxError,
    UndefinedObjectError,
    UsageError,
)
from wal2lake.local.access import (
    check_database_create_for,
    check_owner,
)
from wal2lake.local.node import PERMISSION_DENIED, Caller
from wal2lake.local.ports import Definitions, HasCatalog
from wal2lake.model import Oid
from wal2lake.sql.grammar.publishing.publicationstatements import (
    AlterPublicationObjects,
    AlterPublicationOwner,
    AlterPublicationRename,
    AlterPublicationSet,
    CommentOnPublication,
    ObjectsChange,
)

_TAG = "ALTER PUBLICATION"


def _need(node: HasCatalog, name: str) -> Publication:
    publication = node.catalog.publication_named(name)
    if publication is None:
        raise UndefinedObjectError(f'publication "{name}" does not exist')
    return publication


def _owned(node: HasCatalog, caller: Caller, name: str) -> Publication:
    publication = _need(node, name)
    check_owner(node, caller, "publication", name, publication.owner)
    return publication


# ---- objects -----------------------------------------------------------------------------


def alter_objects(
    node: Definitions, caller: Caller, statement: AlterPublicationObjects
) -> str:
    """ALTER PUBLICATION ... ADD | SET | DROP objects."""
    with node.ddl_lock:
        publication = _owned(node, caller, statement.name)
        schemas = named_schemas(node, caller, statement.objects)
        _check_change(caller, publication, statement, schemas)
        tables = named_tables(node, caller, statement.objects)
        match statement.change:
            case ObjectsChange.ADD:
                _add(node, caller, publication, tables, schemas)
            case ObjectsChange.DROP:
                _drop(node, publication, tables, schemas)
            case ObjectsChange.SET:
                _set(node, caller, publication, tables, schemas)
    return _TAG


def _check_change(
    caller: Caller,
    publication: Publication,
    statement: AlterPublicationObjects,
    schemas: Sequence[Namespace],
) -> None:
    drops = statement.change is ObjectsChange.DROP
    if schemas and not drops and not caller.role.superuser:
        raise UsageError(
            "must be superuser to add or set schemas", sqlstate=PERMISSION_DENIED
        )
    if publication.all_tables:
        # The list is never empty. PostgreSQL reports schemas first.
        what = "Schemas" if schemas else "Tables"
        raise UsageError(
            f'publication "{publication.name}" is defined as FOR ALL TABLES',
            sqlstate="55000",
            detail=f"{what} cannot be added to or dropped from FOR ALL TABLES"
            " publications.",
        )


def _add(
    node: HasCatalog,
    caller: Caller,
    publication: Publication,
    tables: Sequence[NamedTable],
    schemas: Sequence[Namespace],
) -> None:
    kept = published(
        caller,
        publication.name,
        tables,
        via_root=publication.via_root,
        with_schemas=bool(schemas or publication.schemas),
    )
    for named in tables:
        check_owners(node, caller, [named])
        if publication.table(named.table.oid) is not None:
            raise DuplicateObjectError(
                f'relation "{named.table.name}" is already member of publication'
                f' "{publication.name}"'
            )
    if schemas and any(row.columns is not None for row in publication.tables):
        raise UsageError(
            f'cannot add schema to publication "{publication.name}"',
            detail="Schemas cannot be added if any tables that specify a column list"
            " are already part of the publication.",
        )
    present = {row.nspid for row in publication.schemas}
    for schema in schemas:
        if schema.oid in present:
            raise DuplicateObjectError(
                f'schema "{schema.name}" is already member of publication'
                f' "{publication.name}"'
            )
    node.catalog.change_objects(publication.oid, (), kept, check_schemas(schemas))


def _drop(
    node: HasCatalog,
    publication: Publication,
    tables: Sequence[NamedTable],
    schemas: Sequence[Namespace],
) -> None:
    removed: list[Oid] = []
    for named in tables:
        if named.clause.columns is not None:
            raise SqlSyntaxError(
                "column list must not be specified in ALTER PUBLICATION ... DROP"
            )
        row = publication.table(named.table.oid)
        if row is None:
            raise UndefinedObjectError(
                f'relation "{named.table.name}" is not part of the publication'
            )
        if named.clause.where is not None:
            raise SqlSyntaxError(
                "cannot use a WHERE clause when removing a table from a publication"
            )
        removed.append(row.oid)
    rows = {entry.nspid: entry.oid for entry in publication.schemas}
    for schema in schemas:
        if schema.oid not in rows:
            raise UndefinedObjectError(
                f'tables from schema "{schema.name}" are not part of the publication'
            )
        removed.append(rows[schema.oid])
    node.catalog.change_objects(publication.oid, removed)


def _set(
    node: HasCatalog,
    caller: Caller,
    publication: Publication,
    tables: Sequence[NamedTable],
    schemas: Sequence[Namespace],
) -> None:
    kept = published(
        caller,
        publication.name,
        tables,
        via_root=publication.via_root,
        with_schemas=bool(schemas),
    )
    check_owners(node, caller, tables)
    # Rows that don't change keep their OIDs.
    unchanged = [row for row in publication.tables if _plain(row) in kept]
    wanted = {schema.oid for schema in schemas}
    unchanged_schemas = [row for row in publication.schemas if row.nspid in wanted]
    rows: list[PublishedTable | PublishedSchema] = [
        *publication.tables,
        *publication.schemas,
    ]
    kept_oids = {row.oid for row in unchanged} | {row.oid for row in unchanged_schemas}
    present = {row.nspid for row in unchanged_schemas}
    node.catalog.change_objects(
        publication.oid,
        [row.oid for row in rows if row.oid not in kept_oids],
        [row for row in kept if row not in [_plain(s) for s in unchanged]],
        [row for row in check_schemas(schemas) if row.nspid not in present],
    )


def _plain(row: PublishedTable) -> PublishedTable:
    """Return the row without its OID."""
    return PublishedTable(row.relid, row.columns, row.filter, row.filter_columns)


# ---- options, name, owner, comment -------------------------------------------------------


def alter_set(node: Definitions, caller: Caller, statement: AlterPublicationSet) -> str:
    """ALTER PUBLICATION ... SET ( options )."""
    with node.ddl_lock:
        publication = _owned(node, caller, statement.name)
        options = publication_options(statement.options)
        if options.get("via_root") is False and not publication.all_tables:
            _check_no_roots(node, publication)
        if options:
            node.catalog.update_publication(publication.oid, **options)
    return _TAG


def _check_no_roots(node: HasCatalog, publication: Publication) -> None:
    """Refuse columns or a filter on a partitioned table without publish_via_partition_root."""
    tables = {table.oid: table for table in node.catalog.tables()}
    for row in publication.tables:
        table = tables.get(row.relid)
        if table is None or table.partition_key is None:
            continue
        if row.filter is None and row.columns is None:
            continue
        what = "WHERE clause" if row.filter is not None else "column list"
        raise UsageError(
            'cannot set parameter "publish_via_partition_root" to false for publication'
            f' "{publication.name}"',
            detail=f"The publication contains a {what} for partitioned table"
            f' "{table.name}", which is not allowed when'
            ' "publish_via_partition_root" is false.',
        )


def alter_rename(
    node: Definitions, caller: Caller, statement: AlterPublicationRename
) -> str:
    """ALTER PUBLICATION ... RENAME TO."""
    with node.ddl_lock:
        publication = _owned(node, caller, statement.name)
        if node.catalog.publication_named(statement.new_name) is not None:
            raise DuplicateObjectError(
                f'publication "{statement.new_name}" already exists'
            )
        node.catalog.update_publication(publication.oid, name=statement.new_name)
    return _TAG


def alter_owner(
    node: Definitions, caller: Caller, statement: AlterPublicationOwner
) -> str:
    """ALTER PUBLICATION ... OWNER TO."""
    with node.ddl_lock:
        authority = node.catalog.authority()
        owner = need_role(authority, caller, statement.owner)
        publication = _need(node, statement.name)
        if publication.owner == owner.oid:
            # PostgreSQL allows this to everybody.
            return _TAG
        if not caller.role.superuser:
            check_owner(
                node, caller, "publication", publication.name, publication.owner
            )
            check_can_set_role(authority, caller, owner)
            check_database_create_for(node, owner)
            kind = (
                "FOR ALL TABLES" if publication.all_tables else "FOR TABLES IN SCHEMA"
            )
            special = publication.all_tables or publication.schemas
            if special and not owner.superuser:
                raise UsageError(
                    "permission denied to change owner of publication"
                    f' "{publication.name}"',
                    sqlstate=PERMISSION_DENIED,
                    hint=f"The owner of a {kind} publication must be a superuser.",
                )
        node.catalog.update_publication(publication.oid, owner=owner.oid)
    return _TAG


def comment_on_publication(
    node: HasCatalog, caller: Caller, statement: CommentOnPublication
) -> str:
    """COMMENT ON PUBLICATION; NULL and an empty text remove the comment."""
    publication = _owned(node, caller, statement.name)
    node.catalog.set_comment(PUBLICATION_CATALOG, publication.oid, statement.text)
    return "COMMENT"
