"""Statements of a node whose warehouse is in S3, behind a proxy that does what networks and stores
do: SIGKILL at each durable step of local transactions, prepared ones and VACUUM meanwhile.

Each transaction is there as a whole or not at all, as the node, its decoders and delta-rs read it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.failingstore import node_behind, plan_some, rows_past_the_proxy
from tests.fakes.objectstores import Server, s3_server
from tests.fakes.storeproxy import Fault, Planned, StoreProxy

from wal2lake.errors import PublisherError
from wal2lake.observe.failpoints import arm
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.slow

SECONDS = 180.0

COMMIT = {
    "local.files_carried": False,
    "local.recorded": True,
    "lake.committed": True,
    "local.table_committed": True,
    "local.tables_committed": True,
    "local.published": True,
}
"""Durable steps of a COMMIT, and whether the transaction is committed after a crash there."""

PREPARED = (
    ("prepare", "local.files_carried"),
    ("prepare", "prepare.recorded"),
    ("prepare", "capture.sealed"),
    ("prepare", "prepare.logged"),
    ("commit", "commit_prepared.recorded"),
    ("commit", "local.table_committed"),
    ("commit", "commit_prepared.published"),
    ("rollback", "rollback_prepared.recorded"),
    ("rollback", "rollback_prepared.logged"),
)
"""Durable steps of what is run."""

VACUUM = ("vacuum.file_removed", "vacuum.files_removed", "vacuum.commit_removed")
"""Durable steps of VACUUM."""

REMOVALS = (
    Planned(Fault.LOSE_ANSWER),
    Planned(Fault.CUT_ANSWER),
    Planned(Fault.REFUSE, 503, "SlowDown"),
    Planned(Fault.REFUSE_DONE, 500),
)
"""Faults of a request that removes many objects."""

GET = "select data from pg_logical_slot_get_changes('d', null, null, 'include-xids', 'off')"


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """An S3 server with an empty bucket."""
    with s3_server() as found:
        yield found


class Statements:
    """Two tables of a node, and the rows that they must have."""

    def __init__(self, node: Node, server: Server, warehouse: str) -> None:
        self.node = node
        self._server = server
        self._warehouse = warehouse
        self.a = dict.fromkeys(range(1, 11), 0)
        self.b: set[int] = set()
        self.decoded: list[str] = []
        node.sql("create table a (id int primary key, v int)")
        node.sql("create table b (id int primary key)")
        node.sql("insert into a select i, 0 from generate_series(1, 10) i")
        node.sql(
            "select pg_create_logical_replication_slot('d', 'test_decoding', false, true)"
        )

    def write(self, number: int) -> str:
        """Statements of a transaction of both tables."""
        return (
            f"insert into a values ({100 + number}, 1);"
            f" update a set v = v + 1 where id = {1 + number % 10};"
            f" insert into b values ({number})"
        )

    def written(self, number: int) -> None:
        """Note that the transaction is committed."""
        self.a[100 + number] = 1
        self.a[1 + number % 10] += 1
        self.b.add(number)

    def assert_equal(self, step: str) -> None:
        """The node and delta-rs read what was committed."""
        a = sorted(self.a.items())
        found = self.node.sql("select id, v from a order by id")
        assert [(int(str(i)), int(str(v))) for i, v in found] == a, step
        found = self.node.sql("select id from b order by id")
        assert [int(str(i)) for (i,) in found] == sorted(self.b), step
        for table, sql, rows in (
            ("public.a", "select id, v from t order by id", a),
            (
                "public.b",
                "select id from t order by id",
                [(i,) for i in sorted(self.b)],
            ),
        ):
            outside = rows_past_the_proxy(self._server, self._warehouse, table, sql)
            assert outside == rows, (step, table)

    def decode(self) -> list[str]:
        """Take what the slot has not given yet."""
        rows = [str(row[0]) for row in self.node.sql(GET)]
        self.decoded += rows
        return rows


def run_killed(
    node: Node,
    points: Path,
    step: str,
    sql: str,
    *,
    before: str = "",
    is_tree: bool = False,
) -> None:
    """Run a statement that a kill ends at a step, after others; the node runs again then."""
    with node.connect() as session:
        if before:
            session.rows(before)
        arm(points, step, "kill-tree" if is_tree else "kill")
        with pytest.raises(PublisherError):
            session.rows(sql)
    assert not (points / step).exists(), f"{step} was not reached"
    if is_tree:
        node.wait_end()
        node.start()
    node.wait_for("select 1", timeout_seconds=SECONDS)


def test_sigkill_at_each_step_of_local_transactions_while_requests_fail(
    server: Server, tmp_path: Path
) -> None:
    dice = random.Random(401)
    points = tmp_path / "points"
    with (
        StoreProxy(server.port) as proxy,
        node_behind(proxy, tmp_path / "data", points) as (node, warehouse),
    ):
        run = Statements(node, server, warehouse)
        for number, (step, is_committed) in enumerate(COMMIT.items(), 1):
            plan_some(proxy, dice, 3)
            run_killed(
                node,
                points,
                step,
                "commit",
                before=f"begin; {run.write(number)}",
                is_tree=number % 3 == 2,
            )
            if is_committed:
                run.written(number)
            run.assert_equal(step)
            sent = run.decode().count(f"table public.b: INSERT: id[integer]:{number}")
            assert sent == is_committed, step
            # One statement, whose commit has no record in the catalog.
            plan_some(proxy, dice, 2)
            node.sql(f"update a set v = v + 1 where id = {number}")
            run.a[number] += 1
        plan_some(proxy, dice, 2)
        run_killed(node, points, "local.table_committed", "truncate b")
        run.b.clear()
        run.assert_equal("truncate")


def test_sigkill_at_each_step_of_prepared_transactions_while_requests_fail(
    server: Server, tmp_path: Path
) -> None:
    dice = random.Random(409)
    points = tmp_path / "points"
    with (
        StoreProxy(server.port) as proxy,
        node_behind(proxy, tmp_path / "data", points) as (node, warehouse),
    ):
        run = Statements(node, server, warehouse)
        for number, (verb, step) in enumerate(PREPARED, 1):
            gid = f"{verb} {step}"
            begun = f"begin; {run.write(number)}"
            prepare, end = f"prepare transaction '{gid}'", f"{verb} prepared '{gid}'"
            plan_some(proxy, dice, 3)
            if verb != "prepare":
                node.sql(f"{begun}; {prepare}")
            run_killed(
                node,
                points,
                step,
                prepare if verb == "prepare" else end,
                before=begun if verb == "prepare" else "",
                is_tree=number % 3 == 0,
            )
            assert node.sql("select gid from pg_prepared_xacts") == [], gid
            if verb == "commit":
                run.written(number)
            # The tables are free.
            node.sql(f"insert into b values ({-number})")
            run.b.add(-number)
            run.assert_equal(gid)
        # A prepared transaction outlives a kill.
        plan_some(proxy, dice, 3)
        node.sql(f"begin; {run.write(90)}; prepare transaction 'kept'")
        node.kill("engine")
        node.wait_for(
            "select 1 from pg_prepared_xacts where gid = 'kept'",
            timeout_seconds=SECONDS,
        )
        plan_some(proxy, dice, 3)
        node.sql("commit prepared 'kept'")
        run.written(90)
        run.assert_equal("kept")
        rows = run.decode()
        for number, (verb, step) in enumerate(PREPARED, 1):
            gid = f"{verb} {step}"
            prepared = rows.count(f"PREPARE TRANSACTION '{gid}'")
            ended = [row for row in rows if row.endswith(f" PREPARED '{gid}'")]
            assert prepared == len(ended) <= 1, (gid, rows)
            if verb != "prepare":
                assert ended == [f"{verb.upper()} PREPARED '{gid}'"]
            sent = rows.count(f"table public.b: INSERT: id[integer]:{number}")
            assert sent == prepared, gid


def test_sigkill_at_each_step_of_vacuum_while_requests_fail(
    server: Server, tmp_path: Path
) -> None:
    dice = random.Random(419)
    points = tmp_path / "points"
    with (
        StoreProxy(server.port) as proxy,
        node_behind(
            proxy,
            tmp_path / "data",
            points,
            lake__retention_ms=0,
            lake__orphan_age_ms=60_000,
            lake__vacuum_interval_ms=0,
        ) as (node, warehouse),
    ):
        arm(points, "vacuum.ages", "ahead 59")
        node.sql("create table t (id int) with (\"delta.checkpointInterval\" = '4')")
        for step in VACUUM:
            plan_some(proxy, dice, 2)
            for number in range(4):
                node.sql(f"insert into t values ({number})")
                node.sql(f"delete from t where id = {number}")
            node.sql("insert into t values (-1)")
            rows = node.value("select count(*) from t")
            arm(points, step, "kill")

            def killed(step: str = step) -> bool:
                # What is too young stays until the next one.
                proxy.plan("POST", "delete", dice.choice(REMOVALS))
                try:
                    node.sql("vacuum t")
                except PublisherError:
                    return not (points / step).exists()
                return False

            wait_until(killed, timeout_seconds=SECONDS)
            node.wait_for("select 1", timeout_seconds=SECONDS)
            for _ in range(2):
                assert node.value("select count(*) from t") == rows
                (outside,) = rows_past_the_proxy(
                    server, warehouse, "public.t", "select count(*) from t"
                )
                assert str(outside[0]) == rows
                plan_some(proxy, dice, 1)
                proxy.plan("POST", "delete", dice.choice(REMOVALS))
                node.sql("vacuum t")
        node.sql("insert into t values (100)")
        assert node.value("select count(*) from t") == str(len(VACUUM) + 1)
