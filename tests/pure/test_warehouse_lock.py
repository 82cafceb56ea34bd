"""One node at a time in a warehouse: the supervisor's part, for a directory and for S3."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from uuid import uuid4

import pytest
from tests.fakes.node import HERE, FakeNode
from tests.fakes.objectstores import Server

from wal2lake.errors import ConfigurationError
from wal2lake.lake.store import store_at
from wal2lake.lake.store.lease import KEY
from wal2lake.lake.store.lease.record import LeaseRecord, parse_lease
from wal2lake.launch import is_locked
from wal2lake.launch.directory import warehouselock
from wal2lake.launch.directory.holder import this_start
from wal2lake.launch.directory.warehouselock import FILE_NAME, WarehouseLock
from wal2lake.launch.processes import new_marker
from wal2lake.model import WarehouseHolder
from wal2lake.testing.waits import wait_until

RUNNER = HERE / "node_runner.py"


def start_in(directory: Path, node: int = 7001) -> WarehouseHolder:
    directory.mkdir(exist_ok=True)
    return this_start(node, directory, new_marker(directory))


def test_a_second_node_is_refused_until_the_first_ends(tmp_path: Path) -> None:
    one, two = start_in(tmp_path / "one"), start_in(tmp_path / "two", 7002)
    path = tmp_path / FILE_NAME
    with WarehouseLock(path, one) as held:
        held.take()
        with pytest.raises(ConfigurationError) as caught:
            WarehouseLock(path, two).take()
        error = caught.value
        assert error.sqlstate == "55006"
        assert error.message == f'the warehouse "{tmp_path}" is in use by another node'
        assert error.detail == one.describe()
        assert f"(PID {os.getpid()}, system identifier 7001)" in one.describe()
        assert error.hint == (
            'Stop that node, or set "warehouse" of [spark] to a directory of its own for each'
            " node."
        )
    assert not path.exists()
    with WarehouseLock(path, two) as held:
        held.take()


def test_a_later_start_in_a_directory_goes_past_a_stopped_one(tmp_path: Path) -> None:
    one = start_in(tmp_path / "one")
    path = tmp_path / FILE_NAME
    stopped = WarehouseLock(path, one)
    stopped.take()
    # A copy of the directory has another inode.
    copied = replace(one, inode="0:0", token="copy")
    with pytest.raises(ConfigurationError):
        WarehouseLock(path, copied).take()
    with WarehouseLock(path, start_in(tmp_path / "one")) as again:
        again.take()
        stopped.release()
        assert path.exists()
        with pytest.raises(ConfigurationError):
            WarehouseLock(path, start_in(tmp_path / "two", 7002)).take()
    assert not path.exists()


def test_a_node_that_has_just_got_the_lock_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / FILE_NAME
    before = start_in(tmp_path / "one")
    path.write_text(before.render())
    elsewhere = start_in(tmp_path / "two", 7002)
    with path.open("rb") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)

        def sleep(_: float) -> None:
            path.write_text(elsewhere.render())

        monkeypatch.setattr(
            warehouselock,
            "time",
            SimpleNamespace(monotonic=time.monotonic, sleep=sleep),
        )
        with pytest.raises(ConfigurationError) as caught:
            WarehouseLock(path, start_in(tmp_path / "one")).take()
    assert caught.value.detail == elsewhere.describe()
    assert path.exists()


def test_a_lock_file_that_is_replaced_before_each_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / FILE_NAME
    whole = fcntl.flock
    looks = iter(range(3))

    def lock(descriptor: int, how: int) -> None:
        if os.fstat(descriptor).st_ino == path.stat().st_ino and next(looks, 9) < 2:
            path.unlink()
        whole(descriptor, how)

    with WarehouseLock(path, start_in(tmp_path / "one")) as held:
        path.touch()
        with monkeypatch.context() as patched:
            patched.setattr(fcntl, "flock", lock)
            held.take()
        assert path.exists()

    def fail(descriptor: int, how: int) -> None:
        if path.exists() and os.fstat(descriptor).st_ino == path.stat().st_ino:
            if next(fails, 9) < 1:
                path.unlink()
            else:
                raise OSError(errno.EIO, "no more")
        whole(descriptor, how)

    # An error of a later look is told as it is.
    fails = iter(range(2))
    monkeypatch.setattr(fcntl, "flock", fail)
    with pytest.raises(OSError) as caught:
        WarehouseLock(path, start_in(tmp_path / "one")).take()
    assert caught.value.errno == errno.EIO


def test_a_lock_file_of_another_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / FILE_NAME
    whole = os.open

    def refuse(opened: str | Path, *arguments: int) -> int:
        if opened == path:
            raise PermissionError(errno.EACCES, "no")
        return whole(opened, *arguments)

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(ConfigurationError) as caught:
        WarehouseLock(path, start_in(tmp_path / "one")).take()
    assert caught.value.sqlstate == "42501"
    assert (
        caught.value.message == f'could not open lock file "{path}": Permission denied'
    )
    assert caught.value.hint == (
        "Start the node as the OS user that owns this file, or remove the file if no node uses"
        " the warehouse."
    )


def test_a_file_system_without_locks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, "no locks")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with WarehouseLock(tmp_path / FILE_NAME, start_in(tmp_path / "one")) as held:
        held.take()
        assert held.descriptors == ()


def test_two_nodes_of_one_warehouse(tmp_path: Path) -> None:
    shared = str(tmp_path / "lake ü")
    nodes = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        nodes.append(FakeNode(tmp_path / name, spark__warehouse=shared))
    one, two = nodes
    try:
        one.start()
        assert two.launch().wait(20) == 1
        told = two.log_text()
        assert f'the warehouse "{shared}" is in use by another node' in told
        assert f'DETAIL:  The node in directory "{one.directory}" on host' in told
        assert "HINT:  Stop that node, or set" in told
        # No process of it has run: the receivers of a copied node would use the same slots.
        assert two.events("engine", "start") == []

        # The lock is the engine's, too, which could still commit.
        assert one.process is not None
        (engine,) = one.wait_events("engine", 1)
        links = [str(path.readlink()) for path in Path(f"/proc/{engine}/fd").iterdir()]
        assert f"{shared}/{FILE_NAME}" in links
        one.process.kill()
        one.wait_end()
        wait_until(lambda: not Path(f"/proc/{engine}").exists())
        two.start()
        assert one.launch().wait(20) == 1
        two.signal(signal.SIGTERM)
        assert two.wait_end() == 0
        assert not Path(shared, FILE_NAME).exists()
        one.start()
    finally:
        one.close()
        two.close()


def test_two_nodes_of_one_warehouse_in_s3(
    tmp_path: Path, s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = f"{s3.url}/{uuid4().hex}"
    monkeypatch.setenv("WAL2LAKE_STORE_ENDPOINT", f"http://127.0.0.1:{s3.port}")
    for name, value in s3.config:
        monkeypatch.setenv(f"WAL2LAKE_STORE_{name.upper()}", value)
    store = store_at(warehouse, s3.options())
    assert store is not None

    def stored() -> LeaseRecord:
        return parse_lease(store.read(KEY), KEY)

    nodes = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        nodes.append(FakeNode(tmp_path / name, spark__warehouse=warehouse))
    one, two = nodes
    try:
        one.start()
        first = stored()
        assert first.generation == 1
        assert one.process is not None and first.holder.pid == one.process.pid
        assert first.holder.node == str(one.catalog.system_identifier)
        assert two.launch().wait(60) == 1
        told = two.log_text()
        assert f'the warehouse "{warehouse}" is in use by another node' in told
        assert first.holder.describe() in told
        assert two.events("engine", "start") == []

        # ---- killed, and started again at once
        one.process.kill()
        one.wait_end()
        wait_until(lambda: not is_locked(one.directory))
        one.start()
        assert stored().generation == 2

        # ---- a copy of the directory: the original renews while the copy waits
        shutil.copytree(
            one.directory,
            tmp_path / "copy",
            ignore=shutil.ignore_patterns("run", "wal2lake.pid", "fake", "stderr"),
        )
        (tmp_path / "copy/fake").mkdir()
        with (tmp_path / "copied").open("wb") as log:
            copied = subprocess.Popen(
                [sys.executable, str(RUNNER), str(tmp_path / "copy")],
                env=one.environ,
                stderr=log,
            )
        wait_until(
            lambda: "waiting until the lease" in (tmp_path / "copied").read_text(),
            timeout_seconds=60,
        )
        store.put(KEY, replace(stored(), number=1).render())
        assert copied.wait(60) == 1
        assert "is in use by another node" in (tmp_path / "copied").read_text()
        assert not (tmp_path / "copy/fake/events").exists()

        # ---- given up
        store.put(KEY, replace(stored(), is_released=True).render())
        two.start()
        assert stored().generation == 3
    finally:
        one.close()
        two.close()


def test_an_engine_that_has_lost_the_warehouse_ends_the_node(tmp_path: Path) -> None:
    fake = FakeNode(tmp_path)
    try:
        fake.start()
        (tmp_path / "fake/engine.exit").write_text("79")
        (engine,) = fake.wait_events("engine", 1)
        os.kill(engine, signal.SIGKILL)
        assert fake.wait_end() == 1
        assert "the warehouse is lost, shutting down" in fake.log_text()
    finally:
        fake.close()


def test_a_node_that_loses_the_warehouse_while_it_ends_says_so(tmp_path: Path) -> None:
    fake = FakeNode(tmp_path)
    try:
        fake.start()
        (tmp_path / "fake/engine.stopped").write_text("79")
        fake.wait_events("engine", 1)
        fake.signal(signal.SIGTERM)
        assert fake.wait_end() == 1
        assert "the warehouse is lost, shutting down" in fake.log_text()
        assert "database system is shut down" not in fake.log_text()
    finally:
        fake.close()
