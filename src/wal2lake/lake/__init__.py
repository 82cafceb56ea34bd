"""Lakehouse tables: Delta Lake, read and written with Arrow where possible, otherwise with Spark.

Takes: locations, column definitions, finished Parquet files, SQL text. Gives: table versions and
cursors, Arrow batches. Owns: the Spark session, the content of a Delta commit and its durability.
Never: decides what to write, or reads the change log.

Each folder is a room with a face, its ``__init__``; other rooms import from the faces and from
here. Only ``spark`` imports Spark. From top to bottom:

    spark         the session, queries, the table port, batches, branches
    batch         the port that applies batches
    branch        the net change of a transaction's branch, and checks of its rows
    capture       the changes of rows, from a table's commits
    retention     files that no version needs
    catalogs      entries in catalogs of others
    compaction    small files rewritten as larger ones
    plain         reading and changing a few rows without Spark
    upsert        a keyed batch in memory: new rows and deletion vectors
    staging       rows of the change log as typed Arrow and Parquet
    delta         data files, deletion vectors, Delta's log
    store         where files are: a directory or an object store

Modules of this folder, which need none of the others:

    port, expressions, executors   the ports: a table, expressions, work in executors
    tablefiles    data files of a version, for this node's writers
    partitions    rows divided among partitions, and partition values as text
    origins       the writer of each row, and the time, beside the rows
    keyindex      a cache of where keys are in data files
    prefetch      an iterator that runs one step ahead
    rowtexts      rows as PostgreSQL's messages show them
    jars          the Java runtime and Delta's jars
"""

from wal2lake.lake.executors import Executors, Pool
from wal2lake.lake.expressions import Expressions
from wal2lake.lake.jars import JarSource, locate_jars
from wal2lake.lake.keyindex import KeyIndex
from wal2lake.lake.origins import LOCAL, BatchCommits, tagged
from wal2lake.lake.partitions import instants
from wal2lake.lake.port import (
    INDEXED_COLUMNS,
    CommitConflict,
    Committed,
    Cursor,
    FieldSpec,
    NextField,
    PhysicalField,
    TablePort,
    TableSize,
    TableState,
    can_cluster,
    can_partition,
)
from wal2lake.lake.prefetch import Prefetched
from wal2lake.lake.rowtexts import row_texts
from wal2lake.lake.tablefiles import (
    AddedFile,
    DataFile,
    add_action,
    files_from_json,
    files_to_json,
)

__all__ = [
    "INDEXED_COLUMNS",
    "LOCAL",
    "AddedFile",
    "BatchCommits",
    "CommitConflict",
    "Committed",
    "Cursor",
    "DataFile",
    "Executors",
    "Expressions",
    "FieldSpec",
    "JarSource",
    "KeyIndex",
    "NextField",
    "PhysicalField",
    "Pool",
    "Prefetched",
    "TablePort",
    "TableSize",
    "TableState",
    "add_action",
    "can_cluster",
    "can_partition",
    "files_from_json",
    "files_to_json",
    "instants",
    "locate_jars",
    "row_texts",
    "tagged",
]
