"""What a publication makes of a table: generated columns, domains, column lists, row filters,
partitions. Copied and streamed on a whole node."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.conftest import Database

from wal2lake.errors import PublisherError
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

Subscribe = Callable[..., Mirror]

DOMAINS = """
    create schema {s};
    create domain {s}.whole as int check (value > 0);
    create domain {s}.whole2 as {s}.whole;
    create domain {s}.amt as numeric(10,2);
    create domain {s}.list as int[];
    create type {s}.mood as enum ('sad', 'so so');
    create domain {s}.kind as {s}.mood;
    create table {s}.t (
        id {s}.whole2 primary key, a {s}.amt, l {s}.list, k {s}.kind, f {s}.amt[],
        n {s}.amt, b int generated always as (id::int * 2) stored);
    insert into {s}.t values (5, 1.50, '{{1,NULL}}', 'so so', '{{2.50}}', 'NaN'),
        (6, null, null, null, null, null);
    create publication {s} for table {s}.t with (publish_generated_columns = stored);
"""
CHANGES = """
    insert into {s}.t select id::int + 10, a, l, k, f, n from {s}.t;
    update {s}.t set id = 7, a = 3 where id = 6;
    delete from {s}.t where id = 16;
"""


@pytest.mark.slow
def test_domains_are_their_base_types_and_generated_columns_come_if_published(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    names = ("pc_text", "pc_binary")
    mirrors = {}
    for name in names:
        pg18.psql(DOMAINS.format(s=name))
        # The one value that numeric(10,2) has and its decimal has not, by the domain's name.
        options = f"value_policies = '{name}.amt = null'"
        if name == "pc_binary":
            options += ", binary = true"
        mirrors[name] = subscribe(pg18, name, f"with ({options})")
    for name, mirror in mirrors.items():
        mirror.synced()
        pg18.psql(CHANGES.format(s=name))
        mirror.caught_up()
        assert node.sql(f"select * from {name}.t order by id") == [
            ("5", "1.50", "{1,NULL}", "so so", "{2.50}", None, "10"),
            ("7", "3.00", None, None, None, None, "14"),
            ("15", "1.50", "{1,NULL}", "so so", "{2.50}", None, "30"),
        ]
        assert node.sql(f"select a + 1 from {name}.t where id = 5 and b = 10") == [
            ("2.50",)
        ]
        assert node.sql(
            "select columnname, phase, events from wal2lake.coercions"
            f" where subname = '{name}' order by phase"
        ) == [("n", "copy", "1"), ("n", "stream", "1")]
        assert node.sql(
            "select attname, format_type(atttypid, atttypmod) from pg_attribute"
            f" where attrelid = '{name}.t'::regclass and attnum > 0 order by attnum"
        ) == [
            ("id", "integer"),
            ("a", "numeric(10,2)"),
            ("l", "integer[]"),
            ("k", "text"),
            ("f", "text"),
            ("n", "numeric(10,2)"),
            ("b", "integer"),
        ]
    with psycopg.connect(node.conninfo()) as connection:
        answer = connection.execute("select id, a, l, b from pc_text.t where id = 5")
        assert [c.type_code for c in answer.description or ()] == [23, 1700, 1007, 23]


def test_what_cannot_be_a_lake_table_is_refused_before_any_table_is_made(
    pg18: Database, node: Node
) -> None:
    pg18.psql(
        "create schema pc_no; create table pc_no.a (id int primary key);"
        ' create table pc_no.t (id int primary key, "A" int, a int);'
        " create publication pc_no for tables in schema pc_no"
    )
    create = (
        f"create subscription pc_no connection {quote_literal(pg18.conninfo())}"
        " publication pc_no"
    )
    with pytest.raises(PublisherError) as caught:
        node.sql(create)
    assert (caught.value.sqlstate, caught.value.message) == (
        "0A000",
        'columns "A" and "a" of table "pc_no.t" differ in case only, which Delta Lake'
        " cannot store",
    )
    assert node.sql("select 1 from pg_namespace where nspname = 'pc_no'") == []
    pg18.psql("drop table pc_no.t; create table pc_no.t ()")
    with pytest.raises(PublisherError, match=r'table "pc_no\.t" has no columns'):
        node.sql(create)
    assert not (node.directory / "warehouse" / "pc_no").exists()
    # What only the making finds: the tables that were made with it go again.
    pg18.psql("drop table pc_no.t; create table pc_no.t (id int)")
    foreign = node.directory / "warehouse" / "pc_no" / "t"
    write_deltalake(foreign, pa.table({"id": [1]}))
    with pytest.raises(PublisherError, match="a Delta table already exists"):
        node.sql(create)
    assert node.sql("select 1 from pg_tables where schemaname = 'pc_no'") == []
    assert [found.name for found in foreign.parent.iterdir()] == ["t"]
    node.sql("drop schema pc_no")
    assert (
        pg18.psql(
            "select count(*) from pg_replication_slots where database = current_database()"
        )
        == "0"
    )


PARTS = """
    create schema pp_filter;
    create table pp_filter.t (id int, zone text, v int, primary key (id, zone));
    insert into pp_filter.t values (1, 'eu', 1), (2, 'us', 2), (3, 'eu', 3);
    create publication pp_filter for table pp_filter.t where (zone = 'eu');
    create schema pp_list;
    create table pp_list.t (secret text, id int primary key, a int, big text);
    alter table pp_list.t alter big set storage external;
    insert into pp_list.t values ('x', 1, 10, repeat('b', 4000)), ('y', 2, 20, null);
    create publication pp_list for table pp_list.t (id, big);
    create schema pp_root;
    create table pp_root.t (id int primary key, v text) partition by range (id);
    create table pp_root.low partition of pp_root.t for values from (0) to (10);
    create table pp_root.high (v text, id int primary key);
    alter table pp_root.t attach partition pp_root.high for values from (10) to (99);
    insert into pp_root.t values (1, 'one'), (2, 'two'), (11, 'eleven');
    create publication pp_root for table pp_root.t with (publish_via_partition_root);
"""
PART_CHANGES = """
    insert into pp_filter.t values (4, 'us', 4), (5, 'eu', 5);
    update pp_filter.t set v = v + 10;
    update pp_filter.t set zone = 'us' where id = 1;
    update pp_filter.t set zone = 'eu' where id = 2;
    delete from pp_filter.t where id in (3, 4);
    insert into pp_list.t values ('z', 3, 30, 'c');
    update pp_list.t set secret = 'other', a = 0;
    update pp_list.t set id = 9, a = 1 where id = 1;
    delete from pp_list.t where id = 2;
    insert into pp_root.t values (3, 'three'), (12, 'twelve');
    update pp_root.t set v = v || '!';
    update pp_root.t set id = 21 where id = 1;
    update pp_root.t set id = 4 where id = 11;
    delete from pp_root.t where id in (2, 12);
"""
SEEN = {
    "pp_filter": "select id, zone, v from pp_filter.t where zone = 'eu' order by id",
    "pp_list": "select id, length(big) from pp_list.t order by id",
    "pp_root": "select id, v from pp_root.t order by id",
}


def test_row_filters_column_lists_and_partitioned_tables_are_copied_and_followed(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(PARTS)
    mirrors = {name: subscribe(pg18, name) for name in SEEN}
    for changes in ("", PART_CHANGES):
        pg18.psql(changes)
        for name, mirror in mirrors.items():
            mirror.synced()
            mirror.caught_up()
            with mirror.source() as session:
                theirs = session.query(SEEN[name])
            assert node.sql(SEEN[name]) == theirs, name
    assert theirs == [("3", "three!"), ("4", "eleven!"), ("21", "one!")]
    # Nothing but what is published has come.
    assert node.sql("select distinct zone from pp_filter.t") == [("eu",)]
    assert node.sql(
        "select table_schema, string_agg(table_name || '.' || column_name, ' ')"
        " from information_schema.columns where table_schema in ('pp_list', 'pp_root')"
        " group by 1 order by 1"
    ) == [("pp_list", "t.id t.big"), ("pp_root", "t.id t.v")]
