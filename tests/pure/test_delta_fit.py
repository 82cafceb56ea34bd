"""Do a file's columns fit its table?"""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from wal2lake.errors import InternalError, StorageError
from wal2lake.lake.delta.fit import check_files
from wal2lake.lake.port import PhysicalField, TableState
from wal2lake.lake.tablefiles import AddedFile


def table(**columns: str) -> TableState:
    physical = tuple(
        PhysicalField(name, name, None, ddl) for name, ddl in columns.items()
    )
    return TableState("/t", "id", 0, {}, (), physical, False, {})


def added(root: Path, **columns: pa.Array) -> AddedFile:
    pq.write_table(pa.table(columns), root / "part.parquet")
    return AddedFile("part.parquet", (root / "part.parquet").stat().st_size, 0, None)


def test_a_column_that_only_others_write_stops_no_file_without_it(
    tmp_path: Path,
) -> None:
    file = added(tmp_path, id=pa.array([1], pa.int32()))
    check_files(table(id="int", doc="variant", place="geometry"), [file], tmp_path)


@pytest.mark.parametrize(
    "column", [pa.array(["1"]), pa.array([1], pa.int64()), pa.array([1.0])]
)
def test_another_type_is_refused(tmp_path: Path, column: pa.Array) -> None:
    file = added(tmp_path, id=column)
    with pytest.raises(InternalError, match=r'column "id" is .*, expected int32'):
        check_files(table(id="int"), [file], tmp_path)


def test_a_column_that_the_table_does_not_have_is_refused(tmp_path: Path) -> None:
    file = added(tmp_path, other=pa.array([1]))
    with pytest.raises(InternalError, match="expected no such column"):
        check_files(table(id="int"), [file], tmp_path)


def test_a_torn_file_is_refused(tmp_path: Path) -> None:
    file = added(tmp_path, id=pa.array([1], pa.int32()))
    with (tmp_path / "part.parquet").open("ab") as torn:
        torn.write(b"x")
    with pytest.raises(StorageError, match="its size is not"):
        check_files(table(id="int"), [file], tmp_path)
