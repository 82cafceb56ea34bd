"""Reading Parquet files of tables and of the change log, wherever they are.

Takes: a file's place and its size, row groups, columns. Gives: Arrow tables and batches. Owns:
which parts of a file are asked for at once, and the error for a damaged data file. Never: knows a
table, or what a column means.

    opened  a file that is open
"""

from wal2lake.lake.parquet.opened import (
    OpenParquet,
    is_of,
    open_parquet,
    unreadable,
)

__all__ = ["OpenParquet", "is_of", "open_parquet", "unreadable"]
