"""Which files of a table are written anew, and in which order their rows come then."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from wal2lake.lake.delta.datafile import write_data_file
from wal2lake.lake.delta.deletionvectors import write_vectors
from wal2lake.lake.port import FieldSpec, PhysicalField, TableState
from wal2lake.lake.tablefiles import DataFile, add_action
from wal2lake.lake.upsert.compaction import (
    MANY,
    MOST_BYTES,
    SMALL_BYTES,
    compact,
    worth_compacting,
)
from wal2lake.model import Oid


def file(name: str, size: int, rows: int, deleted: int = 0) -> DataFile:
    action = {"path": name, "size": size, "stats": json.dumps({"numRecords": rows})}
    if deleted:
        return DataFile({**action, "deletionVector": {"cardinality": deleted}})
    return DataFile(action)


def test_a_few_small_files_stay_and_many_become_one() -> None:
    small = [file(f"s{n}", 1000 + n, 10) for n in range(MANY)]
    large = file("l", SMALL_BYTES, 10)
    assert worth_compacting([*small[1:], large]) == []
    assert worth_compacting([*small, large]) == small


def test_a_large_file_is_written_anew_when_most_of_its_rows_are_gone() -> None:
    half = file("half", SMALL_BYTES, 100, 50)
    most = file("most", SMALL_BYTES, 100, 51)
    huge = file("huge", 3 * MOST_BYTES, 100, 51)
    nearly_empty = file("nearly", 3 * MOST_BYTES, 100, 99)
    assert worth_compacting([half, most, huge, nearly_empty]) == [nearly_empty, most]


def test_what_is_written_in_one_go_is_bounded() -> None:
    files = [file(f"f{n}", SMALL_BYTES - 1, 100) for n in range(MANY)]
    assert len(worth_compacting(files)) == MOST_BYTES // (SMALL_BYTES - 1)


def test_rows_come_in_the_order_of_the_key(tmp_path: Path) -> None:
    """Of two columns, the second one first; without a key, or by one that cannot be ordered,
    as they were."""
    fields = (
        FieldSpec("a", "string", pg_type_oid=Oid(25)),
        FieldSpec("b", "bigint", pg_type_oid=Oid(20)),
        FieldSpec("c", "array<int>", pg_type_oid=Oid(1007)),
    )
    physical = tuple(PhysicalField(f.name, f.name, None, f.spark_ddl) for f in fields)
    state = TableState(str(tmp_path), "id", 1, {}, fields, physical, False, {})
    stored = []
    rows = [("x", 3), ("a", 1), ("c", 2), ("b", 2), ("z", None), ("gone", 0)]
    for part in (rows[:3], rows[3:]):
        table = pa.table(
            {
                "a": [a for a, _ in part],
                "b": pa.array([b for _, b in part], pa.int64()),
                "c": pa.array([[1]] * len(part), pa.list_(pa.int32())),
            }
        )
        added = write_data_file(table, str(tmp_path), fields, physical)
        stored.append(DataFile(add_action(added, data_change=True)))
    (vector,) = write_vectors(str(tmp_path), [[2]])  # type: ignore[list-item]
    stored[1] = DataFile({**stored[1].action, "deletionVector": vector})

    def order(key: tuple[int, ...]) -> list[str]:
        (added,) = compact(state, stored, key).adds
        found = pq.read_table(tmp_path / added.path, partitioning=None)
        return [str(value) for value in found.column("a").to_pylist()]

    assert order((1, 0)) == ["a", "b", "c", "x", "z"]
    assert order(()) == order((2,)) == ["x", "a", "c", "b", "z"]
