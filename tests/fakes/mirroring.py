"""A catalog with tables that a worker mirrors to Iceberg."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.fakes.mirrored_table import MirroredTable, now_ms

from wal2lake.catalog import Catalog, Subscription, SubscriptionRel, TableDef
from wal2lake.lake.iceberg import IcebergMirror
from wal2lake.local.mirrors import MirrorWorker
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.settings import IcebergCatalogSettings, IcebergSettings

SUBID = Oid(20000)


class MirroringNode:
    """A catalog with tables, and a worker."""

    def __init__(
        self,
        directory: Path,
        table_format: str = "delta",
        catalog: Catalog | None = None,
    ) -> None:
        """``catalog``: one that is there already, in the directory."""
        self.directory = directory
        self.catalog = catalog or Catalog.create(
            directory / "catalog.sqlite", "me", None
        )
        options = {"table_format": table_format}
        self.catalog.create_subscription(
            Subscription(
                SUBID, "s", Oid(10), True, "host=p", "s", ("p",), options=options
            ),
            [],
        )
        self.stored: dict[str, MirroredTable] = {}
        self.synced: list[tuple[str, int, bool]] = []
        self.tables = self
        self.settings: Any = SimpleNamespace(
            iceberg=IcebergSettings(),
            iceberg_catalog=IcebergCatalogSettings(),
            iceberg_registered_file=directory / "iceberg-registered.json",
            iceberg_directory=directory / "run" / "iceberg",
        )
        self.restart()

    def restart(self) -> None:
        """Go on as another process does: with what is on disk."""
        self.mirrors = IcebergMirror(self, now_ms)
        self.worker = MirrorWorker(self)  # type: ignore[arg-type]

    def table(
        self, oid: int, *, filled: bool = True, **parameters: str
    ) -> MirroredTable:
        name = f"t{oid}"
        table = MirroredTable(self.directory / name)
        table.append({"id": [oid], "name": ["a"]})
        self.stored[table.location] = table
        self.catalog.create_table(
            TableDef(
                Oid(oid),
                "public",
                name,
                Oid(10),
                (),
                (),
                table.location,
                parameters=tuple(parameters.items()),
            )
        )
        if filled:
            rel = SubscriptionRel(
                SUBID, Oid(oid), "public", name, SyncState.READY, Lsn(0), oid
            )
            self.catalog.add_rels([rel])
        return table

    def publish(self, lsn: int, versions: dict[MirroredTable, int]) -> None:
        oids = {table.location: table.oid for table in self.catalog.tables()}
        self.catalog.publish(
            SUBID, Lsn(lsn), {oids[table.location]: v for table, v in versions.items()}
        )

    def sync(self, location: str, version: int) -> None:
        """Note the call, and whether there is a mirror already."""
        is_mirrored = (Path(location) / "_iceberg").exists()
        self.synced.append((location, version, is_mirrored))

    def __getattr__(self, name: str) -> Any:
        """Answer as the port of the table that is asked for."""

        def answer(asked: Any, *given: Any) -> Any:
            location = asked if isinstance(asked, str) else asked.location
            return getattr(self.stored[location], name)(asked, *given)

        if name in ("state", "state_at", "actions", "plainly_read"):
            return answer
        raise AttributeError(name)
