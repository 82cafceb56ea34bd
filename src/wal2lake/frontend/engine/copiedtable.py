"""The table that a COPY names: the lake's, or a system's."""

from __future__ import annotations

from wal2lake.catalog import Catalog
from wal2lake.errors import UsageError
from wal2lake.frontend.commands.node import Caller, find_table, need_table
from wal2lake.frontend.grammar.statements import QualifiedName
from wal2lake.frontend.sysviews.declarations.relations import system_relation


def copied_table(
    catalog: Catalog, caller: Caller, table: QualifiedName
) -> tuple[str, str, tuple[str, ...]]:
    """Schema, name and columns of a table; 42809 of a system's view."""
    found = find_table(catalog, caller, table.schema, table.name)
    system = None if found else system_relation(table.schema, table.name)
    if system is None:
        found = need_table(catalog, caller, table.schema, table.name)
        return found.namespace, found.name, tuple(c.name for c in found.columns)
    if system.kind != "r":
        raise UsageError(
            f'cannot copy from view "{system.name}"',
            sqlstate="42809",
            hint="Try the COPY (SELECT ...) TO variant.",
        )
    return system.schema, system.name, tuple(c.name for c in system.columns)
