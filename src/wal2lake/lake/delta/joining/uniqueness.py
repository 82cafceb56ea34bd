"""Do files that are about to join a table bring a key that it has?

Comes in: a version of a table, finished files below its location, the key. Goes out: yes or no.
Delta enforces no key, so whoever adds rows that may meet others has to look first. The changes
of a stream are looked up row by row where they are staged (``lake.upsert``, ``lake.merge``);
this is for a whole copy: one join of the key columns, on the executors.

Called by ``tables``.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import SparkSession

from wal2lake.lake.delta.joining.rows import rows_of_files
from wal2lake.lake.port import TableState
from wal2lake.lake.tablefiles import AddedFile
from wal2lake.pgtypes.equality import alike_key


def any_key_taken(
    spark: SparkSession,
    state: TableState,
    adds: Sequence[AddedFile],
    key: Sequence[str],
) -> bool:
    """Whether some row of ``adds`` has the key of a row in that version."""
    names = [f"k{i}" for i in range(len(key))]
    files = {file.path: dict(file.partition) for file in adds}
    alike = alike_key(state.fields, key)
    compared = [f"{sql} AS {name}" for sql, name in zip(alike, names, strict=True)]
    coming = rows_of_files(spark, state, files, key).selectExpr(*compared)
    stored = (
        spark.read.format("delta")
        .option("versionAsOf", state.version)
        .load(state.location)
        .selectExpr(*compared)
    )
    return bool(coming.join(stored, names, "left_semi").head(1))
