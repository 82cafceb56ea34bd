"""asyncpg, which sends every value as the type that the server says: a table of many types,
through a pool; arrays, whose types it looks up in the catalogs by a recursive query."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import asyncpg
import pytest
from psycopg.conninfo import conninfo_to_dict
from tests.conftest import Database
from tests.node.conftest import Subscribe

from wal2lake.launch.directory.passfile import connection_parameters
from wal2lake.testing.node import Node

_ROW = (
    1 << 40,
    7,
    -3,
    "it's",
    "short",
    True,
    date(2026, 2, 28),
    datetime(2026, 2, 28, 12, 30, 0, 250),
    datetime(2026, 2, 28, 12, 30, tzinfo=UTC),
    1.5,
    Decimal("12345.67"),
    UUID("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
    b"\x00\xff",
    '{"a": 1}',
)


def _conninfo(given: Mapping[str, Any]) -> dict[str, Any]:
    """What libpq would connect with, as asyncpg's arguments."""
    names = {"host": "host", "port": "port", "user": "user", "dbname": "database"}
    found = {theirs: given[ours] for ours, theirs in names.items()}
    if "passfile" in given:
        found["passfile"] = given["passfile"]
    return found


async def _use(conninfo: dict[str, Any]) -> None:
    async with asyncpg.create_pool(min_size=1, max_size=2, **conninfo) as pool:
        async with pool.acquire() as one:
            await one.execute(
                "create table of_asyncpg (id bigint primary key, i int, s smallint,"
                " t text, v varchar(20), b boolean, d date, ts timestamp, tz timestamptz,"
                " f float8, n numeric(12,2), u uuid, y bytea, j jsonb)"
            )
            numbered = ", ".join(f"${i}" for i in range(1, len(_ROW) + 1))
            await one.execute(f"insert into of_asyncpg values ({numbered})", *_ROW)
        # Released and taken again: the pool has reset the session.
        async with pool.acquire() as one:
            row = await one.fetchrow("select * from of_asyncpg where id = $1", 1 << 40)
            assert tuple(row) == _ROW
            for condition, value in (
                ("i between $1 and 9", 7),
                ("t = $1", "it's"),
                ("v = $1", "short"),
                ("b = $1", True),
                ("d >= $1", date(2026, 1, 1)),
                ("tz < $1", datetime(2027, 1, 1, tzinfo=UTC)),
                ("n > $1", Decimal("0.5")),
                ("u = $1", _ROW[11]),
                ("id in ($1, 5)", 1 << 40),
            ):
                found = await one.fetchval(
                    f"select count(*) from of_asyncpg where {condition}", value
                )
                assert found == 1, condition
            assert await one.fetch("select id from of_asyncpg limit $1", 0) == []
            assert await one.fetchval("select $1::bigint + 1", 41) == 42
            done = await one.execute(
                "update of_asyncpg set n = $1, tz = $2 where id = $3",
                Decimal("0.10"),
                datetime(2000, 1, 1, tzinfo=UTC),
                1 << 40,
            )
            assert done == "UPDATE 1"
            made = await one.fetchrow(
                "insert into of_asyncpg (id) values ($1) returning id, i + $2", 1, 2
            )
            assert made is not None and tuple(made) == (1, None)
            assert await one.fetchval(
                "delete from of_asyncpg where id = 1 returning id"
            )
            async with one.transaction():
                await one.execute("delete from of_asyncpg where i = $1", 7)
            assert await one.fetchval("select count(*) from of_asyncpg") == 0
            names = await one.fetch(
                "select relname from pg_class where relname = $1", "of_asyncpg"
            )
            assert [r["relname"] for r in names] == ["of_asyncpg"]
            await one.execute("drop table of_asyncpg")


def test_a_pool_writes_and_reads_a_table_of_many_types(node: Node) -> None:
    asyncio.run(_use(_conninfo(connection_parameters(node.directory))))


_ARRAYS = {
    "a int[]": [1, None, 3],
    "t text[]": ["x", 'y"z', None],
    "n numeric[]": [Decimal("1.50")],
    "d date[]": [date(2026, 1, 2)],
    "tz timestamptz[]": [datetime(2026, 1, 2, 3, tzinfo=UTC)],
    "u uuid[]": [UUID(int=7)],
    "j jsonb[]": ['{"a": 1}'],
    "b bool[]": [True, False],
    "y bytea[]": [b"\x00\xff"],
    "i8 bigint[]": [1 << 40],
    "iv interval[]": [timedelta(days=1)],
    "ip inet[]": [],
}

_ASKED: list[tuple[str, list[Any]]] = [
    ("select * from arrays_of_asyncpg where id = any($1::int[])", [[1, 2]]),
    ("select id from arrays_of_asyncpg where a = $1", [[1, None, 3]]),
    ("select array[1,2], array['x']::text[], '{1.5}'::numeric[], '{}'::date[]", []),
    ("select typname from pg_type where oid = any($1) order by oid", [[1007, 3904]]),
    (
        "select array_agg(oid order by oid) from pg_type where typname = any($1)",
        [["int4"]],
    ),
    ("select current_schemas($1)", [False]),
    (
        "select indkey, indclass, indoption from pg_index"
        " where indrelid = 'arrays_of_asyncpg'::regclass",
        [],
    ),
    ("select array[1::oid], array['a'::name], 'a'::\"char\", '0/10'::pg_lsn", []),
]


async def _ask(conninfo: dict[str, Any]) -> list[Any]:
    """What the same statements find."""
    one = await asyncpg.connect(**conninfo)
    columns = ", ".join(_ARRAYS)
    await one.execute(f"create table arrays_of_asyncpg (id int primary key, {columns})")
    numbered = ", ".join(f"${i + 2}" for i in range(len(_ARRAYS)))
    insert = f"insert into arrays_of_asyncpg values ($1, {numbered})"
    await one.execute(insert, 1, *_ARRAYS.values())
    found: list[Any] = [list(map(tuple, await one.fetch(*q, *a))) for *q, a in _ASKED]
    in_json = {"encoder": json.dumps, "decoder": json.loads, "schema": "pg_catalog"}
    await one.set_type_codec("jsonb", **in_json)
    await one.set_type_codec(
        "numeric", encoder=str, decoder=float, schema="pg_catalog", format="text"
    )
    found.append(tuple(await one.fetchrow("select j, n from arrays_of_asyncpg")))
    found.append(await one.fetchval("select $1::jsonb", {"x": [1]}))
    with pytest.raises(ValueError, match=r"unknown type: public\.nope"):
        await one.set_type_codec("nope", encoder=str, decoder=str, schema="public")
    async with one.transaction():
        cursor = one.cursor("select oid from pg_type order by oid", prefetch=50)
        found.append([r["oid"] async for r in cursor][:3])
    await one.reload_schema_state()
    prepared = await one.prepare("select array[1], $1::int[]")
    found.append((prepared.get_parameters(), prepared.get_attributes()))
    await one.execute("drop table arrays_of_asyncpg")
    await one.close()
    return found


@pytest.mark.slow
def test_asyncpg_reads_arrays_as_from_postgresql(node: Node, pg18: Database) -> None:
    theirs = asyncio.run(_ask(_conninfo(conninfo_to_dict(pg18.conninfo()))))
    ours = asyncio.run(_ask(_conninfo(connection_parameters(node.directory))))
    assert ours == theirs
    assert [tuple(_ARRAYS.values())] == [row[1:] for row in ours[0]]


_FOREIGN = {"m": "sad", "ms": "{sad,ok}", "p": '(1,"x y")', "mr": [asyncpg.Range(1, 3)]}


def test_asyncpg_reads_arrays_of_types_that_came_with_a_subscription(
    node: Node, pg16: Database, subscribe: Subscribe
) -> None:
    """Enums and composites are text here, and so are arrays of them."""
    pg16.psql(
        "create type mood as enum ('sad', 'ok'); create type pair as (x int, y text);"
        "create table of_types (id int primary key, m mood, ms mood[], p pair,"
        " mr int4multirange, r int4range, rs int4range[]);"
        "insert into of_types values (1, 'sad', '{sad,ok}', row(1, 'x y'), '{[1,3)}',"
        " '[1,5)', array['[1,3)'::int4range]); create publication of_types for table of_types"
    )
    subscribe(pg16, "of_types").synced()

    async def read() -> None:
        one = await asyncpg.connect(**_conninfo(connection_parameters(node.directory)))
        row = await one.fetchrow("select m, ms, p, mr, r, rs from of_types")
        await one.close()
        assert {k: row[k] for k in _FOREIGN} == _FOREIGN
        assert (row["r"], row["rs"]) == (asyncpg.Range(1, 5), [asyncpg.Range(1, 3)])

    asyncio.run(read())
    node.sql("drop table of_types")
