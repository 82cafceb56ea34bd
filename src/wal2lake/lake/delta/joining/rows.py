"""Columns of data files that no version of a table has, or not these alone, for Spark to join.

Comes in: a table's state, files below its location, column names. Goes out: a data frame. What a
file does not have because it is its partition's comes by the file's name.

Called by ``uniqueness`` and by ``branch.keys``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast, col
from pyspark.sql.types import StructField, StructType

from wal2lake.lake.delta.fields import spark_type
from wal2lake.lake.partitions import column_of
from wal2lake.lake.port import TableState
from wal2lake.pgtypes import arrow_from_ddl
from wal2lake.pgtypes.spark_ddl import identifier

_GLOB: Final = re.compile(r"([\\*?\[\]{}])")
"""Hadoop reads these in a path as a pattern."""

_FILE: Final = "wal2lake file name"


def rows_of_files(
    spark: SparkSession,
    state: TableState,
    files: Mapping[str, Mapping[str, str | None]],
    columns: Sequence[str],
) -> DataFrame:
    """``columns`` of ``files``: partition values by path, relative to the table and not
    percent-encoded. Deleted rows too."""
    physical = {field.name: field for field in state.physical_fields}
    wanted = [physical[name] for name in columns]
    schema = StructType(
        [
            StructField(one.physical_name, spark_type(one.spark_ddl), True)
            for one in wanted
            if not one.is_partition
        ]
    )
    paths = [_GLOB.sub(r"\\\1", f"{state.location}/{path}") for path in files]
    frame = spark.read.schema(schema).parquet(*paths)
    apart = [one for one in wanted if one.is_partition]
    if apart:
        names = [path.rsplit("/", 1)[-1] for path in files]
        arrays = [pa.array(names)]
        for one in apart:
            kind = arrow_from_ddl(one.spark_ddl)
            values = [f.get(one.physical_name) for f in files.values()]
            arrays.append(
                pa.concat_arrays([column_of(value, kind, 1) for value in values])
            )
        known = spark.createDataFrame(
            pa.table(arrays, names=[_FILE, *(one.physical_name for one in apart)])
        )
        frame = frame.withColumn(_FILE, col("_metadata.file_name")).join(
            broadcast(known), _FILE
        )
    return frame.select(*(identifier(one.physical_name) for one in wanted)).toDF(
        *columns
    )
