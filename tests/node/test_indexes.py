"""CREATE INDEX and DROP INDEX: errors and catalogs are PostgreSQL's, a NOTICE says what an index is
worth, and the clients that make indexes without being asked go on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from tests.conftest import Database
from tests.node.conftest import Psql
from tests.node.test_returning import engine_of

from wal2lake.testing.node import Node

TABLES = """
create schema ix;
create table ix.t (id int primary key, v varchar(8), "N m" numeric(8,2), j json, jb jsonb,
 a int[], at timestamptz);
create table ix.plain (id int, v text);
create table ix.other (x int, t_v_idx int)
"""

SAME = """
create index on ix.t (v);
create index on ix.t (v);
create index named on ix.t (v desc, "N m" nulls first, at desc nulls last);
create index named on ix.t (id);
create index if not exists named on ix.t (id);
create index if not exists on ix.t (id);
create index t on ix.t (v);
create index plain_pkey on ix.plain (id);
create index on ix.t using hash (id);
create index on ix.t using gin (jb, a);
create index on ix.t using brin (at) with (pages_per_range = 32);
create index pattern on ix.t (v varchar_pattern_ops, v collate "C");
create index incl on ix.t (v) include (id, "N m") with (fillfactor = 70);
create unique index uq on ix.t (id);
create unique index uq2 on ix.t (v, id);
create index on ix.t (nothing);
create index on ix.nothing (id);
create index on nothing.t (id);
create index on ix.t (j);
create index on ix.t using gin (v);
create index on ix.t using nothing (v);
create index on ix.t using hash (id, v);
create index on ix.t using gin (jb) include (id);
create index on ix.t using hash (id desc);
create unique index on ix.t using hash (id);
create index on ix.t (v) include (nothing);
create index concurrently conc on ix.t (v);
drop index concurrently ix.conc, ix.named;
drop index concurrently ix.conc;
drop index ix.conc;
drop index if exists ix.conc;
drop index nothing.conc;
drop index if exists nothing.conc;
drop index ix.t;
drop index ix.t_pkey;
drop table ix.named;
alter index ix.named rename to renamed;
alter index ix.named rename to renamed;
alter index if exists ix.named rename to renamed;
alter index ix.renamed rename to t;
create table ix.renamed (x int);
begin;
create index in_block on ix.plain (v);
create index concurrently on ix.plain (v);
rollback;
drop index ix.in_block;
begin;
create table ix.made (x int, y int);
create index on ix.made (y);
insert into ix.made values (1, 2);
drop index ix.uq2;
commit;
alter table ix.t rename column v to word;
alter table ix.t drop column at;
alter table ix.made set schema public;
alter table made set schema ix;
create index keeper on ix.plain (v);
drop table ix.plain;
drop index ix.keeper
"""

SHOWN = (
    "select schemaname, tablename, indexname, indexdef from pg_indexes where schemaname = 'ix'"
    " order by 3",
    "select relname, relkind, amname, reloptions from pg_class"
    " left join pg_am on pg_am.oid = relam where relnamespace = 'ix'::regnamespace order by 1",
    "select indexrelid::regclass::text, indrelid::regclass::text, indnatts, indnkeyatts,"
    " indisunique, indisprimary, indisvalid, indkey, indoption,"
    " pg_get_indexdef(indexrelid, 1, true)"
    " from pg_index join pg_class c on c.oid = indexrelid"
    " where relnamespace = 'ix'::regnamespace order by 1",
)


def outcome(side: Any, sql: str) -> object:
    try:
        cursor = side.execute(sql)
    except psycopg.Error as error:
        diag = error.diag
        return (
            diag.sqlstate,
            diag.message_primary,
            diag.message_detail,
            diag.message_hint,
        )
    return cursor.fetchall() if cursor.description else cursor.statusmessage


@pytest.fixture
def sides(node: Node, pg18: Database) -> Iterator[tuple[Any, Any]]:
    with (
        psycopg.connect(node.conninfo(), autocommit=True) as ours,
        psycopg.connect(pg18.conninfo(), autocommit=True) as theirs,
    ):
        for side in (ours, theirs):
            for sql in TABLES.split(";"):
                side.execute(sql)
        yield ours, theirs
        ours.execute("rollback")
        ours.execute("drop schema ix cascade")


def test_statements_and_catalogs(sides: tuple[Any, Any]) -> None:
    statements = SAME.strip().split(";\n")
    assert differences(sides, statements, SHOWN) == []
    tables = "select tablename from pg_tables where schemaname = 'ix' and hasindexes"
    assert sides[0].execute(f"{tables} order by 1").fetchall() == [("made",), ("t",)]


def differences(
    sides: tuple[Any, Any], statements: Sequence[str], queries: Sequence[str]
) -> list[tuple[str, object, object]]:
    """Run statements at both sides, and the queries after each tenth and the last one; return what
    has different outcomes."""
    found = []
    for number, sql in enumerate(statements, 1):
        is_due = number % 10 == 0 or number == len(statements)
        for step in (sql, *(queries if is_due else ())):
            ours, theirs = (outcome(side, step) for side in sides)
            if ours != theirs:
                found.append((f"{step} -- {sql}", ours, theirs))
    return found


def test_a_notice_says_what_an_index_is_worth(sides: tuple[Any, Any]) -> None:
    notices: list[Any] = []
    sides[0].add_notice_handler(
        lambda diag: notices.append((diag.message_primary, diag.message_detail))
    )
    sides[0].execute("create index on ix.plain (id)")
    (notice,) = notices
    assert notice[0] == 'index "plain_id_idx" is not used by any statement'
    assert notice[1].startswith("The node keeps its definition.")


def test_unique_indexes_that_nothing_enforces(sides: tuple[Any, Any]) -> None:
    ours = sides[0]
    for table, hint in (
        ("t", "Create the index without UNIQUE."),
        (
            "plain",
            "Use ALTER TABLE ... ADD PRIMARY KEY, or create the index without UNIQUE.",
        ),
    ):
        with pytest.raises(psycopg.errors.FeatureNotSupported) as caught:
            ours.execute(f"create unique index on ix.{table} (v)")
        assert caught.value.diag.message_hint == hint
        ours.execute(f"create index on ix.{table} (v)")
    ours.execute("alter table ix.plain add primary key (v)")
    ours.execute("create unique index on ix.plain (v)")
    for sql in (
        "create index on ix.t (lower(v))",
        "create index on ix.t ((id + 1))",
        "create index on ix.t (v) where id > 1",
    ):
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            ours.execute(sql)


def test_others_may_not(sides: tuple[Any, Any]) -> None:
    for side in sides:
        side.execute("create index mine on ix.t (v)")
        side.execute("create role of_ix")
        side.execute("grant usage, create on schema ix to of_ix")
        side.execute("set role of_ix")
    ours, theirs = sides
    try:
        for sql in (
            "create index on ix.t (v)",
            "drop index ix.mine",
            "alter index ix.mine rename to yours",
            "create index on ix.nothing (v)",
        ):
            assert outcome(ours, sql) == outcome(theirs, sql), sql
    finally:
        for side in sides:
            side.execute("reset role")
            side.execute("revoke all on schema ix from of_ix")
            side.execute("drop role of_ix")


def test_psql(sides: tuple[Any, Any], node: Node, pg18: Database, psql: Psql) -> None:
    for side in sides:
        side.execute("create index on ix.t (v desc)")
        side.execute("create index on ix.t using gin (jb) with (fastupdate = off)")
    for command in (r"\d ix.t", r"\d ix.t_v_idx"):
        ours, theirs = (
            psql(side.conninfo(), "-c", command).stdout for side in (node, pg18)
        )
        assert ours == theirs
    assert "t_jb_idx" in psql(node.conninfo(), "-c", r"\di ix.*").stdout


def test_sqlalchemy(sides: tuple[Any, Any], node: Node) -> None:
    engine = engine_of(node.conninfo())
    try:
        metadata = sa.MetaData(schema="ix")
        table = sa.Table(
            "item",
            metadata,
            sa.Column("id", sa.Integer, primary_key=True),
            sa.Column("name", sa.String(20), index=True),
            sa.Column("price", sa.Numeric(8, 2)),
            sa.Index("by_price", "price", "name"),
        )
        metadata.create_all(engine)
        found = sa.inspect(engine).get_indexes("item", schema="ix")
        assert {i["name"]: i["column_names"] for i in found} == {
            "by_price": ["price", "name"],
            "ix_ix_item_name": ["name"],
        }
        with engine.begin() as connection:
            connection.execute(table.insert(), [{"id": 1, "name": "a", "price": 1}])
        sa.Index("ix_ix_item_name", table.c.name).drop(engine)
        metadata.drop_all(engine)
        # pandas' to_sql(index=True) makes a table without a key, and its index.
        frame = sa.Table(
            "frame", sa.MetaData(schema="ix"), sa.Column("n", sa.BigInteger, index=True)
        )
        frame.create(engine)
        (index,) = sa.inspect(engine).get_indexes("frame", schema="ix")
        assert (index["name"], index["column_names"]) == ("ix_ix_frame_n", ["n"])
    finally:
        engine.dispose()


FOLLOWED = [
    (
        "create index on ixh.t (j)",
        "You must specify an operator class for the index or define a default operator class"
        " for the data type.",
        "create index i on ixh.t (id int4_ops)",
    ),
    (
        "drop table ixh.i",
        "Use DROP INDEX to remove an index.",
        "drop index ixh.i",
    ),
    (
        "drop index ixh.t_pkey",
        "You can drop constraint t_pkey on table ixh.t instead.",
        "alter table ixh.t drop constraint t_pkey",
    ),
    (
        "drop index ixh.t",
        "Use DROP TABLE to remove a table.",
        "drop table ixh.t",
    ),
]


def test_what_hints_of_indexes_say_is_taken(node: Node) -> None:
    with psycopg.connect(node.conninfo(), autocommit=True) as client:
        client.execute("create schema ixh")
        client.execute("create table ixh.t (id int primary key, j json)")
        for refused, hint, followed in FOLLOWED:
            with pytest.raises(psycopg.Error) as caught:
                client.execute(refused)
            assert caught.value.diag.message_hint == hint
            client.execute(followed)
