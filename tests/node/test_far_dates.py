"""Infinite and far dates and timestamps on a whole node, beside PostgreSQL's answers: copied,
streamed, in keys, in arrays, in partitions, queried, written here, and published again."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conftest import Database

from wal2lake.errors import PublisherError
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

VALUES = """
    (1, 'infinity', 'infinity', 'infinity', '{infinity,-infinity,NULL}', '{infinity}'),
    (2, '-infinity', '-infinity', '-infinity', '{}', '{-infinity}'),
    (3, '5874897-12-31', '294246-12-31 23:59:59.999999', '294246-12-31 23:59:59.999999+00',
     '{5874897-12-31}', '{294246-12-31 23:59:59.999999+00}'),
    (4, '4714-11-24 BC', '4714-11-24 00:00:00 BC', '4714-11-24 00:00:00+00 BC',
     '{4714-11-24 BC}', '{0044-03-15 12:00:00.5+00 BC}'),
    (5, '0001-12-31 BC', '0001-12-31 23:59:59.5 BC', '0044-03-15 12:00:00+00 BC', null, null),
    (6, '10000-01-01', '10000-02-29 12:00:00', '12024-07-01 12:00:00.25+00', '{}', '{}'),
    (7, '1582-10-10', '1582-10-10 01:02:03', '1582-10-10 01:02:03+00', '{}', '{}'),
    (8, '2024-02-29', '2024-02-29 12:00:00', '2024-07-01 12:00:00+00', '{}', '{}'),
    (9, null, null, null, null, null)
"""
COLUMNS = """(id int primary key, d date, t timestamp, z timestamptz, da date[],
    za timestamptz[])"""

QUERIES = """
select * from t
select id from t where d = 'infinity' and t = 'infinity' and z = 'infinity'
select id from t where d = '-infinity'
select id from t where t <= '-infinity'
select id from t where z = '-infinity'
select id from t where d > '-infinity' and t < 'infinity' and z >= '-infinity'
select id from t where d > '9999-12-31' or z = '0044-03-15 12:00:00 BC' or t < '0001-01-01'
select id from t where d in ('infinity', '10000-01-01') or t between '0001-01-01' and 'infinity'
select min(d), max(d), min(t), max(t), min(z), max(z) from t
select d, count(*), row_number() over (order by d) from t group by d
select a.id, b.id from t a join t b on a.d = b.d and a.z = b.z
select id, d::text, t::text, d || '', 'x' || t, t::date, z::date, t::time, da::text from t
select id, d + 1, d - 1, d::timestamp, d + interval '1 day' from t where id not in (3, 4)
select id, t + interval '1 day', t + interval '1 second', to_char(t, 'YYYY') from t where id > 5
select id, extract(month from d), extract(day from t), extract(hour from z) from t
select extract(year from d), extract(century from t), extract(decade from t) from t where id > 2
select extract(epoch from d), extract(epoch from z), d - date '2000-01-01' from t where id > 2
select id, coalesce(d, 'infinity'), greatest(t, '-infinity'), nullif(z, 'infinity') from t
select date 'infinity', timestamp '-infinity', timestamptz 'infinity', '{infinity}'::date[]
select date '0044-03-15 BC', timestamp '12345-01-02 03:04:05.6'
""".strip().splitlines()

ZONED = """
select id, z from t
select id, z::text, 'y' || z, za::text from t
select id, t::timestamptz, z::timestamp, z::date from t where id not in (3, 4)
select date_trunc('month', z), date_trunc('hour', z), z - interval '1 month' from t where id > 4
select z at time zone 'America/New_York', t at time zone 'Asia/Tokyo' from t where id not in (3, 4)
select timestamptz '0001-01-01 00:00:00+05', timestamptz '12024-07-01', timestamptz '0044-01-01 BC'
""".strip().splitlines()

ERRORS = {
    "select d - date '2000-01-01' from t": "22008",
    "select d + 1 from t": "22008",
    "select d::timestamp from t": "22008",
    "insert into k values ('5874898-01-01', 'epoch', 1)": "22008",
    "select t + interval '400 years' from t where id in (1, 3)": "22008",
    "select d from t where d = '5874898-01-01'": "22008",
    "select d from t where d = '4714-11-23 BC'": "22008",
    "select d from t where d = '2023-02-29'": "22008",
    "select d from t where d = '0000-01-01'": "22008",
}
"""Refused by both, with this SQLSTATE."""

NOT_HERE = {
    "select extract(year from d) from t": "0A000",
    "select z - timestamptz 'epoch' from t": "0A000",
    "select age(t) from t": "0A000",
    "select z from t where z = '294250-01-01'": "22008",
}
"""What PostgreSQL answers and a lake table cannot: an error, no other value."""


Rows = list[tuple[str | None, ...]]


def answer(run: Callable[[str], Rows], query: str) -> Rows:
    """Its rows, or the error."""
    try:
        return sorted(run(query), key=str)
    except PublisherError as error:
        return [(error.sqlstate, error.message)]


@pytest.mark.slow
def test_far_dates_are_copied_streamed_queried_written_and_published(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    pg18.psql(
        f"create schema fd; create table fd.t {COLUMNS};"
        f" insert into fd.t values {VALUES};"
        # Dates as keys: found, moved and deleted by them.
        " create table fd.k (d date, z timestamptz, v int, primary key (d, z));"
        " insert into fd.k select d, z, id from fd.t where d is not null;"
        " create table fd.full (d date, t timestamp, za timestamptz[], v int);"
        " alter table fd.full replica identity full;"
        " insert into fd.full select d, t, za, id from fd.t;"
        " create table fd.part (id int, d date, z timestamptz, v int, primary key (id, d));"
        " insert into fd.part select id, d, z, 0 from fd.t where d is not null;"
        " create publication fd for tables in schema fd"
    )
    node.sql("create schema fd")
    node.sql(
        "create table fd.part (id int, d date, z timestamptz, v int, primary key (id, d))"
        " with (partition_columns = 'd')"
    )
    tables = ["fd.t", "fd.k", "fd.full", "fd.part"]
    mirror = subscribe(pg18, "fd", "with (binary = true)")
    mirror.synced()
    mirror.assert_equal(tables)
    pg18.psql(
        "insert into fd.t select id + 100, d, t, z, da, za from fd.t;"
        " update fd.t set d = 'infinity', z = '-infinity' where id = 108;"
        " update fd.k set v = v + 1;"
        " update fd.k set d = '-infinity' where d = 'infinity';"
        " update fd.k set z = 'infinity' where d = '10000-01-01';"
        " delete from fd.k where d = '4714-11-24 BC';"
        " update fd.full set v = v + 1;"
        " delete from fd.full where d = 'infinity' or t < '0001-01-01';"
        " update fd.part set v = 1; update fd.part set d = 'infinity' where id > 6;"
        " delete from fd.part where d = '-infinity'"
    )
    mirror.caught_up()
    mirror.assert_equal(tables)
    pg18.psql("delete from fd.t where id > 100")
    mirror.caught_up()

    different = []
    with mirror.source() as theirs, node.connect() as ours:
        for zone, queries in {
            "UTC": QUERIES + ZONED,
            "America/New_York": ZONED,
        }.items():
            for run in (theirs.execute, ours.rows):
                run("set search_path = fd")
                run(f"set timezone = '{zone}'")
            for query in queries:
                wanted = answer(theirs.query, query)
                found = answer(ours.rows, query)
                if wanted != found:
                    rows = zip(wanted, found, strict=False)
                    shown = [f"  {a}\n  {b}" for a, b in rows if a != b]
                    different.append("\n".join([f"{zone}: {query}", *shown]))
        for query, sqlstate in ERRORS.items():
            both = [answer(run, query)[0] for run in (theirs.query, ours.rows)]
            if [one[0] for one in both] != [sqlstate, sqlstate]:
                different.append(f"{query}: {both}")
        for query, sqlstate in NOT_HERE.items():
            found = answer(ours.rows, query)
            if found[0][0] != sqlstate:
                different.append(f"{query}: {found}")
    assert not different, "\n".join(different)


LOCAL = f"""
create table t {" ".join(COLUMNS.split())}
insert into t values {" ".join(VALUES.split())}
insert into t select id + 20, d, t, z, da, za from t
update t set d = 'infinity', t = '-infinity', z = '0044-03-15 12:00:00+00 BC' where id = 8
update t set z = z + interval '1 day', da = '{{infinity}}' where id = 21
update t set d = '-infinity' where d = 'infinity' and id > 10
delete from t where d = '4714-11-24 BC' and id > 20
create table k (d date, z timestamptz, v int, primary key (d, z))
insert into k values ('infinity', '-infinity', 1), ('-infinity', 'infinity', 2)
update k set d = '10000-01-01' where d = 'infinity'
delete from k where z = 'infinity'
insert into k values ('4714-11-24 BC', '4714-11-24 00:00:00+00 BC', 3)
create table p (id int, d date, z timestamptz, v int) with (partition_columns = 'd, z')
insert into p select id, d, z, 0 from t where id in (1, 2, 3, 5, 6)
insert into p values (30, 'infinity', '-infinity', 0)
update p set v = id + 1 where d = 'infinity'
update p set v = id where z < '0001-01-01'
""".strip().splitlines()


@pytest.mark.slow
def test_far_dates_are_written_here_and_published(pg18: Database, node: Node) -> None:
    name = f"{pg18.name}_fl"
    pg18.psql("create schema fl; alter database " + pg18.name + " set search_path = fl")
    node.sql("create schema fl")
    with node.connect() as here:
        here.rows("set search_path = fl")
        for statement in LOCAL:
            here.rows(statement)
            pg18.psql(statement.partition(" with (")[0] + ";")
        for table, sort in (("t", "id"), ("k", "d"), ("p", "id")):
            query = f"select * from {table} order by {sort}"
            wanted = pg18.psql(query).splitlines()
            found = ["|".join(v or "" for v in row) for row in here.rows(query)]
            assert found == wanted
        with_key = (
            "insert into k values ('4714-11-24 BC', '4714-11-24 00:00:00+00 BC', 9)"
        )
        assert answer(here.rows, with_key)[0][0] == "23505"

    pg18.psql("truncate t, k")
    node.sql(
        "create publication fl for table fl.t where (d < 'infinity' or z = 'infinity'), fl.k"
    )
    # The filter is about columns beside the key.
    node.sql("alter table fl.t replica identity full")
    node.sql("create role fl_reader login replication password 'secret'")
    node.sql("grant usage on schema fl to fl_reader")
    for table in "tk":
        node.sql(f"grant select on fl.{table} to fl_reader")
    facts = dict(one.split("=", 1) for one in node.conninfo().split(" ") if "=" in one)
    port = facts["port"].strip("'")
    conninfo = f"host=127.0.0.1 port={port} dbname=lake user=fl_reader password=secret"
    try:
        pg18.psql(
            f"create subscription {name} connection {quote_literal(conninfo)}"
            " publication fl with (binary = true)"
        )
        query = "select * from t where d < 'infinity' or z = 'infinity' order by id"

        def equal(table: str, query: str) -> None:
            with node.connect() as here:
                here.rows("set search_path = fl")
                wanted = ["|".join(v or "" for v in r) for r in here.rows(query)]
            whole = f"select * from {table} order by 1, 2"
            wait_until(
                lambda: pg18.psql(whole).splitlines() == wanted,
                timeout_seconds=60,
                describe=lambda: f"{pg18.psql(whole)}\n{wanted}",
            )

        equal("t", query)
        equal("k", "select * from k order by 1, 2")
        with node.connect() as here:
            here.rows("set search_path = fl")
            here.rows("update t set t = 'infinity' where id in (2, 5)")
            here.rows("update t set d = 'infinity' where id = 3")
            here.rows("update k set d = 'infinity' where v = 3")
        equal("t", query)
        equal("k", "select * from k order by 1, 2")
    finally:
        pg18.psql(f"drop subscription if exists {name}")
        node.sql("drop publication fl")
        for table in "tkp":
            node.sql(f"drop table fl.{table}")
        node.sql("drop schema fl")
        node.sql("drop role fl_reader")
