"""INSERT, UPDATE and DELETE of a few rows, which a node does without a job of Spark's: what
PostgreSQL does with the same statements, and in commits of the node's own."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.conftest import Database

from wal2lake.testing.node import Node

TABLE = r"""
create schema pw;
create table pw.t (id int primary key, s smallint not null, big bigint, n numeric(12,2), u numeric,
 t text, v varchar(8), c char(4), b bool, d date, ts timestamp, tz timestamptz, j jsonb, a int[],
 by bytea, f float8)
"""

FILL = r"""
insert into pw.t select i, i % 5, i * 10000000000, i / 4.0, i / 3.0, 'row ' || i, 'v' || i % 7, 'c',
 i % 2 = 0, date '2024-01-01' + i, timestamp '2024-01-01 10:00' + i * interval '1 hour',
 timestamptz '2024-01-01 10:00Z', '{"i": 1}', array[i, null, -i], '\x00ff01',
 i / 8.0::float8 from generate_series(1, 60) i
"""

OURS = r"""
update pw.t set t = 'it''s \ a "q" ${x} ü %n' where id = 3;
update pw.t set t = null, v = null, a = '{}', j = '{"a": [1, "x"]}' where id in (4, 5, 999);
update pw.t set big = big + 1, n = n * 1.5, s = -s where id between 10 and 12;
update pw.t set t = t || '/' || v || '/' || coalesce(v, 'none'), b = not b where s = 2;
update pw.t set t = t || '!', n = default where t = 'it''s \ a "q" ${x} ü %n';
update pw.t set (t, v) = (v, t) where id = 20;
update pw.t set t = 'none' where id = -1;
update pw.t set b = null where b is not null and (v = 'v1' or v = 'v3') and not s = 1;
update pw.t set b = (id > 30) where b is null;
update pw.t set f = 'NaN', by = '\x00ff', tz = '2024-06-01 12:00+02', ts = '0001-01-01'
 where id = 6;
update pw.t set f = -0.0, d = '9999-12-31', u = 1e-20 where id = 7;
delete from pw.t where id = 8;
delete from pw.t where id = 8;
delete from pw.t where s = 3 and big >= 300000000000;
delete from pw.t where v is null;
update pw.t set n = 7
"""

SPARKS = """
update pw.t set t = 'x' where f > 6.5;
update pw.t set t = t || 'y' where t like 'row 1%';
update pw.t set ts = ts + interval '1 hour' where id = 6;
update pw.t set d = d + 1 where id = 6;
delete from pw.t where ts > '2024-01-03 09:00'
"""

REFUSED = """
update pw.t set s = null where id = 6;
update pw.t set s = 99999 where id = 6;
update pw.t set s = s * 30000 where id = 7;
update pw.t set n = 1 / (id - 6) where id = 6;
update pw.t set v = 'too long for it' where id = 6;
update pw.t set s = 'x' where id = -1;
update pw.t set nothing = 1 where id = -1;
delete from pw.t where nothing = 1
"""

ADDED_TO = r"""
create table pw.k (id int, s smallint not null, big bigint, n numeric(12,2), u numeric,
 w numeric(50,3), t text default 'it''s', v varchar(8), c char(4), b bool default true, d date,
 ts timestamp, tz timestamptz, ti time, y interval, g uuid, net inet, j jsonb, r json, a int[],
 by bytea, f float8, h float4, z bit varying)
"""

ADDED = r"""
insert into pw.k (id, s) values (1, 1);
insert into pw.k values (2, -32768, 9223372036854775807, 1.005, 1.50, 1.0005, 'a \ "q" ${x} ü %n',
 'abc', 'x', false, '9999-12-31', '0001-01-01 00:00:00.000001', '2024-06-01 12:00+02',
 '23:59:59.9', '1 mon -2 days', 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', '10.0.0.1/8',
 '{"b": 1, "a": [null, 1.0]}', '{"b":  1}', null, '\x00ff', -0.0, 1.1, '101');
insert into pw.k (id, s, big, n, u, w, f, h) values
 (3, '7', -9223372036854775808, -0.004, 1e-3, 2, 1e-300, 3.4e38),
 (4, 2.5, 5::smallint, '1e3', 'NaN', '-0.0', 'NaN', '-Infinity'),
 (5, -1.5, null, 12, -12, null, 12345678901234567890, 16777217);
insert into pw.k (s, id, t, v, b, n) values (1, 6, '', 'spaces       ', 'yes', default),
 (1, 7, null, null, null, 99.999), (1, 8, 5, '5', true, 5::bigint);
insert into pw.k (id, s, d, ts, tz) values
 (9, 0, date '1582-10-04', '1582-10-15', '1900-01-01 00:00Z'),
 (10, 0, '0001-01-01', timestamp '2024-02-29 23:59:59.999999',
 timestamptz '2024-01-01 00:00:00.1234565+01');
insert into pw.k (id, s, by, t) values (11, 0, 'abc', E'tab\tnew\nline'), (12, 0, '', '  ');
update pw.k set n = 3.005, t = 'new', b = null, big = -1, f = 1e10, d = '2024-02-29', by = '\x01',
 tz = '2024-01-01 00:00+05:30', h = 0.1, u = 2.50, w = 1.5, ti = '10:00', j = '[1]', c = 'ab',
 v = null where id in (1, 2);
update pw.k set t = default, s = 3 where id = 3
"""

ADDED_BY_SPARK = """
insert into pw.k (id, s, t) values (50, 1, upper('x'));
insert into pw.k (id, s, ts) values (51, 1, now() - now() + timestamp '2024-01-01');
insert into pw.k (id, s, a) values (52, 1, '{1,null}')
"""

NOT_ADDED = """
insert into pw.k (id) values (60);
insert into pw.k (id, s) values (60, null);
insert into pw.k (id, s) values (61, 0), (60, 32768);
insert into pw.k (id, s) values (2147483648, 0);
insert into pw.k (id, s, n) values (60, 0, 1e10);
insert into pw.k (id, s, v) values (60, 0, '123456789');
insert into pw.k (id, s, b) values (60, 0, 'maybe');
insert into pw.k (id, s, d) values (60, 0, '2024-02-30');
insert into pw.k (id, s, j) values (60, 0, '{');
insert into pw.k (id, s, t) values (60, 0);
update pw.k set s = null where id = 1
"""

PARAMETERS: tuple[tuple[object, ...], ...] = (
    (20, 1, "it's", Decimal("1.255"), True, date(2024, 2, 29), 1.5, b"\x00\xff"),
    (21, -1, None, None, None, None, None, None),
    (22, 0, "", Decimal("-0"), False, date(1, 1, 1), -0.0, b""),
    (23, 0, "5", Decimal("1e3"), False, date(9999, 12, 31), 1e-310, b"x"),
)


class Sides:
    """The same at both."""

    def __init__(self, ours: Any, theirs: Any, place: Path) -> None:
        self._sides = (ours, theirs)
        self.place = place

    def compare(
        self, sql: str, table: str = "pw.t", parameters: tuple[object, ...] = ()
    ) -> str:
        """One statement, and the table behind it; the tag, or the error."""
        results = []
        for side in self._sides:
            try:
                result = str(side.execute(sql, parameters or None).statusmessage)
            except psycopg.Error as error:
                primary = error.diag.message_primary
                result = f"{error.diag.sqlstate} {primary} {error.diag.column_name}"
            rows = side.execute(f"select * from {table} order by id").fetchall()
            results.append((result, rows))
        mine, theirs = results
        assert mine[0] == theirs[0], sql
        for one, other in zip(mine[1], theirs[1], strict=True):
            assert str(one) == str(other), sql
        return mine[0]

    def count(self) -> int:
        """Rows, at PostgreSQL."""
        return int(self._sides[1].execute("select count(*) from pw.t").fetchone()[0])

    def both(self, sql: str) -> None:
        """One statement that gives no rows."""
        for side in self._sides:
            side.execute(sql)

    def last_operation(self, place: Path | None = None) -> str:
        """Who has made the newest version: the word of a commit of ours, or Spark's."""
        newest = max(((place or self.place) / "_delta_log").glob("*.json"))
        for line in newest.read_text().splitlines():
            info = json.loads(line).get("commitInfo")
            if info is not None:
                return str(info.get("userMetadata") or info["operation"]).split(" ")[0]
        raise AssertionError(newest)


@pytest.fixture(scope="module")
def sides(node: Node, postgres_server: Callable[..., Any]) -> Iterator[Sides]:
    server = postgres_server(18)
    server.psql("create database plain_writes")
    source = Database(server, "plain_writes")
    with (
        psycopg.connect(source.conninfo(), autocommit=True) as theirs,
        psycopg.connect(node.conninfo(), autocommit=True) as ours,
    ):
        for statement in (*TABLE.strip().split(";\n"), FILL):
            for side in (ours, theirs):
                side.execute(statement)
        yield Sides(ours, theirs, node.directory / "warehouse" / "pw" / "t")
        ours.execute("drop table if exists pw.t, pw.k")
        ours.execute("drop schema pw")
    server.psql("drop database plain_writes with (force)")


@pytest.mark.slow
def test_rows_are_changed_as_postgresql_changes_them(sides: Sides) -> None:
    for sql in OURS.strip().split(";\n"):
        tag = sides.compare(sql)
        assert "ERROR" not in tag
        if not tag.endswith(" 0"):
            assert sides.last_operation() == "local", sql
    # Somebody else reads the same.
    table = DeltaTable(str(sides.place))
    found = (
        QueryBuilder().register("t", table).execute("select count(*), sum(n) from t")
    )
    counted = [
        float(str(v)) for v in pa.table(found.read_all()).to_pylist()[0].values()
    ]
    assert counted == [sides.count(), 7 * sides.count()]
    for sql in REFUSED.strip().split(";\n"):
        assert sides.compare(sql)[:5] in {
            "23502",
            "22003",
            "22012",
            "22001",
            "22P02",
            "42703",
        }, sql
    for sql in SPARKS.strip().split(";\n"):
        sides.compare(sql)
        assert sides.last_operation() in {"UPDATE", "DELETE"}, sql
    sides.compare("delete from pw.t")
    assert sides.last_operation() == "local"


def test_constants_are_stored_as_postgresql_stores_them(sides: Sides) -> None:
    """Without a key: the commit of an INSERT is that of the statement."""
    sides.both(ADDED_TO)
    place = sides.place.parent / "k"
    for sql in ADDED.strip().split(";\n"):
        tag = sides.compare(sql, "pw.k")
        assert tag.startswith(("INSERT 0 ", "UPDATE ")) and not tag.endswith(" 0"), sql
        assert sides.last_operation(place) == "local", sql
    sql = "insert into pw.k (id, s, t, n, b, d, f, by) values (%s, %s, %s, %s, %s, %s, %s, %s)"
    for parameters in PARAMETERS:
        assert sides.compare(sql, "pw.k", parameters) == "INSERT 0 1"
        assert sides.last_operation(place) == "local", parameters
    change = "update pw.k set t = %s, n = %s, f = %s where id = %s"
    assert sides.compare(change, "pw.k", ("new", Decimal(7), 0.1, 20)) == "UPDATE 1"
    assert sides.last_operation(place) == "local"
    for sql in NOT_ADDED.strip().split(";\n"):
        assert not sides.compare(sql, "pw.k").startswith(("INSERT", "UPDATE")), sql
    for sql in ADDED_BY_SPARK.strip().split(";\n"):
        assert sides.compare(sql, "pw.k") == "INSERT 0 1"
        assert sides.last_operation(place) == "WRITE", sql
    found = (
        QueryBuilder()
        .register("t", DeltaTable(str(place)))
        .execute("select count(*) from t")
    )
    assert list(pa.table(found.read_all()).to_pylist()[0].values()) == [19]


BLOCK = """
update pw.t set t = t || '!', n = n + 1 where id in (2, 3, 61);
savepoint a;
delete from pw.t where id = 2;
update pw.t set t = 'twice' where id = 3;
update pw.t set s = 4 where s = 0 and t is not null;
savepoint b;
insert into pw.t (id, s) values (70, 1), (71, 1);
update pw.t set v = 'new' where id >= 60;
delete from pw.t where id = 71;
rollback to b;
update pw.t set big = null where big > 500000000000;
rollback to a;
update pw.t set t = 'again' where id = 2;
delete from pw.t where id in (5, 6)
"""


def test_a_transaction_sees_what_it_has_changed(sides: Sides) -> None:
    sides.both("delete from pw.t")
    sides.both(FILL)
    for end in ("rollback", "commit"):
        sides.both("begin")
        for sql in BLOCK.strip().split(";\n"):
            sides.compare(sql)
            if sql.startswith(("update", "delete")):
                transactions = sides.place.parent.parent / "_transactions"
                (branch,) = transactions.glob("*/*")
                assert sides.last_operation(branch) == "local", sql
        sides.both(end)
        sides.compare("select 1")
