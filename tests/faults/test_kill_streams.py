"""SIGKILL of the receiver while transactions are on their way that have not committed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import FAST_RETRY, Database

from wal2lake.observe.failpoints import VARIABLE, arm
from wal2lake.pg.publisher import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import PostgresServer, StopMode
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


def start(
    make_node: Callable[..., Node], points: Path, source: Database, options: str = ""
) -> tuple[Node, Mirror]:
    points.mkdir()
    node = make_node(settings=SMALL_LOG, environ={VARIABLE: str(points)}).start()
    source.psql(
        "create schema ks; create table ks.t (id int primary key, v text);"
        " create table ks.small (id int primary key); create publication ks"
        " for table ks.t, ks.small"
    )
    source.psql(f"alter database {source.name} set logical_decoding_work_mem = '64kB'")
    node.sql(
        f"create subscription ks connection {quote_literal(source.conninfo())}"
        f" publication ks {options}"
    )
    mirror = Mirror(node, source.conninfo(), "ks")
    mirror.synced()
    return node, mirror


def test_sigkill_at_each_durable_step_of_a_streamed_transaction(
    make_node: Callable[..., Node], pg18: Database, tmp_path: Path
) -> None:
    points = tmp_path / "points"
    node, mirror = start(make_node, points, pg18)
    for number, name in enumerate(SPOOLING):
        arm(points, name, "kill")
        first = number * 10_000
        pg18.psql(
            f"begin; {large(first)}; commit; insert into ks.small values ({number})"
        )
        wait_for(node, points, name)
        mirror.caught_up()
    mirror.assert_equal(TABLES)


def wait_for(node: Node, points: Path, name: str) -> None:
    wait_until(
        lambda: not (points / name).exists(),
        timeout_seconds=60,
        describe=lambda: f"{name} is reached\n{node.log_text()[-3000:]}",
    )


@pytest.mark.slow
def test_sigkill_while_a_streamed_transaction_holds_the_journal_back(
    make_node: Callable[..., Node], pg18: Database, tmp_path: Path
) -> None:
    points = tmp_path / "points"
    node, mirror = start(make_node, points, pg18)
    for number, name in enumerate((*HELD, "spool.removed")):
        first = number * 100_000
        with mirror.source() as session:
            session.execute("begin")
            session.execute(large(first).split(";")[0])
            if name in HELD:
                arm(points, name, "kill")
            pg18.transactions([large(first + other * 10_000) for other in range(1, 5)])
            mirror.caught_up()
            if name in HELD:
                wait_for(node, points, name)
            else:
                # It has a checkpoint now, which goes after its commit.
                arm(points, name, "kill")
            session.execute("commit")
        wait_for(node, points, name)
        mirror.caught_up()
    mirror.assert_equal(TABLES)


PREPARED = (
    "journal.synced",
    "spool.piece_written",
    "spool.checkpoint_written",
    "spool.checkpoint_renamed",
)
"""Durable steps of a PREPARE TRANSACTION; then of its COMMIT PREPARED."""

COMMITTED = ("journal.synced", "segment.manifest_renamed", "spool.removed")


def test_sigkill_at_prepare_and_at_commit_prepared_of_node_and_source(
    make_node: Callable[..., Node], tmp_path: Path
) -> None:
    gids = "select count(*) from pg_prepared_xacts"
    points = tmp_path / "points"
    with PostgresServer(18) as server:
        source = Database(server, "postgres")
        node, mirror = start(make_node, points, source, "with (two_phase = true)")
        node.wait_for(
            "select subtwophasestate from pg_subscription",
            lambda rows: rows == [("e",)],
            timeout_seconds=60,
        )
        for number, name in enumerate(PREPARED):
            arm(points, name, "kill")
            source.psql(
                f"begin; {large(number * 10_000)}; prepare transaction 'k{number}';"
                f" insert into ks.small values ({number})"
            )
            wait_for(node, points, name)
            mirror.caught_up()
        node.wait_for(gids, lambda rows: rows == [(str(len(PREPARED)),)])
        assert node.value("select count(*) from ks.t") == "0"
        node.kill("tree")
        server.restart(StopMode.IMMEDIATE)
        node.start()
        assert node.value(gids) == str(len(PREPARED))
        for number, name in enumerate(COMMITTED):
            arm(points, name, "kill")
            source.psql(f"commit prepared 'k{number}'")
            wait_for(node, points, name)
            mirror.caught_up()
        arm(points, "spool.removed", "kill")
        source.psql(f"rollback prepared 'k{len(PREPARED) - 1}'")
        wait_for(node, points, "spool.removed")
        mirror.assert_equal(TABLES)
        assert node.value(gids) == "0"
        node.close()
