"""SIGKILL and lost connections while transactions are on their way that have not committed.

One node and one source for all of them: killed, but never harmed.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.conftest import FAST_RETRY, Database
from tests.fakes.failpoints import wait_reached
from tests.fakes.outside import assert_equal_outside

from wal2lake.observe.failpoints import VARIABLE, arm
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import PostgresServer
from wal2lake.testing.proxy import TcpProxy
from wal2lake.testing.waits import wait_until

SMALL_LOG = {
    **FAST_RETRY,
    "log.segment_bytes": 256 * 1024,
    "log.journal_file_bytes": 1024 * 1024,
}
"""So that a transaction of some thousand rows is written out, and held back files are many."""

SPOOLING = (
    "journal.appended",
    "spool.piece_written",
    "spool.linked",
    "segment.manifest_written",
    "segment.manifest_renamed",
)
"""Durable steps of a streamed transaction that is larger than the log's memory."""

HELD = ("spool.checkpoint_written", "spool.checkpoint_renamed", "log.trimmed")
"""The same of one that stays open while the journal goes on."""

TABLES = ("ks.t", "ks.small")


def large(first: int) -> str:
    """A transaction of 6,000 rows that stay and 3,000 that do not."""
    rows = (
        "insert into ks.t select i, md5(i::text) || md5((-i)::text) || repeat('x', 300)"
        " from generate_series({0}, {1}) i"
    )
    return (
        f"{rows.format(first, first + 2999)}; savepoint s;"
        f" {rows.format(first + 3000, first + 5999)}; rollback to s;"
        f" {rows.format(first + 3000, first + 5999)};"
        f" update ks.t set v = 'changed' where id between {first} and {first + 99};"
        f" delete from ks.t where id between {first + 100} and {first + 149}"
    )


def wide(first: int, rows: int) -> str:
    """Some megabytes of few rows."""
    return (
        "insert into ks.t select i, md5(i::text) || repeat('x', 1800)"
        f" from generate_series({first}, {first + rows - 1}) i"
    )


@dataclass(frozen=True)
class World:
    """A node that mirrors ``TABLES`` of a source of its own, through a proxy, with two_phase."""

    points: Path
    server: PostgresServer
    source: Database
    proxy: TcpProxy
    node: Node
    mirror: Mirror

    def arm(self, name: str, action: str = "kill") -> None:
        arm(self.points, name, action)

    def passed(self, name: str) -> None:
        """Wait until the armed point is reached."""
        wait_reached(self.node, self.points, name)

    def equal(self) -> None:
        """Through the front door, and in the files without anything of ours."""
        self.mirror.assert_equal(TABLES)
        assert_equal_outside(self.node, self.source.conninfo(), TABLES)

    def prepared(self) -> str | None:
        return self.node.value("select count(*) from pg_prepared_xacts")

    def spool_files(self) -> list[Path]:
        return list((self.node.directory / "log").glob("*/spool-*"))

    def pieces(self, suffix: str = ".parquet") -> list[Path]:
        return [path for path in self.spool_files() if path.suffix == suffix]

    def restart_source(self) -> None:
        self.server.kill()
        self.server.start()


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    folder = tmp_path_factory.mktemp("streams")
    points = folder / "points"
    points.mkdir()
    environ = {VARIABLE: str(points)}
    with (
        PostgresServer(18) as server,
        TcpProxy("127.0.0.1", server.port) as proxy,
        Node(folder / "data", settings=SMALL_LOG, environ=environ) as node,
    ):
        source = Database(server, "postgres")
        source.psql(
            "create schema ks; create table ks.t (id int primary key, v text);"
            " create table ks.small (id int primary key); create publication ks"
            " for table ks.t, ks.small;"
            " alter database postgres set logical_decoding_work_mem = '64kB'"
        )
        node.init().start()
        through = quote_literal(source.conninfo(port=str(proxy.port)))
        node.sql(
            f"create subscription ks connection {through} publication ks"
            " with (two_phase = true)"
        )
        mirror = Mirror(node, source.conninfo(), "ks")
        mirror.synced()
        node.wait_for(
            "select subtwophasestate from pg_subscription",
            lambda rows: rows == [("e",)],
        )
        yield World(points, server, source, proxy, node, mirror)


@pytest.fixture
def world(shared: World) -> Iterator[World]:
    """Its tables are empty, and nothing is prepared, before and after."""
    yield shared
    shared.proxy.accept()
    for path in shared.points.iterdir():
        path.unlink()
    for gid in shared.source.psql("select gid from pg_prepared_xacts").split():
        # It holds locks.
        shared.source.psql(f"rollback prepared '{gid}'")
    shared.source.psql("truncate ks.t, ks.small")
    shared.mirror.caught_up()


def test_sigkill_at_each_durable_step_of_a_streamed_transaction(world: World) -> None:
    for number, name in enumerate(SPOOLING):
        world.arm(name)
        first = number * 10_000
        world.source.psql(
            f"begin; {large(first)}; commit; insert into ks.small values ({number})"
        )
        world.passed(name)
        world.mirror.caught_up()
    world.equal()


@pytest.mark.slow
def test_sigkill_while_a_streamed_transaction_holds_the_journal_back(
    world: World,
) -> None:
    for number, name in enumerate((*HELD, "spool.removed")):
        first = number * 100_000
        with world.mirror.source() as session:
            session.execute("begin")
            session.execute(large(first).split(";")[0])
            if name in HELD:
                world.arm(name)
            world.source.transactions(
                [large(first + other * 10_000) for other in range(1, 5)]
            )
            world.mirror.caught_up()
            if name in HELD:
                world.passed(name)
            else:
                # It has a checkpoint now, which goes after its commit.
                world.arm(name)
            session.execute("commit")
        world.passed(name)
        world.mirror.caught_up()
    world.equal()


def test_spools_of_open_transactions_go_with_the_connection_that_brought_them(
    world: World,
) -> None:
    with world.mirror.source() as session, ExitStack() as files:
        session.execute("begin")
        session.execute(wide(0, 500))
        # While it is open, others fill the journal: it gets a checkpoint.
        wait_until(
            lambda: filled(world) and world.pieces(".json"), describe="a checkpoint"
        )
        session.execute(wide(10_000, 500))
        wait_until(lambda: len(world.pieces()) > 1, describe="pieces are written")
        links = opened(world, files)
        world.proxy.refuse()
        world.proxy.cut()
        wait_until(
            lambda: not world.spool_files(),
            describe=lambda: f"no spool: {world.spool_files()}",
        )
        assert links() == 0
        world.proxy.accept()
        # What is open comes again, whole.
        wait_until(world.pieces, describe="pieces are written again")
        session.execute("commit")
    world.equal()
    before = world.source.psql("select count(*) from ks.t")
    with world.mirror.source() as session, ExitStack() as files:
        session.execute("begin")
        session.execute(wide(20_000, 500))
        wait_until(world.pieces, describe="pieces are written")
        links = opened(world, files)
        # Nobody is left to roll it back.
        world.restart_source()
        world.source.psql("checkpoint; insert into ks.small values (1)")
        world.equal()
        wait_until(
            lambda: links() == 0 and not world.spool_files(),
            describe=lambda: f"no spool: {world.spool_files()}",
        )
    assert world.node.value("select count(*) from ks.t") == before


def filled(world: World) -> bool:
    """Another megabyte in the journal, of a transaction that leaves nothing."""
    world.source.psql(
        f"begin; {wide(900_000, 700)}; delete from ks.t where id >= 900000; commit"
    )
    return True


def opened(world: World, files: ExitStack) -> Callable[[], int]:
    """How many names the files of the oldest spool have; open, so that none is taken for another.

    Those of a later one may be about to become a segment's."""
    number = min(path.name.split("-")[1].split(".")[0] for path in world.spool_files())
    found = [
        files.enter_context(path.open("rb"))
        for path in world.spool_files()
        if path.name.startswith(f"spool-{number}")
    ]
    assert found
    return lambda: sum(os.fstat(file.fileno()).st_nlink for file in found)


PREPARED = (
    "journal.synced",
    "spool.piece_written",
    "spool.checkpoint_written",
    "spool.checkpoint_renamed",
)
"""Durable steps of a PREPARE TRANSACTION; then of its COMMIT PREPARED."""

COMMITTED = ("journal.synced", "segment.manifest_renamed", "spool.removed")


def test_sigkill_at_each_durable_step_of_a_prepared_transaction(world: World) -> None:
    """Of the receiver; and of the whole node and the source while four are prepared."""
    node, source = world.node, world.source
    for number, name in enumerate(PREPARED):
        world.arm(name)
        source.psql(
            f"begin; {large(number * 10_000)}; prepare transaction 'k{number}';"
            f" insert into ks.small values ({number})"
        )
        world.passed(name)
        world.mirror.caught_up()
    wait_until(lambda: world.prepared() == "4", describe="four are prepared")
    assert node.value("select count(*) from ks.t") == "0"
    node.kill("tree")
    world.restart_source()
    node.start()
    assert world.prepared() == "4"
    for number, name in enumerate(COMMITTED):
        world.arm(name)
        source.psql(f"commit prepared 'k{number}'")
        world.passed(name)
        world.mirror.caught_up()
    world.arm("spool.removed")
    source.psql("rollback prepared 'k3'")
    world.passed("spool.removed")
    world.equal()
    assert world.prepared() == "0"


@pytest.mark.parametrize(
    "victims",
    [
        pytest.param("source", marks=pytest.mark.slow),
        "source and receiver",
        pytest.param("all", marks=pytest.mark.slow),
    ],
)
def test_sigkill_of_the_source_inside_of_prepare_commit_prepared_and_rollback_prepared(
    world: World, victims: str
) -> None:
    """The source has it on disk and waits for the node, as its synchronous standby."""
    world.server.set(synchronous_standby_names="ks")
    synchronous = "show synchronous_standby_names"
    wait_until(lambda: world.source.psql(synchronous) == "ks")
    try:
        prepare = f"begin; {small(1)}; prepare transaction 'p'"
        held, again = interrupt(world, prepare, victims)
        assert again == (held == 0), "what is durable is not asked for again"
        listed(world, "1")
        assert world.node.value("select count(*) from ks.t") == "0"
        interrupt(world, "commit prepared 'p'", victims)
        listed(world, "0")
        world.equal()
        assert world.node.value("select count(*) from ks.t") == "10"
        world.source.psql(f"begin; {small(100)}; prepare transaction 'r'")
        listed(world, "1")
        interrupt(world, "rollback prepared 'r'", victims)
        listed(world, "0")
        world.equal()
        assert world.node.value("select count(*) from ks.t") == "10"
    finally:
        world.server.set(synchronous_standby_names="")


def small(first: int) -> str:
    return (
        "insert into ks.t select i, 'small' from"
        f" generate_series({first}, {first + 9}) i"
    )


def listed(world: World, count: str) -> None:
    """At the source and here, when all that the source has has come."""
    world.mirror.caught_up()
    assert world.source.psql("select count(*) from pg_prepared_xacts") == count
    assert world.prepared() == count
    # Each once, though it may have come twice.
    wait_until(
        lambda: str(len(world.pieces(".json"))) == count,
        describe=lambda: f"{count} spools: {world.spool_files()}",
    )


def interrupt(world: World, sql: str, victims: str) -> tuple[int, bool]:
    """Kill the source, and who else is named, while it runs ``sql``.

    source: the node has seen nothing of it. source and receiver: the receiver has what came of it
    in its journal, and was killed before it could say so; the next one has made spools and
    segments of it, but cannot connect. all: the same, and the whole node is dead.

    Answers how many prepared transactions the node held while the source was dead, and, when both
    have caught up, whether streaming began at or below the statement, so that it came then, or
    once more.
    """
    if victims == "source":
        world.proxy.stall()
    else:
        world.arm("journal.synced", "kill-tree" if victims == "all" else "kill")
        world.proxy.refuse()
    began = world.source.psql("select pg_current_wal_insert_lsn()")
    with running(world, sql):
        if victims == "all":
            world.node.wait_end()
        elif victims != "source":
            world.passed("journal.synced")
        world.server.kill()
    if victims == "all":
        world.node.start()
    if victims != "source":
        recovered(world)
    held = len(world.pieces(".json"))
    world.proxy.cut()
    world.proxy.resume()
    world.server.start()
    world.proxy.accept()
    world.mirror.caught_up()
    start = re.findall(r"streaming_from=(\S+)", world.node.log_text())[-1]
    again = world.source.psql(f"select '{start}'::pg_lsn <= '{began}'")
    return held, again == "t"


def recovered(world: World) -> None:
    """Wait for two receivers that open the log and end, since they cannot connect: what the
    first has made of the journal, the second finds without one."""
    ended = 'walreceiver for subscription "ks" ended'
    before = world.node.log_text().count(ended)
    wait_until(
        lambda: world.node.log_text().count(ended) >= before + 2,
        timeout_seconds=60,
        describe="receivers try in vain",
    )


@contextmanager
def running(world: World, sql: str) -> Iterator[None]:
    """While ``sql`` waits for its standby; nobody is ever told that it was done."""
    answers: list[str] = []

    def run() -> None:
        try:
            answers.append(world.source.psql(sql))
        except RuntimeError:
            return

    thread = threading.Thread(target=run)
    thread.start()
    waiting = "select count(*) from pg_stat_activity where wait_event = 'SyncRep'"
    wait_until(
        lambda: world.source.psql(waiting) == "1", describe="it waits for its standby"
    )
    yield
    thread.join(60)
    assert not thread.is_alive()
    assert answers == []
