"""PREPARE TRANSACTION at the front door: durable, held, decoded in two phases."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from tests.conftest import Database
from tests.node.test_walsender import same, source

from wal2lake.errors import PublisherError
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import find_installation
from wal2lake.testing.waits import wait_until

GET = "SELECT * FROM pg_logical_slot_get_changes('regression_slot', NULL, NULL)"


@pytest.fixture
def node(make_node: Callable[..., Node]) -> Node:
    node = make_node(
        settings={
            "node.authentication": "trust",
            "node.max_prepared_transactions": 3,
            "publish.logical_decoding_work_mem": 64 * 1024,
        }
    ).start()
    node.sql("CREATE TABLE data(id serial primary key, data text)")
    node.sql("create table public.u (a bigint primary key, b text)")
    return node


def refusal(node: Node, sql: str) -> tuple[str, str]:
    with pytest.raises(PublisherError) as refused:
        node.sql(sql)
    return refused.value.sqlstate, refused.value.message


def lines(node: Node, slot: str = "regression_slot") -> list[str]:
    return [str(row[2]) for row in node.sql(GET.replace("regression_slot", slot))]


def prepared(node: Node) -> list[str]:
    rows = node.sql("select gid from pg_prepared_xacts order by 1")
    return [str(gid) for (gid,) in rows]


@pytest.mark.slow
def test_what_is_prepared_waits_for_its_end(node: Node) -> None:
    node.sql("insert into data values (1, 'one'), (2, 'two')")
    node.sql(
        "SELECT * FROM pg_create_logical_replication_slot('regression_slot',"
        " 'test_decoding', false, true)"
    )
    node.sql("select pg_create_logical_replication_slot('once', 'test_decoding')")
    # As in the manual, 47.1, with a table that has rows, and another one.
    node.sql(
        "BEGIN; INSERT INTO data VALUES (5, '5'); UPDATE data SET data = 'uno' WHERE id = 1;"
        " DELETE FROM data WHERE id = 2; INSERT INTO u VALUES (1, 'u');"
        " PREPARE TRANSACTION 'test_prepared1'"
    )
    found = lines(node)
    xid = found[0].removeprefix("BEGIN ")
    assert sorted(found) == sorted(
        [
            f"BEGIN {xid}",
            "table public.data: UPDATE: id[integer]:1 data[text]:'uno'",
            "table public.data: DELETE: id[integer]:2",
            "table public.data: INSERT: id[integer]:5 data[text]:'5'",
            "table public.u: INSERT: a[bigint]:1 b[text]:'u'",
            f"PREPARE TRANSACTION 'test_prepared1', txid {xid}",
        ]
    )
    assert lines(node, "once") == []
    ((owner,),) = node.sql("select current_user")
    assert node.sql(
        "select transaction, gid, owner, database, prepared > now() - interval '1 hour'"
        " from pg_prepared_xacts"
    ) == [(xid, "test_prepared1", owner, "lake", "t")]
    # Nobody sees it, and nobody writes what it has written, until somebody ends it.
    assert node.sql("select * from data order by 1") == [("1", "one"), ("2", "two")]
    with psycopg.connect(node.conninfo(), autocommit=True) as waiting:
        waiting.execute("set statement_timeout = '1s'")
        with pytest.raises(psycopg.errors.QueryCanceled):
            waiting.execute("insert into data values (9, 'nine')")
    for sql in ("drop table data", "alter table data add column n int"):
        assert refusal(node, sql)[0] == "55006"
    assert refusal(node, "begin; select 1; prepare transaction 'test_prepared1'") == (
        "42710",
        'transaction identifier "test_prepared1" is already in use',
    )
    # It outlives the engine.
    node.kill("tree")
    node.start()
    assert prepared(node) == ["test_prepared1"]
    assert lines(node) == []
    node.sql("COMMIT PREPARED 'test_prepared1'")
    assert node.sql("select * from data order by 1") == [("1", "uno"), ("5", "5")]
    assert node.sql("select * from u") == [("1", "u")]
    assert lines(node) == [f"COMMIT PREPARED 'test_prepared1', txid {xid}"]
    once = lines(node, "once")
    assert (once[0], once[-1]) == (f"BEGIN {xid}", f"COMMIT {xid}")
    assert sorted(once[1:-1]) == sorted(found[1:-1])
    assert prepared(node) == []
    # ROLLBACK PREPARED, of the manual too.
    node.sql(
        "BEGIN; INSERT INTO data VALUES (6, '6'); PREPARE TRANSACTION 'test_prepared2'"
    )
    found = lines(node)
    xid = found[0].removeprefix("BEGIN ")
    assert found[1:] == [
        "table public.data: INSERT: id[integer]:6 data[text]:'6'",
        f"PREPARE TRANSACTION 'test_prepared2', txid {xid}",
    ]
    node.sql("ROLLBACK PREPARED 'test_prepared2'")
    assert lines(node) == [f"ROLLBACK PREPARED 'test_prepared2', txid {xid}"]
    assert lines(node, "once") == []
    node.sql("insert into data values (6, 'free')")
    assert lines(node)[1:-1] == [
        "table public.data: INSERT: id[integer]:6 data[text]:'free'"
    ]
    refusals(node)
    odd_ones(node)


def refusals(node: Node) -> None:
    for sql, sqlstate, text in (
        (
            "commit prepared 'none'",
            "42704",
            'prepared transaction with identifier "none" does not exist',
        ),
        (
            "begin; commit prepared 'none'",
            "25001",
            "COMMIT PREPARED cannot run inside a transaction block",
        ),
        (
            f"begin; prepare transaction '{'x' * 200}'",
            "22023",
            f'transaction identifier "{"x" * 200}" is too long',
        ),
    ):
        assert refusal(node, sql) == (sqlstate, text)
    node.sql("create role somebody login")
    node.sql("begin; insert into u values (7, 'owned'); prepare transaction 'owned'")
    with (
        psycopg.connect(node.conninfo(), user="somebody", autocommit=True) as other,
        pytest.raises(psycopg.errors.InsufficientPrivilege) as refused,
    ):
        other.execute("rollback prepared 'owned'")
    assert refused.value.diag.message_primary == (
        "permission denied to finish prepared transaction"
    )
    node.sql("begin; prepare transaction 'empty'")
    node.sql(
        "begin; select pg_logical_emit_message(true, 'p', 'said'); prepare transaction 'm'"
    )
    assert refusal(node, "begin; prepare transaction 'more'") == (
        "53200",
        "maximum number of prepared transactions reached",
    )
    assert prepared(node) == ["empty", "m", "owned"]
    lines(node)
    for gid in ("empty", "m", "owned"):
        node.sql(f"commit prepared '{gid}'")
    assert [line.split(",")[0] for line in lines(node)] == [
        "COMMIT PREPARED 'empty'",
        "COMMIT PREPARED 'm'",
        "COMMIT PREPARED 'owned'",
    ]
    assert sum("content:said" in line for line in lines(node, "once")) == 1


def odd_ones(node: Node) -> None:
    """TRUNCATE, blocks, names that are decoded when they commit, and slots that came later."""
    node.sql(
        "begin; truncate u; insert into u values (1, 'new'); prepare transaction 't'"
    )
    assert lines(node)[1:3] == [
        "table public.u: TRUNCATE: (no-flags)",
        "table public.u: INSERT: a[bigint]:1 b[text]:'new'",
    ]
    node.sql(
        "select pg_create_logical_replication_slot('late', 'test_decoding', false, true)"
    )
    node.sql("commit prepared 't'")
    assert node.sql("select * from u") == [("1", "new")]
    (end,) = lines(node)
    xid = end.rsplit(" ", 1)[1]
    late = lines(node, "late")
    assert late[0] == f"BEGIN {xid}"
    assert late[-2:] == [f"PREPARE TRANSACTION 't', txid {xid}", end]
    node.sql("select pg_drop_replication_slot('late')")
    node.sql("begin; insert into u values (2, 'x'); prepare transaction 'a_nodecode'")
    assert lines(node) == []
    node.sql("commit prepared 'a_nodecode'")
    assert [line.split()[0] for line in lines(node)] == ["BEGIN", "table", "COMMIT"]
    node.sql(
        "begin; insert into u select 100 + n, repeat('x', 100)"
        " from generate_series(1, 2000) as g (n); prepare transaction 'large'"
    )
    sql = GET.replace("NULL)", "NULL, 'stream-changes', '1')", 1).replace(
        "NULL, NULL", "NULL, NULL"
    )
    streamed = [str(row[2]) for row in node.sql(sql)]
    xid = streamed[-1].rsplit(" ", 1)[1]
    assert streamed.count(f"streaming change for TXN {xid}") == 2000
    assert streamed[-1] == f"preparing streamed transaction TXN 'large', txid {xid}"
    node.sql("rollback prepared 'large'")
    lines(node)
    lines(node, "once")


@pytest.mark.slow
def test_postgresql_prepares_what_is_prepared(
    node: Node, pg18: Database, tmp_path: Path
) -> None:
    """A subscriber with two_phase, and pg_recvlogical as in the manual."""
    for table in (
        "data (id int primary key, data text)",
        "u (a bigint primary key, b text)",
    ):
        pg18.psql(f"create table public.{table}")
    node.sql("insert into data (data) values ('one')")
    node.sql("create publication p for all tables")
    pg18.psql(
        f"create subscription s connection '{source(node)}' publication p"
        " with (two_phase = on, streaming = off)"
    )
    wait_until(
        lambda: pg18.psql("select subtwophasestate from pg_subscription") == "e",
        timeout_seconds=120,
        describe=lambda: node.log_text()[-4000:],
    )
    same(node, pg18, "data")

    def there(count: int) -> None:
        wait_until(
            lambda: pg18.psql("select count(*) from pg_prepared_xacts") == str(count),
            timeout_seconds=60,
            describe=lambda: node.log_text()[-4000:],
        )

    programs = find_installation(18).bin

    def recvlogical(*options: str | Path) -> None:
        named = ["-d", node.conninfo(), "--slot=test"]
        subprocess.run([programs / "pg_recvlogical", *named, *options], check=True)

    recvlogical("--create-slot", "--two-phase", "--plugin=test_decoding")
    node.sql("BEGIN;INSERT INTO data(data) VALUES('5');PREPARE TRANSACTION 'test';")
    there(1)
    assert pg18.psql("select count(*) from data") == "1"
    node.kill("tree")
    node.start()
    pg18.psql(f"alter subscription s connection '{source(node)}'")
    node.sql("COMMIT PREPARED 'test'")
    there(0)
    same(node, pg18, "data")
    node.sql("BEGIN; UPDATE data SET data = 'no'; PREPARE TRANSACTION 'undone'")
    there(1)
    node.sql("ROLLBACK PREPARED 'undone'")
    there(0)
    node.sql("insert into data values (6, 'six')")
    same(node, pg18, "data")
    ((end,),) = node.sql("select pg_current_wal_lsn()")
    out = tmp_path / "out"
    recvlogical("--start", "-f", out, f"--endpos={end}", "--no-loop")
    found = out.read_text().splitlines()
    assert [line.split(" ")[0] for line in found[:3]] == ["BEGIN", "table", "PREPARE"]
    assert found[2].startswith("PREPARE TRANSACTION 'test', txid ")
    assert found[3].startswith("COMMIT PREPARED 'test', txid ")
    assert [line for line in found if line.startswith("ROLLBACK PREPARED 'undone'")]
    recvlogical("--drop-slot")
    pg18.psql("drop subscription s")
