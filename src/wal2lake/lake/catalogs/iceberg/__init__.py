"""Mirrored tables in Iceberg catalogs of others.

Takes: the metadata of mirrors. Gives: entries, and the clients of Iceberg's own kinds of catalogs.
Owns: what makes an entry that of a mirror. Never: overwrites a commit of another program.

    mirrored    a mirror as an entry, and how an entry is known as that of a mirror
    form        entries in catalogs of Hive's kind (``glue``, ``spark.hive``)
    updates     the changes that bring a table of a REST catalog to the mirror's metadata
    rest        REST catalogs
    sql         the tables of JDBC catalogs
"""

from wal2lake.lake.catalogs.iceberg.form import IcebergForm
from wal2lake.lake.catalogs.iceberg.mirrored import mirror_entry
from wal2lake.lake.catalogs.iceberg.rest import RestIcebergCatalog
from wal2lake.lake.catalogs.iceberg.sql import SqlIcebergCatalog

__all__ = ["IcebergForm", "RestIcebergCatalog", "SqlIcebergCatalog", "mirror_entry"]
