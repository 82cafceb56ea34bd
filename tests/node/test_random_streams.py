"""Random changes at a publisher and the same local statements at two subscribers, PostgreSQL's
own and a node: after each round rows, counters and the words of every conflict are the same.

``WAL2LAKE_STREAM_SEED`` repeats a run (of many seeds: it is the first),
``WAL2LAKE_STREAM_ROUNDS`` makes it longer.
"""

from __future__ import annotations

import os
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pytest
from tests.conftest import FAST_RETRY
from tests.fakes import contested_rows, random_changes
from tests.fakes.contested_rows import PASSING, STOPPING, ContestedRows, Scene
from tests.fakes.random_changes import OUT_OF_LINE, RandomChanges
from tests.older_postgres import installation

from wal2lake.pg.client import Client
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.node import Node
from wal2lake.testing.positions import END_OF_WAL
from wal2lake.testing.postgres import PostgresServer
from wal2lake.testing.waits import wait_until

SEED = int(os.environ.get("WAL2LAKE_STREAM_SEED", "9"))
SEEDS = 12

SETTINGS = {
    **FAST_RETRY,
    "apply.track_commit_timestamp": True,
    "log.segment_interval_ms": 100,
}

NAMES = (*random_changes.NAMES, *contested_rows.NAMES)

_WRITES = "insert into rs.kn (v) values ('written')"
"""PostgreSQL's position goes on with what a transaction writes. One whose row is missing writes
nothing: right before a stop it comes again after it, and is counted again."""

TYPES = (*STOPPING, *PASSING)

CONFLICT = re.compile(
    r'LOG: +(conflict detected on relation "rs\.[^\n]*?)(?:  sqlstate=\w+)?\n'
    r"[^\n]*DETAIL:  ([^\n]*\n[^\n]*)\n"
)
"""One report in a server's log."""

STOPPED = re.compile(
    r'ERROR:  (conflict detected on relation "rs\.\w+": conflict=\w+)[^\n]*\n'
    r'[^\n]*DETAIL:  (Key already exists in unique index "\w+", modified [a-z ]*) in [^\n]*\n'
    r"(?:[^\n]*\n){0,2}?[^\n]*CONTEXT:  [^\n]*finished at ([0-9A-F]+/[0-9A-F]+)\n"
)
"""What stopped a subscription; a node has a HINT, too."""


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

    def enabled(self) -> bool:
        """False once a failure has disabled the subscription."""
        where = f"where subname = '{self.name}'"
        return self.sql(f"select subenabled from pg_subscription {where}") == [("t",)]

    def stopped(self) -> bool:
        """True once a failure has disabled the subscription."""
        return not self.enabled()

    def wait_until(
        self, condition: Callable[[], bool], what: str, timeout_seconds: float
    ) -> None:
        """Wait for a condition of this side, which ``what`` says."""
        wait_until(
            condition,
            timeout_seconds=timeout_seconds,
            describe=lambda: f"{self.name} {what}\n{self.log_end()}",
        )

    def wait_counted(self, expected: Mapping[str, int]) -> None:
        """Wait until the counters are these."""
        wait_until(
            lambda: self.counters() == dict(expected),
            timeout_seconds=20,
            describe=lambda: (
                f"{self.name} has counted {dict(expected)}: {self.counters()}"
            ),
        )

    def rows(self, table: str) -> Counter[tuple[str | None, ...]]:
        """All rows of a table as text."""
        return Counter(self.sql(f"select * from rs.{table}"))

    def counters(self) -> dict[str, int]:
        """Failures, and conflicts by their type."""
        columns = ", ".join(f"confl_{name}" for name in TYPES)
        (found,) = self.sql(
            f"select apply_error_count, confl_multiple_unique_conflicts, {columns}"
            f" from pg_stat_subscription_stats where subname = '{self.name}'"
        )
        names = ("errors", "multiple_unique_conflicts", *TYPES)
        return dict(zip(names, map(int, map(str, found)), strict=True))

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

    def failures(self) -> list[tuple[str, str, str]]:
        """What has stopped since ``forget``: relation and type, why, and its transaction's
        finish LSN."""
        return list(STOPPED.findall(self._log(), self._read))

    def log_end(self) -> str:
        """For a failure's message."""
        return self._log()[-3000:]


class World:
    """A publisher, its two subscribers, and one history."""

    def __init__(self, server: PostgresServer, node: Node, seed: int) -> None:
        self.server = server
        self.node = node
        self.sides = (
            Side(f"native_{seed}", lambda: server.conninfo("native"), server.log_text),
            Side(f"node_{seed}", node.conninfo, node.log_text),
        )
        self.rng = random.Random(seed)
        self.changes = RandomChanges(self.rng)
        self.contested = ContestedRows(self.rng)
        self.expected = Counter(errors=0, multiple_unique_conflicts=0)
        """What each side has counted."""
        self.done: list[str] = []
        """The round's statements."""

    def subscribe(self) -> None:
        """Empty tables; nobody knows who has written a row that was copied."""
        source = quote_literal(self.server.conninfo("source"))
        self.server.psql(
            f"create schema rs; {random_changes.SOURCE} {OUT_OF_LINE};"
            f" {contested_rows.SOURCE} create publication rs for tables in schema rs",
            "source",
        )
        tables = (*random_changes.TARGETS, *contested_rows.TARGETS)
        for side in self.sides:
            for statement in ("create schema rs", *tables):
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
        self._settle()

    def round(self) -> None:
        """Scenes begin, subscribers write, the publisher writes; then all is the same."""
        self.done = []
        scenes = self.contested.scenes()
        self._publish(["; ".join(scene.before for scene in scenes if scene.before)])
        self._settle()
        for side in self.sides:
            side.forget()
        for local in self._local_writes(scenes):
            self.done.append(f"local: {local}")
            for side in self.sides:
                side.sql(local)
        skipped = self.rng.choice(STOPPING)
        self._publish(self._transactions(scenes, skipped))
        for scene in scenes:
            self.expected[scene.conflict] += 1
        for scene in scenes:
            if scene.conflict in STOPPING:
                self.expected["errors"] += 1
                self._resolve(scene, skip=scene.conflict == skipped)
        self._settle()
        self.compare()

    def _local_writes(self, scenes: list[Scene]) -> list[str]:
        """Statements alone and transactions of several, in an order of their own."""
        some = [scene.local for scene in self.rng.sample(scenes, len(scenes))]
        alone = self.rng.randrange(3)
        return [*some[:alone], f"begin; {'; '.join(some[alone:])}; commit"]

    def _transactions(self, scenes: list[Scene], skipped: str) -> list[str]:
        """Scenes in their order between random changes, and within; not what is skipped, which
        would be random changes that are then missed."""
        found = list(self.changes.transactions(20))
        places = sorted(self.rng.sample(range(len(found)), len(scenes)))
        for place, scene in reversed(list(zip(places, scenes, strict=True))):
            change = scene.change
            if scene.conflict != skipped and self.rng.random() < 0.5:
                found[place] = f"{found[place]}; {change}"
            else:
                found.insert(place, change)
            if scene.conflict in STOPPING:
                found.insert(place, _WRITES)
        return found

    def _publish(self, bodies: list[str]) -> None:
        self.done += bodies
        with Client(self.server.conninfo("source")) as client:
            for body in bodies:
                client.rows(f"begin; {body}; commit")

    def _settle(self) -> None:
        """Wait until both have everything; neither stops."""
        with Client(self.server.conninfo("source")) as client:
            ((mark,),) = client.rows(END_OF_WAL)

            def there(side: Side) -> bool:
                assert side.enabled(), f"{side.name} has stopped:\n{side.log_end()}"
                return bool(
                    client.rows(
                        "select from pg_stat_replication where replay_lsn >="
                        f" '{mark}' and application_name = '{side.name}'"
                    )
                )

            for side in self.sides:
                side.wait_until(partial(there, side), f"is at {mark}", 60)

    def _resolve(self, scene: Scene, *, skip: bool) -> None:
        """Both stop there; leave the transaction out, or remove what is in its way."""
        for side in self.sides:
            side.wait_until(side.stopped, "stops", 60)
        native, node = (side.failures() for side in self.sides)
        assert native == node, (native, node)
        what, _, lsn = native[-1]
        assert what.endswith(f'"{scene.table}": conflict={scene.conflict}'), what
        self.done.append(f"stopped at {lsn}: {what}, skip: {skip}")
        for side in self.sides:
            if skip:
                side.sql(f"alter subscription {side.name} skip (lsn = '{lsn}')")
            else:
                side.sql(scene.remove)
            side.sql(f"alter subscription {side.name} enable")

    def compare(self) -> None:
        """Counters, reports, what the node's catalog says, and rows."""
        native, node = self.sides
        for side in self.sides:
            side.wait_counted(self.expected)
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
        noted = self.node.sql(
            "select conflict_type, count(*) from wal2lake.conflicts"
            f" where subname = '{node.name}' group by 1"
        )
        assert {str(name): int(str(count)) for name, count in noted} == {
            name: self.expected[name] for name in TYPES
        }
        for table in NAMES:
            theirs, ours = native.rows(table), node.rows(table)
            assert ours == theirs, (
                f"rs.{table}: missing {theirs - ours}, extra {ours - theirs}"
            )

    def close(self) -> None:
        """Nothing is left of it."""
        for side in self.sides:
            side.sql(f"drop subscription {side.name}")
            for table in NAMES:
                side.sql(f"drop table rs.{table}")
            side.sql("drop schema rs")
        self.server.psql("drop publication rs; drop schema rs cascade", "source")


def play(server: PostgresServer, node: Node, seed: int, rounds: int) -> None:
    """Play a seed's history."""
    world = World(server, node, seed)
    world.subscribe()
    for number in range(1, rounds + 1):
        try:
            world.round()
        except BaseException as error:
            raise AssertionError(
                f"WAL2LAKE_STREAM_SEED={seed}, round {number}: {error}\n"
                + "\n".join(world.done)
            ) from error
    world.close()


def test_a_node_is_like_a_native_subscriber_whatever_happens(
    server: PostgresServer, make_node: Callable[..., Node]
) -> None:
    rounds = int(os.environ.get("WAL2LAKE_STREAM_ROUNDS", "1"))
    play(server, make_node(settings=SETTINGS).start(), SEED, rounds)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SEED + 1, SEED + 1 + SEEDS))
def test_it_stays_so_for_many_seeds(
    server: PostgresServer, make_node: Callable[..., Node], seed: int
) -> None:
    rounds = int(os.environ.get("WAL2LAKE_STREAM_ROUNDS", "3"))
    play(server, make_node(settings=SETTINGS).start(), seed, rounds)
