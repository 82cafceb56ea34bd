"""Checks that a Parquet file fits the table that it is about to join.

Comes in: a table's state and files below its local directory. Goes out: nothing, or an error that
names file and column. Called by ``spark.delta.deltatables`` before each commit, because a file that
does not fit would poison every later read of the table. Only local files are checked: elsewhere
reading a footer costs a request per file, and the writer is trusted.

A column that the file lacks reads as null, which is how Delta itself adds columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from wal2lake.errors import InternalError, StorageError
from wal2lake.lake.origins import COLUMNS
from wal2lake.lake.port import TableState
from wal2lake.lake.tablefiles import AddedFile
from wal2lake.pgtypes import arrow_from_ddl


def check_files(state: TableState, adds: Sequence[AddedFile], root: Path) -> None:
    """Raise StorageError for a missing or torn file, InternalError for a misfit."""
    ddls = {field.physical_name: field.spark_ddl for field in state.physical_fields}
    for name in COLUMNS:
        ddls.setdefault(name, "bigint")
    for added in adds:
        for column in _schema(root / added.path, added.size):
            # A table may have columns of types that only other writers write.
            ddl = ddls.get(column.name)
            expected = None if ddl is None else arrow_from_ddl(ddl)
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


def _same_type(actual: pa.DataType, expected: pa.DataType) -> bool:
    """Whether two types have the same values; Arrow's layout and the names of list items may
    differ."""
    if pa.types.is_dictionary(actual):
        actual = actual.value_type
    if pa.types.is_map(expected):
        return (
            pa.types.is_map(actual)
            and _same_type(actual.key_type, expected.key_type)
            and _same_type(actual.item_type, expected.item_type)
        )
    if pa.types.is_list(expected):
        return (
            pa.types.is_list(actual) or pa.types.is_large_list(actual)
        ) and _same_type(actual.value_type, expected.value_type)
    if pa.types.is_string(expected):
        return bool(pa.types.is_string(actual) or pa.types.is_large_string(actual))
    if pa.types.is_binary(expected):
        return bool(pa.types.is_binary(actual) or pa.types.is_large_binary(actual))
    if pa.types.is_timestamp(expected):
        return pa.types.is_timestamp(actual) and (actual.tz is None) == (
            expected.tz is None
        )
    return bool(actual == expected)
