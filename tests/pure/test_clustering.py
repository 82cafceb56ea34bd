"""Which files of a clustered table are written as one cube, in which order, and what tags say."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.pure.test_compaction import Table

from wal2lake.lake.compaction import clustered
from wal2lake.lake.compaction.clustered import (
    Abandoned,
    cluster,
    order_of,
    worth_clustering,
)
from wal2lake.lake.compaction.rewrite import MANY, MOST_BYTES, carried
from wal2lake.lake.delta.log.background import BackgroundWork
from wal2lake.lake.delta.log.clustering import (
    clustering_columns,
    clustering_domain,
    references,
)
from wal2lake.lake.origins import UNKNOWN, tagged
from wal2lake.lake.tablefiles import Cube, DataFile, Replaced, add_action
from wal2lake.lake.upsert.stored import StoredRows
from wal2lake.model import Modified
from wal2lake.testing.waits import wait_until

MIB = 1 << 20


def file(
    name: str, size: int, cube: Cube | None = None, rows: int = 10, deleted: int = 0
) -> DataFile:
    action: dict[str, object] = {
        "path": name,
        "size": size,
        "stats": json.dumps({"numRecords": rows}),
        **({} if cube is None else cube.facts),
    }
    if deleted:
        action["deletionVector"] = {"cardinality": deleted}
    return DataFile(action)


def loose(count: int, size: int = MIB) -> list[DataFile]:
    return [file(f"l{n}", size + n) for n in range(count)]


def cube(name: str, *sizes: int, column: str = "id") -> list[DataFile]:
    one = Cube(name, (column,))
    return [file(f"{name}{n}", size, one) for n, size in enumerate(sizes)]


def test_loose_files_wait_until_they_are_many_or_large() -> None:
    few = loose(MANY - 1)
    assert worth_clustering(few, ["id"]) == []
    assert worth_clustering([*few, *loose(1)], ["id"]) == [*loose(1), *few]
    (large,) = loose(1, clustered.LOOSE_BYTES)
    assert worth_clustering([large], ["id"]) == [large]
    assert worth_clustering([large, *few], ["id"]) == [*few, large]
    # What was clustered by other columns is loose, and one in which most rows are gone.
    other = cube("o", clustered.LOOSE_BYTES, column="x")
    assert worth_clustering(other, ["id"]) == other
    rotten = file("r", MIB, Cube("c", ("id",)), rows=10, deleted=6)
    assert worth_clustering([rotten, *cube("c", MIB, MIB)], ["id"]) == [rotten]
    assert worth_clustering(cube("c", 20 * MIB, 20 * MIB), ["id"]) == []
    # Nobody says how many rows it has.
    assert worth_clustering([DataFile({"path": "x", "size": 1 << 30})], ["id"]) == []


def test_cubes_go_along_that_are_not_much_larger_than_what_there_is() -> None:
    new = loose(MANY)
    small, middle = cube("s", 8 * MIB, 8 * MIB), cube("m", 47 * MIB)
    large = cube("l", *[30 * MIB] * 5)
    files = [*large, *small, *new, *middle]
    assert worth_clustering(files, ["id"]) == [*new, *small, *middle]
    # One too large for what is there stops those above it, too.
    files = [*new, *cube("t", 17 * MIB), *cube("u", 18 * MIB)]
    assert worth_clustering(files, ["id"]) == new


def test_what_is_clustered_in_one_go_is_bounded() -> None:
    half = loose(40, MOST_BYTES // 4)
    assert len(worth_clustering(half, ["id"])) == 3
    (huge,) = loose(1, clustered.MOST_CUBE_BYTES)
    assert worth_clustering([huge], ["id"]) == [huge]
    assert worth_clustering(loose(1, clustered.MOST_CUBE_BYTES + 1), ["id"]) == []
    many = file("m", 40 * MIB, rows=clustered.MOST_ROWS + 1)
    assert worth_clustering([many], ["id"]) == []
    cubes = [
        *cube("a", 120 * MIB),
        *cube("b", 300 * MIB),
        *cube("c", 320 * MIB),
    ]
    chosen = worth_clustering([*loose(1, MOST_BYTES), *cubes], ["id"])
    assert [one.path for one in chosen] == ["l0", "a0", "b0"]


def test_a_table_that_grows_has_few_cubes() -> None:
    """However long it goes on: their number is the logarithm of its size, and so is how often
    a row has been written."""
    files: list[DataFile] = []
    written = 0
    for step in range(1, 301):
        files += [file(f"{step}.{n}", 10_000) for n in range(16)]
        chosen = worth_clustering(files, ["id"])
        size = sum(one.size for one in chosen)
        assert size
        written += size
        files = [one for one in files if one not in chosen]
        files += cube(f"c{step}", size)
        assert len(files) <= 2 + np.log2(step)
    assert written < 300 * 160_000 * np.log(300) / np.log(1.5)


def test_rows_come_in_the_order_of_one_column_or_near_each_other_by_several() -> None:
    one = pa.table({"a": pa.array([3, None, 1, 2])})
    assert order_of(one).tolist() == [2, 3, 0, 1]
    side = 32
    a = np.repeat(np.arange(side), side)
    b = np.tile(np.arange(side) * 1000, side)
    order = order_of(pa.table({"a": a, "b": pa.array([f"{n:06}" for n in b])}))
    assert sorted(order.tolist()) == list(range(side * side))
    # A sixteenth of all rows is a quarter of each column's values.
    for part in np.split(order, 16):
        assert len(set(a[part])) == len(set(b[part])) == side // 4
    # Equal values are not told apart by where they were.
    skewed = pa.table({"a": np.zeros(64, np.int64), "b": np.arange(64)[::-1]})
    assert order_of(skewed).tolist() == list(range(64))[::-1]


@settings(max_examples=examples(60), deadline=None)
@given(data=st.data())
def test_the_same_rows_in_ranges_whatever_goes_meanwhile(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    def deletes() -> None:
        for name in list(table.files):
            most = (table.files[name].rows or 1) - 1
            places = st.lists(st.integers(0, most), unique=True)
            rows = data.draw(places | st.just(list(range(most + 1))))
            if rows:
                table.delete(name, rows)

    table = Table(tmp_path_factory.mktemp("t"))
    table.state = replace(table.state, clustering=("n",))
    numbers = st.lists(st.integers(0, 1000), min_size=1, max_size=30)
    for part in data.draw(st.lists(numbers, min_size=1, max_size=4)):
        table.add(part)
    deletes()
    chosen = list(table.files.values())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            clustered, "FILE_BYTES", data.draw(st.sampled_from([300, 1 << 20]))
        )
        patch.setattr(
            clustered, "SORTED_BYTES", data.draw(st.sampled_from([40, 1 << 20]))
        )
        done = cluster(table.state, chosen)
    assert done.rows == sum((f.rows or 0) - f.deleted for f in chosen)
    deletes()
    table.add([5000])
    rows = table.numbers()
    now = carried(done, table.state, table.files)
    if now is None:
        assert not any(one.key in table.files for one in chosen)
        return
    for gone in now.replaced:
        del table.files[gone.file.key]
    for added in now.adds:
        table.put(added)
    assert table.numbers() == rows
    cubes = [one for one in table.files.values() if one.cube is not None]
    assert len(cubes) == len(now.adds)
    assert len({one.cube for one in cubes}) <= 1
    bounds = sorted(bound for one in cubes if (bound := one.bounds("n")))
    assert all(a[1] <= b[0] for a, b in pairwise(bounds))


def test_another_clustering_is_another_table(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.state = replace(table.state, clustering=("n",))
    table.add([3, 1, 2])
    done = cluster(table.state, list(table.files.values()))
    assert carried(done, table.state, table.files) is not None
    assert carried(done, replace(table.state, clustering=()), table.files) is None


def test_a_file_that_loses_a_row_is_in_its_cube_still() -> None:
    (one,) = cube("c", MIB)
    kept = Replaced(one, {"cardinality": 1}).add(data_change=True)
    assert kept is not None
    assert DataFile(kept).cube == Cube("c", ("id",))
    assert file("x", 1).cube is None
    assert DataFile({**one.action, "clusteringProvider": "other"}).cube is None


def test_what_the_log_says_of_a_clustering() -> None:
    fields = [
        {"name": "An id", "metadata": {"delta.columnMapping.physicalName": "col-1"}},
        {"name": "v", "metadata": {}},
    ]
    metadata = {"schemaString": json.dumps({"fields": fields})}
    domain = clustering_domain(["v", "An id"], metadata)
    assert json.loads(str(domain["configuration"]))["clusteringColumns"] == [
        ["v"],
        ["col-1"],
    ]
    assert clustering_columns([domain], metadata) == ("v", "An id")
    tracking = {"domain": "delta.rowTracking", "configuration": "{}", "removed": False}
    assert clustering_columns([tracking], metadata) == ()
    assert clustering_columns([{**domain, "removed": True}], metadata) == ()
    inner = {**domain, "configuration": '{"clusteringColumns":[["v","x"]]}'}
    assert clustering_columns([inner], metadata) == ()
    assert references(["An id", "a_1", "a`b", "1a"]) == (
        "`An id`",
        "a_1",
        "`a``b`",
        "`1a`",
    )


def test_statistics_are_read(tmp_path: Path) -> None:
    """Of each file of a cube: without them nobody knows its range."""
    table = Table(tmp_path)
    table.state = replace(table.state, clustering=("n",))
    table.add(list(range(1000, 0, -1)))
    done = cluster(table.state, list(table.files.values()))
    for one in done.files:
        stats = json.loads(one.added.stats or "")
        assert (stats["minValues"]["n"], stats["maxValues"]["n"]) == (1, 1000)
        table.put(one.added)
    found = StoredRows(table.state, list(table.files.values())[1:]).live([0])
    assert [n for part in found for n in part.column(0).to_pylist()] == list(
        range(1, 1001)
    )


def test_who_has_made_a_row_stays_known(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.state = replace(table.state, clustering=("n",))
    table.add([5, 1])
    (first,) = table.files
    modified = Modified(7, 8, 9)
    table.files[first] = DataFile(tagged(table.files[first].action, modified))
    table.add([3])
    (one,) = cluster(table.state, list(table.files.values())).files
    made = DataFile(add_action(one.added, data_change=False))
    rows = StoredRows(table.state, [made])
    marks = rows.marks(np.zeros(3, np.int64), np.arange(3))
    assert marks.origin.tolist() == [7, UNKNOWN, 7]
    assert marks.xid.tolist()[::2] == [8, 8]


def test_a_table_that_is_dropped_waits_for_no_cube(tmp_path: Path) -> None:
    table = Table(tmp_path)
    table.state = replace(table.state, clustering=("n",))
    table.add(list(range(100)))
    table.add(list(range(50)))
    before = set(tmp_path.iterdir())
    began, goes_on = threading.Event(), threading.Event()
    asked: list[bool] = []

    def work(location: str) -> None:
        def is_left() -> bool:
            # Both files' keys are read, and a piece is written.
            if len(asked) == 3:
                began.set()
                assert goes_on.wait(30)
            asked.append(beside.is_left(location))
            return asked[-1]

        with pytest.raises(Abandoned):
            cluster(table.state, list(table.files.values()), is_left)
        asked.append(set(tmp_path.iterdir()) == before)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clustered, "SORTED_BYTES", 100)
        beside = BackgroundWork("cluster", work)
        beside.ask("t")
        assert began.wait(30)
        assert not beside.is_left("t")
        dropping = threading.Thread(target=beside.leave, args=("t",))
        dropping.start()
        wait_until(lambda: beside.is_left("t"))
        goes_on.set()
        dropping.join(30)
        beside.wait()
    assert asked == [False, False, False, True, True]
    assert not beside.is_left("t")
