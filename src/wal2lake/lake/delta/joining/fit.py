"""Does a Parquet file fit the table that it is about to join?

Comes in: a table's state and files below its local directory. Goes out: nothing, or an
error that names file and column. Called by ``delta.py`` before each commit, because a file
that does not fit would poison every later read of the table. Only for local storage:
elsewhere a footer is a request per file, and the writer is trusted.

A column that the file lacks reads as null, which is how Delta itself adds columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_type

from wal2lake.errors import InternalError, StorageError
from wal2lake.lake.delta.fields import spark_type
from wal2lake.lake.origins import COLUMNS
from wal2lake.lake.port import TableState
from wal2lake.lake.tablefiles import AddedFile


def check_files(state: TableState, adds: Sequence[AddedFile], root: Path) -> None:
    """Raise StorageError for a missing or torn file, InternalError for a misfit."""
    wanted = {
        field.physical_name: to_arrow_type(spark_type(field.spark_ddl))
        for field in state.physical_fields
    }
    for name in COLUMNS:
        wanted.setdefault(name, pa.int64())
    for added in adds:
        for column in _schema(root / added.path, added.size):
            expected = wanted.get(column.name)
            if expected is None or not _same_type(column.type, expected):
                raise InternalError(
                    f'file "{added.path}" does not fit the table at'
                    f' "{state.location}": column "{column.name}" is {column.type},'
                    f" expected {expected or 'no such column'}"
                )


def _schema(path: Path, size: int) -> pa.Schema:
    try:
        if path.stat().st_size == size:
            return pq.read_schema(path)
        reason = f"its size is not {size} bytes"
    except FileNotFoundError:
        reason = "it does not exist"
    except pa.ArrowInvalid:
        reason = "it is not a Parquet file"
    raise StorageError(
        f'cannot add file "{path}" to its table: {reason}', sqlstate="58P01"
    )


def _same_type(found: pa.DataType, wanted: pa.DataType) -> bool:
    """Same values; how Arrow lays them out and names list items does not matter."""
    if pa.types.is_dictionary(found):
        found = found.value_type
    if pa.types.is_map(wanted):
        return (
            pa.types.is_map(found)
            and _same_type(found.key_type, wanted.key_type)
            and _same_type(found.item_type, wanted.item_type)
        )
    if pa.types.is_list(wanted):
        return (
            pa.types.is_list(found) or pa.types.is_large_list(found)
        ) and _same_type(found.value_type, wanted.value_type)
    if pa.types.is_string(wanted):
        return bool(pa.types.is_string(found) or pa.types.is_large_string(found))
    if pa.types.is_binary(wanted):
        return bool(pa.types.is_binary(found) or pa.types.is_large_binary(found))
    if pa.types.is_timestamp(wanted):
        return pa.types.is_timestamp(found) and (found.tz is None) == (
            wanted.tz is None
        )
    return bool(found == wanted)
