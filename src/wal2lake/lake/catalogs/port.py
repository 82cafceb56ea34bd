"""The port of a catalog: entries, and the operations that make a catalog show them.

Comes in: names and entries. Goes out: what the catalog has. Called by ``local.catalogs``;
implemented by ``glue``, ``unity`` and ``spark.hive``.

An entry is a name that leads to a Delta table, or to the metadata file of an Iceberg table. Readers
take rows and columns from there; the columns of an entry are for those who browse a catalog.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Protocol, runtime_checkable

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
    """URL of the table's directory; of an Iceberg table the path of its metadata file."""
    columns: tuple[EntryColumn, ...]
    properties: Mapping[str, str]
    """The node's marks (``entries``)."""
    identities: tuple[str, ...] = ()
    """Names by which the entry of an Iceberg table is known, whatever its metadata file."""
    metadata: Mapping[str, Any] | None = field(default=None, compare=False, repr=False)
    """Content of an Iceberg table's metadata file."""
    digest: str = field(init=False, compare=False, repr=False)
    """Digest of all that a catalog shows."""

    def __post_init__(self) -> None:
        shown = (
            self.schema,
            self.table,
            str(self.name),
            self.location,
            [astuple(column) for column in self.columns],
            sorted(self.properties.items()),
            self.identities,
        )
        digest = hashlib.sha256(json.dumps(shown).encode()).hexdigest()
        object.__setattr__(self, "digest", digest)


@dataclass(frozen=True, slots=True)
class FoundEntry:
    """Content of a catalog under a name."""

    location: str
    columns: tuple[tuple[str, str], ...]
    """Names and types, in the catalog's own words."""
    properties: Mapping[str, str]
    original: Any = field(default=None, compare=False)
    """The catalog's own object, for the call that replaces it."""
    identity: str = ""
    """One of ``CatalogEntry.identities``, if the entry is that Iceberg table's."""
    foreign: str | None = None
    """Change that another program has committed to an Iceberg table."""


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


EntryChange = tuple[CatalogEntry, FoundEntry]
"""An entry, and what the catalog has in its place."""


@runtime_checkable
class GroupedChanges(Protocol):
    """A catalog that replaces several entries at once."""

    def change_all(self, changes: Sequence[EntryChange]) -> None:
        """Replace all of the existing entries, or none of them.

        Raises CatalogUnavailable or EntryRefused, which may be due to any of them."""
