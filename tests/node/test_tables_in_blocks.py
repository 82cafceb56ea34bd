"""CREATE TABLE and DROP TABLE in transaction blocks: what the block and others see, tags, rows and
errors are PostgreSQL's, and decoders are told of one transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from tests.conftest import Database
from tests.node.conftest import Subscribe
from tests.node.test_returning import BothSides, engine_of

from wal2lake.catalog import Catalog
from wal2lake.testing.node import Node

BLOCKS = """
begin;
create table tb.a (id serial primary key, w text default 'd', n numeric(8,2) check (n < 50));
insert into tb.a (w, n) values ('x', 1), ('y', 2) returning *;
update tb.a set n = n + 1 where id = 2 returning *;
savepoint s;
create table tb.b (id int generated always as identity, v int);
insert into tb.b (v) values (10), (20) returning id;
insert into tb.a (n) values (7) returning id;
select * from tb.b;
rollback to s;
select count(*) from pg_class where relname in ('a', 'b') and relnamespace = 'tb'::regnamespace;
insert into tb.a (n) values (8) returning w, n;
create table if not exists tb.a (other int);
create table tb.c (like_what int);
savepoint t;
insert into tb.a (n) values (50);
rollback to t;
create table tb.a (id int);
rollback to t;
select * from tb.b;
rollback to t;
truncate tb.c;
drop table tb.c;
select * from tb.c;
rollback to t;
insert into tb.c values (3);
commit;
select w, n from tb.a;
select * from tb.c;
begin;
drop table tb.a;
drop table tb.a;
rollback;
begin;
drop table tb.a, tb.c;
create table tb.a (x int, y text);
insert into tb.a values (1, 'new');
select * from tb.a;
rollback;
select w, n from tb.a;
begin;
insert into tb.c values (4);
savepoint s;
drop table tb.c;
drop table if exists tb.c;
select * from tb.c;
rollback to s;
select * from tb.c;
drop table tb.a;
create table tb.a (x int, y text);
insert into tb.a values (1, 'new');
commit;
select * from tb.a;
select * from tb.c;
begin;
create schema tb_two;
create table tb_two.t (id int);
insert into tb_two.t values (1);
insert into tb.a values (2, 'also');
create table tb.d (id int);
drop table tb_two.t;
commit;
select * from tb.a;
select * from tb.d;
select * from tb_two.t;
begin;
create table tb.undone (id int);
rollback;
select * from tb.undone;
drop schema tb_two
"""

FACTS = """
select relname, relkind, relnatts from pg_class where relnamespace = 'tb'::regnamespace;
select column_name, data_type, is_nullable::text, column_default from information_schema.columns
 where table_schema = 'tb'
"""


@pytest.fixture(scope="module")
def sides(node: Node, postgres_server: Callable[..., Any]) -> Iterator[BothSides]:
    server = postgres_server(18)
    server.psql("create database of_blocks")
    source = Database(server, "of_blocks")
    with (
        psycopg.connect(source.conninfo(), autocommit=True) as theirs,
        psycopg.connect(node.conninfo(), autocommit=True) as ours,
    ):
        both = BothSides(ours, theirs)
        both.both("create schema tb")
        yield both
        ours.rollback()
        ours.execute("drop schema tb cascade")
    server.psql("drop database of_blocks with (force)")


def places(node: Node) -> set[str]:
    """The directories of tables in the warehouse, of schemas that this module makes."""
    warehouse = node.directory / "warehouse"
    return {
        str(log.parent.relative_to(warehouse))
        for log in warehouse.glob("tb*/*/_delta_log")
    }


def tables(node: Node) -> set[str]:
    """The places that the node's tables in these schemas have."""
    catalog = Catalog(node.directory / "catalog.sqlite")
    try:
        base = f"{catalog.warehouse}/"
        assert not [p for p in catalog.pending_deletes() if p.startswith(f"{base}tb")]
        named = {location.removeprefix(base) for location in catalog.locations()}
        return {location for location in named if location.startswith("tb")}
    finally:
        catalog.close()


def test_a_block_makes_and_drops_tables(sides: BothSides, node: Node) -> None:
    for sql in BLOCKS.strip().split(";\n"):
        sides.compare(sql)
        if sql == "commit":
            for facts in FACTS.strip().split(";\n"):
                sides.compare(facts)
    assert places(node) == tables(node)


@contextmanager
def two_sessions(node: Node) -> Iterator[tuple[Any, Any]]:
    with (
        psycopg.connect(node.conninfo()) as block,
        psycopg.connect(node.conninfo(), autocommit=True) as other,
    ):
        yield block, other
        block.rollback()


def test_others_see_a_table_with_its_rows_once_it_is_committed(node: Node) -> None:
    with two_sessions(node) as (block, other):
        block.execute("create table tb_seen (id int primary key)")
        block.execute("insert into tb_seen values (1), (2)")
        with pytest.raises(psycopg.errors.UndefinedTable):
            other.execute("select * from tb_seen")
        names = "select relname from pg_class where relname like 'tb_seen%'"
        assert other.execute(names).fetchall() == []
        assert len(block.execute(names).fetchall()) == 2
        block.commit()
        assert other.execute("select count(*) from tb_seen").fetchone() == (2,)
        block.execute("drop table tb_seen")
        assert other.execute("select count(*) from tb_seen").fetchone() == (2,)
        # The place of a table that a block drops is not taken before it is gone.
        block.execute("create table tb_seen (other text)")
        block.execute("insert into tb_seen values ('new')")
        block.commit()
        assert other.execute("select * from tb_seen").fetchall() == [("new",)]
        other.execute("drop table tb_seen")
    assert not [place for place in places(node) if "tb_seen" in place]


def test_what_others_make_or_drop_meanwhile_is_a_conflict(node: Node) -> None:
    with two_sessions(node) as (block, other):
        block.execute("create table tb_taken (id int)")
        other.execute("create table tb_taken (id int)")
        other.execute("insert into tb_taken values (7)")
        with pytest.raises(psycopg.errors.SerializationFailure) as taken:
            block.commit()
        assert taken.value.diag.message_detail == 'relation "tb_taken" already exists.'
        with pytest.raises(psycopg.errors.DuplicateTable):
            block.execute("create table tb_taken (id int)")
        block.rollback()
        assert other.execute("select * from tb_taken").fetchall() == [(7,)]
        block.execute("drop table tb_taken")
        other.execute("drop table tb_taken")
        with pytest.raises(psycopg.errors.SerializationFailure):
            block.commit()
        block.execute("create table tb_taken (id int)")
        block.execute("insert into tb_taken values (1)")
        block.rollback()
    assert not [place for place in places(node) if "tb_taken" in place]


def test_a_block_with_a_new_table_is_not_prepared(node: Node) -> None:
    with two_sessions(node) as (block, other):
        block.execute("create table tb_prepared (id int)")
        with pytest.raises(psycopg.errors.FeatureNotSupported) as refused:
            block.execute("prepare transaction 'tb'")
        hint = "Use COMMIT, or define them in a transaction of their own before."
        assert refused.value.diag.message_hint == hint
        block.rollback()
        other.execute("create table tb_prepared (id int)")
        block.execute("insert into tb_prepared values (1)")
        block.execute("prepare transaction 'tb'")
        block.rollback()
        other.execute("commit prepared 'tb'")
        other.execute("drop table tb_prepared")


def test_a_table_of_a_subscription_is_dropped_outside_of_a_block(
    node: Node, pg18: Database, subscribe: Subscribe
) -> None:
    pg18.psql("create table tb_fed (id int primary key); insert into tb_fed values (1)")
    pg18.psql("create publication tb_pub for table tb_fed")
    subscribe(pg18, "tb_pub").synced()
    with two_sessions(node) as (block, other):
        with pytest.raises(psycopg.errors.FeatureNotSupported) as refused:
            block.execute("drop table tb_fed")
        hint = "Run DROP TABLE outside of BEGIN ... COMMIT."
        assert refused.value.diag.message_hint == hint
        block.rollback()
        other.execute("drop table tb_fed")


def test_decoders_are_told_of_one_transaction(node: Node) -> None:
    """PostgreSQL decodes the rows of a new table, too, and nothing of its definition."""
    node.sql("create table tb_old (id int primary key)")
    node.sql("select pg_create_logical_replication_slot('tb', 'test_decoding')")
    with psycopg.connect(node.conninfo()) as block:
        block.execute("create table tb_new (id int primary key, v text)")
        block.execute("insert into tb_new values (1, 'a')")
        block.execute("insert into tb_old values (1)")
        block.execute("update tb_new set v = 'c' where id = 1")
        block.execute("create table tb_more (id int)")
        block.execute("insert into tb_more values (5)")
        block.commit()
        block.execute("create table tb_alone (id int)")
        block.execute("insert into tb_alone values (6)")
        block.commit()
        block.execute("insert into tb_old values (2)")
        block.execute("drop table tb_more")
        block.commit()
    told = node.sql(
        "select data from pg_logical_slot_get_changes('tb', null, null,"
        " 'include-xids', 'false', 'skip-empty-xacts', 'true')"
    )
    assert [data for (data,) in told] == [
        "BEGIN",
        "table public.tb_new: INSERT: id[integer]:1 v[text]:'a'",
        "table public.tb_old: INSERT: id[integer]:1",
        "table public.tb_new: UPDATE: id[integer]:1 v[text]:'c'",
        "table public.tb_more: INSERT: id[integer]:5",
        "COMMIT",
        "BEGIN",
        "table public.tb_alone: INSERT: id[integer]:6",
        "COMMIT",
        "BEGIN",
        "table public.tb_old: INSERT: id[integer]:2",
        "COMMIT",
    ]
    node.sql("select pg_drop_replication_slot('tb')")
    node.sql("drop table tb_old, tb_new, tb_alone")


def test_sqlalchemy_makes_tables_in_a_transaction(node: Node, pg18: Database) -> None:
    metadata = sa.MetaData()
    parent = sa.Table(
        "tb_parent",
        metadata,
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("name", sa.String(20), nullable=False),
    )
    sa.Table("tb_child", metadata, sa.Column("id", sa.BigInteger, sa.Identity()))
    found = []
    for conninfo in (node.conninfo(), pg18.conninfo()):
        engine = engine_of(conninfo)
        with engine.begin() as connection:
            metadata.create_all(connection)
            connection.execute(sa.insert(parent), [{"name": "a"}, {"name": "b"}])
        with engine.connect() as connection:
            metadata.drop_all(connection)
            connection.rollback()
            rows = connection.execute(sa.select(parent).order_by("id")).all()
            columns = sa.inspect(connection).get_columns("tb_child")
            found.append((list(map(tuple, rows)), repr(columns)))
        metadata.drop_all(engine)
        assert not sa.inspect(engine).has_table("tb_parent")
        engine.dispose()
    assert found[0] == found[1]
