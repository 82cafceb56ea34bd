"""The form of entries in catalogs of Hive's kind: properties and storage.

Comes in: an entry. Goes out: what Glue and the Hive metastore store of it. Pure; called by
``glue`` and ``spark.hive``. ``iceberg.form`` has the other form.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from wal2lake.lake.catalogs.entries import hive_properties
from wal2lake.lake.catalogs.port import CatalogEntry, FoundEntry


@dataclass(frozen=True, slots=True)
class StorageForm:
    """Classes that an entry names. Hive's own readers need them; others do not load them."""

    input_format: str
    output_format: str
    names_path: bool
    """Whether the storage has the place among its parameters, where Spark looks for it and opens it
    through Hadoop."""


class EntryForm(Protocol):
    """One kind of tables in a catalog of Hive's kind."""

    section: str
    """Section of the settings, for errors."""
    storage: StorageForm

    def directory(self, entry: CatalogEntry) -> str:
        """Return the place that the storage names."""

    def properties(
        self, entry: CatalogEntry, before: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the properties of an entry that has some already."""

    def existing(
        self,
        location: str,
        columns: tuple[tuple[str, str], ...],
        properties: Mapping[str, str],
        original: object,
    ) -> FoundEntry:
        """Return what the catalog has."""

    def shows(
        self,
        existing: FoundEntry,
        entry: CatalogEntry,
        columns: tuple[tuple[str, str], ...],
    ) -> bool:
        """Whether the existing entry matches ``entry``, whose columns are ``columns``."""

    def expected(self, existing: FoundEntry) -> tuple[str, str] | None:
        """Return the property that must not have changed when an entry is replaced."""


class DeltaForm:
    """The form of a Delta table."""

    section = "catalog"

    storage = StorageForm(
        "org.apache.hadoop.mapred.SequenceFileInputFormat",
        "org.apache.hadoop.hive.ql.io.HiveSequenceFileOutputFormat",
        names_path=True,
    )
    """Classes that Spark and Trino name for tables whose files Hive does not read itself."""

    def directory(self, entry: CatalogEntry) -> str:
        """Return the place that the storage names."""
        return entry.location

    def properties(
        self, entry: CatalogEntry, before: Mapping[str, str]
    ) -> dict[str, str]:
        """Return the properties of an entry that has some already."""
        return {**before, **hive_properties(entry)}

    def existing(
        self,
        location: str,
        columns: tuple[tuple[str, str], ...],
        properties: Mapping[str, str],
        original: object,
    ) -> FoundEntry:
        """Return what the catalog has."""
        return FoundEntry(location, columns, properties, original)

    def shows(
        self,
        existing: FoundEntry,
        entry: CatalogEntry,
        columns: tuple[tuple[str, str], ...],
    ) -> bool:
        """Whether the existing entry matches ``entry``, whose columns are ``columns``."""
        return (
            existing.location == self.directory(entry)
            and existing.columns == columns
            and hive_properties(entry).items() <= existing.properties.items()
        )

    def expected(self, existing: FoundEntry) -> tuple[str, str] | None:
        """Return nothing: entries of Delta tables change with their columns alone."""
        return None


DELTA: Final = DeltaForm()
