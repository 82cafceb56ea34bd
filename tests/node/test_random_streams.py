"""Random changes at a publisher and the same random statements at two subscribers, PostgreSQL's
own and a node: after each round rows, counters and the words of every conflict are the same.

``WAL2LAKE_STREAM_SEED`` repeats a run, ``WAL2LAKE_STREAM_ROUNDS`` makes it longer.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator

import pytest
from tests.conftest import FAST_RETRY
from tests.fakes.random_changes import (
    NAMES,
    OUT_OF_LINE,
    SOURCE,
    TABLES,
    TARGETS,
    RandomChanges,
)
from tests.older_postgres import installation

from wal2lake.errors import PublisherError
from wal2lake.pg.client import Client
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import PostgresServer
from wal2lake.testing.waits import wait_until

SETTINGS = {
    **FAST_RETRY,
    "apply.track_commit_timestamp": True,
    "apply.log_conflict_values": True,
    "log.segment_interval_ms": 100,
}

COUNTERS = (
    "select apply_error_count, confl_insert_exists, confl_update_origin_differs,"
    " confl_update_exists, confl_update_missing, confl_delete_origin_differs,"
    " confl_delete_missing, confl_multiple_unique_conflicts"
    " from pg_stat_subscription_stats where subname = '{}'"
)

CONFLICT = re.compile(
    r'LOG: +(conflict detected on relation "rs\.[^\n]*?)(?:  sqlstate=\w+)?\n'
    r"[^\n]*DETAIL:  ([^\n]*\n[^\n]*)\n"
)
"""One report in a server's log."""

STOPPED = re.compile(
    r'(?:ERROR|DETAIL):  (conflict detected on relation "rs\.\w+": conflict=\w+)\n'
    r'[^\n]*DETAIL:  (Key already exists in unique index "\w+", modified [a-z ]*) in [^\n]*\n'
    r"(?:[^\n]*\n)?[^\n]*CONTEXT:  [^\n]*finished at ([0-9A-F]+/[0-9A-F]+)\n"
)
"""What stopped a subscription; a node says it in its DETAIL."""


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """The publisher and the native subscriber, in two databases."""
    with PostgresServer(
        installation(18),
        settings={
            "track_commit_timestamp": "on",
            "wal_retrieve_retry_interval": "100ms",
            # Some transactions are streamed before they end.
            "logical_decoding_work_mem": "64kB",
        },
    ) as found:
        found.psql("create database source; create database native")
        yield found
        found.psql("alter subscription rs_native disable", "native")


class Side:
    """One subscriber. What it is told and asked is the same for both."""

    def __init__(
        self, name: str, conninfo: Callable[[], str], log: Callable[[], str]
    ) -> None:
        self.name = name
        self._conninfo = conninfo
        self._log = log
        self._read = 0

    def sql(self, sql: str) -> list[tuple[str | None, ...]]:
        """The last statement's rows."""
        with Client(self._conninfo()) as client:
            return client.rows(sql)

    def outcome(self, sql: str) -> str:
        """The SQLSTATE of a statement that may be refused."""
        try:
            self.sql(sql)
        except PublisherError as error:
            return error.sqlstate
        return "00000"

    def enabled(self) -> bool:
        """False once a failure has disabled the subscription."""
        where = f"where subname = '{self.name}'"
        return self.sql(f"select subenabled from pg_subscription {where}") == [("t",)]

    def rows(self, table: str) -> Counter[tuple[str | None, ...]]:
        """All rows of a table as text, columns by name."""
        return Counter(
            self.sql(
                f"select * from rs.{table}"
                if table != "d"
                else "select id, v, w, note from rs.d"
            )
        )

    def reports(self) -> list[str]:
        """The conflicts in the log since ``forget``, without numbers of transactions and times."""
        return sorted(
            re.sub(
                r"transaction \d+ at [-\d]+ [:\d]+(\.\d+)?\+00",
                "transaction N at T",
                " ".join(found.groups()),
            )
            for found in CONFLICT.finditer(self._log(), self._read)
        )

    def forget(self) -> None:
        """What has been logged is of an earlier round."""
        self._read = len(self._log())

    def last_failure(self) -> tuple[str, str, str]:
        """What stopped last: relation and type, why, and its transaction's finish LSN."""
        return list(STOPPED.findall(self._log(), self._read))[-1]


class World:
    """A publisher, its two subscribers, and one history."""

    def __init__(self, server: PostgresServer, node: Node, seed: int) -> None:
        self.server = server
        self.sides = (
            Side("rs_native", lambda: server.conninfo("native"), server.log_text),
            Side("rs_node", node.conninfo, node.log_text),
        )
        self.changes = RandomChanges(random.Random(seed))
        self.done: list[str] = []
        """The round's statements."""

    def subscribe(self) -> None:
        """Empty tables; nobody knows who has written a row that was copied."""
        self.server.psql(SOURCE + OUT_OF_LINE, "source")
        source = quote_literal(self.server.conninfo("source"))
        for side in self.sides:
            for statement in TARGETS:
                side.sql(statement)
            self.server.psql(
                f"select pg_create_logical_replication_slot('{side.name}', 'pgoutput')",
                "source",
            )
            side.sql(
                f"create subscription {side.name} connection {source} publication rs with"
                " (create_slot = false, copy_data = false, disable_on_error = true)"
            )
        self._publish(list(self.changes.first()))
        assert not self._stopped()

    def round(self) -> None:
        """Local statements, then transactions of the publisher; then all is the same."""
        for side in self.sides:
            side.forget()
        self.done = []
        for statement in self.changes.local(2):
            self.done.append(f"local: {statement}")
            outcomes = [side.outcome(statement) for side in self.sides]
            assert outcomes[0] == outcomes[1], f"{statement}: {outcomes}"
        self._publish(list(self.changes.transactions(25)))
        while self._stopped():
            self._resolve()
        self.compare()

    def _publish(self, bodies: list[str]) -> None:
        self.done += bodies
        with Client(self.server.conninfo("source")) as client:
            for body in bodies:
                client.rows(f"begin; {body}; commit")

    def compare(self) -> None:
        """Rows, counters and reports."""
        native, node = self.sides
        for table in NAMES:
            theirs, ours = native.rows(table), node.rows(table)
            assert ours == theirs, (
                f"rs.{table}: missing {theirs - ours}, extra {ours - theirs}"
            )
        reports = native.reports()
        wait_until(
            lambda: node.reports() == reports,
            timeout_seconds=10,
            describe=lambda: (
                "the same reports; missing: "
                f"{list((Counter(reports) - Counter(node.reports())).elements())}, extra: "
                f"{list((Counter(node.reports()) - Counter(reports)).elements())}"
            ),
        )
        wait_until(
            lambda: len({str(s.sql(COUNTERS.format(s.name))) for s in self.sides}) == 1,
            timeout_seconds=10,
            describe=lambda: str([s.sql(COUNTERS.format(s.name)) for s in self.sides]),
        )

    def _stopped(self) -> bool:
        """Wait until both have everything, or both are disabled."""
        mark = self.server.psql("select pg_current_wal_insert_lsn()", "source").strip()

        def end(side: Side) -> str:
            if not side.enabled():
                return "stopped"
            there = self.server.psql(
                "select count(*) from pg_stat_replication where replay_lsn >="
                f" '{mark}' and application_name = '{side.name}'"
            )
            return "there" if there.strip() == "1" else ""

        ends = wait_until(
            lambda: all(found := [end(side) for side in self.sides]) and found,
            timeout_seconds=60,
            describe=lambda: str([(s.name, end(s)) for s in self.sides]),
        )
        assert ends and ends[0] == ends[1], (ends, self.sides[1]._log()[-3000:])
        return ends[0] == "stopped"

    def _resolve(self) -> None:
        """Leave the transaction out, or remove the row that is in its way."""
        native, node = (side.last_failure() for side in self.sides)
        assert native == node
        lsn, name = native[2], re.findall(r'"(rs\.\w+)"', native[0])[0]
        [(key,)] = self.sides[1].sql(
            "select key from wal2lake.conflicts where resolution = 'error'"
            " order by commit_lsn desc limit 1"
        )
        number = int(re.findall(r"=\(\D*(\d+)", str(key))[0])
        self.done.append(f"stopped at {lsn}: {native[0]} {key}")
        for side in self.sides:
            if number % 2 == 0:
                side.sql(f"alter subscription {side.name} skip (lsn = '{lsn}')")
            else:
                table = next(t for t in TABLES.values() if t.name == name)
                side.sql(f"delete from {name} where {table.at(number)}")
            side.sql(f"alter subscription {side.name} enable")


def play(server: PostgresServer, node: Node, seed: int, rounds: int) -> Counter[str]:
    """Play a seed's history; how many conflicts of each type there were."""
    world = World(server, node, seed)
    world.subscribe()
    for number in range(1, rounds + 1):
        try:
            world.round()
        except BaseException as error:
            raise AssertionError(
                f"seed {seed}, round {number}: {error}\n" + "\n".join(world.done)
            ) from error
    types = re.findall(r"conflict=(\w+)", server.log_text())
    for side in world.sides[1:]:
        side.sql(f"drop subscription {side.name}")
    return Counter(types)


def test_a_node_is_like_a_native_subscriber_whatever_happens(
    server: PostgresServer, make_node: Callable[..., Node]
) -> None:
    seed = int(os.environ.get("WAL2LAKE_STREAM_SEED", "9"))
    rounds = int(os.environ.get("WAL2LAKE_STREAM_ROUNDS", "2"))
    assert play(server, make_node(settings=SETTINGS).start(), seed, rounds)


@pytest.mark.slow
def test_it_stays_so_for_long(
    server: PostgresServer, make_node: Callable[..., Node]
) -> None:
    seed = random.SystemRandom().randrange(10**6)
    assert play(server, make_node(settings=SETTINGS).start(), seed, 20)
