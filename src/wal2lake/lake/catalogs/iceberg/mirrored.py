"""Describes a mirror as an entry of an Iceberg catalog, and says which entry is that of a mirror.

Comes in: a mirror's metadata and the path of its file; a metadata file that a catalog has. Goes
out: a ``CatalogEntry``, a ``FoundEntry``. Pure.

Catalogs that only have the path of a metadata file know a table by nothing else. The node writes
``vN.metadata.json`` into a folder that no other table has; every other writer of Iceberg gives the
files in this folder other names. So the path says whose the table is, and who has committed last.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from wal2lake.lake.catalogs.entries import NODE, TABLE, catalog_name
from wal2lake.lake.catalogs.port import (
    CatalogEntry,
    EntryColumn,
    EntryName,
    FoundEntry,
)

_OURS: Final = re.compile(r"v\d+\.metadata\.json")

_SPARK: Final[Mapping[str, str]] = {
    "long": "bigint",
    "timestamptz": "timestamp",
    "timestamp": "timestamp_ntz",
}
"""Types whose names in Iceberg are not Spark's."""


def mirror_entry(
    node: int,
    schema: str,
    table: str,
    path: str,
    metadata: Mapping[str, Any],
    *,
    prefix: str = "",
) -> CatalogEntry:
    """Describe a mirror. ``path``: its newest metadata file. ``prefix`` begins the names of
    namespaces."""
    return CatalogEntry(
        schema,
        table,
        EntryName(catalog_name(prefix + schema), catalog_name(table)),
        path,
        _columns(metadata),
        {NODE: str(node), TABLE: f"{schema}.{table}"},
        (metadata["table-uuid"], folder_of(path)),
        metadata,
    )


def found_metadata(
    location: str, properties: Mapping[str, str], original: Any = None
) -> FoundEntry:
    """Return what a catalog has that knows a table by its metadata file alone."""
    name = location.rpartition("/")[2]
    return FoundEntry(
        location,
        (),
        properties,
        original,
        folder_of(location),
        None if _OURS.fullmatch(name) else f"its metadata is now {location}",
    )


def folder_of(path: str) -> str:
    """Return the folder of a metadata file, as it can be compared: catalogs write the scheme of a
    local path, or none, and Hadoop's name of S3."""
    folder = path.rpartition("/")[0]
    return re.sub(r"^file:/+", "/", folder).replace("s3a://", "s3://", 1)


def _columns(metadata: Mapping[str, Any]) -> tuple[EntryColumn, ...]:
    current = metadata["current-schema-id"]
    fields = next(s for s in metadata["schemas"] if s["schema-id"] == current)["fields"]
    return tuple(
        EntryColumn(field["name"], _ddl(field["type"]), not field["required"])
        for field in fields
    )


def _ddl(kind: Any) -> str:
    """Return a type in Spark's words."""
    if isinstance(kind, str):
        return _SPARK.get(kind, kind.replace(" ", ""))
    if kind["type"] == "list":
        return f"array<{_ddl(kind['element'])}>"
    if kind["type"] == "map":
        return f"map<{_ddl(kind['key'])},{_ddl(kind['value'])}>"
    parts = (f"`{f['name']}`:{_ddl(f['type'])}" for f in kind["fields"])
    return f"struct<{','.join(parts)}>"
