"""The worker that mirrors: which tables, which version of each, and what it does about errors."""

from __future__ import annotations

import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyiceberg.table import StaticTable
from structlog.testing import capture_logs
from tests.fakes.mirrored_table import COLUMNS, MirroredTable
from tests.fakes.mirroring import MirroringNode

from wal2lake.catalog import Catalog, TableDef
from wal2lake.errors import StorageError
from wal2lake.lake.iceberg.place import MirrorPlace
from wal2lake.local.mirrors import wanted_mirrors
from wal2lake.local.mirrors import worker as worker_module
from wal2lake.model import Lsn, Oid
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.usefixtures("no_fsync")


def ids(table: MirroredTable) -> list[int] | None:
    if not (table.root / "_iceberg").exists():
        return None
    read = StaticTable.from_metadata(f"{table.location}/_iceberg")
    return sorted(read.scan().to_arrow()["id"].to_pylist())


def test_a_parameter_decides_before_the_subscription(tmp_path: Path) -> None:
    world = MirroringNode(tmp_path, "iceberg")
    by_source, not_this, local, own = (
        world.table(1),
        world.table(2, iceberg="false"),
        world.table(3, filled=False),
        world.table(4, filled=False, iceberg="true"),
    )
    world.worker.round()
    assert [ids(one) for one in (by_source, not_this, local, own)] == [
        [1],
        None,
        None,
        [4],
    ]


def test_a_node_without_mirrors_reads_no_table_from_the_catalog(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = MirroringNode(tmp_path)
    table = world.table(1)
    read: list[Catalog] = []
    tables = Catalog.tables

    def noted(catalog: Catalog) -> list[TableDef]:
        read.append(catalog)
        return tables(catalog)

    monkeypatch.setattr(Catalog, "tables", noted)
    world.worker.round()
    assert not read
    world.catalog.set_parameters(Oid(1), {"iceberg": "true"})
    world.worker.round()
    assert read
    assert ids(table) == [1]


def test_one_name_of_a_table_is_enough(tmp_path: Path) -> None:
    """A table and its partition are one table of the lake."""
    for number, values in enumerate((("true", "false"), ("false", "true"))):
        (tmp_path / str(number)).mkdir()
        world = MirroringNode(tmp_path / str(number))
        table = world.table(1, iceberg=values[0])
        (known,) = world.catalog.tables()
        other = replace(
            known, oid=Oid(2), name="p", parameters=(("iceberg", values[1]),)
        )
        world.catalog.create_table(other)
        world.worker.round()
        assert ids(table) == [1]


def test_the_published_version_is_shown(tmp_path: Path) -> None:
    world = MirroringNode(tmp_path, "iceberg")
    table = world.table(1)
    world.publish(100, {table: 1})
    table.append({"id": [2], "name": ["b"]})
    world.worker.round()
    assert ids(table) == [1]
    (wanted,) = wanted_mirrors(world.catalog, world.catalog.newest_vectors())
    assert (wanted.version, wanted.lsn) == (1, Lsn(100))
    world.publish(200, {table: 2})
    world.worker.round()
    assert ids(table) == [1, 2]


def test_a_version_is_durable_before_it_is_shown(tmp_path: Path) -> None:
    world = MirroringNode(tmp_path)
    table = world.table(1, filled=False, iceberg="true")
    world.worker.round()
    world.worker.round()
    assert world.synced == [(table.location, 1, False)]


def test_a_table_that_cannot_be_mirrored_holds_up_no_other(tmp_path: Path) -> None:
    world = MirroringNode(tmp_path, "iceberg")
    bad, good = world.table(1), world.table(2)
    bad.define((("a", "variant"),))
    world.worker.round()
    assert (ids(bad), ids(good)) == (None, [2])
    bad.define(COLUMNS)
    world.worker.round()
    assert ids(bad) == [1]


def test_a_mirror_that_nobody_wants_any_more_goes(tmp_path: Path) -> None:
    world = MirroringNode(tmp_path)
    table = world.table(1, iceberg="true")
    world.worker.round()
    assert world.mirrors.oldest_version(table.location) == 1
    world.catalog.set_parameters(Oid(1), {"iceberg": "false"})
    world.worker.trim(set())
    assert world.mirrors.oldest_version(table.location) is None
    assert not list((table.root / "_iceberg" / "metadata").iterdir())
    world.catalog.set_parameters(Oid(1), {"iceberg": "true"})
    world.worker.round()
    assert ids(table) == [1]


@pytest.mark.parametrize("left", [None, "{"])
def test_the_mirror_of_an_idle_table_begins_anew(
    tmp_path: Path, clock: Clock, left: str | None
) -> None:
    """Whose folder was removed, or whose metadata is damaged."""
    world = MirroringNode(tmp_path, "iceberg")
    table = world.table(1)
    world.worker.round()
    shutil.rmtree(table.root / "_iceberg")
    if left is not None:
        metadata = table.root / "_iceberg" / "metadata" / "v2.metadata.json"
        metadata.parent.mkdir(parents=True)
        metadata.write_text(left)
    for _ in range(5):
        clock.ahead += 1_801
        world.worker.round()
    assert ids(table) == [1]


def test_a_dropped_table_is_not_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = MirroringNode(tmp_path, "iceberg")
    tables = [world.table(1), world.table(2)]

    def drop_after_the_list(catalog: Catalog, states: Any) -> Any:
        wanted = list(wanted_mirrors(catalog, states))
        world.catalog.drop_table(Oid(1))
        world.worker.leave(tables[0].location)
        return wanted

    monkeypatch.setattr(worker_module, "wanted_mirrors", drop_after_the_list)
    world.worker.round()
    assert [ids(table) for table in tables] == [None, [2]]


def test_a_drop_waits_for_one_step_of_the_worker(tmp_path: Path) -> None:
    world = MirroringNode(tmp_path, "iceberg")
    table = world.table(1)
    begun, dropped = threading.Event(), threading.Event()

    def drop() -> None:
        begun.wait()
        world.catalog.drop_table(Oid(1))
        world.worker.leave(table.location)
        dropped.set()

    def slow_state(location: str) -> Any:
        begun.set()
        wait_until(lambda: world.worker._left.is_left(location))
        return MirroredTable.state(table, location)

    table.state = slow_state  # type: ignore[method-assign]
    dropping = threading.Thread(target=drop)
    dropping.start()
    world.worker.round()
    dropping.join(10)
    assert dropped.is_set()
    assert ids(table) is None
    assert not world.worker._behind


def test_the_folder_of_a_table_that_is_gone_is_not_made(tmp_path: Path) -> None:
    world = MirroringNode(tmp_path, "iceberg")
    table = world.table(1)
    table.root.rename(tmp_path / "gone")
    world.worker.round()
    with pytest.raises(StorageError):
        MirrorPlace(table.store).make()
    assert not table.root.exists()


class Clock:
    """The worker's clock, as far ahead as a test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ahead = 0.0
        clocks = SimpleNamespace(
            monotonic=lambda: time.monotonic() + self.ahead,
            time=lambda: time.time() + self.ahead,
        )
        monkeypatch.setattr(worker_module, "time", clocks)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


VARIANT = (("a", "variant"),)


def test_a_mirror_that_does_not_follow_holds_nothing_after_its_history(
    tmp_path: Path, clock: Clock
) -> None:
    world = MirroringNode(tmp_path, "iceberg")
    table = world.table(1)
    world.worker.round()
    table.define(VARIANT)
    world.worker.round()
    assert ids(table) == [1]
    clock.ahead += 3_599
    world.worker.round()
    assert world.mirrors.oldest_version(table.location) == 1
    clock.ahead += 2
    with capture_logs() as lines:
        world.worker.round()
        world.worker.round()
    assert world.mirrors.oldest_version(table.location) is None
    assert not list((table.root / "_iceberg" / "metadata").iterdir())
    (line,) = (one for one in lines if one["event"].startswith("a mirror was removed"))
    assert line["table"] == "public.t1"
    assert "no form in Iceberg" in str(line["error"])
    table.define(COLUMNS)
    world.worker.round()
    assert ids(table) == [1]


def test_a_mirror_that_follows_again_has_its_whole_history_again(
    tmp_path: Path, clock: Clock
) -> None:
    world = MirroringNode(tmp_path, "iceberg")
    table = world.table(1)
    world.worker.round()
    for columns in (VARIANT, COLUMNS, VARIANT):
        table.define(columns)
        clock.ahead += 3_000
        world.worker.round()
    assert world.mirrors.oldest_version(table.location) is not None
