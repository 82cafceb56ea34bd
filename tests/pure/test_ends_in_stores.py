"""Tables in object stores come to an end: dropped, and their logs cleaned up."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from tests.fakes.log_table import LogTable
from tests.fakes.objectstores import Server
from tests.fakes.storeproxy import Fault, Planned, StoreProxy

from wal2lake.errors import StorageError
from wal2lake.lake.delta.dropping import drop_objects
from wal2lake.lake.delta.log.version import read_newest
from wal2lake.lake.delta.versions.checkpoints import write_checkpoint
from wal2lake.lake.delta.versions.cleanup import clean_up
from wal2lake.lake.delta.versions.replay import newest_of, replay
from wal2lake.lake.store import Store, objects, store_at

pytestmark = pytest.mark.usefixtures("no_fsync")


def _table(tmp_path: Path, kind: str = "v2") -> LogTable:
    """A table with checkpoints, with sidecars if it is of kind v2."""
    properties = {"delta.checkpointPolicy": "v2"} if kind == "v2" else {}
    table = LogTable(tmp_path / "t", properties)
    for step in range(1, 7):
        table.append([step])
        if step in (2, 4):
            write_checkpoint(table.location, table.store, step)
    return table


def _sent(table: LogTable, server: Server, port: int | None = None) -> Store:
    """The same files in a bucket."""
    url = f"{server.url}/{uuid4().hex}/t"
    store = store_at(url, server.options(port, attempts_seconds=0.3))
    assert store is not None
    for path in table.root.rglob("*"):
        if path.is_file():
            store.put(path.relative_to(table.root).as_posix(), path.read_bytes())
    return store


def _keys(store: Store) -> set[str]:
    return set(store.list_below("", lambda folder: True))


def test_a_dropped_table_leaves_nothing(s3: Server, tmp_path: Path) -> None:
    store = _sent(_table(tmp_path), s3)
    beside = store_at(f"{store.location}2", s3.options())
    assert beside is not None
    beside.put("_delta_log/0.json", b"x")
    drop_objects(store)
    assert _keys(store) == set()
    assert _keys(beside) == {"_delta_log/0.json"}
    drop_objects(store)


def test_what_is_no_table_is_not_dropped(s3: Server) -> None:
    store = store_at(f"{s3.url}/{uuid4().hex}", s3.options())
    assert store is not None
    store.put("inner/_delta_log/0.json", b"x")
    store.put("letters.txt", b"x")
    with pytest.raises(StorageError, match="is not a Delta table") as raised:
        drop_objects(store)
    assert raised.value.sqlstate == "58000"
    assert _keys(store) == {"inner/_delta_log/0.json", "letters.txt"}


@pytest.mark.parametrize("kind", ["plain", "v2"])
def test_a_drop_that_ends_in_the_middle_is_finished_later(
    s3: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Until the log is gone the table can be read, so its owner is known."""
    monkeypatch.setattr(objects.ObjectStore, "most_at_once", 3)
    table = _table(tmp_path, kind)
    lefts: list[str] = []
    with StoreProxy(s3.port) as proxy:
        for done in range(20):
            store = _sent(table, s3, proxy.port)
            ended = _drop_up_to(store, proxy, done)
            lefts.append(_left(store))
            drop_objects(store)
            assert _keys(store) == set()
            if ended:
                break
    assert ended and lefts.count("a table") >= 5
    assert lefts == sorted(lefts) and lefts[-1] == "nothing"


def _drop_up_to(store: Store, proxy: StoreProxy, done: int) -> bool:
    """Drop a table whose store refuses each removal after the first ones; True if all went."""
    passed, taken = 0, proxy.take

    def take(method: str, path: str) -> Planned | None:
        nonlocal passed
        passed += method == "POST"
        if method == "POST" and passed > done:
            return Planned(Fault.REFUSE, 503, "SlowDown")
        return taken(method, path)

    instance: Any = proxy
    instance.take = take
    try:
        drop_objects(store)
    except StorageError:
        return False
    finally:
        instance.take = taken
    return True


def _left(store: Store) -> str:
    keys = _keys(store)
    if any(key.startswith("_delta_log/0") for key in keys):
        number = newest_of(store.location, store)
        replayed = replay(store.location, store, number)
        assert replayed.version(store.location, store, number).metadata["id"]
        return "a table"
    assert read_newest(store.location, store) is None
    assert all("/_sidecars/" in key for key in keys)
    return "nothing"


@pytest.mark.parametrize("kind", ["plain", "v2"])
def test_a_log_is_cleaned_up_as_in_a_directory(
    s3: Server, tmp_path: Path, kind: str
) -> None:
    table = _table(tmp_path, kind)
    store, version = _sent(table, s3), table.version
    before = _keys(store)
    now = time.time()
    assert clean_up(store, version, now=now) == 0
    assert _keys(store) == before
    later = now + 400 * 86_400.0
    gone = clean_up(store, version, now=later)
    assert gone == clean_up(table.store, version, now=later) > 0
    kept = {
        path.relative_to(table.root).as_posix()
        for path in table.root.rglob("*")
        if path.is_file()
    }
    # A classic checkpoint that keeps old readers away has another name in each place.
    assert {key.partition(".")[0] for key in _keys(store)} == {
        key.partition(".")[0] for key in kept
    }
