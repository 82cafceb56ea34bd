"""The engine's part of a lease: goes on with its start's, ends when another node has it."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from tests.fakes.objectstores import Server, environment_of

from wal2lake.engine import __main__ as engine
from wal2lake.lake.store import LeaseLost, WarehouseInUse, lease_of, store_at
from wal2lake.lake.store.lease import KEY, keeper
from wal2lake.lake.store.lease.record import parse_lease
from wal2lake.launch import EXIT_WAREHOUSE_TAKEN
from wal2lake.launch.directory.holder import this_start
from wal2lake.launch.processes import new_marker
from wal2lake.model import HOLDER


def test_an_engine_goes_on_with_the_lease_of_its_start(
    tmp_path: Path, s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    warehouse = f"{s3.url}/{uuid4().hex}"
    start = this_start(7001, tmp_path, new_marker(tmp_path))
    codes: list[int] = []
    ended = threading.Event()

    def end(code: int) -> None:
        codes.append(code)
        ended.set()

    monkeypatch.setattr(os, "_exit", end)
    monkeypatch.setattr(keeper, "_RENEWALS", 60)
    with environment_of(s3, monkeypatch):
        # A node whose start has taken no lease, and a directory, which has a lock.
        monkeypatch.delenv(HOLDER, raising=False)
        assert engine._lease(warehouse) is None
        monkeypatch.setenv(HOLDER, start.render())
        assert engine._lease(str(tmp_path)) is None

        lease_of(warehouse, start).take()
        lease = engine._lease(warehouse)
        assert lease is not None and lease.generation == 1
        store = store_at(warehouse)
        assert store is not None
        store.put("a", b"1")

        # Another node takes it, as if this one had been stopped for long.
        other = replace(start, node="7002", token="other")
        record = parse_lease(store.read(KEY), KEY)
        taken = replace(record, holder=other, generation=2)
        store.put(KEY, taken.render())
        assert ended.wait(60)
        assert codes == [EXIT_WAREHOUSE_TAKEN]
        with pytest.raises(LeaseLost):
            store.put("a", b"2")
        # An engine that is started again finds it taken.
        with pytest.raises(WarehouseInUse):
            engine._lease(warehouse)
        lease.release()


def test_an_engine_whose_warehouse_is_taken_has_an_exit_code_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise WarehouseInUse("the warehouse is in use by another node", detail="Who.")

    monkeypatch.setattr(engine, "_Engine", refuse)
    assert engine.main(["-D", str(tmp_path)]) == EXIT_WAREHOUSE_TAKEN
    assert "DETAIL:  Who." in capfd.readouterr().err
