"""No setting of the source changes what its sessions of ours read.

PostgreSQL 18 itself is asked which settings there are: each that a database can have is given other
values there, one after the other, and the same values are read again."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.conftest import Database

from wal2lake.pg import Session, connect
from wal2lake.pg.quoting import quote_literal

VALUES = r"""
select true, 'a'::"char", 'x\y'::text, 'n'::name, '\x00ff'::bytea, 1.5::float4,
 0.1::float8 + 0.2, 'NaN'::float8, 1e300::float8, 1.50::numeric, 'Infinity'::numeric,
 date '2024-02-03', date '0044-03-15 BC', date 'infinity',
 timestamp '2024-02-03 04:05:06.7', timestamptz '2024-02-03 04:05:06.7+09',
 time '04:05:06', timetz '04:05:06+09', interval '1 year 2 mons -3 days 04:05:06.7',
 interval '-1 mon +2 days', '{1,NULL,"NULL"}'::text[], '{2024-02-03}'::date[],
 row(1, date '2024-02-03', '\x01'::bytea, 'a b')::text,
 '[2024-02-03,2024-02-05)'::daterange, '{[1,2)}'::int4multirange,
 'pg_class'::regclass, 'public.kept'::regclass, 'public."Odd"'::regclass,
 'int4in'::regproc, 'lower(text)'::regprocedure, '+(int4,int4)'::regoperator,
 'int4'::regtype, 'timestamp with time zone'::regtype, 'public.mood'::regtype,
 'pg_catalog'::regnamespace, 'pg_monitor'::regrole, 'english'::regconfig,
 'simple'::regdictionary, '"C"'::regcollation, '{pg_class,public.kept}'::regclass[],
 'sad'::public.mood, '{"b": 1.50, "a": [1, null]}'::jsonb, '{"b":  1}'::json,
 '(1.5,2.5)'::point,
 '<(1,2),0.1>'::circle, '192.168.0.1/24'::inet, '08:00:2b:01:02:03'::macaddr,
 '16/B374D848'::pg_lsn, 'a & b'::tsquery, 'a:1 b'::tsvector, B'101'::varbit,
 '10:20:10,14'::pg_snapshot, '(1,2)'::tid, '12'::xid8, 'pg_monitor=r/postgres'::aclitem,
 1234.5::numeric::money, (-1)::numeric::money,
 (select pg_get_expr(adbin, adrelid) from pg_attrdef
  where adrelid = 'public.kept'::regclass),
 format_type('public.mood'::regtype, -1), 'C:\n' = E'C:\\n'
"""

LEFT_ALONE = {
    # The publisher's own format, see pgtypes.receive.value.money.
    "lc_monetary",
    # The session would be another one.
    "role",
    "session_authorization",
    # A server whose data are broken, or that is being tested.
    "ignore_checksum_failure",
    "ignore_invalid_pages",
    "zero_damaged_pages",
    "debug_discard_caches",
}

TEXTS = {
    "DateStyle": ["SQL, DMY", "German", "Postgres, MDY"],
    "TimeZone": ["Asia/Tokyo"],
    "search_path": ["public", "nowhere"],
    "timezone_abbreviations": ["India"],
    "default_text_search_config": ["pg_catalog.german"],
    "lc_numeric": ["C.UTF-8"],
    "lc_time": ["C.UTF-8"],
}


@pytest.fixture
def source(pg18: Database) -> Database:
    pg18.psql(
        "create type mood as enum ('sad');"
        "create table kept (id int default 5 + length('a'), v text);"
        'create table "Odd" (id int)'
    )
    return pg18


def others(session: Session) -> Iterator[tuple[str, str]]:
    """Settings that a database or a role can have, with values that they do not have."""
    rows = session.query(
        "select name, vartype, setting, array_to_string(enumvals, '|'), min_val, max_val,"
        " unit from pg_settings where context in ('user', 'superuser')"
        " and name not like 'log%' and name not like 'transaction%' order by name"
    )
    for name, kind, setting, choices, low, high, unit in rows:
        if name in LEFT_ALONE or name is None:
            continue
        if kind == "bool":
            yield name, "off" if setting == "on" else "on"
        elif kind == "enum":
            for value in str(choices).split("|"):
                if value != setting:
                    yield name, value
        elif kind in ("integer", "real") and unit is None:
            yield name, str(low)
            yield name, str(high)
        for text in TEXTS.get(name, ()):
            yield name, text


def read(source: Database, *, replication: bool = False) -> list[str]:
    with connect(
        source.conninfo(), application_name="x", replication=replication
    ) as session:
        if replication:
            (row,) = session.query(VALUES)
            return [str(value) for value in row]
        text = b"".join(session.copy_out(f"copy ({VALUES}) to stdout", block_bytes=1))
        return text.decode().rstrip("\n").split("\t")


@pytest.mark.parametrize("replication", [False, True])
def test_no_setting_of_the_source_changes_what_is_read(
    source: Database, replication: bool
) -> None:
    """COPY's sessions, and the walsender's."""
    expected = read(source, replication=replication)
    changed: list[str] = []
    tried = 0
    with connect(source.conninfo(), application_name="x") as session:
        for name, value in list(others(session)):
            database = f'alter database "{source.name}"'
            session.execute(f"{database} set {name} = {quote_literal(value)}")
            tried += 1
            found = read(source, replication=replication)
            changed += [
                f"{name} = {value}: {was} is {now}"
                for was, now in zip(expected, found, strict=True)
                if was != now
            ]
            session.execute(f"{database} reset {name}")
    assert tried > 100
    assert changed == []
