"""What a publication says of its tables, at publishers of every version, copied and followed."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conftest import Database
from tests.older_postgres import PUBLISHERS

from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

Subscribe = Callable[..., Mirror]

NEWEST = max(PUBLISHERS)


def versions_since(first: int) -> pytest.MarkDecorator:
    """The newest publisher, and, slow, the others from ``first`` on."""
    return pytest.mark.parametrize(
        "version",
        [
            version
            if version == NEWEST
            else pytest.param(version, marks=pytest.mark.slow)
            for version in PUBLISHERS
            if version >= first
        ],
        ids=lambda version: f"pg{version}",
    )


TABLES = """
    create schema pub_only;
    create table pub_only.t (id int primary key, v text);
    create table pub_only.kind (more int, primary key (id)) inherits (pub_only.t);
    create publication pub_only for table only pub_only.t;
    create schema pub_all;
    create table pub_all.t (id int primary key, v text);
    create table pub_all.kind (more int, primary key (id)) inherits (pub_all.t);
    create publication pub_all for table pub_all.t;
    create schema pub_leaf;
    create table pub_leaf.t (id int primary key, v text) partition by range (id);
    create table pub_leaf.low partition of pub_leaf.t for values from (0) to (10);
    create table pub_leaf.kind (v text, id int primary key);
    alter table pub_leaf.t attach partition pub_leaf.kind default;
    create publication pub_leaf for table pub_leaf.t;
    create schema pub_root;
    create table pub_root.t (id int primary key, v text) partition by range (id);
    create table pub_root.low partition of pub_root.t for values from (0) to (10);
    create table pub_root.kind (v text, id int primary key);
    alter table pub_root.t attach partition pub_root.kind default;
    create publication pub_root for table pub_root.t with (publish_via_partition_root);
    create schema pub_some;
    create table pub_some.t (id int primary key, v text);
    create table pub_some.kind (id int primary key, v text, more int);
    create publication pub_some for table pub_some.t, pub_some.kind
        with (publish = 'insert');
"""
SCHEMAS = ("pub_only", "pub_all", "pub_leaf", "pub_root", "pub_some")
ROWS = """
    insert into {s}.t values (1, 'one'), (2, 'two'), (3, 'three');
    insert into {s}.kind (id, v) values (11, 'eleven'), (12, 'twelve');
"""
CHANGES = """
    insert into {s}.t values (4, 'four');
    insert into {s}.kind (id, v) values (14, 'fourteen');
    update {s}.t set v = v || '!' where id in (1, 11);
    update {s}.t set id = id + 20 where id in (2, 12);
    delete from {s}.t where id in (3, 11);
"""
LEAVES = "(select id, v from {s}.low union all select id, v from {s}.kind) x"


@versions_since(14)
def test_each_kind_of_publication_is_copied_and_followed(
    version: int,
    database: Callable[[int], Database],
    node: Node,
    subscribe: Subscribe,
) -> None:
    source = database(version)
    source.psql(TABLES)
    mirrors = {}
    for name in SCHEMAS:
        source.psql(ROWS.format(s=name))
        mirrors[name] = subscribe(source, name)
    for mirror in mirrors.values():
        mirror.synced()

    def compare(name: str, here: str, there: str | None = None) -> None:
        query = f"select id, v from {here} order by id"
        with mirrors[name].source() as session:
            theirs = session.query(f"select id, v from {there or here} order by id")
        assert node.sql(query) == theirs, (name, here)

    for changes in ("", CHANGES):
        for name, mirror in mirrors.items():
            source.psql(changes.format(s=name))
            mirror.caught_up()
        compare("pub_only", "pub_only.t", "only pub_only.t")
        compare("pub_all", "pub_all.t", "only pub_all.t")
        compare("pub_all", "pub_all.kind")
        compare("pub_leaf", "pub_leaf.low")
        compare("pub_leaf", "pub_leaf.kind")
        compare("pub_root", "pub_root.t")
        mirrors["pub_root"].assert_equal(["pub_root.t"])
    inserted = "select string_agg(id::text, ' ' order by id) from {}"
    assert node.value(inserted.format("pub_some.t")) == "1 2 3 4"
    assert node.value(inserted.format("pub_some.kind")) == "11 12 14"
    source.psql("truncate pub_some.t, pub_only.t, pub_all.t cascade")
    source.psql("truncate pub_leaf.t, pub_root.t")
    for name, count in {**dict.fromkeys(SCHEMAS, "0"), "pub_some": "4"}.items():
        mirrors[name].caught_up()
        first = "low" if name == "pub_leaf" else "t"
        assert node.value(f"select count(*) from {name}.{first}") == count, name
    assert node.sql(
        "select schemaname || '.' || tablename from pg_tables"
        " where schemaname ~ '^pub_' order by 1"
    ) == [
        ("pub_all.kind",),
        ("pub_all.t",),
        ("pub_leaf.kind",),
        ("pub_leaf.low",),
        ("pub_only.t",),
        ("pub_root.t",),
        ("pub_some.kind",),
        ("pub_some.t",),
    ]


# Row filters, column lists and schemas came with PostgreSQL 15.
@pytest.mark.slow
@versions_since(15)
def test_filters_lists_and_schemas_are_those_of_all_publications_together(
    version: int,
    database: Callable[[int], Database],
    node: Node,
    subscribe: Subscribe,
) -> None:
    source = database(version)
    source.psql(
        "create schema pub_or; create schema pub_in;"
        " create table pub_or.t (id int primary key, secret text, v text,"
        "   g int generated always as (id * 2) stored);"
        " insert into pub_or.t select g, 's', 'v' from generate_series(1, 20) g;"
        " create publication pub_or for table pub_or.t (id, v) where (id < 5);"
        " create publication pub_or2 for table pub_or.t (v, id) where (id > 15);"
        " create table pub_in.a (id int primary key); insert into pub_in.a values (1);"
        " create table pub_in.b (id int primary key,"
        "   g int generated always as (id * 2) stored); insert into pub_in.b values (1);"
        " create publication pub_in for tables in schema pub_in"
    )
    both = subscribe(source, "pub_or", ", pub_or2")
    schema = subscribe(source, "pub_in")
    both.synced()
    schema.synced()
    ids = "select string_agg(id::text, ' ' order by id) from pub_or.t"
    assert node.value(ids) == "1 2 3 4 16 17 18 19 20"
    source.psql(
        "update pub_or.t set id = id + 100 where id in (4, 10);"
        " update pub_or.t set id = 10 where id = 3;"
        " update pub_or.t set v = 'w', secret = 'x' where id = 1;"
        " delete from pub_or.t where id in (2, 11, 20);"
        " insert into pub_or.t values (0), (11), (50);"
        " create table pub_in.c (id int primary key); insert into pub_in.c values (7);"
        " insert into pub_in.a values (2); delete from pub_in.b"
    )
    both.caught_up()
    assert node.value(ids) == "0 1 16 17 18 19 50 104 110"
    assert node.value("select v from pub_or.t where id = 1") == "w"
    node.sql("alter subscription pub_in refresh publication")
    schema.synced()
    schema.assert_equal(["pub_in.a", "pub_in.c"])
    assert node.value("select count(*) from pub_in.b") == "0"
    # A generated column comes if a list names it (18), or the publication says so (18).
    assert node.sql(
        "select table_name, string_agg(column_name, ' ' order by ordinal_position)"
        " from information_schema.columns where table_schema in ('pub_or', 'pub_in')"
        " group by 1 order by 1"
    ) == [("a", "id"), ("b", "id"), ("c", "id"), ("t", "id v")]


@pytest.mark.slow
@versions_since(14)
def test_a_publication_is_altered_and_dropped_while_it_is_streamed(
    version: int,
    database: Callable[[int], Database],
    node: Node,
    subscribe: Subscribe,
) -> None:
    source = database(version)
    source.psql(
        "create schema gone; create table gone.t (id int primary key);"
        " insert into gone.t values (1); create publication gone for table gone.t"
    )
    mirror = subscribe(source, "gone")
    mirror.synced()
    ids = "select string_agg(id::text, ' ' order by id) from gone.t"
    source.psql("alter publication gone set (publish = 'insert, truncate')")
    source.psql("delete from gone.t; insert into gone.t values (2)")
    mirror.caught_up()
    assert node.value(ids) == "1 2"
    source.psql("alter publication gone set (publish = 'insert, delete')")
    source.psql("delete from gone.t; insert into gone.t values (3)")
    mirror.caught_up()
    assert node.value(ids) == "1 3"
    # One that is back before anything of its tables was written was never missed.
    again = "create publication gone for table gone.t"
    source.psql(f"drop publication gone; {again}; insert into gone.t values (4)")
    mirror.caught_up()
    assert node.value(ids) == "1 3 4"
    source.psql("drop publication gone; insert into gone.t values (5)")
    errors = (
        "select worker, error from wal2lake.subscription_errors where subname = 'gone'"
    )
    if version >= 18:
        mirror.caught_up()
        source.psql(f"{again}; insert into gone.t values (6)")
        mirror.caught_up()
        assert node.value(ids) == "1 3 4 6"
        assert node.sql(errors) == []
        said = "skipped loading publication"
        wait_until(lambda: said in node.log_text(), describe=node.log_text)
        return
    missing = 'publication "gone" does not exist'
    ((worker, error),) = node.wait_for(errors, lambda rows: missing in str(rows))
    assert worker == "receiver", error
    # It is decoded by the catalog of its time: no publication of today changes that.
    source.psql(f"{again}; insert into gone.t values (6)")
    failed = node.log_text().count(missing)
    wait_until(
        lambda: node.log_text().count(missing) > failed + 1,
        describe="it has been tried again since",
    )
    assert node.value(ids) == "1 3 4"
    node.sql("drop subscription gone")
    node.sql("drop table gone.t")
    mirror = subscribe(source, "gone")
    mirror.synced()
    mirror.assert_equal(["gone.t"])
