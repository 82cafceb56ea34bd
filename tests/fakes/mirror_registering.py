"""Mirrors of tables, and the worker that registers them in an Iceberg catalog."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog as PyIcebergCatalog
from tests.fakes.mirrored_table import MirroredTable
from tests.fakes.mirroring import MirroringNode

from wal2lake.catalog import RegisteredTable, TableDef, read_registered
from wal2lake.lake.catalogs import ExternalCatalog
from wal2lake.local.catalogs import CatalogWorker, MirroredEntries
from wal2lake.local.mirrors import MirrorWorker
from wal2lake.model import Oid
from wal2lake.settings import IcebergCatalogSettings


class RegisteringNode(MirroringNode):
    """A node whose tables are mirrored and registered."""

    def __init__(
        self,
        directory: Path,
        settings: IcebergCatalogSettings,
        open_catalog: Callable[[Any], ExternalCatalog],
    ) -> None:
        self.now = 1000.0
        self.catalog_settings = settings
        self.open_catalog = open_catalog
        self.registering: CatalogWorker | None = None
        super().__init__(directory, "iceberg")

    def restart(self) -> None:
        """Go on as another process does: with what is on disk."""
        super().restart()
        self.settings.iceberg_catalog = self.catalog_settings
        if self.registering is not None:
            self.registering.close()
        entries = MirroredEntries(self)
        self.worker = MirrorWorker(self, entries.show)  # type: ignore[arg-type]
        self.registering = CatalogWorker(entries, self.open_catalog, lambda: self.now)

    def round(self, seconds: float = 10.0) -> None:
        """Mirror, and register what is new."""
        self.now += seconds
        self.worker.round()
        assert self.registering is not None
        self.registering.round()

    def registered(self, name: str) -> RegisteredTable:
        """Return what is noted of a table in the schema public."""
        return read_registered(self.settings.iceberg_registered_file).tables[
            f"public.{name}"
        ]

    def definition(self, table: MirroredTable) -> TableDef:
        """Return the table in the node's catalog."""
        (found,) = [
            t for t in self.catalog.tables() if t.location == str(table.location)
        ]
        return found

    def rename(self, table: MirroredTable, name: str) -> None:
        self.catalog.rename_table(self.definition(table), "public", name)

    def drop(self, table: MirroredTable) -> None:
        oid = self.definition(table).oid
        self.catalog.drop_table(Oid(int(oid)))
        self.worker.leave(table.location)


def ids(catalog: PyIcebergCatalog, name: str, namespace: str = "public") -> list[int]:
    """Return the ids that pyiceberg reads through the catalog."""
    read = catalog.load_table(f"{namespace}.{name}").scan().to_arrow()
    return sorted(read["id"].to_pylist())


def names(catalog: PyIcebergCatalog, namespace: str = "public") -> list[str]:
    return sorted(name for _, name in catalog.list_tables(namespace))
