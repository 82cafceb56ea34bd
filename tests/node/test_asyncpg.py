"""asyncpg, which sends every value as the type that the server says: a table of many types,
through a pool."""

from __future__ import annotations

import asyncio
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import asyncpg
import pytest

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
            # Before it finds that it has no text to send.
            with pytest.raises(asyncpg.FeatureNotSupportedError, match="RETURNING"):
                await one.fetch(
                    "insert into of_asyncpg (id) values ($1) returning i", 1
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
    given = connection_parameters(node.directory)
    asyncio.run(
        _use(
            {
                "host": given["host"],
                "port": int(given["port"]),
                "user": given["user"],
                "database": given["dbname"],
                "passfile": given["passfile"],
            }
        )
    )
