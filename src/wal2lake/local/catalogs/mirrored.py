"""Says which entry each mirrored table should have in an Iceberg catalog.

Comes in: after each round of mirroring, what every mirror shows. Goes out: entries by
``schema.table``. Called by ``worker`` and, from another thread, by the worker of mirrors.

A round's entries are taken as a whole, so a catalog that replaces all of them at once shows one
moment. A mirror that has not followed keeps its entry as it is; one that is no more has none.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from wal2lake.catalog import TableDef
from wal2lake.lake.catalogs import CatalogEntry, mirror_entry
from wal2lake.lake.iceberg import ShownMirror
from wal2lake.local.catalogs.rules import MirrorRules
from wal2lake.local.ports import HasSettings
from wal2lake.settings import IcebergCatalogSettings


class MirroredEntries:
    """The entries that the mirrors of a node should have."""

    name = "iceberg catalog"

    def __init__(self, node: HasSettings) -> None:
        self._node = node
        self.rules = MirrorRules()
        self._lock = threading.Lock()
        self.shown: Callable[[], None] = lambda: None
        """Is called when there is something new."""
        self._known: dict[str, CatalogEntry] = {}
        self._prefix = ""
        self._round: Sequence[tuple[TableDef, ShownMirror | None]] | None = None

    def show(self, mirrors: Sequence[tuple[TableDef, ShownMirror | None]]) -> None:
        """Take what a round of mirroring has left."""
        with self._lock:
            self._round = mirrors
        self.shown()

    @property
    def file(self) -> Path:
        """The file that says what is registered."""
        return self._node.settings.iceberg_registered_file

    @property
    def settings(self) -> IcebergCatalogSettings:
        """The settings in force."""
        return self._node.settings.iceberg_catalog

    @property
    def interval_seconds(self) -> float:
        """Longest time between two rounds."""
        return self._node.settings.iceberg.interval_ms / 1000

    def read(self, *, anew: bool) -> Mapping[str, CatalogEntry | None] | None:
        """Return the entries; None before the first round of mirroring."""
        with self._lock:
            mirrors = self._round
        if mirrors is None:
            return None
        prefix = self.settings.prefix
        if anew or prefix != self._prefix:
            self._known.clear()
            self._prefix = prefix
        entries = {
            table.qualified: None if shown is None else self._entry(table, shown)
            for table, shown in mirrors
        }
        for name in self._known.keys() - entries.keys():
            del self._known[name]
        return entries

    def _entry(self, table: TableDef, shown: ShownMirror) -> CatalogEntry:
        """Return a mirror's entry; the one before if the mirror shows the same."""
        name = table.qualified
        entry = self._known.get(name)
        if entry is None or entry.metadata is not shown.metadata:
            entry = self._known[name] = mirror_entry(
                self._node.catalog.system_identifier,
                table.namespace,
                table.name,
                shown.path,
                shown.metadata,
                prefix=self._prefix,
            )
        return entry
