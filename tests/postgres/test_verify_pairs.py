"""``wal2lake verify`` between two PostgreSQL servers: differences are found and named, and equal
tables are equal."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest
from tests import verifying
from tests.conftest import Database
from tests.verifying import Verified

TABLES = """
create schema vp;
create type vp.mood as enum ('sad', 'ok');
create table vp.t (id int primary key, v text, n numeric, f float8, r real, m vp.mood,
                   at timestamptz, d date, b bytea, o boolean, j jsonb, a text[], i interval);
insert into vp.t select g, nullif('v' || g % 7, 'v3'), g / 3.0, g / 7.0, g / 7.0, 'ok',
  timestamptz '2024-01-01' + g * interval '1 s', date '2024-01-01' + g % 100,
  decode(md5(g::text), 'hex'), g % 2 = 0, jsonb_build_object('g', g), array['x', null],
  g * interval '1 s' from generate_series(1, 20000) g;
create table vp.named (a text, b int, v text, primary key (a, b));
insert into vp.named select chr(64 + g), g, 'v' from generate_series(1, 26) g;
create table vp.keyless (v text, w text);
insert into vp.keyless select 'v' || g % 10, 'w' from generate_series(1, 1000) g;
create table vp.parted (id int primary key) partition by range (id);
create table vp.parted1 partition of vp.parted for values from (1) to (50);
create table vp.parted2 partition of vp.parted default;
insert into vp.parted select generate_series(1, 100);
"""


def verify(source: Database, target: Database, *options: str) -> Verified:
    """Run the command."""
    servers = ("--source", source.conninfo(), "--target", target.conninfo())
    return verifying.verify(*servers, *options)


def found(table: dict[str, Any]) -> list[tuple[Any, ...]]:
    """The named differences: kind, key, columns with both values."""
    return [
        (
            each["kind"],
            tuple(each["key"].values()),
            *((c["column"], c["source"], c["target"]) for c in each["columns"]),
        )
        for each in table["differences"]
    ]


@pytest.fixture
def both(pg16: Database, pg18: Database) -> tuple[Database, Database]:
    """Two servers of different versions with equal tables."""
    pg16.psql(TABLES)
    pg18.psql(TABLES)
    return pg16, pg18


def test_equal_tables_are_equal_and_each_difference_is_named(
    both: tuple[Database, Database],
) -> None:
    source, target = both
    ended = verify(source, target)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.endswith("4 tables equal.\n")
    # The width of an integer, and of a float, is the copy's own business.
    target.psql("alter table vp.t alter id type bigint, alter r type float8")
    assert verify(source, target, "-t", "vp.t").returncode == 0

    target.psql(
        "update vp.t set v = 'other' where id = 3;"
        " update vp.t set v = '' where id = 10;"
        " delete from vp.t where id = 15000; insert into vp.t (id, v) values (-1, 'new');"
        " update vp.named set v = 'w' where a = 'C';"
        " delete from vp.parted where id = 60"
    )
    ended = verify(source, target, "--format", "json")
    assert ended.returncode == 1, ended.stderr
    report = ended.tables
    assert sorted(found(report["vp.t"])) == [
        ("changed", ("10",), ("v", None, "")),
        ("changed", ("3",), ("v", None, "other")),
        ("extra", ("-1",)),
        ("missing", ("15000",)),
    ]
    assert report["vp.t"]["differing_rows"] == 4
    assert report["vp.t"]["rows"] == 20000
    assert found(report["vp.named"]) == [("changed", ("C", "3"), ("v", "v", "w"))]
    assert found(report["vp.parted"]) == [("missing", ("60",))]
    assert report["vp.keyless"]["result"] == "equal"
    text = verify(source, target, "-t", "vp.t").stdout
    assert "changed (id=10): v is null at the source, '' at the target" in text
    assert "missing (id=15000)" in text


@pytest.mark.parametrize(
    ("source_sql", "target_sql", "differences"),
    [
        pytest.param("", "delete from vp.keyless where ctid = '(0,1)'", 1, id="lost"),
        pytest.param("", "insert into vp.keyless values ('v1', 'w')", 1, id="doubled"),
        pytest.param(
            "",
            "insert into vp.keyless values ('v1', 'w'), ('v1', 'w')",
            2,
            id="twice the same in one block",
        ),
        pytest.param(
            "insert into vp.keyless values ('a', '1'), ('b', '2')",
            "insert into vp.keyless values ('a', '2'), ('b', '1')",
            4,
            id="swapped",
        ),
        pytest.param(
            "update vp.t set v = case id when 5 then 'x' else 'y' end where id in (5, 6)",
            "update vp.t set v = case id when 5 then 'y' else 'x' end where id in (5, 6)",
            2,
            id="swapped by key",
        ),
        pytest.param(
            "update vp.t set f = 0 where id = 5",
            "update vp.t set f = '-0' where id = 5",
            1,
            id="minus zero",
        ),
        pytest.param(
            "update vp.t set n = 1.0 where id = 5",
            "update vp.t set n = 1.00 where id = 5",
            1,
            id="scale",
        ),
        pytest.param(
            "update vp.t set v = U&'\\00e9' where id = 5",
            "update vp.t set v = U&'e\\0301' where id = 5",
            1,
            id="normal form",
        ),
        pytest.param(
            "update vp.t set v = null where id = 5",
            "update vp.t set v = '' where id = 5",
            1,
            id="null",
        ),
        pytest.param(
            "update vp.t set a = null where id = 5",
            "update vp.t set a = array[null] where id = 5",
            1,
            id="null in an array",
        ),
    ],
)
def test_sabotage_is_found(
    both: tuple[Database, Database], source_sql: str, target_sql: str, differences: int
) -> None:
    source, target = both
    source.psql(source_sql or "select 1")
    target.psql(target_sql)
    ended = verify(source, target, "--format", "json")
    assert ended.returncode == 1, ended.stderr
    report = ended.tables
    assert sum(each["differing_rows"] for each in report.values()) == differences
    assert sum(len(each["differences"]) for each in report.values()) >= 1


def test_what_is_compared_is_chosen(both: tuple[Database, Database]) -> None:
    source, target = both
    source.psql(
        "create table vp.items (id int primary key, hidden text, v text);"
        " insert into vp.items select g, 'h', 'v' from generate_series(1, 100) g;"
        " create publication vp for table vp.items (id, v) where (id > 50), vp.parted"
    )
    target.psql(
        "create table vp.copy (id int primary key, v text, more text);"
        " insert into vp.copy select g, 'v' from generate_series(51, 100) g;"
        " create table vp.items (id int)"
    )
    # A publication has columns and rows; another name at the target.
    chosen = ("--publication", "vp", "-t", "items=vp.copy", "-t", "vp.PART*")
    ended = verify(source, target, *chosen, "--format", "json")
    report = ended.tables
    assert ended.returncode == 0, ended.stdout
    assert {name: each["rows"] for name, each in report.items()} == {
        "vp.items = vp.copy": 50,
        "vp.parted1": 49,
        "vp.parted2": 51,
    }
    ended = verify(source, target, "-t", "items", "--format", "json")
    assert ended.returncode == 2
    assert ended.tables["vp.items"]["reason"] == "column hidden is not at the target"
    target.psql("update vp.t set v = 'x' where id = 7")
    where = ("-t", "vp.t", "--where", "id <> 7")
    assert verify(source, target, *where).returncode == 0
    assert verify(source, target, "-t", "vp.t").returncode == 1
    ended = verify(source, target, "-t", "nothing*")
    assert ended.returncode == 2
    assert 'no table matches "nothing*"' in ended.stderr


def test_nothing_is_written_and_time_is_bounded(
    both: tuple[Database, Database],
) -> None:
    source, target = both
    where = "(select true from (select pg_sleep(600)) s)"
    ended = verify(source, target, "--timeout", "2", "--where", where)
    assert ended.returncode == 2
    assert "the comparison has not ended within 2 s" in ended.stderr
    assert "hint: Allow more time (--timeout), or compare fewer tables" in ended.stderr
    fewer = ("-t", "vp.named", "--timeout", "60")
    assert verify(source, target, *fewer).returncode == 0
    assert (
        source.psql(
            "select count(*) from pg_stat_activity where application_name = 'wal2lake verify'"
            " and state = 'active'"
        )
        == "0"
    )
    # A condition cannot write either.
    for each in both:
        each.psql(
            "create function vp.w() returns boolean language sql as"
            " $$ delete from vp.named returning true $$"
        )
    ended = verify(source, target, "-t", "vp.named", "--where", "vp.w()")
    assert ended.returncode == 2
    assert "read-only transaction" in ended.stdout
    # A table that another session has locked holds up no other one.
    with psycopg.connect(source.conninfo()) as session:
        session.execute("lock table vp.t in access exclusive mode")
        ended = verify(source, target, "--format", "json")
        report = ended.tables
        assert ended.returncode == 2
        assert "has locked it" in report["vp.t"]["reason"]
        assert report["vp.named"]["result"] == "equal"
