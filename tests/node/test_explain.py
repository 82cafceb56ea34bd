"""EXPLAIN: what the node would do, without doing it; with ANALYZE, having done it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.conftest import Database

from wal2lake.testing.node import Node

TABLES = """
create schema ex;
create table ex.t (id int primary key, v text, n numeric(8,2));
insert into ex.t values (1, 'a', 1.5), (2, 'b', 2);
insert into ex.t values (1001, 'c', 3);
insert into ex.t values (2001, 'd', 4);
create table ex.u (id int, w text)
"""


@pytest.fixture
def client(node: Node) -> Iterator[Any]:
    with psycopg.connect(node.conninfo(), autocommit=True) as connection:
        for sql in TABLES.split(";"):
            connection.execute(sql)
        yield connection
        connection.execute("drop schema ex cascade")


def lines(client: Any, sql: str, parameters: tuple[object, ...] | None = None) -> str:
    rows = client.execute(sql, parameters).fetchall()
    text = "\n".join(row[0] for row in rows)
    text = re.sub(r"(Version|Bytes): \d+", r"\1: N", text)
    return re.sub(r"\d+\.\d{3}", "N", text)


def test_queries_of_files(client: Any) -> None:
    whole = "File Scan on t\n  Version: N\n  Files: 3\n  Skipped Files: 0"
    assert lines(client, "explain (costs off) select * from ex.t") == whole
    found = lines(client, "explain select v from ex.t where id > 1000 and v <> 'it''s'")
    assert found == (
        "File Scan on t\n  Version: N\n  Filter: ((id > 1000) AND (v <> 'it''s'))\n"
        "  Files: 2\n  Skipped Files: 1\n  Bytes: N\n  Stored Rows: 2"
    )
    found = lines(
        client,
        "explain (verbose, costs off) select * from ex.t where id in (1, 2) or not v is null"
        " order by v desc, id nulls first limit 3 offset 1",
    )
    assert found == (
        "Limit\n"
        "  ->  Sort\n"
        "        Sort Key: v DESC, id NULLS FIRST\n"
        "        ->  File Scan on ex.t\n"
        "              Version: N\n"
        "              Filter: ((id = ANY (ARRAY[1, 2])) OR (NOT (v IS NULL)))\n"
        "              Files: 3\n"
        "              Skipped Files: 0"
    )
    assert lines(client, "explain select count(*) from ex.t").startswith("Row Count")
    found = lines(client, "explain (costs off) select max(id), count(v) from ex.t")
    assert found.startswith("Aggregate\n  Output: max(id), count(v)\n  ->  File Scan")


def test_queries_of_catalogs(client: Any) -> None:
    found = lines(
        client,
        "explain select relname from pg_class join pg_namespace n on n.oid = relnamespace",
    )
    assert found == (
        "Catalog Query\n  ->  Catalog Scan on pg_class\n"
        "  ->  Catalog Scan on pg_namespace"
    )


def test_queries_of_spark(client: Any) -> None:
    found = lines(
        client,
        "explain (costs off) select v, count(*) from ex.t where n > 3 and id > 1500 group by v",
    )
    assert found.startswith("Spark\n  ->  HashAggregate\n")
    assert "File Scan on t\n" in found
    assert re.search("Files: 1\n +Skipped Files: 2", found)
    assert "Arguments" not in found
    found = lines(
        client, "explain verbose select * from ex.t join ex.u using (id) where w ~ 'x'"
    )
    assert "File Scan on ex.t\n" in found
    assert "File Scan on ex.u\n" in found
    assert "Arguments: " in found
    assert "file:" not in found


def test_writes_are_not_executed(client: Any) -> None:
    found = lines(
        client, "explain (costs off) insert into ex.u values (1, 'x'), (2, 'y')"
    )
    assert found == "Insert on u\n  ->  Values Scan\n        Rows: 2"
    found = lines(client, "explain (costs off) update ex.t set v = 'z' where id = 1001")
    assert found == (
        "Update on t\n  ->  File Scan on t\n        Version: N\n"
        "        Filter: (id = 1001)\n        Files: 1\n        Skipped Files: 2"
    )
    for sql, start in (
        ("delete from ex.t where n > 2 returning *", "Delete on t\n  ->  Spark\n"),
        (
            "update ex.t set v = w from ex.u where u.id = t.id",
            "Update on t\n  ->  Spark\n",
        ),
        ("insert into ex.u select id, v from ex.t", "Insert on u\n  ->  Spark\n"),
        (
            "insert into ex.t values (1, 'x') on conflict (id) do update set v = 'x'",
            "Insert on t\n  Conflict Resolution: UPDATE\n  ->  Values Scan\n",
        ),
        (
            "insert into ex.t values (1, 'x') on conflict do nothing",
            "Insert on t\n  Conflict Resolution: NOTHING\n  ->  Values Scan\n",
        ),
    ):
        assert lines(client, f"explain {sql}").startswith(start), sql
    assert client.execute("select count(*) from ex.u").fetchone() == (0,)
    assert client.execute("select min(v), count(*) from ex.t").fetchone() == ("a", 4)


def test_analyze_executes(client: Any) -> None:
    cursor = client.execute("explain analyze insert into ex.u values (1, 'x')")
    assert cursor.statusmessage == "EXPLAIN"
    text = "\n".join(row[0] for row in cursor)
    assert re.fullmatch(
        r"Insert on u \(actual time=\d+\.\d{3}\.\.\d+\.\d{3} rows=0\.00 loops=1\)\n"
        r"  Changed Rows: 1\n  ->  Values Scan\n        Rows: 1\n"
        r"Planning Time: \d+\.\d{3} ms\nExecution Time: \d+\.\d{3} ms",
        text,
    )
    assert client.execute("select * from ex.u").fetchall() == [(1, "x")]
    plain = "explain (analyze, timing off, summary off, costs off) "
    found = lines(client, f"{plain} update ex.u set w = 'y' returning *")
    assert found.startswith("Update on u (actual rows=1.00 loops=1)\n  Changed Rows: 1")
    found = lines(client, f"{plain} select * from ex.t where id < 3")
    assert found.startswith("File Scan on t (actual rows=2.00 loops=1)\n")
    found = lines(client, f"{plain} create table ex.made as select id from ex.t")
    assert found.startswith("File Scan on t (actual rows=4.00 loops=1)\n")
    assert "Changed" not in found
    assert client.execute("select count(*) from ex.made").fetchone() == (4,)
    with pytest.raises(psycopg.errors.DuplicateTable):
        client.execute(f"{plain} create table ex.made as select id from ex.t")
    client.execute("begin")
    client.execute(f"{plain} delete from ex.u")
    assert client.execute("select count(*) from ex.u").fetchone() == (0,)
    client.execute("rollback")
    assert client.execute("select count(*) from ex.u").fetchone() == (1,)


def test_privileges_and_read_only_sessions(client: Any) -> None:
    client.execute("create role ex_reader")
    client.execute("grant usage on schema ex to ex_reader")
    client.execute("grant select on ex.t to ex_reader")
    try:
        client.execute("set role ex_reader")
        assert lines(client, "explain select * from ex.t")
        for sql in (
            "select * from ex.u",
            "delete from ex.t",
            "insert into ex.t select 1",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                client.execute(f"explain {sql}")
        client.execute("reset role")
        client.execute("set default_transaction_read_only = on")
        assert lines(client, "explain delete from ex.t").startswith("Delete on t")
        with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
            client.execute("explain analyze delete from ex.t")
        client.execute("set default_transaction_read_only = off")
    finally:
        client.execute("reset role")
        client.execute("revoke all on ex.t from ex_reader")
        client.execute("revoke all on schema ex from ex_reader")
        client.execute("drop role ex_reader")


SAME = (
    "explain (format json) select * from ex.t",
    "explain (format xml) select 1",
    "explain (format yaml) select 1",
    "explain select 1",
    "explain (format json, analyze) insert into ex.u values (7, 'seven')",
    "explain select * from ex.nothing",
    "explain (nothing) select * from ex.nothing",
    "explain (nothing) select nothing from ex.t",
    "explain insert into ex.t (nothing) values (1)",
    "explain (format text, timing) delete from ex.t",
    "explain selec 1",
    "explain create table ex.t as select 1",
    "explain create table ex.t2 as select nothing from ex.t",
    "explain checkpoint",
    "explain",
    "explain (generic_plan) select * from ex.t",
    "explain select * from ex.t where id = $1",
)


def test_descriptions_and_errors_are_postgresqls(client: Any, pg18: Database) -> None:
    with psycopg.connect(pg18.conninfo(), autocommit=True) as theirs:
        for sql in TABLES.split(";"):
            theirs.execute(sql)
        for sql in SAME:
            assert described(client, sql) == described(theirs, sql), sql


def test_a_generic_plan_needs_values(client: Any) -> None:
    sql = "explain (generic_plan, costs off) select * from ex.t where id = $1"
    with pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
        client.execute(sql)
    hint = "Write values in the place of the parameters."
    assert caught.value.diag.message_hint == hint
    assert "Filter: (id = 1)" in lines(client, sql.replace("$1", "1"))


def described(client: Any, sql: str) -> object:
    try:
        cursor = client.execute(sql)
    except psycopg.Error as error:
        diag = error.diag
        return diag.sqlstate, diag.message_primary
    column = cursor.description[0]
    return column.name, column.type_code, cursor.statusmessage


def test_clients_that_bind(client: Any) -> None:
    found = lines(
        client, "explain (costs off) select * from ex.t where id > %s", (1500,)
    )
    assert "Filter: (id > 1500)\n  Files: 1\n  Skipped Files: 2" in found
    rows = client.execute(
        "explain (analyze, format json) select * from ex.t where id > %s", (1500,)
    ).fetchone()
    document = rows[0][0]
    assert document["Plan"]["Node Type"] == "File Scan"
    assert document["Plan"]["Actual Rows"] == 1
    assert set(document) == {"Plan", "Planning Time", "Execution Time"}
