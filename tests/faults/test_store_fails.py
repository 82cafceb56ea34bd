"""A node whose warehouse is in S3, behind a proxy that does what networks and stores do.

SIGKILL at each durable step while requests fail, each fault at each kind of file, an outage longer
than the attempts, and credentials that expire in a batch. The tables equal the source's at the end,
read by the node and by delta-rs.
"""

from __future__ import annotations

import random
import stat
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from tests.conftest import Database
from tests.fakes.failingstore import (
    FAULTS,
    KINDS,
    node_behind,
    plan_some,
    rows_past_the_proxy,
)
from tests.fakes.failpoints import wait_reached
from tests.fakes.objectstores import Server, s3_server
from tests.fakes.storeproxy import Fault, Planned, StoreProxy

from wal2lake.observe.failpoints import arm
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.workload import BALANCE, SCHEMA, TABLES, Workload

pytestmark = pytest.mark.slow

SECONDS = 300.0

STEPS = (
    "apply.staged",
    "lake.files_synced",
    "lake.committed",
    "lake.commit_synced",
    "apply.table_committed",
    "apply.tables_committed",
    "apply.vector_recorded",
)
"""Durable steps of a batch."""

COPYING = ("copy.range_recorded", "copy.committed", "copy.state_written")
"""Durable steps of a copy."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """An S3 server with an empty bucket."""
    with s3_server() as found:
        yield found


def subscribed(node: Node, source: Database) -> Mirror:
    node.sql(
        f"create subscription k connection {quote_literal(source.conninfo())}"
        " publication k"
    )
    return Mirror(node, source.conninfo(), "k")


def filled(source: Database, rows: int, seed: int) -> Workload:
    workload = Workload(seed)
    source.psql(SCHEMA)
    source.transactions(list(workload.initial(rows)))
    source.psql("create publication k for all tables")
    return workload


def assert_equal_in_s3(server: Server, warehouse: str, source: Database) -> None:
    """The tables are equal row by row as psycopg and delta-rs read them, past the proxy."""
    with psycopg.connect(source.conninfo()) as session:
        for name in TABLES:
            sql = f"select {KEYS[name]} as k from"
            theirs = Counter(session.execute(f"{sql} {name}").fetchall())
            ours = rows_past_the_proxy(server, warehouse, name, f"{sql} t")
            assert Counter(ours) == theirs, name


KEYS = {
    "public.orders": "cast(id as bigint) * 1000003 + balance",
    "public.parts": "cast(order_id as bigint) * 1000003 + line * 1009 + balance",
    "public.notes": "id",
}
"""A number of each row, as both sides compute it. ``Mirror`` compares all columns."""


def test_sigkill_at_each_durable_step_while_requests_fail(
    pg18: Database, server: Server, tmp_path: Path
) -> None:
    dice = random.Random(307)
    workload = filled(pg18, 300, seed=311)
    points = tmp_path / "points"
    with (
        StoreProxy(server.port) as proxy,
        node_behind(proxy, tmp_path / "data", points) as (node, warehouse),
    ):
        for number, name in enumerate(COPYING):
            arm(points, name, "kill")
            plan_some(proxy, dice, 2)
            if number == 0:
                mirror = subscribed(node, pg18)
            else:
                node.sql("select wal2lake.recopy_table('public.orders')")
            wait_reached(node, points, name)
            pg18.transactions([workload.transaction() for _ in range(10)])
            mirror.synced(SECONDS)
        for number, name in enumerate(STEPS):
            is_tree = number % 3 == 2
            arm(points, name, "kill-tree" if is_tree else "kill")
            plan_some(proxy, dice, 3)
            pg18.transactions([workload.transaction() for _ in range(15)])
            if is_tree:
                node.wait_end()
                assert not (points / name).exists(), f"{name} was not reached"
                plan_some(proxy, dice, 1)
                node.start()
            else:
                wait_reached(node, points, name)
            pg18.transactions([workload.transaction() for _ in range(5)])
            mirror.caught_up(SECONDS)
            assert node.value(BALANCE) == "0", name
        mirror.assert_equal(TABLES)
        assert_equal_in_s3(server, warehouse, pg18)


def test_each_fault_of_each_kind_of_file(
    pg18: Database, server: Server, tmp_path: Path
) -> None:
    workload = filled(pg18, 300, seed=313)
    with (
        StoreProxy(server.port) as proxy,
        node_behind(proxy, tmp_path / "data", tmp_path / "points") as (node, warehouse),
    ):
        mirror = subscribed(node, pg18)
        mirror.synced(SECONDS)
        for part, faults in KINDS.items():
            for planned in faults:
                proxy.plan("PUT", part, planned)
                pg18.transactions([workload.transaction() for _ in range(3)])
                mirror.caught_up(SECONDS)
        for planned in FAULTS["GET"]:
            proxy.plan("GET", "", planned, planned)
            pg18.transactions([workload.transaction() for _ in range(3)])
            mirror.caught_up(SECONDS)
        assert node.value(BALANCE) == "0"
        mirror.assert_equal(TABLES)
        assert_equal_in_s3(server, warehouse, pg18)


def test_an_outage_longer_than_the_attempts(
    pg18: Database, server: Server, tmp_path: Path
) -> None:
    workload = filled(pg18, 100, seed=317)
    with (
        StoreProxy(server.port) as proxy,
        node_behind(
            proxy,
            tmp_path / "data",
            tmp_path / "points",
            store__retry_timeout_ms=1000,
        ) as (node, warehouse),
    ):
        mirror = subscribed(node, pg18)
        mirror.synced(SECONDS)
        for fault in (Planned(Fault.REFUSE, 503), Planned(Fault.REFUSE_DONE, 500)):
            for method in ("PUT", "GET", "HEAD", "DELETE", "POST"):
                proxy.plan(method, "", *[fault] * 2000)
            pg18.transactions([workload.transaction() for _ in range(5)])
            node.wait_for("select 1 from wal2lake.subscription_errors")
            proxy.plans.clear()
            mirror.caught_up(SECONDS)
        assert node.value(BALANCE) == "0"
        mirror.assert_equal(TABLES)
        assert_equal_in_s3(server, warehouse, pg18)


COMMAND = """#!/usr/bin/env python3
import datetime, json, pathlib
file = pathlib.Path({file!r})
end = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(seconds=20)
print(json.dumps({{
    "Version": 1, "AccessKeyId": "key" + file.read_text(), "SecretAccessKey": "s",
    "Expiration": end.isoformat()}}))
"""
"""Prints the key that is in a file; it ends after twenty seconds."""


def test_credentials_that_expire_in_a_batch(
    pg18: Database, server: Server, tmp_path: Path
) -> None:
    workload = filled(pg18, 100, seed=331)
    number, program = tmp_path / "number", tmp_path / "print-credentials"
    number.write_text("1")
    program.write_text(COMMAND.format(file=str(number)))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)

    with (
        StoreProxy(server.port) as proxy,
        node_behind(
            proxy,
            tmp_path / "data",
            tmp_path / "points",
            store__access_key_id=None,
            store__secret_access_key=None,
            store__credentials_command=str(program),
        ) as (node, warehouse),
    ):
        mirror = subscribed(node, pg18)
        mirror.synced(SECONDS)
        for step in range(2, 6):
            number.write_text(str(step))
            # From some request of the batch on, the keys of before are no longer valid.
            part = list(KINDS)[step - 2]
            proxy.expire(f"key{step - 1}", "PUT", part)
            pg18.transactions([workload.transaction() for _ in range(5)])
            mirror.caught_up(SECONDS)
        assert proxy.expired > 0
        assert node.value(BALANCE) == "0"
        mirror.assert_equal(TABLES)
        assert_equal_in_s3(server, warehouse, pg18)
