"""DEFERRABLE primary keys: kept, shown, and judged when a transaction ends, as PostgreSQL does."""

from __future__ import annotations

import psycopg
import pytest
from tests.conftest import Database
from tests.node.conftest import Psql, Subscribe

from wal2lake.errors import PublisherError
from wal2lake.testing.node import Node


def test_replicated_keys_are_judged_at_the_end_of_the_transaction(
    node: Node, pg18: Database, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema dk;"
        " create table dk.t (id int primary key deferrable initially deferred, v text);"
        " create table dk.i (a int, b int, v text, primary key (a, b) deferrable);"
        " alter table dk.t replica identity full; alter table dk.i replica identity full;"
        " insert into dk.t select i, 'v' || i % 2 from generate_series(1, 50) i;"
        " insert into dk.i select i, 1, 'v' from generate_series(1, 20) i;"
        " create publication dk for tables in schema dk"
    )
    mirror = subscribe(pg18, "dk")
    mirror.synced()
    assert node.sql(
        "select conrelid::regclass::text, condeferrable, condeferred, indimmediate,"
        " pg_get_constraintdef(pg_constraint.oid)"
        " from pg_constraint join pg_index on conindid = indexrelid"
        " where contype = 'p' and connamespace = 'dk'::regnamespace order by 1"
    ) == [
        ("dk.i", "t", "f", "f", "PRIMARY KEY (a, b) DEFERRABLE"),
        ("dk.t", "t", "t", "f", "PRIMARY KEY (id) DEFERRABLE INITIALLY DEFERRED"),
    ]

    def equal() -> None:
        mirror.caught_up()
        for table, key in (("t", "id"), ("i", "a, b")):
            said = pg18.psql(f"select * from dk.{table} order by {key}")
            rows = node.sql(f"select * from dk.{table} order by {key}")
            assert "\n".join("|".join(map(str, row)) for row in rows) == said.strip()

    equal()
    pg18.transactions(
        [
            "update dk.t set id = id + 1",
            "update dk.i set a = a + 1",
            # The key does not tell which row is meant; the whole row does.
            "update dk.t set id = 3 where id = 2; update dk.t set v = 'x'"
            " where id = 3 and v = 'v0'; update dk.t set id = 2 where id = 3 and v = 'x'",
            "insert into dk.t values (5, 'second'); delete from dk.t where v = 'second';"
            " update dk.t set id = id - 1; update dk.t set id = id + 2 where id > 10",
            "update dk.i set a = 22 - a",
        ]
    )
    equal()
    # A row of this side has the key: nothing is a conflict before the COMMIT.
    node.sql("insert into dk.t values (1000, 'here')")
    pg18.psql("begin; insert into dk.t values (1000, 'there'); commit")
    ((state, error),) = node.wait_for(
        "select sqlstate, error from wal2lake.subscription_errors where subname = 'dk'",
        lambda rows: "duplicate key" in str(rows),
    )
    assert state == "23505"
    assert 'duplicate key value violates unique constraint "t_pkey"' in str(error)
    assert 'during message type "COMMIT" in transaction' in str(error)
    node.sql("delete from dk.t where id = 1000")
    equal()
    # The row is out of the way when the transaction ends.
    node.sql("insert into dk.t values (2000, 'v1')")
    pg18.psql("insert into dk.t values (3000, 'v1')")
    equal_but = "select * from dk.t where id >= 2000 order by id"
    mirror.caught_up()
    pg18.psql(
        "begin; insert into dk.t values (2000, 'more'); delete from dk.t where id = 2000;"
        " insert into dk.t values (4000, 'last'); commit"
    )
    mirror.caught_up()
    assert node.sql(equal_but) == [
        ("2000", "v1"),
        ("3000", "v1"),
        ("4000", "last"),
    ]


def test_psql_shows_what_postgresql_shows(
    node: Node, pg18: Database, psql: Psql
) -> None:
    sql = (
        "create table ds_a (id int primary key deferrable initially deferred, v text);"
        " create table ds_b (id int, constraint ds_k primary key (id) deferrable);"
        " create table ds_c (id int primary key not deferrable initially immediate)"
    )
    for one in sql.split(";"):
        node.sql(one)
    pg18.psql(sql)
    shown = [
        psql(conninfo, "-c", r"\d ds_a", "-c", r"\d ds_b", "-c", r"\d ds_c", "-c",
             "select constraint_name, is_deferrable, initially_deferred"
             " from information_schema.table_constraints"
             " where table_name like 'ds_%' order by 1").stdout
        for conninfo in (node.conninfo(), pg18.conninfo())
    ]  # fmt: skip
    assert "DEFERRABLE INITIALLY DEFERRED" in shown[1]
    assert shown[0] == shown[1]
    with pytest.raises(PublisherError) as refused:
        node.sql("alter table ds_b replica identity using index ds_k")
    assert (refused.value.sqlstate, refused.value.message) == (
        "0A000",
        'cannot use non-immediate index "ds_k" as replica identity',
    )
    node.sql("drop table ds_a, ds_b, ds_c")


def test_local_statements_are_judged_when_the_key_says(node: Node) -> None:
    node.sql(
        "create table dl (id int primary key initially deferred, v text);"
        " create table di (id int primary key deferrable, v text);"
        " insert into dl values (1, 'a'), (2, 'b'); insert into di values (1, 'a')"
    )

    def refused(sql: str) -> tuple[str, str, str | None]:
        with pytest.raises(PublisherError) as caught:
            node.sql(sql)
        error = caught.value
        return error.sqlstate, error.message, error.detail

    node.sql(
        "begin; update dl set id = 2 where v = 'a'; insert into dl values (1, 'c');"
        " update dl set id = 3 where v = 'b'; commit"
    )
    assert node.sql("select id, v from dl order by id") == [
        ("1", "c"),
        ("2", "a"),
        ("3", "b"),
    ]
    duplicate = (
        "23505",
        'duplicate key value violates unique constraint "dl_pkey"',
        "Key (id)=(1) already exists.",
    )
    # At the COMMIT, also if a later statement has written other rows; at once outside of a block.
    assert (
        refused(
            "begin; insert into dl values (1, 'x'); insert into dl values (9, 'y'); commit"
        )
        == duplicate
    )
    assert refused("insert into dl values (1, 'x')") == duplicate
    assert node.sql("select count(*) from dl") == [("3",)]
    code, message, _ = refused(
        "begin; insert into dl values (1, 'x');"
        " update dl set v = 'z' where id in (select id from di); commit"
    )
    assert code == "0A000" and "rows with the same key" in message
    # DEFERRABLE alone: each statement.
    assert refused("begin; insert into di values (1, 'x'); delete from di; commit")[
        :2
    ] == ("23505", 'duplicate key value violates unique constraint "di_pkey"')
    # SET CONSTRAINTS defers, judges at once, and ends with the transaction or its savepoint.
    node.sql(
        "begin; set constraints di_pkey deferred; insert into di values (1, 'x');"
        " update di set id = 2 where v = 'a'; commit"
    )
    assert node.sql("select id, v from di order by id") == [("1", "x"), ("2", "a")]
    of_di = ("23505", 'duplicate key value violates unique constraint "di_pkey"')
    deferred = "begin; set constraints all deferred; insert into di values (1, 'y')"
    assert refused(f"{deferred}; set constraints all immediate; delete from di")[
        :2
    ] == (of_di)
    assert refused(f"{deferred}; commit")[:2] == of_di
    assert refused(
        "begin; savepoint s; set constraints di_pkey deferred; rollback to s;"
        " insert into di values (1, 'y'); delete from di"
    )[:2] == (of_di)
    assert refused(
        "begin; set constraints dl_pkey immediate; insert into dl values (1, 'y');"
        " delete from dl"
    ) == (duplicate)
    node.sql("create table dn (id int primary key)")
    for name, sqlstate, message in (
        ("nope", "42704", 'constraint "nope" does not exist'),
        ("dn_pkey", "42809", 'constraint "dn_pkey" is not deferrable'),
    ):
        assert refused(f"set constraints {name} deferred")[:2] == (sqlstate, message)
    node.sql("drop table dl, di, dn")


@pytest.mark.slow
def test_primary_keys_are_added_and_dropped(node: Node, pg18: Database) -> None:
    """Statement by statement beside PostgreSQL."""
    statements = (
        "create table ak (a int, b int, v text)",
        "insert into ak values (1, 1, 'x'), (1, 2, 'y')",
        "alter table ak add primary key (a)",
        "alter table ak add primary key (c)",
        "alter table ak add primary key (a, a)",
        "alter table ak add constraint ak primary key (a, b)",
        "alter table ak add constraint akk primary key (a, b) deferrable",
        "alter table ak add primary key (b)",
        "insert into ak values (1, 1, 'z')",
        "insert into ak values (null, 3, 'z')",
        "alter table ak alter a drop not null",
        "alter table ak drop constraint nope",
        "alter table ak drop constraint if exists nope",
        "alter table ak drop constraint akk",
        "insert into ak values (1, 1, 'z')",
        "alter table ak alter a drop not null",
        "alter table ak drop constraint ak_b_not_null",
        "insert into ak values (null, null, 'null')",
        "delete from ak where v = 'z'",
        "alter table ak add primary key (a, b)",
        "delete from ak where a is null",
        "alter table ak add primary key (b), drop column v",
        "alter table ak drop constraint ak_pkey, add constraint again primary key (a, b)",
        "insert into ak values (2, 2), (2, 2)",
    )
    shown = (
        "select conname, contype::text, condeferrable, attnum, attnotnull"
        " from pg_attribute left join pg_constraint on conrelid = attrelid"
        " and contype = 'p' and attnum = any(conkey)"
        " where attrelid = 'ak'::regclass and attnum > 0 and not attisdropped"
        " order by attnum"
    )
    with (
        psycopg.connect(pg18.conninfo(), autocommit=True) as there,
        psycopg.connect(node.conninfo(), autocommit=True) as here,
    ):
        for sql in statements:
            answers = []
            for one in (there, here):
                try:
                    one.execute(sql)
                    said = None
                except psycopg.Error as error:
                    said = (error.sqlstate, error.diag.message_primary)
                answers.append((said, one.execute(shown).fetchall()))
            assert answers[0] == answers[1], sql
        # A transaction that was not judged by the new key cannot commit.
        node.sql("alter table ak drop constraint again; delete from ak")
        here.execute("begin; insert into ak values (7, 7), (7, 7)")
        node.sql("alter table ak add primary key (a)")
        with pytest.raises(psycopg.errors.SerializationFailure):
            here.execute("commit")
        assert node.sql("select count(*) from ak") == [("0",)]
    node.sql("drop table ak")
