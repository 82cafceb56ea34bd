"""What the processes of a whole node write down for others, against what has happened."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

import pytest
from tests.conftest import Database

from wal2lake.catalog.mapped.committimes import CommitTimes, times_path
from wal2lake.catalog.mapped.progress import receiver_name
from wal2lake.model import Lsn, Oid
from wal2lake.observe.telemetry import read_process, telemetry_path
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until


def _value(node: Node, process: str, name: str, **labels: str) -> float | None:
    """A counter, a gauge or the number of a histogram's observations."""
    read = read_process(node.directory / "run", process)
    if read is None:
        return None
    assert read.is_running
    key = (name, tuple(sorted(labels.items())))
    if key in read.histograms:
        return read.histograms[key].count
    return read.gauges.get(key, read.counters.get(key))


def _reconnected(node: Node, process: str) -> bool:
    read = read_process(node.directory / "run", process)
    assert read is not None
    key = ("reconnects_total", (("subscription", "ms"),))
    return read.is_running and read.counters.get(key) == 1


@pytest.mark.slow
def test_what_a_subscription_does_is_measured(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    pg18.psql(
        "create schema ms; create table ms.t (id int primary key, v text);"
        " insert into ms.t select i, 'x' from generate_series(1, 500) i;"
        " create publication ms for table ms.t"
    )
    mirror = subscribe(pg18, "ms")
    mirror.synced()
    for id in range(501, 521):
        pg18.psql(f"insert into ms.t values ({id}, 'y')")
    pg18.psql("update ms.t set v = 'z' where id <= 10; delete from ms.t where id > 515")
    mirror.assert_equal(["ms.t"])
    oid = Oid(
        int(str(node.value("select oid from pg_subscription where subname = 'ms'")))
    )
    receiver = receiver_name(oid)

    def table(name: str, **labels: str) -> float | None:
        return _value(node, "engine", name, subscription="ms", table="ms.t", **labels)

    def received(name: str, **labels: str) -> float | None:
        return _value(node, receiver, name, subscription="ms", **labels)

    wait_until(lambda: table("rows_total", kind="deleted") == 5)
    assert table("rows_total", kind="copied") == 500
    assert table("rows_total", kind="inserted") == 20
    assert table("rows_total", kind="updated") == 10
    wait_until(
        lambda: (
            _value(node, "engine", "commit_to_visible_seconds", subscription="ms") == 22
        )
    )
    wait_until(lambda: received("durable_transactions_total") == 22)
    wait_until(lambda: received("commit_to_durable_seconds") == 22)
    wait_until(lambda: table("table_version") is not None)
    assert (table("table_files") or 0) >= 1
    assert (table("table_size_bytes") or 0) > 0
    assert (_value(node, "engine", "jvm_heap_used_bytes") or 0) > 1 << 20
    # The source is asked at most every ten seconds.
    wait_until(lambda: received("source_slot_active") == 1, timeout_seconds=20)
    assert received("source_slot_wal_status", status="reserved") == 1
    limit = received("source_slot_limit_bytes")
    assert limit == 8 << 30
    # Nothing is behind: the ring knows no commit above what is applied.
    with_times = CommitTimes.open_reader(node.directory / "run", oid)
    assert with_times is not None
    with with_times as times:
        last = times.last_end
        first = times.first_after(Lsn(last - 1))
        assert first is not None
        age = time.time() - 946_684_800 - first / 1e6
        assert -1 < age < 300
        assert times.first_after(last) is None
    # A receiver that is killed is followed by one that goes on with its numbers.
    read = read_process(node.directory / "run", receiver)
    assert read is not None
    os.kill(read.pid, signal.SIGKILL)
    pg18.psql("insert into ms.t values (1000, 'y')")
    mirror.assert_equal(["ms.t"])
    wait_until(lambda: _reconnected(node, receiver))
    wait_until(lambda: received("durable_transactions_total") == 23)
    with_times = CommitTimes.open_reader(node.directory / "run", oid)
    assert with_times is not None
    with with_times as times:
        assert times.last_end > last
        assert times.first_after(Lsn(last - 1)) == first
        assert times.first_after(last) is not None
    node.sql("drop subscription ms")
    run = node.directory / "run"
    assert not times_path(run, oid).exists()
    assert not telemetry_path(run, receiver).exists()
    wait_until(lambda: table("table_files") is None, timeout_seconds=20)
