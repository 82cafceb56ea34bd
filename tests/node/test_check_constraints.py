"""CHECK constraints of the target: local statements and replicated rows, as PostgreSQL has them."""

from __future__ import annotations

import psycopg
import pytest
from tests.conftest import Database
from tests.node.conftest import Psql, Subscribe

from wal2lake.testing.node import Node


@pytest.mark.slow
def test_statements_are_answered_as_postgresql_answers(
    node: Node, pg18: Database, psql: Psql
) -> None:
    statements = (
        "create table ck (a int check (a > 0), b int, c text, constraint bb check (b < a),"
        " check (a + b > -100))",
        "insert into ck values (1, -1, 'x'), (2, null, null)",
        "insert into ck values (0, -1, 'y')",
        "insert into ck values (3, 4, 'y')",
        "insert into ck values (-1, 4, 'y')",
        "insert into ck values (5, 1, repeat('long ', 30)), (-5, -6, 'two')",
        "update ck set b = a where a = 1",
        "update ck set a = b",
        "update ck set a = a + 1",
        "insert into ck select a, 10 from ck",
        "delete from ck where a = 3",
        "select a, b, c from ck order by a",
        "alter table ck add check (a > 100)",
        "alter table ck add constraint bb check (a > 0)",
        "alter table ck add check (nope > 0)",
        "alter table ck add check (a)",
        "alter table ck add constraint len check (c in ('x', 'y'))",
        "insert into ck values (7, 1, 'z')",
        "alter table ck rename column c to d",
        "insert into ck values (7, 1, 'z')",
        "alter table ck drop constraint len",
        "alter table ck drop constraint len",
        "insert into ck values (7, 1, 'z')",
        "alter table ck add column e int check (e is not null)",
        "alter table ck add column e int check (e > 0)",
        "insert into ck values (8, 1, 'z', 0)",
        "alter table ck drop column b",
        "insert into ck values (9, 'z', 1)",
        "alter table ck add check (10 / (a - 11) < 5)",
        "insert into ck values (11, 'z', 1)",
        "create table ck2 (a int, constraint k check (a > 0), constraint k check (a > 1))",
    )
    shown = (
        "select conname, conkey, pg_get_constraintdef(oid), relchecks from"
        " pg_constraint join pg_class on pg_class.oid = conrelid"
        " where contype = 'c' and relname = 'ck' order by 1"
    ).replace("pg_get_constraintdef(oid)", "pg_get_constraintdef(pg_constraint.oid)")
    with (
        psycopg.connect(pg18.conninfo(), autocommit=True) as there,
        psycopg.connect(node.conninfo(), autocommit=True) as here,
    ):
        # The attributes behind a dropped column have other numbers here.
        numbered = True
        for sql in statements:
            answers = []
            for one in (there, here):
                try:
                    cursor = one.execute(sql)
                    said: object = cursor.fetchall() if cursor.description else None
                except psycopg.Error as error:
                    diag = error.diag
                    said = (
                        diag.sqlstate,
                        diag.message_primary,
                        diag.message_detail,
                        diag.constraint_name,
                    )
                rows = one.execute(shown).fetchall()
                if "drop column" in sql:
                    numbered = False
                answers.append(
                    (said, rows if numbered else [r[:1] + r[2:] for r in rows])
                )
            assert answers[1] == answers[0], sql
        with pytest.raises(psycopg.errors.FeatureNotSupported) as refused:
            here.execute("create table no (a text check (lower(a) = a))")
        assert refused.value.diag.message_primary == (
            "CHECK (lower(a) = a) is not supported on lake tables"
        )
        # A transaction that was not judged by a new constraint cannot commit.
        here.execute("begin; insert into ck values (50, 'z', 1)")
        node.sql("alter table ck add constraint late check (a < 20)")
        with pytest.raises(psycopg.errors.SerializationFailure):
            here.execute("commit")
        node.sql("alter table ck drop constraint late")
    described = [
        psql(conninfo, "-c", r"\d ck").stdout
        for conninfo in (node.conninfo(), pg18.conninfo())
    ]
    assert "Check constraints:" in described[1]
    assert described[0] == described[1]
    node.sql("drop table ck")
    pg18.psql("drop table ck")


def test_replicated_rows_are_checked(
    node: Node, pg18: Database, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema ckr; create table ckr.t (id int primary key, n int, v text);"
        " create table ckr.c (id int primary key, n int);"
        " alter table ckr.t alter v set storage external;"
        " insert into ckr.t select i, i, repeat('x', 9000) from generate_series(1, 9) i;"
        " insert into ckr.c values (1, 1), (2, -2);"
        " create publication ckr for tables in schema ckr"
    )
    node.sql("create schema ckr")
    node.sql(
        "create table ckr.t (id int primary key, n int, v text, here int default 0,"
        " constraint positive check (n > here), check (v like 'x%' or n < 100))"
    )
    node.sql("create table ckr.c (id int primary key, n int check (n > 0))")
    mirror = subscribe(pg18, "ckr")

    def stopped(text: str) -> str:
        ((state, error),) = node.wait_for(
            "select sqlstate, error from wal2lake.subscription_errors"
            " where subname = 'ckr'",
            lambda rows: text in str(rows),
        )
        assert state == "23514"
        return str(error)

    # The initial copy; its HINT lets it go on.
    error = stopped("c_n_check")
    assert 'new row for relation "c" violates check constraint "c_n_check"' in error
    assert "DROP CONSTRAINT" in error
    node.sql("alter table ckr.c drop constraint c_n_check")
    mirror.synced()
    # Rows that are good, whatever is not sent of them; an UPDATE of a row that is not there.
    node.sql("delete from ckr.t where id = 9")
    pg18.transactions(
        [
            "update ckr.t set n = n + 1",
            "update ckr.t set n = -1 where id = 9",
            "update ckr.t set id = 90 where id = 8",
            "delete from ckr.t where id = 9",
        ]
    )
    mirror.caught_up()
    assert node.sql("select id, n from ckr.t order by id") == [
        *((str(i), str(i + 1)) for i in range(1, 8)),
        ("90", "9"),
    ]
    before = node.sql("select count(*) from ckr.t")
    # An INSERT, with transactions before it.
    pg18.transactions(
        [
            "insert into ckr.t values (20, 20, 'x')",
            "insert into ckr.t values (21, 0, 'x')",
            "delete from ckr.t where id = 21",
        ]
    )
    error = stopped('message type "INSERT"')
    assert 'violates check constraint "positive"' in error
    assert 'message type "INSERT" for replication target relation "ckr.t"' in error
    assert node.sql("select count(*) from ckr.t") != before
    node.sql("alter table ckr.t drop constraint positive")
    mirror.caught_up()
    node.sql("alter table ckr.t add constraint positive check (n > here)")
    # An UPDATE that does not send all that the constraint reads: here's own column, and TOAST.
    node.sql("update ckr.t set here = 3 where id = 3")
    pg18.psql("update ckr.t set n = 3 where id = 3")
    error = stopped('message type "UPDATE"')
    assert 'violates check constraint "positive"' in error
    assert 'message type "UPDATE" for replication target relation "ckr.t"' in error
    node.sql("update ckr.t set here = 2 where id = 3")
    mirror.caught_up()
    node.sql("update ckr.t set v = 'y' where id = 4")
    # What is wrong for a while within a batch is wrong.
    pg18.transactions(
        ["update ckr.t set n = 100 where id = 4", "update ckr.t set n = 5 where id = 4"]
    )
    assert 'message type "UPDATE"' in stopped('"t_check"')
    node.sql("update ckr.t set v = 'x' where id = 4")
    mirror.caught_up()
    assert node.sql("select n, v from ckr.t where id = 4") == [("5", "x")]
