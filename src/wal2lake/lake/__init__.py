"""Lakehouse tables, and the only room that knows Spark.

Takes: locations, column definitions, finished Parquet files, SQL text. Gives: table
versions and cursors, Arrow batches. Owns: the Spark session, the jars, what a Delta
commit is and when it is durable. Never: decides what to write, or reads the change log.

The port's values are imported from here without loading Spark; ``session``, ``delta``
and ``query`` load it, ``stats`` needs PyArrow only.
"""

from wal2lake.lake.port import (
    CommitConflict,
    Committed,
    Cursor,
    FieldSpec,
    NextField,
    PhysicalField,
    TablePort,
    TableState,
)
from wal2lake.lake.tablefiles import AddedFile, files_from_json, files_to_json

__all__ = [
    "AddedFile",
    "CommitConflict",
    "Committed",
    "Cursor",
    "FieldSpec",
    "NextField",
    "PhysicalField",
    "TablePort",
    "TableState",
    "files_from_json",
    "files_to_json",
]
