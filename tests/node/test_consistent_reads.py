"""One SELECT over several tables never sees a part of a transaction, whatever is published.

Two tables hold balances; transactions at the source move amounts between them, so the sum
of both is the same after each. A session at the node asks for it without pause, while one
batch after the other is published.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
from tests.conftest import Database

from wal2lake.pg import connect
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

ACCOUNTS = 200
BALANCE = 1000
TOTAL = 2 * ACCOUNTS * BALANCE

STATES = 5
"""Different states that must have been seen: as many published batches."""

QUERIES = (
    "select (select sum(balance) from cr.a) + (select sum(balance) from cr.b),"
    " (select max(step) from cr.a), (select max(step) from cr.b)",
    "with both_of_them as (select balance, step, 0 as other from cr.a"
    " union all select balance, 0, step from cr.b)"
    " select sum(balance), max(step), max(other) from both_of_them",
)
"""The sum, and the newest transaction that each table has: they must agree too."""


@contextmanager
def transfers(source: Database) -> Iterator[None]:
    """One transaction after the other at the source, until the block ends."""
    stop = threading.Event()
    failed: list[BaseException] = []

    def run() -> None:
        try:
            with connect(source.conninfo(), application_name="transfers") as session:
                step = 0
                # The pause leaves the node time to publish: many small batches.
                while not stop.wait(0.03):
                    step += 1
                    amount, account = step % 97 - 48, step % ACCOUNTS
                    session.query(
                        f"begin; update cr.a set balance = balance - {amount},"
                        f" step = {step} where id = {account};"
                        f" update cr.b set balance = balance + {amount},"
                        f" step = {step} where id = {ACCOUNTS - 1 - account}; commit"
                    )
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=run, daemon=True)
    writer.start()
    try:
        yield
    finally:
        stop.set()
        writer.join(30)
    assert not failed, failed


class Reader:
    """A session that asks its queries in turn, without pause."""

    def __init__(self, node: Node, *queries: str) -> None:
        self.seen: list[tuple[str | None, ...]] = []
        self.failed: list[BaseException] = []
        self._stop = threading.Event()
        self._node, self._queries = node, queries
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            with self._node.connect() as client:
                while not self._stop.is_set():
                    for sql in self._queries:
                        self.seen.extend(client.rows(sql))
        except BaseException as error:
            self.failed.append(error)

    def close(self) -> None:
        self._stop.set()
        self._thread.join(60)

    @property
    def states(self) -> set[str | None]:
        """Different states, by the newest transaction in them."""
        return {seen[1] for seen in self.seen}


@pytest.mark.slow
def test_every_answer_over_two_tables_is_of_one_moment(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    pg18.psql(
        "create schema cr;"
        " create table cr.a (id int primary key, balance bigint, step int default 0);"
        " create table cr.b (like cr.a including all);"
        f" insert into cr.a select i, {BALANCE} from generate_series(0, {ACCOUNTS} - 1) i;"
        " insert into cr.b select * from cr.a;"
        " create publication cr for tables in schema cr"
    )
    with transfers(pg18):
        mirror = subscribe(pg18, "cr")
        mirror.synced()
        reader = Reader(node, *QUERIES)
        try:
            wait_until(
                lambda: reader.failed or len(reader.states) >= STATES,
                timeout_seconds=240,
                describe=lambda: f"states seen: {reader.states}",
            )
        finally:
            reader.close()
    assert not reader.failed, reader.failed
    torn = {seen for seen in reader.seen if seen[0] != str(TOTAL) or seen[1] != seen[2]}
    assert not torn, torn
    # Time does not go back in a session.
    steps = [int(str(step)) for _, step, _ in reader.seen]
    assert steps == sorted(steps)
    mirror.assert_equal(["cr.a", "cr.b"])


@pytest.mark.slow
def test_the_first_state_after_the_copy_is_of_one_moment(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    """Tables of very different size are copied, while transactions touch both: they are
    empty together and filled together."""
    pg18.psql(
        "create schema cf;"
        " create table cf.small (id int primary key, balance bigint);"
        " create table cf.large (id int primary key, balance bigint, v text);"
        " insert into cf.small select i, 1000 from generate_series(0, 9) i;"
        " insert into cf.large select i, 0, repeat('x', 100)"
        " from generate_series(0, 200000) i;"
        " create publication cf for tables in schema cf"
    )
    sql = "select (select sum(balance) from cf.small), (select sum(balance) from cf.large)"
    pg18.psql(
        "update cf.small set balance = 900; update cf.large set balance = 1000 where id = 1"
    )
    mirror = subscribe(pg18, "cf")
    reader = Reader(node, sql)
    try:
        mirror.synced()
        wait_until(lambda: reader.failed or ("9000", "1000") in reader.seen)
    finally:
        reader.close()
    assert not reader.failed, reader.failed
    assert set(reader.seen) <= {(None, None), ("9000", "1000")}
