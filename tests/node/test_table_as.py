"""CREATE TABLE AS and SELECT INTO: tags, columns, rows and errors are PostgreSQL's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from tests.conftest import Database
from tests.node.test_returning import BothSides

from wal2lake.testing.node import Node

TABLES = """
create schema ta;
create table ta.t (id int primary key, v varchar(8), n numeric(8,2), c char(3), at timestamptz(3));
insert into ta.t values (1, 'a', 1.5, 'x', '2026-01-01 12:00:00.123+00'), (2, 'b', 2, 'y', null)
"""

STATEMENTS = """
create table ta.plain as select * from ta.t;
select * from ta.plain;
create table ta.plain as select 1 as x;
create table if not exists ta.plain as select 1 as x;
create table ta.named (a, b) as select id, v, n * 2 as twice, 'text' as word from ta.t order by id;
select * from ta.named;
create table ta.empty as select id, c from ta.t with no data;
select * from ta.empty;
create table ta.agg as select count(*), sum(n), avg(id) as mean, max(at) as last from ta.t;
select * from ta.agg;
create table ta.vals as values (1, 'x', null), (2, 'y', null);
select * from ta.vals;
create table ta.copied as table ta.vals;
select * from ta.copied;
create table ta.cte as with q as (select id + 1 as next from ta.t) (select next from q);
select * from ta.cte;
select id, v into ta.into_table from ta.t where id = 1;
select * from ta.into_table;
with q as (select 7 as seven) select seven into table ta.into_two from q;
select * from ta.into_two;
create table ta.twice as select 1 as a, 2 as a;
create table ta.many (a, b, c) as select 1, 2;
create table ta.bad as select 1 / 0 as x;
select * from ta.bad;
create table ta.bad as select nothing from ta.t;
create table ta.bad as select * from ta.nothing;
create table ta.bad as select 1 +;
create table nothing.bad as select 1 as x;
insert into ta.plain (id) values (3), (null);
select id from ta.plain;
begin;
create table ta.block as select id from ta.t;
insert into ta.block values (9);
savepoint s;
create table ta.gone as select * from ta.block;
select * from ta.gone;
rollback to s;
select * from ta.gone;
rollback to s;
create table ta.more as select id * 10 as ten from ta.block;
commit;
select * from ta.block;
select * from ta.more;
begin;
select * into ta.undone from ta.t;
rollback;
select * from ta.undone
"""

COLUMNS = """
select relname, attname, format_type(atttypid, atttypmod), attnotnull
 from pg_attribute join pg_class on pg_class.oid = attrelid
 where relnamespace = 'ta'::regnamespace and relkind = 'r' and attnum > 0
"""


@pytest.fixture(scope="module")
def sides(node: Node, postgres_server: Callable[..., Any]) -> Iterator[BothSides]:
    server = postgres_server(18)
    server.psql("create database of_table_as")
    source = Database(server, "of_table_as")
    with (
        psycopg.connect(source.conninfo(), autocommit=True) as theirs,
        psycopg.connect(node.conninfo(), autocommit=True) as ours,
    ):
        both = BothSides(ours, theirs)
        for statement in TABLES.strip().split(";\n"):
            both.both(statement)
        yield both
        ours.rollback()
        ours.execute("drop schema ta cascade")
    server.psql("drop database of_table_as with (force)")


@pytest.mark.slow
def test_tables_are_made_from_queries(sides: BothSides) -> None:
    for sql in STATEMENTS.strip().split(";\n"):
        sides.compare(sql)
    sides.compare(COLUMNS)


def test_a_table_is_made_of_constants_and_parameters(sides: BothSides) -> None:
    sides.compare("create table ta.few as values (1, 'x'), (2, null)")
    sides.compare("select * from ta.few")
    sides.compare("create table ta.bound as select %s::int as a", (5,))
    sides.compare("select * from ta.bound")
    sides.compare("create table ta.none as select 1 as a with no data")
    sides.compare("select * from ta.none")


def test_statements_of_one_string(node: Node) -> None:
    """Once, the second statement belonged to the transaction that had ended before it."""
    node.sql(
        "create table ta_a as select 1 as x; create table ta_b as select x from ta_a"
    )
    assert node.sql("select * from ta_b") == [("1",)]
    node.sql("create table ta_c as select 2 as x; drop table ta_a; drop table ta_b")
    assert not list((node.directory / "warehouse").glob("public/ta_[ab]"))
    node.sql("create table ta_a as select 3 as x; create table ta_b (x int)")
    node.sql("drop table ta_a, ta_b, ta_c")


def test_a_table_that_its_query_would_read_by_name_is_refused(node: Node) -> None:
    with psycopg.connect(node.conninfo(), autocommit=True) as session:
        session.execute("create schema ta_first")
        session.execute("create table ta_hidden (id int)")
        session.execute("insert into ta_hidden values (1)")
        session.execute("set search_path = ta_first, public")
        with pytest.raises(psycopg.errors.FeatureNotSupported) as refused:
            session.execute(
                "create table ta_first.ta_hidden as select * from ta_hidden"
            )
        hint = "Write the schema of the table that the query reads."
        assert refused.value.diag.message_hint == hint
        session.execute(
            "create table ta_first.ta_hidden as select * from public.ta_hidden"
        )
        rows = session.execute("select * from ta_first.ta_hidden").fetchall()
        assert rows == [(1,)]
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            session.execute("create table ta_catalog as select relname from pg_class")
        with pytest.raises(psycopg.errors.UndefinedTable):
            session.execute("select * from ta_catalog")
        session.execute("drop schema ta_first cascade")
        session.execute("drop table ta_hidden")
