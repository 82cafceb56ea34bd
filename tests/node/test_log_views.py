"""wal2lake.log and its kin on a whole node: what they show is what is in the directory."""

from __future__ import annotations

import time
from collections.abc import Callable

from tests.conftest import Database

from wal2lake.pg.client import Client
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node


def test_the_log_of_a_running_subscription_is_shown_in_milliseconds(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    pg18.psql(
        "create schema lv; create table lv.t (id int primary key);"
        " create publication lv for table lv.t"
    )
    mirror = subscribe(pg18, "lv")
    mirror.synced()
    before = node.value(
        "select coalesce(max(number), 0) from wal2lake.log_segments where subname = 'lv'"
    )
    pg18.psql(
        "insert into lv.t select generate_series(1, 100); delete from lv.t where id = 1"
    )
    mirror.assert_equal(["lv.t"])
    # The two transactions are sealed, in one segment or in two.
    node.wait_for(
        "select sum(transactions), sum(rows) from wal2lake.log_segments"
        f" where subname = 'lv' and number > {before} and rows > 0",
        lambda rows: rows == [("2", "101")],
    )
    oid = node.value("select oid from pg_subscription where subname = 'lv'")
    directory = node.directory / "log" / str(oid)
    numbers = node.sql(
        "select number from wal2lake.log_segments where subname = 'lv' order by number"
    )
    assert [f"seg-{int(str(n)):020d}.json" for (n,) in numbers] == sorted(
        path.name for path in directory.glob("seg-*.json")
    )
    # All is applied: nothing but the journal and the history holds anything.
    node.wait_for(
        "select reader, segments from wal2lake.log_readers where subname = 'lv'"
        " and reader in ('apply', 'copy')",
        lambda rows: rows == [("apply", "0")],
    )
    assert node.sql(
        "select l.total_bytes = l.segment_bytes + l.open_bytes + l.journal_bytes,"
        " h.bytes = l.segment_bytes, l.applied_lsn >= l.sealed_lsn, l.size_limit_bytes"
        " from wal2lake.log l join wal2lake.log_readers h on h.subid = l.subid"
        " where l.subname = 'lv' and h.reader = 'history'"
    ) == [("t", "t", "t", None)]
    with Client(node.conninfo()) as client:
        times = []
        for _ in range(5):
            started = time.perf_counter()
            for view in ("log", "log_segments", "log_readers"):
                client.rows(f"select * from wal2lake.{view}")
            times.append(time.perf_counter() - started)
    # Without Spark: a few ms each; the bound is for a busy machine.
    assert min(times) < 0.5
    node.sql("drop subscription lv")
    assert node.sql("select 1 from wal2lake.log where subname = 'lv'") == []
