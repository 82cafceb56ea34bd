"""INSERT ... ON CONFLICT: tables, tags, rows and errors are PostgreSQL's after the same statements,
and SQLAlchemy uses it as its manual says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from tests.conftest import Database
from tests.node.test_returning import BothSides, engine_of

from wal2lake.testing.node import Node

TABLES = """
create schema oc;
create table oc.t (id int primary key, n numeric(8,2) default 7, v varchar(8) not null,
 g int generated always as (id * 2) stored, chk int check (chk < 100));
create table oc.two (a int, b text, x int, primary key (b, a));
create table oc.serial (id serial primary key, w text);
create table oc.deferred (id int primary key deferrable, w text);
create table oc.keyless (id int, w text);
create table oc.o (id int, w text);
insert into oc.o values (1, 'one'), (2, 'two'), (3, 'three'), (3, 'again')
"""

STATEMENTS = """
insert into oc.t (id, v) values (1, 'a'), (2, 'b') on conflict do nothing;
insert into oc.t (id, v) values (2, 'x'), (3, 'c') on conflict (id) do nothing returning id, v;
insert into oc.t (id, v) values (2, 'x'), (1, 'y') on conflict do nothing returning id;
insert into oc.t (id, v) values (4, 'd'), (4, 'e') on conflict do nothing;
insert into oc.t (id, v, n) values (1, 'up', 1), (5, 'new', 2)
 on conflict (id) do update set v = excluded.v, n = excluded.n returning *;
insert into oc.t (id, v, n) values (1, 'up', 1), (6, 'six', 2)
 on conflict (id) do update set n = t.n + excluded.n, v = upper(excluded.v)
 returning id, n, v, old.n, new.n - old.n as diff, old.id is null as fresh;
insert into oc.t as q (id, v, n) values (1, 'w', 3), (2, 'w', 3), (7, 'w', 3)
 on conflict (id) do update set n = q.n * 2, v = 'e' || excluded.v where q.n > 4;
insert into oc.t as q (id, v, n) values (1, 'w', 3), (2, 'w', 3), (7, 'w', 3)
 on conflict (id) do update set n = q.n * 2, v = q.v || excluded.v where q.n > 4 returning *;
insert into oc.t (id, v, n) values (1, 'z', 0)
 on conflict (id) do update set n = 1 / excluded.n where excluded.n <> 0;
insert into oc.t (id, v) values (2, 'k') on conflict on constraint t_pkey
 do update set (n, v, chk) = (default, excluded.v, 5) returning *, old.*;
insert into oc.t (id, v) values (2, 'k')
 on conflict (id) where id > 1 do update set id = 20, v = 'moved' returning id, g, old.id, old.g;
insert into oc.t (id, v) select id, left(w, 8) from oc.o where id < 3 order by id desc
 on conflict (id) do update set v = (select max(w) from oc.o where o.id = excluded.id)
 returning id, v;
insert into oc.two values (1, 'x', 1), (2, 'x', 2), (1, 'y', 3) on conflict (a, b) do nothing;
insert into oc.two values (1, 'x', 5), (3, 'x', 6) on conflict (b, a, a)
 do update set x = excluded.x;
insert into oc.serial (w) values ('a'), ('b') on conflict do nothing returning id;
insert into oc.serial values (2, 'c'), (default, 'd') on conflict (id)
 do update set w = serial.w || excluded.w returning *;
insert into oc.serial (w) select w from oc.o order by w on conflict do nothing returning id;
insert into oc.keyless values (1, 'a'), (1, 'a') on conflict do nothing returning *;
insert into oc.t (id, v) values (1, 'none') on conflict (id) do update set v = 'q' where false;
insert into oc.t (id, v) values (1, 'x'), (1, 'y')
 on conflict (id) do update set v = 'q' where false
"""

REFUSED = """
insert into oc.t (id, v) values (1, 'x'), (1, 'y') on conflict (id) do update set v = excluded.v;
insert into oc.t (id, v) values (90, 'x'), (90, 'y') on conflict (id) do update set v = 'q';
insert into oc.t (id, v) select id, 'x' from oc.o on conflict (id) do update set v = excluded.v;
insert into oc.t (id, v) values (1, 'x') on conflict (v) do nothing;
insert into oc.t (id, v) values (1, 'x') on conflict (id, v) do nothing;
insert into oc.t (id, v) values (1, 'x') on conflict (lower(v)) do nothing;
insert into oc.t (id, v) values (1, 'x') on conflict (nothing) do nothing;
insert into oc.t (id, v) values (1, 'x') on conflict on constraint nothing do nothing;
insert into oc.t (id, v) values (1, 'x') on conflict do update set v = 'q';
insert into oc.t (id, v) values (1, 'x') on conflict (id) do update set v = v || 'q';
insert into oc.t (id, v) values (1, 'x') on conflict (id) do update set nothing = 1;
insert into oc.t (id, v) values (1, 'x') on conflict (id) do update set g = 1;
insert into oc.t (id, v) values (1, 'x') on conflict (id) do update set v = null;
insert into oc.t (id, v) values (1, 'x') on conflict (id) do update set v = 'too long for it';
insert into oc.t (id, v) values (1, 'x') on conflict (id) do update set chk = 100;
insert into oc.t (id, v) values (1, 'x') on conflict (id) do update set id = 3;
insert into oc.t (id, v) values (1, 'x') on conflict (id) do update set n = 1 / (t.id - 1);
insert into oc.t (id, v) values (1, 'x') on conflict (id) do update set n = 1 where excluded.n;
insert into oc.t (id, v) values (1, null) on conflict (id) do nothing;
insert into oc.t (id, v, chk) values (1, 'x', 100) on conflict (id) do nothing;
insert into oc.t (id, v) values (1, 'x') on conflict (id) do update set v = 'q'
 returning excluded.v;
insert into oc.deferred values (1, 'x') on conflict (id) do nothing;
insert into oc.deferred values (1, 'x') on conflict do nothing;
insert into oc.deferred values (1, 'x') on conflict on constraint deferred_pkey do nothing;
insert into oc.keyless values (1, 'x') on conflict (id) do nothing
"""

BLOCK = """
begin;
insert into oc.two values (9, 'z', 1);
insert into oc.two values (9, 'z', 2), (8, 'z', 8) on conflict (a, b) do update set x = excluded.x
 returning x, old.x;
savepoint s;
insert into oc.two values (9, 'z', 3) on conflict (a, b) do update set x = two.x + excluded.x;
delete from oc.two where a = 8;
insert into oc.two values (8, 'z', 4) on conflict (a, b) do update set x = -1 returning *;
rollback to s;
insert into oc.two values (8, 'z', 4) on conflict (a, b) do update set x = -1 returning *;
insert into oc.two values (9, 'z', 5) on conflict do nothing;
commit
"""


@pytest.fixture(scope="module")
def sides(node: Node, postgres_server: Callable[..., Any]) -> Iterator[BothSides]:
    server = postgres_server(18)
    server.psql("create database of_conflict")
    source = Database(server, "of_conflict")
    with (
        psycopg.connect(source.conninfo(), autocommit=True) as theirs,
        psycopg.connect(node.conninfo(), autocommit=True) as ours,
    ):
        both = BothSides(ours, theirs)
        for statement in TABLES.strip().split(";\n"):
            both.both(statement)
        yield both
        ours.rollback()
        ours.execute(
            "drop table if exists oc.t, oc.two, oc.serial, oc.deferred, oc.keyless, oc.o"
        )
        ours.execute("drop schema oc")
    server.psql("drop database of_conflict with (force)")


def tables(sides: BothSides) -> None:
    for table in ("t", "two", "serial", "keyless"):
        sides.compare(f"select * from oc.{table}")


@pytest.mark.slow
def test_rows_are_inserted_updated_or_left_out(sides: BothSides) -> None:
    for sql in STATEMENTS.strip().split(";\n"):
        sides.compare(sql)
        tables(sides)
    for sql in REFUSED.strip().split(";\n"):
        assert len(sides.compare(sql)[0]) == 5, sql
    tables(sides)


def test_a_block_meets_its_own_rows(sides: BothSides) -> None:
    for sql in BLOCK.strip().split(";\n"):
        sides.compare(sql)
    tables(sides)


def test_parameters_of_both_clauses_have_types(sides: BothSides) -> None:
    sql = (
        "insert into oc.two values (%s, %s, %s) on conflict (a, b)"
        " do update set x = %s + two.x where two.x < %s returning x, %s + a"
    )
    for x in (1, 2):
        sides.compare(sql, (50, "p", x, 10, 1000, 5))
    sides.compare(sql, (50, "p", 1, 10, 5, 5))
    tables(sides)


def test_hints_are_right(sides: BothSides) -> None:
    ours = sides.sides[0]
    start = "insert into oc.two values (60, 'h', 1)"
    with pytest.raises(psycopg.errors.SyntaxError) as unnamed:
        ours.execute(f"{start} on conflict do update set x = 2")
    assert unnamed.value.diag.message_hint == "For example, ON CONFLICT (column_name)."
    with pytest.raises(psycopg.errors.CardinalityViolation) as twice:
        ours.execute(f"{start}, (60, 'h', 2) on conflict (b, a) do update set x = 2")
    assert (
        twice.value.diag.message_hint
        == "Ensure that no rows proposed for insertion within the same command have"
        " duplicate constrained values."
    )
    ours.execute(f"{start}, (61, 'h', 2) on conflict (b, a) do update set x = 2")
    ours.execute("delete from oc.two where b = 'h'")


def test_sqlalchemy_upserts(node: Node) -> None:
    engine = engine_of(node.conninfo())
    metadata = sa.MetaData()
    table = sa.Table(
        "oc_item",
        metadata,
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("name", sa.String(20)),
    )
    node.sql("create table oc_item (id int primary key, name varchar(20))")
    try:
        with engine.begin() as connection:
            statement = insert(table)
            statement = statement.on_conflict_do_update(
                index_elements=[table.c.id], set_={"name": statement.excluded.name}
            )
            rows = [{"id": 1, "name": "a"}, {"id": 2, "name": "b"}]
            connection.execute(statement, rows)
            connection.execute(statement, [{"id": 2, "name": "c"}])
            ignored = insert(table).on_conflict_do_nothing().returning(table.c.id)
            found = connection.execute(
                ignored, [{"id": 1, "name": "x"}, {"id": 3, "name": None}]
            )
            assert [row.id for row in found] == [3]
        assert node.sql("select id, name from oc_item order by id") == [
            ("1", "a"),
            ("2", "c"),
            ("3", None),
        ]
    finally:
        engine.dispose()
        node.sql("drop table oc_item")
