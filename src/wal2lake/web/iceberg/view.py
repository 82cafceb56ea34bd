"""The tables that one role sees at one moment.

A table is shown if it has a mirror that shows the moment, and if the role may SELECT it at the
front door: USAGE on its schema, SELECT on the table. Lists have no other tables; a table by its
name is refused (403) as PostgreSQL refuses it.

Comes in: a role, a moment, the catalog, the files of the engine. Goes out: names, metadata. Raises
CatalogRefusal. Called by: ``routes``, in its thread.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from wal2lake.catalog import (
    Authority,
    Catalog,
    MirrorMoment,
    Namespace,
    Role,
    ShownTable,
    ShownTables,
    TableDef,
)
from wal2lake.model import ObjectKind
from wal2lake.web.iceberg.answers import forbidden, no_such_namespace, no_such_table


@dataclass(frozen=True, slots=True)
class RoleView:
    """The tables of a role at a moment; None: there is no moment yet, and no table."""

    catalog: Catalog
    shown: ShownTables
    role: Role
    moment: MirrorMoment | None

    def namespaces(self) -> list[str]:
        """Return the schemas that have a table which the role sees, in order."""
        return sorted({table.namespace for table in self._tables()})

    def namespace(self, name: str) -> None:
        """Raise 404 unless the schema is one of these."""
        if not any(table.namespace == name for table in self._tables()):
            raise no_such_namespace(name)

    def tables(self, namespace: str) -> list[str]:
        """Return the tables of a schema, in order. Raises 404 without any."""
        names = sorted(
            table.name for table in self._tables() if table.namespace == namespace
        )
        if not names:
            raise no_such_namespace(namespace)
        return names

    def table(self, namespace: str, name: str) -> ShownTable:
        """Return a table. Raises 404, or 403 if the role may not read it."""
        full = f"{namespace}.{name}"
        table = self.catalog.table(namespace, name)
        if table is None or self.moment is None:
            raise no_such_table(full)
        authority = self.catalog.authority()
        schema = self._schemas().get(namespace)
        if schema is None or not self._may_use(authority, schema):
            raise forbidden(f"permission denied for schema {namespace}")
        if not self._may_read(authority, table):
            raise forbidden(f"permission denied for table {name}")
        if table.storage in self.moment.behind:
            raise no_such_table(full, "its mirror has not followed to this moment")
        shown = self.shown.at(table.storage, self.moment.number)
        if shown is None:
            raise no_such_table(full, "it has no mirror of this moment")
        return shown

    def _tables(self) -> Iterator[TableDef]:
        if self.moment is None:
            return
        moment = self.moment
        mirrored = self.shown.mirrored() - moment.behind
        authority, schemas = self.catalog.authority(), self._schemas()
        usable = {
            name for name, schema in schemas.items() if self._may_use(authority, schema)
        }
        for table in self.catalog.tables():
            if (
                table.storage in mirrored
                and table.namespace in usable
                and self._may_read(authority, table)
                and self.shown.is_there(table.storage, moment.number)
            ):
                yield table

    def _schemas(self) -> dict[str, Namespace]:
        return {schema.name: schema for schema in self.catalog.namespaces()}

    def _may_use(self, authority: Authority, schema: Namespace) -> bool:
        letters = authority.letters(
            self.role.oid, ObjectKind.SCHEMA, schema.owner, schema.acl
        )
        return "U" in letters

    def _may_read(self, authority: Authority, table: TableDef) -> bool:
        letters = authority.letters(
            self.role.oid, ObjectKind.TABLE, table.owner, table.acl
        )
        return "r" in letters
