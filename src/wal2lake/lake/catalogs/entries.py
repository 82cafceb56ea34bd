"""Describes a table as an entry: its name, its location, the node's marks.

Comes in: a table's name, location and columns. Goes out: a ``CatalogEntry``. Pure.

Names. Glue and Hive have lower-case names of letters, digits and underscores, and a reader of
Unity has to quote others. So each other character becomes an underscore. Two tables whose names
become the same are a conflict, which ``deciding`` finds by the mark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from wal2lake.lake.catalogs.port import CatalogEntry, EntryColumn, EntryName
from wal2lake.lake.port import FieldSpec

NODE: Final = "wal2lake.node"
"""Property of an entry: system identifier of the node that has made it."""

TABLE: Final = "wal2lake.table"
"""Property of an entry: ``schema.table`` in the node."""

_OTHER: Final = re.compile(r"[^a-z0-9_]")

_FORM: Final[Mapping[str, str]] = {
    "EXTERNAL": "TRUE",
    "spark.sql.sources.provider": "delta",
    "table_type": "DELTA",
}
"""Marks by which readers of Hive's kind of catalogs know a Delta table: Spark and Trino by the
provider, Athena by table_type. EXTERNAL: to drop the entry removes no file."""


def entry_of(
    node: int,
    schema: str,
    table: str,
    location: str,
    fields: Sequence[FieldSpec],
    *,
    prefix: str = "",
) -> CatalogEntry:
    """Describe a table. ``prefix`` begins the names of databases."""
    return CatalogEntry(
        schema,
        table,
        EntryName(catalog_name(prefix + schema), catalog_name(table)),
        _url(location),
        tuple(EntryColumn(f.name, f.spark_ddl, f.nullable) for f in fields),
        {NODE: str(node), TABLE: f"{schema}.{table}"},
    )


def hive_properties(entry: CatalogEntry) -> dict[str, str]:
    """Return all properties of an entry in a catalog of Hive's kind."""
    return {**_FORM, **entry.properties}


def catalog_name(text: str) -> str:
    """Return a name that every catalog takes."""
    return _OTHER.sub("_", text.lower())


def _url(location: str) -> str:
    # Hadoop takes the characters of a path literally: nothing is encoded.
    return f"file://{location}" if location.startswith("/") else location
