"""The port of a catalog: entries, and the operations that make a catalog show them.

Comes in: names and entries. Goes out: what the catalog has. Called by ``local.catalogs``;
implemented by ``glue``, ``unity`` and ``spark.hive``.

An entry is a name that leads to a Delta table. Readers take rows and columns from the table's own
log; the columns of an entry are for those who browse a catalog.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from wal2lake.errors import Retry, Wal2LakeError


@dataclass(frozen=True, slots=True, order=True)
class EntryName:
    """Name of an entry inside its catalog."""

    database: str
    """Glue's and Hive's database, Unity's schema."""
    table: str

    def __str__(self) -> str:
        return f"{self.database}.{self.table}"


@dataclass(frozen=True, slots=True)
class EntryColumn:
    """One column of a table."""

    name: str
    spark_ddl: str
    """Spark's name of the type, like that of a ``FieldSpec``."""
    nullable: bool = True


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """A table as a catalog should show it."""

    schema: str
    table: str
    """Schema and name in the node."""
    name: EntryName
    location: str
    """URL of the table's directory."""
    columns: tuple[EntryColumn, ...]
    properties: Mapping[str, str]
    """The node's marks (``entries``)."""


@dataclass(frozen=True, slots=True)
class FoundEntry:
    """Content of a catalog under a name."""

    location: str
    columns: tuple[tuple[str, str], ...]
    """Names and types, in the catalog's own words."""
    properties: Mapping[str, str]
    original: Any = field(default=None, compare=False)
    """The catalog's own object, for the call that replaces it."""


class CatalogUnavailable(Wal2LakeError):
    """The catalog cannot be reached, or lets the node do nothing. Work goes on when it does."""

    sqlstate = "08006"
    retry = Retry.LATER


class EntryRefused(Wal2LakeError):
    """The catalog does not take one entry; others are not affected."""

    sqlstate = "58000"


class EntryChanged(EntryRefused):
    """Somebody else has changed an entry since it was found."""

    sqlstate = "40001"
    retry = Retry.LATER


class ExternalCatalog(Protocol):
    """A catalog. Used by one thread at a time.

    Each method raises CatalogUnavailable or EntryRefused.
    """

    def find(self, name: EntryName) -> FoundEntry | None:
        """Return what the catalog has under a name."""

    def shows(self, existing: FoundEntry, entry: CatalogEntry) -> bool:
        """Whether the existing entry matches ``entry``."""

    def create(self, entry: CatalogEntry) -> None:
        """Make an entry that does not exist, and its database if that does not exist either."""

    def change(self, entry: CatalogEntry, existing: FoundEntry) -> None:
        """Replace the existing entry, unless it has changed since."""

    def remove(self, name: EntryName, existing: FoundEntry) -> None:
        """Remove the existing entry; no file is touched."""

    def close(self) -> None:
        """Close connections."""
