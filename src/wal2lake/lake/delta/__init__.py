"""Everything that a Delta table is made of, as files.

Takes: rows as Arrow tables, Delta's actions. Gives: Parquet files with their statistics, deletion
vectors, versions of the log. Owns: Delta's log and its actions, file names, fsync. Never: Spark,
interprets rows, or decides which rows to write.

    log             the transaction log: reading and writing versions
    protocol        what features of a table demand of a writer
    versions        reading any version; checkpoints
    fields          a column's PostgreSQL type in a schema's metadata
    schema          types of a schema, and their names in Spark's DDL
    schemachange    the metadata of a table whose columns change
    datafile        data files, from Arrow tables
    stats           their statistics
    fit             checks that a file's columns fit its table
    deletionvectors reading and writing them; ``z85`` is their text
    durability      fsync of files and directories
"""

from wal2lake.lake.delta.datafile import TableWriter, discard_added
from wal2lake.lake.store import local_path

__all__ = ["TableWriter", "discard_added", "local_path"]
