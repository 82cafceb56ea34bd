"""CREATE and DROP PUBLICATION.

Takes statements; returns command tags. Each statement is one catalog transaction.

Source: CreatePublication() in publicationcmds.c; RemoveObjects() in dropcmds.c.
"""

from __future__ import annotations

from wal2lake.catalog import Publication
from wal2lake.commands.publication.objects import (
    check_owners,
    check_schemas,
    named_schemas,
    named_tables,
    published,
)
from wal2lake.commands.publication.options import publication_options
from wal2lake.errors import DuplicateObjectError, UndefinedObjectError, UsageError
from wal2lake.local.access import check_database_create, check_owner
from wal2lake.local.node import PERMISSION_DENIED, Caller
from wal2lake.local.ports import Definitions
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar.publishing.publicationstatements import (
    CreatePublication,
    DropPublication,
)


def create_publication(
    node: Definitions, caller: Caller, statement: CreatePublication
) -> str:
    """CREATE PUBLICATION."""
    with node.ddl_lock:
        check_database_create(node, caller)
        if statement.all_tables and not caller.role.superuser:
            raise _superuser_only("FOR ALL TABLES")
        name = statement.name
        if node.catalog.publication_named(name) is not None:
            raise DuplicateObjectError(f'publication "{name}" already exists')
        options = publication_options(statement.options)
        schemas = named_schemas(node, caller, statement.objects)
        if schemas and not caller.role.superuser:
            raise _superuser_only("FOR TABLES IN SCHEMA")
        tables = named_tables(node, caller, statement.objects)
        kept = published(
            caller,
            name,
            tables,
            via_root=options.get("via_root", False),
            with_schemas=bool(schemas),
        )
        check_owners(node, caller, tables)
        publication = Publication(
            node.catalog.new_oid(),
            name,
            caller.role.oid,
            statement.all_tables,
            tables=tuple(kept),
            schemas=tuple(check_schemas(schemas)),
            **options,
        )
        node.catalog.create_publication(publication)
    if node.publishing is not None:
        # Subscribers to the publication will need walsenders.
        node.publishing.walsenders.prepare()
    return "CREATE PUBLICATION"


def drop_publication(
    node: Definitions, caller: Caller, statement: DropPublication
) -> str:
    """DROP PUBLICATION: drops all the publications, or none."""
    with node.ddl_lock:
        oids = []
        for name in statement.names:
            publication = node.catalog.publication_named(name)
            if publication is None:
                text = f'publication "{name}" does not exist'
                if not statement.if_exists:
                    raise UndefinedObjectError(text)
                caller.notice(Notice(f"{text}, skipping"))
                continue
            check_owner(node, caller, "publication", name, publication.owner)
            oids.append(publication.oid)
        if oids:
            node.catalog.drop_publications(oids)
    return "DROP PUBLICATION"


def _superuser_only(kind: str) -> UsageError:
    return UsageError(
        f"must be superuser to create {kind} publication", sqlstate=PERMISSION_DENIED
    )
