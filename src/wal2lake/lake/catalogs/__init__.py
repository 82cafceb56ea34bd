"""Catalogs of others: where readers outside of the node find its tables by name.

Takes: tables as entries. Gives: what a catalog has under a name, and the steps that make it show a
table. Owns: the names, the columns and the mark of the node's entries. Never: touches an entry
without the node's mark, or a file of a table.

    port        an entry, and the operations of a catalog
    entries     a table as an entry: names, location, marks
    types       columns' types as catalogs write them
    deciding    which step makes an entry right
    options     how a catalog is reached, and the words when it is not
    jsonservice requests with JSON over HTTP
    forms       how Glue and Hive store an entry
    glue        AWS Glue
    unity       Unity Catalog, over REST
    iceberg/    entries of mirrored tables, and the clients of Iceberg's own catalogs

The client of the Hive metastore needs Spark's JVM and is in ``lake.spark``.
"""

from wal2lake.lake.catalogs.deciding import EntryStep, step_after, step_for
from wal2lake.lake.catalogs.entries import NODE, TABLE, entry_of, hive_properties
from wal2lake.lake.catalogs.forms import DELTA, EntryForm
from wal2lake.lake.catalogs.glue import GlueCatalog
from wal2lake.lake.catalogs.iceberg import (
    IcebergForm,
    RestIcebergCatalog,
    SqlIcebergCatalog,
    mirror_entry,
)
from wal2lake.lake.catalogs.options import CatalogOptions
from wal2lake.lake.catalogs.port import (
    CatalogEntry,
    CatalogUnavailable,
    EntryChange,
    EntryChanged,
    EntryColumn,
    EntryName,
    EntryRefused,
    ExternalCatalog,
    FoundEntry,
    GroupedChanges,
)
from wal2lake.lake.catalogs.types import hive_type, unity_column
from wal2lake.lake.catalogs.unity import UnityCatalog

__all__ = [
    "DELTA",
    "NODE",
    "TABLE",
    "CatalogEntry",
    "CatalogOptions",
    "CatalogUnavailable",
    "EntryChange",
    "EntryChanged",
    "EntryColumn",
    "EntryForm",
    "EntryName",
    "EntryRefused",
    "EntryStep",
    "ExternalCatalog",
    "FoundEntry",
    "GlueCatalog",
    "GroupedChanges",
    "IcebergForm",
    "RestIcebergCatalog",
    "SqlIcebergCatalog",
    "UnityCatalog",
    "entry_of",
    "hive_properties",
    "hive_type",
    "mirror_entry",
    "step_after",
    "step_for",
    "unity_column",
]
