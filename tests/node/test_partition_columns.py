"""CREATE TABLE ... WITH (partition_columns = ...): a table whose files are divided by values."""

from __future__ import annotations

from collections.abc import Callable

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.conftest import Database
from tests.node.conftest import refused

from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node


def partitions(table: DeltaTable) -> set[tuple[object, ...]]:
    names = table.metadata().partition_columns
    adds = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    return {tuple(one[f"partition.{name}"] for name in names) for one in adds}


@pytest.mark.slow
def test_a_partitioned_table_is_copied_followed_and_written(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    create = "create table t (a int, b text, c float8) with "
    for parameters, sqlstate in {
        "(partition_columns = 'x')": "42703",
        "(partition_columns = 'a, a')": "42701",
        "(partition_columns = 'b')": "0A000",
        "(partition_columns = 'c')": "0A000",
        "(partition_columns = 'a, b, c')": "42P16",
        "(partition_columns = '')": "22023",
    }.items():
        assert refused(node, create + parameters)[0] == sqlstate, parameters

    columns = (
        "(id int, day date, \"Größe\" numeric(6,2), at timestamptz, v text default 'd',"
        " primary key (id, day))"
    )
    pg18.psql(
        f"create schema pt; create table pt.t {columns};"
        " create table pt.keyless (grp int, v text);"
        " alter table pt.keyless replica identity full;"
        " insert into pt.t select n, date '2024-02-27' + n % 4,"
        " case when n % 3 > 0 then -n % 3 end, 'epoch', repeat('é', n % 2)"
        " from generate_series(1, 400) n;"
        " insert into pt.keyless select n % 3, 'x' from generate_series(1, 30) n;"
        " insert into pt.keyless values (null, ''), (null, null);"
        " create publication pt for tables in schema pt"
    )
    node.sql("create schema pt")
    node.sql(f"create table pt.t {columns} with (partition_columns = 'day, \"Größe\"')")
    node.sql("create table pt.keyless (grp int, v text) with (partition_columns = grp)")
    assert node.sql(
        "select relname, reloptions from pg_class where relnamespace = 'pt'::regnamespace"
        " and relkind = 'r' order by 1"
    ) == [
        ("keyless", "{partition_columns=grp}"),
        ("t", '{"partition_columns=day,\\"Größe\\""}'),
    ]
    mirror = subscribe(pg18, "pt")
    mirror.synced()
    both = ["pt.t", "pt.keyless"]
    mirror.assert_equal(both)
    place = node.directory / "warehouse" / "pt"
    table = DeltaTable(str(place / "t"))
    assert table.metadata().partition_columns == ["day", "Größe"]
    assert len(partitions(table)) == 12
    assert len(partitions(DeltaTable(str(place / "keyless")))) == 4

    pg18.psql(
        "update pt.t set day = day + 100 where id % 50 = 0;"
        ' update pt.t set "Größe" = 99.99, v = null where id % 40 = 1;'
        ' update pt.t set "Größe" = null where id = 7;'
        " delete from pt.t where id > 390; insert into pt.t values (1000, '1999-12-31');"
        " update pt.keyless set grp = 7 where ctid = '(0,1)'; delete from pt.keyless"
        " where grp is null and v is null; insert into pt.keyless values (null, null)"
    )
    mirror.assert_equal(both)
    pg18.psql("delete from pt.t where day < '2024-02-28'")
    mirror.assert_equal(both)
    table = DeltaTable(str(place / "t"))
    query = QueryBuilder().register("t", table)
    counted = pa.table(query.execute('select count(*) as n, sum("Größe") as s from t'))
    ours = node.sql('select count(*), sum("Größe") from pt.t')
    (found,) = counted.to_pylist()
    assert [(str(found["n"]), str(found["s"]))] == ours
    assert min(str(one[0]) for one in partitions(table)) >= "2024-02-28"

    # Rows that are written here, and keys that meet in a partition.
    node.sql("update pt.t set day = '2030-01-01', v = 'ours' where id = 9")
    node.sql("insert into pt.t values (2000, '2030-01-01', 1, 'epoch')")
    taken = refused(node, "insert into pt.t values (2000, '2030-01-01')")
    assert taken[0] == "23505"
    assert node.sql("select id, v from pt.t where day = '2030-01-01' order by 1") == [
        ("9", "ours"),
        ("2000", "d"),
    ]
    node.sql("delete from pt.t where day = '2030-01-01'")
    pg18.psql("delete from pt.t where id = 9")
    mirror.assert_equal(both)

    # Columns that are no partition change; those that are do not.
    for change in (
        "drop column day",
        'rename "Größe" to g',
        "alter day type timestamp",
    ):
        assert refused(node, f"alter table pt.keyless {change}")[0] == "42703"
        assert refused(node, f"alter table pt.t {change}")[0] == "0A000", change
    for side in (pg18.psql, node.sql):
        side("alter table pt.keyless rename v to text")
        side("alter table pt.keyless add n int default 5")
        side("alter table pt.keyless alter n type bigint")
        side("alter table pt.t add k int default 5")
        side("alter table pt.t alter k type numeric(8,2)")
    mirror.assert_equal(both)
    pg18.psql(
        "insert into pt.keyless values (8, 'new', 6); update pt.keyless set n = 7"
        " where grp = 1; update pt.t set v = 'last', day = day + 1 where id % 2 = 0"
    )
    mirror.assert_equal(both)
    pg18.psql("truncate pt.t; insert into pt.t values (1, '2024-01-01', 1)")
    mirror.assert_equal(both)
    assert len(partitions(DeltaTable(str(place / "t")))) == 1
