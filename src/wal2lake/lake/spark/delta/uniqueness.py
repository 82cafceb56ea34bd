"""Finds keys of new files that the table already has, or that the files hold twice.

Comes in: a version of a table, finished files below its location, the key. Goes out: yes or no.
Delta enforces no key, so a writer that adds rows must look for duplicates first. A stream's
changes are looked up row by row where they are staged (``lake.upsert``). This
check is for a whole copy: one join or one grouping of the key columns, on the executors.

Called by ``deltatables``.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession

from wal2lake.lake.port import TableState
from wal2lake.lake.spark.delta.filerows import rows_of_files
from wal2lake.lake.tablefiles import AddedFile
from wal2lake.pgtypes.equality import alike_key


def any_key_taken(
    spark: SparkSession,
    state: TableState,
    adds: Sequence[AddedFile],
    key: Sequence[str],
) -> bool:
    """Whether a row of ``adds`` has the key of a row in that version."""
    compared = _compared(state, key)
    coming = _keys_of_files(spark, state, adds, key)
    stored = (
        spark.read.format("delta")
        .option("versionAsOf", state.version)
        .load(state.location)
        .selectExpr(*compared)
    )
    return bool(coming.join(stored, _names(key), "left_semi").head(1))


def any_key_twice(
    spark: SparkSession,
    state: TableState,
    adds: Sequence[AddedFile],
    key: Sequence[str],
) -> bool:
    """Whether two rows of ``adds`` have the same key."""
    coming = _keys_of_files(spark, state, adds, key)
    repeated = coming.groupBy(*_names(key)).count().where("`count` > 1")
    return bool(repeated.head(1))


def _keys_of_files(
    spark: SparkSession,
    state: TableState,
    adds: Sequence[AddedFile],
    key: Sequence[str],
) -> DataFrame:
    files = {file.path: dict(file.partition) for file in adds}
    frame = rows_of_files(spark, state, files, key)
    return frame.selectExpr(*_compared(state, key))


def _names(key: Sequence[str]) -> list[str]:
    """Return names for the compared columns that need no quotes."""
    return [f"k{i}" for i in range(len(key))]


def _compared(state: TableState, key: Sequence[str]) -> list[str]:
    """Return SQL for the key's columns that makes equal values identical."""
    alike = alike_key(state.fields, key)
    return [f"{sql} AS {name}" for sql, name in zip(alike, _names(key), strict=True)]
