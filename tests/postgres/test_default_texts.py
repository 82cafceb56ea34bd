"""Column defaults and CHECK constraints: their texts are those of PostgreSQL's pg_get_expr()."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from tests.fakes.catalog_source import table

from wal2lake.commands.constraints.defaulttexts import with_shown_default
from wal2lake.commands.publication.filters import analyse
from wal2lake.model import CheckConstraint
from wal2lake.pgtypes.expressions import encode
from wal2lake.sql.grammar import parse
from wal2lake.sql.grammar.statements import CreateTable
from wal2lake.sql.sysviews.rows.facts import expression_text
from wal2lake.testing.postgres import PostgresServer

TABLES = (
    "a int default 1, b int default -1, c bigint default 5, d smallint default '7'",
    "a numeric(10,2) default 1.5, b numeric default 2, c numeric(5,1) default '1.25'",
    "a float8 default 1.5, b real default 2, c float8 default 'NaN'",
    "a text default 'x', b varchar(10) default 'y', c char(3) default 'z'",
    r"a text default E'a\nb', b text default 'it''s', c text default 5",
    "a boolean default true, b boolean default 'yes', c boolean default (not true)",
    "a date default '2020-01-01', b timestamp default '2020-01-01 01:02:03'",
    "a timestamptz default '2020-01-01 01:02:03+00', b timestamp(3) default now()",
    "a time default '01:02', b interval default '1 day'",
    "a interval(2) default '1 day 02:03:04.567'",
    "a uuid default '00000000-0000-0000-0000-000000000001', b inet default '127.0.0.1'",
    """a json default '{}', b jsonb default '{"a":1}', c bytea default '\\x00'""",
    "a int[] default '{1,2}', b text[] default '{}'",
    "a date default current_date, b timestamptz default current_timestamp",
    "a text default current_user, b time default localtime",
    "a text default 'a' || 'b', b int default 1 + 2, c int default length('abc')",
    "a int default null::int, b varchar default 'q'::varchar, c oid default 5",
)

CHECKS = (
    "a int check (a > 0)",
    "a text check (a <> '')",
    "a numeric(5,2) check (a between 0 and 10)",
    "a date check (a > '2020-01-01')",
    "a varchar(10) check (a = 'a')",
    "a int, b int, check (a < b)",
    "a boolean check (a)",
    "a text check (a like 'a%')",
    "a bigint check (a > 5), b smallint check (b = 1)",
    "a float8 check (a > 1.5), b real check (b > 1)",
    "a timestamptz check (a > '2020-01-01 00:00:00+00')",
    "a char(3) check (a = 'abc')",
    "a text check (length(a) > 2)",
    "a int, b int, check (a is not null or b is null)",
    "a uuid check (a = '00000000-0000-0000-0000-000000000001')",
    "a int, b boolean, constraint named check (a + 1 > 0 and not b)",
)


@pytest.mark.parametrize("columns", TABLES)
def test_a_default_is_shown_as_postgresql_shows_it(
    columns: str, postgres_server: Callable[[int], PostgresServer]
) -> None:
    sql = f"create table public.t ({columns})"
    with psycopg.connect(postgres_server(18).conninfo()) as server:
        server.execute(sql.encode())
        rows = server.execute(
            "select attname, pg_get_expr(adbin, adrelid) from pg_attribute"
            " left join pg_attrdef on adrelid = attrelid and adnum = attnum"
            " where attrelid = 't'::regclass and attnum > 0"
        ).fetchall()
        server.rollback()
    shown = {
        column.name: with_shown_default(column, "UTC").default
        for column in table(sql, 1).columns
    }
    assert shown == dict(rows)


@pytest.mark.parametrize("columns", CHECKS)
def test_a_check_is_shown_as_postgresql_shows_it(
    columns: str, postgres_server: Callable[[int], PostgresServer]
) -> None:
    sql = f"create table public.t ({columns})"
    with psycopg.connect(postgres_server(18).conninfo()) as server:
        server.execute(sql.encode())
        rows = server.execute(
            "select pg_get_expr(conbin, conrelid), pg_get_expr(conbin, conrelid, true)"
            " from pg_constraint where conrelid = 't'::regclass and contype = 'c'"
        ).fetchall()
        server.rollback()
    statement = parse(sql)
    assert isinstance(statement, CreateTable)
    shown = set()
    for clause in statement.checks:
        tree, names = analyse(clause.expression, table(sql, 1), "UTC", "CHECK")
        check = CheckConstraint("c", encode(tree), names)
        shown.add((expression_text(check), expression_text(check, pretty=True)))
    assert shown == set(rows)
