"""Generated columns (STORED): statements, replicated rows and publications, as PostgreSQL has
them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
import pytest
from tests.conftest import Database
from tests.node.conftest import Psql, Subscribe

from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

Statement = str | tuple[str, tuple[object, ...]]
"""With parameters, it is prepared."""


def _said(one: psycopg.Connection[Any], statement: Statement) -> tuple[object, ...]:
    """What a server answers: rows, or its error."""
    notices: list[tuple[str | None, str | None]] = []

    def note(diag: psycopg.errors.Diagnostic) -> None:
        notices.append((diag.message_primary, diag.message_detail))

    one.add_notice_handler(note)
    try:
        if isinstance(statement, str):
            cursor = one.execute(statement)
        else:
            cursor = one.execute(*statement, prepare=True)
        rows = cursor.fetchall() if cursor.description else cursor.statusmessage
        return "", rows, *notices
    except psycopg.Error as error:
        diag = error.diag
        detail = diag.message_detail
        if diag.sqlstate in ("22003", "23502", "23514") or "duplicated" in str(detail):
            # The row, the type's limits, and which value it is.
            detail = None
        return diag.sqlstate, diag.message_primary, detail, diag.message_hint
    finally:
        one.remove_notice_handler(note)


def _compare(node: Node, pg18: Database, statements: Sequence[Statement]) -> None:
    with (
        psycopg.connect(pg18.conninfo(), autocommit=True) as there,
        psycopg.connect(node.conninfo(), autocommit=True) as here,
    ):
        for sql in statements:
            assert _said(here, sql) == _said(there, sql), sql


ROWS = "select * from gl order by a, t"


@pytest.mark.slow
def test_statements_are_answered_as_postgresql_answers(
    node: Node, pg18: Database, psql: Psql
) -> None:
    _compare(
        node,
        pg18,
        (
            "create table gl (a int, b numeric(6,2), t text,"
            " c int generated always as (a * 2 + 1) stored,"
            " d varchar(5) generated always as (t) stored,"
            " e numeric(5,1) generated always as (b) stored,"
            " f text generated always as (a) stored,"
            " g date generated always as (date '2024-02-28' + a) stored)",
            "insert into gl values (1, 2.25, 'abc')",
            "insert into gl values (1, 2.25, 'abc', 5)",
            "insert into gl values (1, 2.25, 'abd', default)",
            "insert into gl (a, c) values (1, 5)",
            "insert into gl (a, c) values (2, default), (3, 4)",
            "insert into gl (a, c) values (2, default), (3, default)",
            "insert into gl (a, c) select 1, 2",
            "insert into gl (a, c) overriding system value values (1, 5)",
            "insert into gl (a, c) overriding user value values (1, 5)",
            "insert into gl (a, t) values (1, 'toolong')",
            "insert into gl (a, t) values (1, 'blank      ')",
            "insert into gl (a) values (2000000000)",
            "insert into gl (a, b) values (1, 9999.99)",
            "insert into gl default values",
            "insert into gl (a, t) select a + 10, t from gl where a < 3",
            ROWS,
            "update gl set c = 5",
            "update gl set c = default",
            "update gl set c = default, a = 7 where a = 2",
            "update gl set a = a + 1, t = substr(t, 1, 2) where a < 5",
            "update gl set a = 2000000000",
            "update gl set (a, c) = (1, 2)",
            "update gl set t = 'much too long'",
            "delete from gl where c > 20",
            ROWS,
            "begin",
            "insert into gl (a, t) values (100, 'x'), (101, 'y')",
            "update gl set a = a * 2 where c > 200",
            "select a, c, f from gl where c > 100 order by a",
            "savepoint s",
            "update gl set a = 9 where a = 200",
            "rollback to s",
            "update gl set t = 'z' where f = '202'",
            "commit",
            ROWS,
            ("insert into gl (a, t) values (%s, %s)", (300, "one")),
            ("insert into gl (a, t) values (%s, %s)", (301, "toolong")),
            ("insert into gl (a, c) values (1, %s)", (7,)),
            ("update gl set a = a + %s where a = %s", (5, 300)),
            "select c, f from gl where a = 305",
            "select attname, attgenerated, atthasdef, attnotnull,"
            " pg_get_expr(adbin, adrelid) from pg_attribute left join pg_attrdef on"
            " adrelid = attrelid and adnum = attnum where attrelid = 'gl'::regclass"
            " and attnum > 0 order by attnum",
            "select column_name, column_default, is_generated, generation_expression"
            " from information_schema.columns where table_name = 'gl'"
            " order by ordinal_position",
            "copy gl (a, c) to stdout",
            "create table gn (a int, c int generated always as (10 / a) stored not null)",
            "insert into gn values (0)",
            "insert into gn values (null)",
            "insert into gn select null::int",
            "insert into gn values (5), (2)",
            "update gn set a = null",
            "update gn set a = 0 where a = 5",
            "update gn set a = a - 2",
            "select * from gn order by a",
            "create table gk (a int, c int generated always as (a % 3) stored primary key)",
            "insert into gk values (1), (2)",
            "insert into gk values (4)",
            "update gk set a = 5 where a = 1",
            "update gk set a = 3 where a = 1",
            "select * from gk order by a",
            "create table gm (id int primary key, a int,"
            " c int generated always as (a * 2) stored)",
            "insert into gm values (1, 5), (2, 6)",
            "update gm set a = (select max(c) from gm) where id = 1",
            "update gm set a = gk.a, c = default from gk where gk.c = gm.id",
            "select * from gm order by id",
            "create table gc (a int, c int generated always as (a * 2) stored"
            " check (c < 10))",
            "insert into gc values (5)",
            "insert into gc values (1)",
            "update gc set a = 7",
        ),
    )
    described = [
        psql(conninfo, "-c", r"\d gl").stdout
        for conninfo in (node.conninfo(), pg18.conninfo())
    ]
    assert "generated always as (a * 2 + 1) stored" in described[1]
    assert described[0] == described[1]
    for name in ("gl", "gn", "gk", "gm", "gc"):
        node.sql(f"drop table {name}")
        pg18.psql(f"drop table {name}")


def test_definitions_are_refused_as_postgresql_refuses(
    node: Node, pg18: Database
) -> None:
    def table(column: str) -> str:
        return f"create table gx (a int, {column})"

    _compare(
        node,
        pg18,
        [
            table(one)
            for one in (
                "c int generated always as (d) stored,"
                " d int generated always as (a) stored",
                "c int generated always as (c) stored",
                "c timestamptz generated always as (now()) stored",
                "c int generated always as ((select 1)) stored",
                "c int default 5 generated always as (a) stored",
                "c int generated always as (a) stored default 5",
                "c int generated always as identity generated always as (a) stored",
                "c int generated always as (a) stored generated always as identity",
                "c int generated by default as (a) stored",
                "c int generated always as (a) stored generated always as (a) stored",
                "c int generated always as (t) stored, t text",
                "c int generated always as (sum(a)) stored",
                "c int generated always as (generate_series(1, a)) stored",
                "c int generated always as (xmin) stored",
                "c int generated always as (nope) stored",
                "c int generated always as (nofunc(a)) stored",
                "c int generated always as (a) stored) partition by list (c",
                "c date generated always as (current_date) stored",
                "c bigserial generated always as (a) stored",
                "c int generated always as (row_number() over ()) stored",
                "c float generated always as (random()) stored",
                "c int generated always as (a = 1) stored",
                "c int generated always as ($1) stored",
                "c int generated always as (1 / 0) stored",
            )
        ],
    )
    for column, message, hint in (
        (
            "c int generated always as (a) virtual",
            "VIRTUAL generated columns are not supported on lake tables",
            "Write GENERATED ALWAYS AS (...) STORED.",
        ),
        (
            "c int generated always as (a)",
            "VIRTUAL generated columns are not supported on lake tables",
            "Write GENERATED ALWAYS AS (...) STORED.",
        ),
        (
            "t text, c text generated always as (lower(t)) stored",
            "GENERATED ALWAYS AS (lower(t)) is not supported on lake tables",
            None,
        ),
        (
            "c interval generated always as ('1 day') stored",
            "GENERATED ALWAYS AS ('1 day') is not supported on lake tables",
            None,
        ),
    ):
        with (
            psycopg.connect(node.conninfo(), autocommit=True) as here,
            pytest.raises(psycopg.errors.FeatureNotSupported) as refused,
        ):
            here.execute(table(column))
        assert refused.value.diag.message_primary == message
        assert refused.value.diag.message_hint == hint


@pytest.mark.slow
def test_alter_table_computes_anew_as_postgresql_does(
    node: Node, pg18: Database
) -> None:
    _compare(
        node,
        pg18,
        (
            "create table ga (a int, b int)",
            "insert into ga values (1, 2), (3, 4)",
            "alter table ga add column c int generated always as (a + b) stored",
            "select * from ga order by a",
            "alter table ga add column d int generated always as (c) stored",
            "alter table ga add column d int generated always as (10 / (a - 1)) stored",
            "alter table ga add column d int generated always as (nullif(a, 3)) stored"
            " not null",
            "alter table ga add column d int generated always as (a - 2) stored"
            " check (d > 0)",
            "alter table ga add column d int generated always as (a) stored default 5",
            "alter table ga add column c int generated always as (a) stored",
            "alter table ga add column d numeric(4,1) generated always as (a * 1.25)"
            " stored, add column e int default 7, alter c set expression as (b - a)",
            "select * from ga order by a",
            "alter table ga alter c set expression as (a * b)",
            "insert into ga (a, b) values (5, 6)",
            "update ga set b = b + 1 where a = 3",
            "select * from ga order by a",
            "alter table ga alter a set expression as (b)",
            "alter table ga alter c set expression as (c)",
            "alter table ga alter c set expression as (now())",
            "alter table ga alter c set expression as (10 / (a - 1))",
            "alter table ga alter nope set expression as (1)",
            "alter table ga alter a drop expression",
            "alter table ga alter a drop expression if exists",
            "alter table ga alter c set default 5",
            "alter table ga alter c drop default",
            "alter table ga alter b type bigint",
            "alter table ga alter c type bigint",
            "alter table ga alter c type text using 'x'",
            "alter table ga alter c type date",
            "alter table ga add primary key (c)",
            "alter table ga alter c set expression as (a * 0)",
            "alter table ga alter c set expression as (a * 3)",
            "select * from ga order by a",
            "alter table ga rename column a to aa",
            "select pg_get_expr(adbin, adrelid) from pg_attrdef where"
            " adrelid = 'ga'::regclass order by adnum",
            "update ga set aa = aa + 1",
            "select * from ga order by aa",
            "alter table ga alter d drop expression",
            "update ga set d = 9 where aa = 2",
            "alter table ga drop column aa cascade",
            "select * from ga order by b",
            "create table gb (a int, c int generated always as (a + 1) stored"
            " check (c < 100))",
            "insert into gb values (1), (50)",
            "alter table gb alter c set expression as (a * 3)",
            "alter table gb alter c set not null",
            "alter table gb alter c set expression as (nullif(a, 1))",
            "alter table gb alter c drop expression",
            "insert into gb values (7, 8)",
            "select * from gb order by a",
            "alter table gb alter c drop expression",
            "create table gd (a int, c int generated always as (a + 1) stored,"
            " d int generated always as (a + 2) stored, e int)",
            "alter table gd drop column a, drop column c",
            "alter table gd drop column a cascade",
            "create table ge (a int, c int generated always as (a + 1) stored, e int)",
            "alter table ge alter a set data type bigint, alter c set data type bigint",
            "alter table ge drop column c, drop column a",
            # What reads a column of another type is looked at when the rows have it.
            "create table gh (a float8)",
            "insert into gh values (1.5), (2.25)",
            "alter table gh alter a type int using 0,"
            " add column c int generated always as (10 / a) stored",
            "alter table gh alter a type int using -a,"
            " add column c int generated always as (a) stored check (c > 0)",
            "alter table gh alter a type int using -a, add check (a > 0)",
            "alter table gh alter a type int using a * 4, add check (a > 5),"
            " add column c int generated always as (a * 2) stored not null",
            "select * from gh order by a",
        ),
    )
    # A transaction that has computed with another expression cannot commit.
    node.sql("create table gf (a int, c int generated always as (a + 1) stored)")
    with psycopg.connect(node.conninfo(), autocommit=True) as here:
        here.execute("begin; insert into gf values (1)")
        node.sql("alter table gf alter c set expression as (a + 2)")
        with pytest.raises(psycopg.errors.SerializationFailure):
            here.execute("commit")
    for name in ("ga", "gb", "gd", "ge"):
        node.sql(f"drop table {name}")
        pg18.psql(f"drop table {name}")
    node.sql("drop table gf")


def test_replicated_rows_are_computed(
    node: Node, pg18: Database, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema gr; create table gr.t (id int primary key, n int, v text);"
        " alter table gr.t alter v set storage external;"
        " insert into gr.t select i, i, repeat('x', 9000 + i) from generate_series(1, 9) i;"
        " create table gr.f (a int, b text); alter table gr.f replica identity full;"
        " insert into gr.f values (1, 'one'), (1, 'one'), (2, null);"
        " create table gr.d (id int primary key, n int);"
        " insert into gr.d values (1, 1), (2, 0);"
        " create publication gr for tables in schema gr"
    )
    node.sql("create schema gr")
    node.sql(
        "create table gr.t (id int primary key, n int, v text, here int default 1,"
        " size int generated always as (length(v) + n * here) stored not null,"
        " twice bigint generated always as (id * 2) stored,"
        " check (size < 20000))"
    )
    node.sql(
        "create table gr.f (a int, b text,"
        " c text generated always as (coalesce(b, 'none') || '!') stored)"
    )
    node.sql(
        "create table gr.d (id int primary key, n int,"
        " c int generated always as (10 / n) stored)"
    )
    mirror = subscribe(pg18, "gr")

    def stopped(text: str, state: str) -> str:
        ((found, error),) = node.wait_for(
            "select sqlstate, error from wal2lake.subscription_errors"
            " where subname = 'gr'",
            lambda rows: text in str(rows),
        )
        assert found == state
        return str(error)

    def rows() -> list[tuple[str | None, ...]]:
        return node.sql(
            "select id, n, length(v), here, size, twice from gr.t order by 1"
        )

    def expected() -> list[tuple[str | None, ...]]:
        """What PostgreSQL computes of the node's base columns."""
        found = node.sql("select id, n, length(v), here from gr.t order by 1")
        return [
            (i, n, size, here, str(int(size) + int(n) * int(here)), str(int(i) * 2))
            for i, n, size, here in found
            if i and n and size and here
        ]

    # The initial copy; its HINT lets it go on.
    error = stopped("division by zero", "22012")
    assert "ALTER COLUMN c DROP EXPRESSION" in error
    node.sql("alter table gr.d alter c drop expression")
    mirror.synced()
    assert node.sql("select c from gr.d") == [(None,), (None,)]
    assert len(rows()) == 9 and rows() == expected()
    # What is not sent: TOAST, and columns of the target's own.
    node.sql("update gr.t set here = 10 where id < 5")
    pg18.transactions(
        [
            "update gr.t set n = n + 100",
            "update gr.t set n = n + 1 where id = 2",
            "update gr.t set v = 'short', n = 7 where id = 3",
            "update gr.t set n = 8 where id = 3",
            "update gr.t set id = 70 where id = 7",
            "update gr.t set id = 71, n = 1 where id = 70",
            "insert into gr.t values (10, 10, 'ten'), (11, 11, 'eleven')",
            "update gr.t set n = 12 where id = 10",
            "delete from gr.t where id in (6, 11)",
            "update gr.f set a = 3 where b is null",
            "update gr.f set b = 'two' where ctid = '(0,1)'",
            "delete from gr.f where ctid = '(0,2)'",
        ]
    )
    mirror.caught_up()
    assert rows() == expected()
    assert [row[0] for row in rows()] == ["1", "2", "3", "4", "5", "8", "9", "10", "71"]
    assert node.sql("select * from gr.f order by a") == [
        ("1", "two", "two!"),
        ("3", None, "none!"),
    ]
    # An UPDATE whose row cannot be computed, for a while within a batch.
    node.sql("update gr.d set n = 5 where id = 2")
    node.sql("alter table gr.d drop column c")
    node.sql("alter table gr.d add column c int generated always as (10 / n) stored")
    assert node.sql("select c from gr.d order by id") == [("10",), ("2",)]
    pg18.transactions(
        [
            "update gr.t set n = 0 where id = 1",
            "update gr.d set n = 0 where id = 1",
            "update gr.d set n = 2 where id = 1",
        ]
    )
    error = stopped("division by zero", "22012")
    assert 'message type "UPDATE" for replication target relation "gr.d"' in error
    assert "ALTER COLUMN c DROP EXPRESSION" in error
    node.sql("alter table gr.d alter c set expression as (nullif(n, 0) * 2)")
    mirror.caught_up()
    assert node.sql("select * from gr.d order by id") == [
        ("1", "2", "4"),
        ("2", "5", "10"),
    ]
    # A CHECK and NOT NULL that read what is computed of TOAST.
    pg18.psql("update gr.t set n = 15000 where id = 1")
    error = stopped("violates check constraint", "23514")
    assert 'message type "UPDATE"' in error
    node.sql("alter table gr.t drop constraint t_size_check")
    mirror.caught_up()
    pg18.psql("update gr.t set n = null where id = 1")
    error = stopped('null value in column "size" of relation "t"', "23502")
    node.sql("alter table gr.t alter size drop not null")
    mirror.caught_up()
    assert node.sql("select size from gr.t where id = 1") == [(None,)]
    pg18.psql("insert into gr.t values (20, null, 'x'); truncate gr.f")
    mirror.caught_up()
    assert node.sql("select n, size, twice from gr.t where id = 20") == [
        (None, None, "40")
    ]
    assert node.sql("select * from gr.f") == []


def test_generated_columns_that_are_sent_are_incompatible(
    node: Node, pg18: Database, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema gi; create table gi.t (id int primary key,"
        " c int generated always as (id * 2) stored);"
        " insert into gi.t values (1);"
        " create publication gi for table gi.t with (publish_generated_columns = stored)"
    )
    node.sql("create schema gi")
    node.sql(
        "create table gi.t (id int primary key, c int generated always as (id * 3) stored)"
    )
    mirror = subscribe(pg18, "gi")

    def stopped() -> str:
        ((state, error),) = node.wait_for(
            "select sqlstate, error from wal2lake.subscription_errors"
            " where subname = 'gi'",
            lambda rows: "incompatible generated column" in str(rows),
        )
        assert state == "55000"
        return str(error)

    error = stopped()
    assert (
        'logical replication target relation "gi.t" has incompatible generated column:'
        ' "c"'
    ) in error
    assert "DROP EXPRESSION" in error
    node.sql("alter table gi.t alter c drop expression")
    mirror.synced()
    pg18.psql("insert into gi.t values (2)")
    mirror.caught_up()
    assert node.sql("select * from gi.t order by id") == [("1", "2"), ("2", "4")]
    node.sql("alter table gi.t drop column c")
    node.sql("alter table gi.t add column c int generated always as (id * 5) stored")
    pg18.psql("insert into gi.t values (3)")
    # The log has the column, whatever is published later.
    assert (
        "HINT:  ALTER TABLE ... ALTER COLUMN ... DROP EXPRESSION on the table here lets it"
        " take the publisher's values.\n"
    ) in stopped()
    pg18.psql("alter publication gi set (publish_generated_columns = none)")
    node.sql("alter table gi.t alter c drop expression")
    mirror.caught_up()
    assert node.sql("select * from gi.t order by id") == [
        ("1", "5"),
        ("2", "10"),
        ("3", "6"),
    ]
    # A copy has what is published when it begins.
    pg18.psql("alter publication gi set (publish_generated_columns = stored)")
    node.sql("drop table gi.t")
    node.sql(
        "create table gi.t (id int primary key, c int generated always as (id * 7) stored)"
    )
    node.sql("alter subscription gi refresh publication")
    assert "; or publish the table without the column." in stopped()
    pg18.psql("alter publication gi set (publish_generated_columns = none)")
    mirror.synced()
    pg18.psql("insert into gi.t values (4)")
    mirror.caught_up()
    assert node.sql("select * from gi.t order by id") == [
        (str(i), str(7 * i)) for i in (1, 2, 3, 4)
    ]


@pytest.mark.slow
def test_generated_columns_are_published_as_postgresql_publishes_them(
    node: Node, pg18: Database
) -> None:
    listed = "select pubname, tablename, attnames from pg_publication_tables order by 1"
    _compare(
        node,
        pg18,
        (
            "create table gp (id int primary key, a int,"
            " c int generated always as (a * 2) stored)",
            "create table gq (a int, c int generated always as (a + 1) stored"
            " primary key)",
            "create table gu (a int, c int generated always as (a) stored)",
            "alter table gu replica identity full",
            "insert into gp values (1, 1), (2, null)",
            "insert into gq values (1)",
            "insert into gu values (1)",
            "create publication gp_none for table gp, gq, gu",
            "create publication gp_some for table gp (id, c)",
            "create publication gp_stored for table gp, gq"
            " with (publish_generated_columns = stored)",
            listed,
            "update gq set a = 2",
            "delete from gq",
            "update gu set a = 2",
            "insert into gu values (2)",
            "alter publication gp_none drop table gq",
            "update gq set a = 2",
            "alter publication gp_none set (publish_generated_columns = stored)",
            "update gu set a = 3 where a = 2",
            "alter publication gp_none set (publish_generated_columns = none)",
            "alter publication gp_none drop table gu",
            listed,
        ),
    )
    pg18.psql("drop publication gp_none, gp_some, gp_stored; drop table gp, gq, gu")
    facts = dict(one.split("=", 1) for one in node.conninfo().split(" ") if "=" in one)
    port = facts["port"].strip("'")
    node.sql("create role gp_reader login superuser replication password 'secret'")
    wanted = {
        "gp_none": "id int primary key, a int",
        "gp_some": "id int primary key, c int",
        "gp_stored": "id int primary key, a int, c int",
    }
    for number, (name, columns) in enumerate(wanted.items()):
        # A subscription has the tables of its schema alone.
        pg18.psql(f"create database {name}")
        copy = Database(pg18.server, name)
        copy.psql(f"create table gp ({columns}); create table gq (a int, c int)")
        copy.psql(
            f"create subscription {name} connection 'host=127.0.0.1 port={port}"
            f" dbname=lake user=gp_reader password=secret' publication {name}"
            f" with (slot_name = 'gp_{number}')"
        )

    def equal() -> None:
        for name, columns in wanted.items():
            names = ", ".join(c.split()[0] for c in columns.split(", "))
            sql = f"select {names} from gp order by id"
            rows = ["|".join(v or "" for v in row) for row in node.sql(sql)]
            copy = Database(pg18.server, name)

            def same(
                copy: Database = copy, sql: str = sql, rows: object = rows
            ) -> bool:
                return copy.psql(sql).splitlines() == rows

            wait_until(same, timeout_seconds=60, describe=copy.server.log_text)

    equal()
    node.sql(
        "begin; insert into gp values (3, 3), (4, 4); update gp set a = 10 where id = 1;"
        " update gp set id = 5 where id = 4; delete from gp where id = 2; commit"
    )
    node.sql("insert into gp select id + 10, a + 10 from gp")
    node.sql("update gp set a = a + (select max(a) from gp) where id > 10")
    equal()
    stored = Database(pg18.server, "gp_stored")
    wait_until(lambda: stored.psql("select * from gq") == "2|3")
    for name in wanted:
        Database(pg18.server, name).psql(f"drop subscription {name}")
        node.sql(f"drop publication {name}")
        pg18.psql(f"drop database {name}")
    for name in ("gp", "gq", "gu"):
        node.sql(f"drop table {name}")
    node.sql("drop role gp_reader")
