"""Two nodes on one warehouse by mistake: the second is refused, and one that was stopped for long
writes nothing once the other has the warehouse."""

from __future__ import annotations

import os
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

import pytest
from tests.fakes.objectstores import (
    Server,
    azure_server,
    closed_gcs_server,
    s3_server,
)

from wal2lake.errors import PublisherError
from wal2lake.lake.store import Store, StoreOptions, store_at
from wal2lake.lake.store.lease import KEY
from wal2lake.lake.store.lease.record import LeaseRecord, parse_lease
from wal2lake.testing.node import Node

STOPPED_SECONDS = 33.0
"""Longer than the half of a lease's validity, within which a node does not ask."""


@pytest.fixture(params=["s3", "azure", "google"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server with an empty bucket."""
    servers = {"s3": s3_server, "azure": azure_server, "google": closed_gcs_server}
    with servers[request.param]() as server:
        yield server


def settings_of(server: Server, warehouse: str) -> dict[str, object]:
    return {
        "spark.warehouse": warehouse,
        "spark.driver_memory": "1g",
        "store.endpoint": server.endpoint,
        **{f"store.{name}": value for name, value in server.config},
    }


def read_by(server: Server, location: str) -> Store:
    """A store as another node reads it: a client of its own."""
    config = dict(server.config)
    command = config.pop("credentials_command", "")
    config["endpoint"] = server.endpoint
    options = StoreOptions(tuple(config.items()), credentials_command=command)
    store = store_at(location, options)
    assert store is not None
    return store


def stored(store: Store) -> LeaseRecord:
    return parse_lease(store.read(KEY), KEY)


def commits(store: Store) -> list[str]:
    """The versions of all tables."""
    files = store.list_below("", lambda _: True)
    return sorted(key for key in files if "/_delta_log/" in key)


@pytest.mark.slow
def test_a_second_node_is_refused_and_a_stopped_one_writes_nothing(
    tmp_path: Path, server: Server
) -> None:
    warehouse = f"{server.url}/{uuid4().hex}"
    settings = settings_of(server, warehouse)
    store = read_by(server, warehouse)
    with (
        Node(tmp_path / "one", settings=settings) as one,
        Node(tmp_path / "two", settings=settings) as two,
        Node(tmp_path / "copy", settings=settings) as copied,
    ):
        one.init().start()
        one.sql("create table own (id int primary key)")
        one.sql("insert into own values (1)")
        assert stored(store).generation == 1

        # ---- another node, and a copy of this one
        two.init().start(wait=False)
        assert two.wait_end() == 1
        told = two.log_text()
        assert f'the warehouse "{warehouse}" is in use by another node' in told
        assert f'detail: The node in directory "{one.directory}" on host' in told
        assert "hint: Stop that node, or set" in told
        assert "listening on" not in told
        shutil.copytree(
            one.directory, copied.directory, ignore=shutil.ignore_patterns("run")
        )
        copied.start(wait=False)
        assert copied.wait_end(120) == 1
        told = copied.log_text()
        assert "waiting until the lease of the warehouse has ended" in told
        assert f'the warehouse "{warehouse}" is in use by another node' in told

        # ---- killed and started at once
        one.kill("tree")
        one.start()
        assert stored(store).generation == 2
        one.sql("insert into own values (2)")

        # ---- stopped for longer than a lease is sure, while another node takes the warehouse
        pids = one.pids()
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        time.sleep(STOPPED_SECONDS)
        before, taken = commits(store), stored(store)
        other = replace(taken.holder, node="1", token="x", directory="/other")
        taken = replace(taken, holder=other, generation=3, number=0)
        store.put(KEY, taken.render())
        for pid in reversed(pids):
            os.kill(pid, signal.SIGCONT)
        with pytest.raises(PublisherError):
            one.sql("insert into own values (3)")
        assert one.wait_end(120) == 1
        told = one.log_text()
        assert f'another node has taken the warehouse "{warehouse}"' in told
        assert 'DETAIL:  The node in directory "/other" on host' in told
        assert "the warehouse is lost, shutting down" in told
        assert commits(store) == before and stored(store) == taken

        # ---- the other one has given it up
        store.put(KEY, replace(taken, is_released=True).render())
        one.start()
        one.sql("insert into own values (4)")
        assert one.sql("select id from own order by id") == [("1",), ("2",), ("4",)]
        assert one.stop() == 0
        assert stored(store).is_released and stored(store).generation == 4
        assert two.start().stop() == 0
