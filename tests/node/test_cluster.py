"""A whole node whose executors are a cluster's: copy, changes, compaction, queries, local writes.

A master and two workers of Spark's own, started here. Warehouse and log are in a shared directory,
given as URLs; the node's own directory is hidden from the workers where the system lets us, as it
would be on other machines.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from tests.conftest import Database
from tests.node.conftest import create

from wal2lake.pg import Session, connect
from wal2lake.testing.cluster import SETTINGS, Cluster, Worker
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

TABLES = ("cl.item", "cl.event", "cl.note", 'cl."Übrige Dinge"')

SMALL_BATCHES = 34
"""Commits of one table, so that its files are looked at once."""

LARGE = 60_000
"""Rows that a batch changes twice: more than the engine converts without Spark."""

LOOKS = 500
"""At what is being copied, one after the other."""

SECONDS = 300.0
"""For a machine that has more to do than this."""


@pytest.fixture
def node(tmp_path: Path, private: Path, cluster: Cluster) -> Iterator[Node]:
    # A space, which a URL encodes.
    shared = tmp_path / "shared storage"
    conf = {**SETTINGS, "spark.cores.max": "2"}
    pairs = ", ".join(f'"{name}" = "{value}"' for name, value in conf.items())
    found = Node(
        private / "data",
        settings={
            "spark.master": cluster.url,
            "spark.warehouse": (shared / "warehouse").as_uri(),
            "log.directory": (shared / "log").as_uri(),
            "spark.driver_memory": "1g",
            "spark.conf": f"{{ {pairs} }}",
            "apply.upsert_bytes": 1 << 20,
            "subscription.copy_range_bytes": 1 << 20,
        },
    )
    with found:
        yield found.init().start()
        assert found.stop() == 0


def reading(session: Session) -> tuple[int, int] | None:
    """A server process that is sending a range of ``item``, and whom it sends it to."""
    # A range takes some milliseconds: look without a pause.
    for _ in range(LOOKS):
        found = session.query(
            "select pid, client_port from pg_stat_activity where state = 'active'"
            " and query like 'COPY %item%' and application_name like 'pg_%_sync_%'"
        )
        if found:
            return int(str(found[0][0])), int(str(found[0][1]))
    return None


def held_copy(source: Database) -> tuple[int, int]:
    """(server process, stopped in the middle of a copy; its client)."""

    def catch() -> tuple[int, int] | None:
        found = reading(session)
        if found is None:
            return None
        os.kill(found[0], signal.SIGSTOP)
        clients = [
            one.pid
            for one in psutil.net_connections("tcp")
            if one.pid and one.laddr and one.laddr[1] == found[1]
        ]
        if len(clients) == 1:
            return found[0], clients[0]
        # It had ended just then.
        os.kill(found[0], signal.SIGCONT)
        return None

    with connect(source.conninfo(), application_name="look") as session:
        caught = wait_until(
            catch, timeout_seconds=SECONDS, describe="a range is being copied"
        )
    assert caught is not None
    return caught


def operations(shared: Path, table: str) -> list[str]:
    """What a table's commits say that they are."""
    found = []
    for commit in sorted((shared / "warehouse" / table / "_delta_log").glob("*.json")):
        info = json.loads(commit.read_text().partition("\n")[0])["commitInfo"]
        found.append(str(info.get("userMetadata") or info["operation"]))
    return found


@pytest.mark.slow
def test_a_node_on_a_cluster(
    tmp_path: Path, pg18: Database, cluster: Cluster, node: Node
) -> None:
    shared = tmp_path / "shared storage"
    pg18.psql(
        "create schema cl;"
        " create table cl.item (id int primary key, n int, v text);"
        " create table cl.event (id bigint primary key, at timestamptz, v text);"
        " create table cl.note (a int, b text);"
        " alter table cl.note replica identity full;"
        ' create table cl."Übrige Dinge" ("Nr. 1" int primary key, "%20" text);'
        " insert into cl.item select i, i % 7, repeat(md5(i::text), 6)"
        "  from generate_series(1, 60000) i;"
        " insert into cl.note select i % 3, 'n' from generate_series(1, 30) i;"
        " insert into cl.\"Übrige Dinge\" values (1, 'eins');"
        " create publication cl for tables in schema cl"
    )
    create(node, pg18, "cl")
    mirror = Mirror(node, pg18.conninfo(), "cl")

    # ---- one of the two dies in the middle of a copy
    server, client = held_copy(pg18)
    worker_of(cluster, client).kill()
    os.kill(server, signal.SIGCONT)
    mirror.synced(SECONDS)
    cluster.add_worker()

    # ---- small batches, until the table's files are joined
    for number in range(SMALL_BATCHES):
        pg18.psql(
            f"update cl.item set n = n + 1 where id % 500 = {number};"
            f" insert into cl.item values ({200_000 + number}, 0, 'new')"
        )
        mirror.caught_up(SECONDS)
    assert "compaction" in operations(shared, "cl/item")

    # ---- local writes, and a query over both
    node.sql("create table own (id int primary key, v text)")
    with node.connect() as session:
        session.rows("begin")
        session.rows("insert into own values (1, 'a'), (2, 'b'), (3, 'd')")
        session.rows("update own set v = 'c' where id = 1")
        session.rows("delete from own where id = 2")
        session.rows("commit")
    assert node.sql(
        "select o.id, o.v, i.n is not null from own o join cl.item i on i.id = o.id"
        " order by o.id"
    ) == [("1", "c", "t"), ("3", "d", "t")]

    # ---- the node dies while executors have a large batch
    before = len(operations(shared, "cl/item"))
    staging = shared / "log" / "spark" / "staging"
    pg18.transactions(
        [
            f"update cl.item set v = reverse(v) where id <= {LARGE};"
            f" update cl.item set n = n + 1 where id <= {LARGE};"
            " delete from cl.item where id between 30000 and 31000;"
            " insert into cl.event select i, now(), 'e' || i"
            f"  from generate_series(1, {LARGE}) i;"
            " update cl.note set b = b || 'x' where ctid = (select min(ctid) from cl.note);"
            ' update cl."Übrige Dinge" set "%20" = \'uno\', "Nr. 1" = 2'
        ]
    )
    wait_until(
        lambda: list(staging.glob("*/*")),
        timeout_seconds=SECONDS,
        describe="executors have written changes for the driver",
    )
    node.kill("tree")
    pg18.psql("insert into cl.note values (7, 'while it was down')")
    node.start(wait=False).wait_ready(SECONDS)
    mirror.caught_up(SECONDS)
    mirror.assert_equal(TABLES)
    later = operations(shared, "cl/item")[before:]
    assert any(operation.startswith("upsert") for operation in later)
    assert not list(staging.iterdir())
    node.sql("drop subscription cl")


def worker_of(cluster: Cluster, pid: int) -> Worker:
    """The one whose executor, or whose executor's Python, that process is."""
    found = [one for one in cluster.workers if one.has_below(pid)]
    assert len(found) == 1, pid
    return found[0]
