"""Reads columns of data files that no version of a table names, or not these alone, as a data
frame.

Comes in: a table's state, files below its location, column names. Goes out: a data frame. Values
of partition columns are not in the files; they are joined by the file's name.

Called by ``uniqueness`` and by ``branch.keys``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.functions import broadcast, col
from pyspark.sql.types import DataType, StructField, StructType

from wal2lake.lake.partitions import column_of
from wal2lake.lake.port import TableState
from wal2lake.pgtypes import arrow_from_ddl
from wal2lake.pgtypes.spark_ddl import identifier

_GLOB: Final = re.compile(r"([\\*?\[\]{}])")
"""Characters in a path that Hadoop reads as a pattern."""

_FILE: Final = "wal2lake file name"


def rows_of_files(
    spark: SparkSession,
    state: TableState,
    files: Mapping[str, Mapping[str, str | None]],
    columns: Sequence[str],
) -> DataFrame:
    """Read ``columns`` of ``files``, which maps a path to its partition values. A path is
    relative to the table and not percent-encoded. Deleted rows are included."""
    physical = {field.name: field for field in state.physical_fields}
    read_fields = [physical[name] for name in columns]
    schema = StructType(
        [
            StructField(target.physical_name, DataType.fromDDL(target.spark_ddl), True)
            for target in read_fields
            if not target.is_partition
        ]
    )
    paths = [_GLOB.sub(r"\\\1", f"{state.location}/{path}") for path in files]
    frame = spark.read.schema(schema).parquet(*paths)
    partitioned = [target for target in read_fields if target.is_partition]
    if partitioned:
        names = [path.rsplit("/", 1)[-1] for path in files]
        arrays = [pa.array(names)]
        for target in partitioned:
            kind = arrow_from_ddl(target.spark_ddl)
            values = [f.get(target.physical_name) for f in files.values()]
            arrays.append(
                pa.concat_arrays([column_of(value, kind, 1) for value in values])
            )
        by_file = spark.createDataFrame(
            pa.table(
                arrays, names=[_FILE, *(target.physical_name for target in partitioned)]
            )
        )
        frame = frame.withColumn(_FILE, col("_metadata.file_name")).join(
            broadcast(by_file), _FILE
        )
    return frame.select(
        *(identifier(target.physical_name) for target in read_fields)
    ).toDF(*columns)
