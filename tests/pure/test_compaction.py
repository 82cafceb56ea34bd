"""Which files of a table are written anew, and in which order their rows come then."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from wal2lake.lake.compaction.compactor import Compactor
from wal2lake.lake.compaction.rewrite import (
    MANY,
    MOST_BYTES,
    SMALL_BYTES,
    carried,
    compact,
    worth_compacting,
)
from wal2lake.lake.delta.datafile import write_data_file
from wal2lake.lake.delta.deletionvectors import write_vectors
from wal2lake.lake.port import Committed, FieldSpec, PhysicalField, TableState
from wal2lake.lake.tablefiles import AddedFile, DataFile, add_action
from wal2lake.lake.upsert.stored import StoredRows
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
    (vector,) = write_vectors(str(tmp_path), [np.array([2], np.uint64)])
    stored[1] = DataFile({**stored[1].action, "deletionVector": vector})

    def order(key: tuple[int, ...]) -> list[str]:
        (one,) = compact(state, stored, key).files
        added = one.added
        found = pq.read_table(tmp_path / added.path, partitioning=None)
        return [str(value) for value in found.column("a").to_pylist()]

    assert order((1, 0)) == ["a", "b", "c", "x", "z"]
    assert order(()) == order((2,)) == ["x", "a", "c", "b", "z"]


NUMBER = (FieldSpec("n", "bigint", pg_type_oid=Oid(20)),)
NUMBER_PHYSICAL = (PhysicalField("n", "n", None, "bigint"),)


VECTORS = {"delta.enableDeletionVectors": "true"}


class Table:
    """Files of numbers below one directory."""

    def __init__(self, directory: Path) -> None:
        self.state = TableState(
            str(directory), "id", 1, {}, NUMBER, NUMBER_PHYSICAL, False, VECTORS
        )
        self.files: dict[str, DataFile] = {}

    def add(self, numbers: list[int]) -> None:
        rows = pa.table({"n": pa.array(numbers, pa.int64())})
        added = write_data_file(rows, self.state.location, NUMBER, NUMBER_PHYSICAL)
        self.put(added)

    def put(self, added: AddedFile) -> None:
        one = DataFile(add_action(added, data_change=False))
        self.files[one.key] = one

    def delete(self, key: str, rows: list[int]) -> None:
        """More of its rows, by their place; all of them: the file goes."""
        one = self.files.pop(key)
        gone = StoredRows(self.state, [one]).deleted(one)
        gone = np.union1d(gone, np.array(rows, np.uint64))
        if len(gone) < (one.rows or 0):
            (vector,) = write_vectors(self.state.location, [gone])
            self.files[key] = DataFile({**one.action, "deletionVector": vector})

    def numbers(self) -> list[int]:
        found = StoredRows(self.state, list(self.files.values())).live([0])
        return sorted(n for part in found for n in part.column(0).to_pylist())


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data(), key=st.sampled_from([(0,), ()]))
def test_what_goes_while_it_is_written_is_gone(
    data: st.DataObject, key: tuple[int, ...], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Rows deleted before and meanwhile, files that go meanwhile, and files that come."""

    def deletes() -> None:
        for name in list(table.files):
            most = (table.files[name].rows or 1) - 1
            places = st.lists(st.integers(0, most), unique=True)
            rows = data.draw(places | st.just(list(range(most + 1))))
            if rows:
                table.delete(name, rows)

    table = Table(tmp_path_factory.mktemp("t"))
    first = 0
    for size in data.draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)):
        table.add(list(range(first + size, first, -1)))
        first += size
    deletes()
    left_out = data.draw(st.sampled_from([0, 1]))
    chosen = list(table.files.values())[left_out:]
    done = compact(table.state, chosen, key)
    assert done.rows == sum((f.rows or 0) - f.deleted for f in chosen)
    deletes()
    table.add([1000])
    rows = table.numbers()
    now = carried(done, table.state, table.files)
    if now is None:
        assert not any(file.key in table.files for file in chosen)
        return
    for gone in now.replaced:
        del table.files[gone.file.key]
    for added in now.adds:
        table.put(added)
    assert table.numbers() == rows
    assert not any(file.key in table.files for file in chosen)
    assert all((file.rows or 0) > file.deleted for file in table.files.values())


def test_rows_that_have_come_back_are_not_lost(tmp_path: Path) -> None:
    """A RESTORE, or other columns: what was written fits no more."""
    table = Table(tmp_path)
    table.add([1, 2, 3])
    (before,) = table.files.values()
    table.delete(before.key, [1])
    done = compact(table.state, list(table.files.values()))
    assert carried(done, table.state, table.files) is not None
    assert carried(done, table.state, {before.key: before}) is None
    other = replace(table.state, table_id="other")
    assert carried(done, other, table.files) is None
    mapped = (PhysicalField("n", "col-1", 1, "bigint"),)
    renamed = replace(table.state, physical_fields=mapped)
    assert carried(done, renamed, table.files) is None


def test_a_table_without_deletion_vectors_gets_none(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.state = replace(table.state, properties={})
    table.add([1, 2, 3])
    table.add([4])
    first, second = table.files.values()
    done = compact(table.state, [first, second])
    assert carried(done, table.state, table.files) is not None
    # A change has rewritten a file: its rows, in the new one, are gone.
    assert carried(done, table.state, {first.key: first}) is None


def test_a_table_is_compacted_once_at_a_time(tmp_path: Path) -> None:
    """A second one, asked for while the first was written, left the first one's file behind."""
    table = Table(tmp_path)
    for number in range(MANY + 1):
        table.add([number])
    written = threading.Event()

    class Tables:
        def state(self, location: str) -> TableState:
            return table.state

        def files(self, state: TableState) -> list[DataFile]:
            if not written.is_set():
                # Once more, while it is looked at.
                written.set()
                compactor.ask(location, ())
            return list(table.files.values())

        def register_background(self, work: object) -> None:
            pass

        def commit_files(self, *_: object, **__: object) -> Committed:
            raise AssertionError("nothing is committed here")

    compactor = Compactor(Tables())
    location = table.state.location
    before = set(tmp_path.iterdir())
    compactor.ask(location, ())
    compactor.wait()
    done = compactor.take(location)
    assert done is not None
    assert len(set(tmp_path.iterdir()) - before) == len(done.files) == 1
