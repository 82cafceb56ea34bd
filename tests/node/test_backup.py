"""A backup of a running node is of one moment, and the node that is restored goes on from there.

The slot is where it was at the backup: a copy that was made before takes the name of the original's
slot, which has moved on. Before that the restored node says what is missing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.conftest import Database

from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node, run_cli

SETTINGS = {
    "node.authentication": "trust",
    "subscription.wal_retrieve_retry_interval_ms": 200,
    "lake.retention_ms": 0,
    "lake.orphan_age_ms": 60_000,
    "lake.vacuum_interval_ms": 2000,
}

AT_SOURCE = """
    create table kv (id int primary key, v text);
    create table log (id serial primary key, kv int);
    insert into kv select i, 'x' from generate_series(1, 200) i;
    create publication p for table kv, log
"""
CHANGES = """
    begin;
    update kv set v = md5(v) where id % 7 = {0} % 7;
    delete from kv where id = {0} + 300;
    insert into kv values ({0} + 301, 'new');
    insert into log (kv) values ({0});
    commit
"""
LOCALLY = "begin; insert into a values ({0}); insert into b values ({0}); commit"


@contextmanager
def repeated(act: Callable[[int], object]) -> Iterator[list[int]]:
    """Do it again and again in a thread; yields the numbers that are done."""
    done: list[int] = []
    ended = threading.Event()

    def run() -> None:
        while not ended.wait(0.05):
            act(len(done))
            done.append(len(done))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield done
    finally:
        ended.set()
        thread.join()


@pytest.mark.slow
def test_a_restored_node_goes_on_replicating(pg18: Database, tmp_path: Path) -> None:
    original, backup, lake = tmp_path / "one", tmp_path / "backup", tmp_path / "lake"
    pg18.psql(AT_SOURCE)
    with Node(original, settings=SETTINGS) as node:
        node.init().start()
        conninfo = quote_literal(pg18.conninfo())
        node.sql(f"create subscription s connection {conninfo} publication p")
        node.sql("create table a (i int primary key)")
        node.sql("create table b (i int primary key)")
        node.sql("create publication ours for table a")
        node.sql("select pg_create_logical_replication_slot('out', 'test_decoding')")
        node.sql("create role ann login")
        Mirror(node, pg18.conninfo(), "s").synced()
        pg18.psql("select pg_copy_logical_replication_slot('s', 'spare')")
        with (
            repeated(lambda n: pg18.psql(CHANGES.format(n))) as changes,
            repeated(lambda n: node.sql(LOCALLY.format(n))) as blocks,
        ):
            node.wait_for("select count(*) > 5 from log", lambda rows: rows == [("t",)])
            first = len(blocks)
            done = run_cli("backup", "-D", original, "--to", backup)
            assert done.returncode == 0, done.stderr
            last, then = len(blocks), len(changes)
            node.wait_for(
                f"select count(*) > {then + 3} from log", lambda rows: rows == [("t",)]
            )
        assert not list(original.rglob(".wal2lake-backup*"))
        Mirror(node, pg18.conninfo(), "s").caught_up()
        node.stop()

    restored = tmp_path / "two"
    done = run_cli("restore", backup, "-D", restored, "--warehouse", lake)
    assert done.returncode == 0, done.stderr
    with Node(restored, settings=SETTINGS) as node:
        node.start()
        # Of one moment: each transaction is in both tables, and all before it.
        (rows,) = node.sql("select count(*), max(i) + 1 from a")
        assert rows == node.sql("select count(*), max(i) + 1 from b")[0]
        assert rows[0] == rows[1]
        assert first <= int(str(rows[0])) <= last + 1
        assert node.sql("select tablename from pg_publication_tables") == [("a",)]
        assert node.value("select count(*) from pg_roles where rolname = 'ann'") == "1"
        decoded = node.sql("select data from pg_logical_slot_peek_changes('out', 0, 0)")
        inserts = [row for row in decoded if ".a: INSERT" in str(row[0])]
        assert len(inserts) == int(str(rows[0]))

        # Of what the slot no longer has, the node says so, with the remedy.
        ((error, state),) = node.wait_for(
            "select error, sqlstate from wal2lake.subscription_errors"
        )
        assert str(error).startswith('replication slot "s" starts at'), error
        assert state == "55000"
        node.wait_for(
            "select remedy from wal2lake.problems where subname = 's'",
            lambda rows: any("(recopy = true)" in str(row[0]) for row in rows),
        )

        pg18.psql("select pg_drop_replication_slot('s')")
        pg18.psql("select pg_copy_logical_replication_slot('spare', 's')")
        node.sql("alter subscription s disable")
        node.sql("alter subscription s enable")
        mirror = Mirror(node, pg18.conninfo(), "s")
        mirror.assert_equal(["public.kv", "public.log"])
        pg18.psql(CHANGES.format(100000))
        mirror.assert_equal(["public.kv", "public.log"])
        node.sql("insert into a values (-1)")
        assert (lake / "public/kv/_delta_log").is_dir()
        node.sql("drop subscription s")
