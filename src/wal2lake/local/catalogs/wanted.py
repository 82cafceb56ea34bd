"""Says which entry each table should have.

Comes in: the node's catalog, the tables' own logs. Goes out: entries by ``schema.table``. Called by
``worker``.

A table's columns are those of its log, because readers see these. The log is read again when the
node's catalog says that the table has changed, and in each sweep, since other engines may change
columns, too. An ALTER changes the log before the catalog, or after it: a reading that lacks a
column of the catalog is not kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from wal2lake.catalog import TableDef
from wal2lake.errors import Wal2LakeError
from wal2lake.lake import TableState
from wal2lake.lake.catalogs import CatalogEntry, entry_of
from wal2lake.local.catalogs.rules import MarkRules
from wal2lake.local.ports import RegisterParts
from wal2lake.settings import CatalogSettings


class WantedEntries:
    """The entries that the tables of a node should have."""

    name = "catalog"

    def __init__(self, node: RegisterParts) -> None:
        self._node = node
        self.rules = MarkRules(node.catalog.system_identifier)
        self._known: dict[str, tuple[TableDef, CatalogEntry]] = {}
        self._prefix = ""

    @property
    def file(self) -> Path:
        """The file that says what is registered."""
        return self._node.settings.registered_file

    @property
    def settings(self) -> CatalogSettings:
        """The settings in force."""
        return self._node.settings.catalog

    @property
    def interval_seconds(self) -> float:
        """Longest time between two rounds."""
        return self.settings.interval_ms / 1000

    def read(self, *, anew: bool) -> Mapping[str, CatalogEntry | None]:
        """Return the entries by ``schema.table``; None for a table that cannot be read now.
        ``anew``: read each table's log."""
        prefix = self._node.settings.catalog.prefix
        if anew or prefix != self._prefix:
            self._known.clear()
            self._prefix = prefix
        entries = dict(self._entries())
        for name in self._known.keys() - entries.keys():
            del self._known[name]
        return entries

    def _entries(self) -> Iterator[tuple[str, CatalogEntry | None]]:
        for table in self._node.catalog.tables():
            if table.partition_of is not None:
                # Its rows are those of the partitioned table, which has an entry.
                continue
            name = table.qualified
            cached = self._known.get(name)
            if cached is not None and cached[0] == table:
                yield name, cached[1]
                continue
            try:
                state = self._node.tables.state(table.location)
            except Wal2LakeError:
                # Being made or dropped, or the store does not answer.
                yield name, None
                continue
            entry = entry_of(
                self._node.catalog.system_identifier,
                table.namespace,
                table.name,
                table.location,
                state.fields,
                prefix=self._prefix,
            )
            if _has_all(state, table):
                self._known[name] = table, entry
            yield name, entry


def _has_all(state: TableState, table: TableDef) -> bool:
    stored = {field.name for field in state.fields}
    return all(column.name in stored for column in table.columns)
