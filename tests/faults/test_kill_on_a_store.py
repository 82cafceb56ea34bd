"""SIGKILL at each durable step of a commit, a prepared transaction and VACUUM of tables in S3, with
failing requests: the next process has all of it or nothing, and goes on.

Without a JVM, so each step is killed in a tenth of a second. Whole nodes are killed like this in
``test_store_fails`` and ``test_store_fails_in_statements``.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from tests.fakes import storechild
from tests.fakes.failingstore import plan_some, rows_past_the_proxy
from tests.fakes.objectstores import BUCKET, Server, s3_server
from tests.fakes.storeproxy import StoreProxy

from wal2lake.catalog import Catalog
from wal2lake.observe.failpoints import arm

COMMIT = {
    "local.files_carried": False,
    "local.recorded": True,
    "local.table_committed": True,
    "local.tables_committed": True,
    "local.published": True,
}
"""Durable steps of a COMMIT to two tables, and whether they have its rows after a crash there."""

BATCH = {
    "lake.files_synced": False,
    "lake.committed": True,
    "lake.commit_synced": True,
}
"""The same of a batch of one table."""

PREPARED = {
    "local.files_carried": "prepare_both",
    "prepare.recorded": "prepare_both",
    "prepare.logged": "prepare_both",
    "commit_prepared.recorded": "commit_prepared",
    "local.table_committed": "commit_prepared",
    "local.tables_committed": "commit_prepared",
    "commit_prepared.published": "commit_prepared",
    "rollback_prepared.recorded": "roll_back_prepared",
    "rollback_prepared.logged": "roll_back_prepared",
}
"""Durable steps of what is run."""

VACUUM = ("vacuum.file_removed", "vacuum.files_removed", "vacuum.commit_removed")


class Killed:
    """A node in processes that are killed, whose requests fail."""

    def __init__(self, server: Server, proxy: StoreProxy, directory: Path) -> None:
        self.dice = random.Random(421)
        self.points = directory / "points"
        self.points.mkdir()
        self._server, self._proxy = server, proxy
        self._directory = directory / "node"
        self._warehouse = f"s3://{BUCKET}/{uuid4().hex}"
        self.run("create")
        self.catalog = Catalog(self._directory / "catalog.sqlite")

    def run(self, step: str, number: int = 0, *, ends: int = 0) -> None:
        """Run a step in a process that ends like this."""
        if step != "create":
            plan_some(self._proxy, self.dice, 2)
        options = self._server.options(self._proxy.port)
        done = storechild.run(
            self._directory, self._warehouse, options, self.points, step, number
        )
        assert done == ends, step
        self._proxy.plans.clear()

    def killed(self, point: str, step: str, number: int = 0) -> None:
        """Run a step in a process that is killed."""
        arm(self.points, point, "kill")
        self.run(step, number, ends=-signal.SIGKILL)
        assert not (self.points / point).exists()

    def rows(self, table: str = "a") -> list[int]:
        """The rows of a table as delta-rs reads them."""
        sql = "select id from t order by id"
        name = f"public.{table}"
        found = rows_past_the_proxy(self._server, self._warehouse, name, sql)
        return [int(str(row[0])) for row in found]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """An S3 server with an empty bucket."""
    with s3_server() as found:
        yield found


@pytest.fixture
def node(server: Server, tmp_path: Path, no_fsync: None) -> Iterator[Killed]:
    with StoreProxy(server.port) as proxy:
        yield Killed(server, proxy, tmp_path)


def test_a_commit_of_two_tables(node: Killed) -> None:
    expected = []
    for number, (point, is_committed) in enumerate(COMMIT.items(), 1):
        node.killed(point, "commit", number)
        node.run("start")
        expected += [number] if is_committed else []
        assert node.rows("a") == node.rows("b") == expected, point
        assert node.catalog.local_commits() == []
    node.run("commit", 100)
    assert node.rows("a") == node.rows("b") == [*expected, 100]


def test_a_batch(node: Killed) -> None:
    for number, (point, is_committed) in enumerate(BATCH.items(), 1):
        before = list(range(1, number))
        node.killed(point, "batch", number)
        assert node.rows() == [*before, *([number] if is_committed else [])], point
        # The next engine applies it again.
        node.run("batch", number)
        assert node.rows() == [*before, number], point


def test_prepared_transactions(node: Killed) -> None:
    expected: list[int] = []
    for number, (point, step) in enumerate(PREPARED.items(), 1):
        if step != "prepare_both":
            node.run("prepare_both", number)
            assert len(node.catalog.prepared_commits()) == 1
        node.killed(point, step, number)
        node.run("start")
        assert node.catalog.prepared_commits() == [], point
        expected += [number] if step == "commit_prepared" else []
        assert node.rows("a") == node.rows("b") == expected, point
    # The tables are free.
    node.run("commit", 100)
    assert node.rows("a") == node.rows("b") == [*expected, 100]


def test_vacuum(node: Killed) -> None:
    last = 0
    for point in VACUUM:
        node.run("churn", last)
        last += storechild.CHURNED
        node.killed(point, "vacuum")
        assert node.rows() == [last], point
        node.run("vacuum")
        assert node.rows() == [last], point
    node.run("churn", last)
    assert node.rows() == [last + storechild.CHURNED]
