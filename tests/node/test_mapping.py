"""Tables that are not the publisher's, beside a native subscriber of PostgreSQL 18 with the same.

Columns in another order, of other types, extra ones with defaults; every replica identity, with a
key of our own or without. What is in the tables afterwards is compared as PostgreSQL's text.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Database
from tests.fakes.pair import Pair

from wal2lake.testing.node import Node

EXTRA = (
    " n int default 7, made timestamptz default now(), day date default current_date,"
    ' u uuid default gen_random_uuid(), j jsonb default \'{"b": [1, 2.50], "a": null}\','
    " t text not null default 'it''s', sum bigint default 2 + 3, l int[] default '{1,NULL}',"
    " nothing text"
)

TYPES = (
    ("id", "int primary key", "int primary key"),
    ("a", "int", "text"),
    ("b", "text", "int"),
    ("c", "int", "bigint"),
    ("d", "bigint", "int"),
    ("e", "numeric", "int"),
    ("f", "timestamp", "date"),
    ("g", "text", "jsonb"),
    ("h", "text", "varchar(5)"),
    ("i", "date", "timestamptz"),
    ("k", "int", "numeric(8,2)"),
    ("l", "text", "uuid"),
    ("m", "text", "numeric"),
    ("n", "int[]", "text[]"),
    ("o", "text", "bool"),
    ("p", "bool", "text"),
    ("q", "float8", "text"),
    ("r", "text", "time"),
    ("s", "jsonb", "text"),
    ("t", "text", "bytea"),
)

GOOD = (
    "1, 5, ' 42 ', 7, 8, 9, '2026-01-02 03:04:05', '{\"b\":1,\"a\": 2}', 'abcde  ',"
    " '2026-05-06', 12, 'A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11', ' 1e2 ', '{1,NULL}', 'yes',"
    " true, 1.5, '04:05', '{\"z\": 1}', '\\x01ff'"
)

BAD = (
    # The input functions are compared with the server's in postgres/test_input_functions.py.
    ("d", "3000000000", "22003"),
    ("g", "'{bad'", "22P02"),
)


@pytest.mark.slow
def test_columns_of_our_own_and_other_types(
    pg18: Database, peer: Database, make_node: Callable[..., Node]
) -> None:
    pg18.psql(
        "create schema mp; create table mp.mark (n int primary key);"
        " create table mp.d (id int primary key, v text);"
        ' create table mp.odd ("Id" int primary key, x text, "a.b c" int, "ä`""" text);'
        f" create table mp.c ({', '.join(f'{n} {kind}' for n, kind, _ in TYPES)});"
        " insert into mp.d values (1, 'one'), (2, 'two');"
        " insert into mp.odd values (1, 'x', 2, 'y');"
        f" insert into mp.c values ({GOOD});"
        " create publication mp for tables in schema mp"
    )
    node = make_node(settings={"log.segment_interval_ms": 100}).start()
    pair = Pair(pg18, node, peer, "mp")
    pair.both(
        f"create schema mp; create table mp.mark (n int primary key);"
        f"create table mp.d (v text, {EXTRA}, id int primary key);"
        ' create table mp.odd ("ä`""" text, "a.b c" int, own int default 1, x text, "Id" int'
        " primary key);"
        f"create table mp.c ({', '.join(f'{n} {kind}' for n, _, kind in TYPES)})"
    )
    pair.subscribe()
    fixed = (
        "id, v, n, j, t, sum, l, nothing, day = current_date, made is null, u is null"
    )
    pair.look_same("mp.odd", "mp.c")
    pair.look_same("mp.d", columns=fixed)
    # Evaluated once for a copy, as one statement does; a UUID for each row.
    once = "select count(distinct made), count(distinct u) from mp.d"
    assert node.sql(once) == [("1", "2")]

    pg18.transactions(
        [
            "insert into mp.d values (3, 'three'), (4, 'four'); update mp.d set v = 'x'"
            " where id = 3",
            f"insert into mp.c values (2{GOOD[1:]}); update mp.c set a = 6, g = '[1.0,  2]'"
            " where id = 1",
            "insert into mp.odd values (2, 'z', null, '')",
        ]
    )
    pair.same("mp.odd", "mp.c")
    pair.look_same("mp.d", columns=fixed)
    pair.both(
        "update mp.d set n = 8, nothing = 'kept', made = null, day = null where id = 4"
    )
    pg18.transactions(
        ["update mp.d set v = 'f' where id = 4", "update mp.d set id = 40 where id = 4"]
    )
    pair.same("mp.odd", "mp.c")
    pair.look_same("mp.d", columns=fixed)
    assert node.sql("select count(distinct u), count(*) from mp.d") == [("4", "4")]
    # A table of many rows goes another way.
    pg18.psql("insert into mp.d select g, 'many' from generate_series(1000, 31000) g")
    pair.caught_up()
    pair.look_same(
        "mp.d", columns="count(*), sum(n), count(distinct u), count(distinct j::text)"
    )

    for column, value, sqlstate in BAD:
        pg18.psql(f"update mp.c set {column} = {value} where id = 1")
        error = pair.stopped()
        assert f'"mp.c" column "{column}"' in error, error
        (row,) = node.sql("select sqlstate from wal2lake.subscription_errors")
        assert row == (sqlstate,), error
        pair.same_context(error)
        lsn = re.search(r"finished at ([0-9A-F/]+)", error)
        assert lsn is not None, error
        assert f"finished at {lsn[1]}" in peer.server.log_text()
        for side in (node.sql, peer.psql):
            name = "mp" if side == node.sql else "mp_native"
            side(f"alter subscription {name} skip (lsn = '{lsn[1]}')")
        pg18.psql(
            f"update mp.c set {column} = (select {column} from mp.c where id = 2)"
            " where id = 1"
        )
        pair.same("mp.c")


IDENTITIES = (
    "create table ri.def (a int primary key, b int, v text);"
    " create table ri.idx (a int primary key, b int not null unique, c int not null, v text);"
    " alter table ri.idx replica identity using index idx_b_key;"
    " create table ri.full_key (a int primary key, b int, v text);"
    " alter table ri.full_key replica identity full;"
    " create table ri.full_other (a int primary key, b int, v text);"
    " alter table ri.full_other replica identity full;"
    " create table ri.full_none (a int, f float8, v text);"
    " alter table ri.full_none replica identity full;"
    " create table ri.wide_key (a int, b int, v text, primary key (a, b));"
    " create table ri.nothing (a int primary key, v text);"
    " alter table ri.nothing replica identity nothing;"
)

TARGETS = (
    "create schema ri; create table ri.mark (n int primary key);"
    "create table ri.def (v text, b int, a int primary key);"
    "create table ri.idx (a int, b int primary key, c int, v text);"
    "create table ri.full_key (a int primary key, b int, v text);"
    "create table ri.full_other (a int, b int primary key, v text);"
    "create table ri.full_none (a int, f float8, v text);"
    "create table ri.wide_key (a int primary key, b int, v text);"
    "create table ri.nothing (a int primary key, v text)"
)

RI = [
    f"ri.{t}"
    for t in [
        "def",
        "idx",
        "full_key",
        "full_other",
        "full_none",
        "wide_key",
        "nothing",
    ]
]


@pytest.mark.parametrize("binary", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_each_replica_identity_names_the_row_that_postgresql_finds(
    pg18: Database,
    peer: Database,
    lend_node: Callable[[Path], Node],
    tmp_path: Path,
    binary: bool,
) -> None:
    pg18.psql(
        f"create schema ri; create table ri.mark (n int primary key); {IDENTITIES}"
        " create publication ri for tables in schema ri"
    )
    node = lend_node(tmp_path)
    pair = Pair(pg18, node, peer, "ri")
    pair.both(TARGETS)
    pair.subscribe("binary = true" if binary else "")
    rows = "select g, g, 'v' || g from generate_series(1, 20) g"
    pg18.transactions(
        [
            *(
                f"insert into ri.{t} {rows}"
                for t in ("def", "full_key", "full_other", "wide_key")
            ),
            "insert into ri.idx select g, g, g, 'i' from generate_series(1, 20) g",
            "insert into ri.nothing select g, 'n' from generate_series(1, 20) g",
            "insert into ri.full_none select g % 3, g % 2, null from generate_series(1, 20) g;"
            " insert into ri.full_none values (9, 0.0, 'z'), (9, '-0', 'z'), (9, 'nan', null),"
            " (9, 'nan', null), (null, null, null), (null, null, null)",
        ]
    )
    one = "ctid = (select min(ctid) from ri.full_none where {})"
    pg18.transactions(
        [
            "update ri.def set v = 'u' where a < 5; delete from ri.def where a > 15",
            "update ri.def set a = a + 100 where a in (1, 2); insert into ri.def values (1, 1)",
            "update ri.idx set v = 'u' where a < 5; update ri.idx set b = b + 100 where a < 3",
            "delete from ri.idx where b = 20; update ri.idx set a = a + 1000 where a = 7",
            "update ri.full_key set v = 'u' where a < 5; delete from ri.full_key where b = 9",
            "update ri.full_key set a = a + 100 where a < 3; update ri.full_key set v = null",
            "update ri.full_other set v = 'u' where a < 5; delete from ri.full_other where a = 9",
            "update ri.full_other set b = b + 100 where a < 3",
            "update ri.full_none set v = 'u' where " + one.format("a = 1"),
            "delete from ri.full_none where " + one.format("a = 2"),
            "delete from ri.full_none where " + one.format("a is null"),
            "delete from ri.full_none where " + one.format("f = 'nan'"),
            "update ri.wide_key set v = 'u' where a < 5; delete from ri.wide_key where b = 9",
            "update ri.wide_key set a = a + 100 where a < 3",
            "insert into ri.nothing values (100, 'more')",
        ]
    )
    pair.same(*RI)

    # The identity changes while the stream goes on.
    changes = []
    for identity in ("full", "using index def_b_key", "default", "full", "default"):
        changes += [
            f"alter table ri.def replica identity {identity}",
            "update ri.def set v = v || 'x' where a < 8",
            "delete from ri.def where a = (select max(a) from ri.def)",
        ]
    pg18.psql(
        "update ri.def set b = a; alter table ri.def alter b set not null;"
        " alter table ri.def add unique (b)"
    )
    for one_change in changes:
        pg18.psql(one_change)
        if "using index" in one_change:
            # Our key is not sent then, nor is it the native subscriber's.
            pg18.psql("update ri.def set v = 'q' where a = 3")
            break
    wanted = (
        "publisher did not send replica identity column expected by the logical replication"
        ' target relation "ri.def"'
    )
    assert wanted in pair.stopped()
    pair.native_error(re.escape(wanted))
    pair.same_context(pair.stopped())
    lsn = re.search(r"finished at ([0-9A-F/]+)", pair.stopped())
    assert lsn is not None
    assert f"finished at {lsn[1]}" in peer.server.log_text()
    node.sql(f"alter subscription ri skip (lsn = '{lsn[1]}')")
    peer.psql(f"alter subscription ri_native skip (lsn = '{lsn[1]}')")
    for one_change in ["alter table ri.def replica identity default", *changes[-6:]]:
        pg18.psql(one_change)
    pair.same(*RI)

    # Our key is not the publisher's: what it lets in twice is refused.
    pg18.psql("insert into ri.full_other values (500, 4, 'same b')")
    error = pair.stopped()
    assert (
        'conflict detected on relation "ri.full_other": conflict=insert_exists' in error
    )
    pair.native_error('on relation "ri.full_other": conflict=insert_exists')
    pair.both("delete from ri.full_other where b = 4")
    pair.same(*RI)
