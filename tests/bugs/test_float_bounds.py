"""Files had Parquet bounds of real and double, which leave NaN out: a reader that trusts
them, as Spark does, did not find the rows of ``where f = 'NaN'`` or ``f > 5``."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from wal2lake.lake.delta.datafile import DataFileWriter


def test_files_have_no_bounds_of_floats(tmp_path: Path) -> None:
    rows = pa.table(
        {
            "id": pa.array([1, 2], pa.int32()),
            "f4": pa.array([1.0, float("nan")], pa.float32()),
            "f8": pa.array([0.0, float("nan")], pa.float64()),
        }
    )
    with DataFileWriter(str(tmp_path)) as writer:
        writer.write(rows)
        writer.finish()
    group = pq.ParquetFile(writer.path).metadata.row_group(0)
    has_bounds = {
        group.column(i).path_in_schema: (
            (found := group.column(i).statistics) is not None and found.has_min_max
        )
        for i in range(group.num_columns)
    }
    assert has_bounds == {"id": True, "f4": False, "f8": False}
