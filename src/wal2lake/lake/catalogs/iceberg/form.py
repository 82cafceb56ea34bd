"""Entries of Iceberg tables in catalogs of Hive's kind.

Implements ``lake.catalogs.EntryForm``. Readers know the table by ``table_type`` and open the file
that ``metadata_location`` names.

Sources: iceberg, HiveTableOperations.java, GlueTableOperations.java.
"""

from __future__ import annotations

from collections.abc import Mapping

from wal2lake.lake.catalogs.forms import StorageForm
from wal2lake.lake.catalogs.iceberg.mirrored import found_metadata
from wal2lake.lake.catalogs.port import CatalogEntry, FoundEntry

_LOCATION = "metadata_location"

_PREVIOUS = "previous_metadata_location"


class IcebergForm:
    """The form of an Iceberg table."""

    section = "iceberg.catalog"

    storage = StorageForm(
        "org.apache.hadoop.mapred.FileInputFormat",
        "org.apache.hadoop.mapred.FileOutputFormat",
        names_path=False,
    )

    def directory(self, entry: CatalogEntry) -> str:
        """Return the place that the storage names: the mirror's folder."""
        return entry.location.rpartition("/metadata/")[0]

    def properties(
        self, entry: CatalogEntry, before: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the properties of an entry that has some already."""
        earlier = before.get(_LOCATION)
        return {
            **before,
            "EXTERNAL": "TRUE",
            "table_type": "ICEBERG",
            **entry.properties,
            _LOCATION: entry.location,
            **({_PREVIOUS: earlier} if earlier else {}),
        }

    def existing(
        self,
        location: str,
        columns: tuple[tuple[str, str], ...],
        properties: Mapping[str, str],
        original: object,
    ) -> FoundEntry:
        """Return what the catalog has."""
        return found_metadata(properties.get(_LOCATION, ""), properties, original)

    def shows(
        self,
        existing: FoundEntry,
        entry: CatalogEntry,
        columns: tuple[tuple[str, str], ...],
    ) -> bool:
        """Whether the existing entry matches ``entry``."""
        return existing.location == entry.location

    def expected(self, existing: FoundEntry) -> tuple[str, str] | None:
        """Return the property that must not have changed when an entry is replaced."""
        return _LOCATION, existing.location
