"""Tables as they were at an earlier LSN, or time: every table of the statement, at one."""

from __future__ import annotations

from collections.abc import Callable

import psycopg
import pytest
from deltalake import DeltaTable
from tests.conftest import Database
from tests.node.conftest import Psql

from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

NOW = "select to_char(now(), 'YYYY-MM-DD HH24:MI:SS.US+00')"
"""In a session whose time zone is UTC."""


@pytest.mark.slow
def test_all_tables_are_read_at_one_past_lsn_or_time(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror], psql: Psql
) -> None:
    pg18.psql(
        "create schema ao;"
        " create table ao.orders (id int primary key, total int);"
        " create table ao.items (id int primary key, price int);"
        " insert into ao.orders values (1, 10); insert into ao.items values (1, 10);"
        " create publication ao for tables in schema ao"
    )
    mirror = subscribe(pg18, "ao")
    mirror.synced()
    both = (
        "select (select sum(total) from ao.orders), (select sum(price) from ao.items)"
    )
    node.sql("create table ao_local (id int primary key)")
    lsns, times = [], []
    with psycopg.connect(node.conninfo(), autocommit=True) as client:
        notices: list[str] = []
        client.add_notice_handler(lambda n: notices.append(str(n.message_primary)))
        client.execute("set TimeZone = 'UTC'")
        for step in (1, 2, 3):
            pg18.psql(
                f"begin; update ao.orders set total = {10 * step} where id = 1;"
                f" update ao.items set price = {10 * step};"
                f" insert into ao.orders values ({step + 1}, 0); commit"
            )
            lsns.append(mirror.caught_up())
            client.execute(f"insert into ao_local values ({step})")
            ((now,),) = client.execute(NOW).fetchall()
            times.append(str(now))

        def seen() -> tuple[object, ...]:
            row = client.execute(both).fetchone()
            assert row is not None
            return tuple(row)

        for step, lsn, time in zip((1, 2, 3), lsns, times, strict=True):
            expected = (10 * step, 10 * step)
            client.execute(f"set wal2lake.as_of_lsn = '{lsn}'")
            assert seen() == expected
            rows = client.execute("select count(*) from ao.orders").fetchall()
            assert rows == [(step + 1,)]
            client.execute("reset wal2lake.as_of_lsn")
            client.execute(f"set wal2lake.as_of_time = '{time}'")
            assert seen() == expected
            assert client.execute("select count(*) from ao_local").fetchall() == [
                (step,)
            ]
            client.execute("reset wal2lake.as_of_time")
        assert seen() == (30, 30)
        # For one block only, as every parameter.
        client.execute("begin")
        client.execute(f"set local wal2lake.as_of_lsn = '{lsns[0]}'")
        assert seen() == (10, 10)
        client.execute("commit")
        assert seen() == (30, 30)

        def refused(sql: str) -> tuple[str | None, str | None]:
            with pytest.raises(psycopg.Error) as caught:
                client.execute(sql)
            return caught.value.sqlstate, caught.value.diag.message_primary

        client.execute(f"set wal2lake.as_of_lsn = '{lsns[0]}'")
        assert refused("insert into ao.orders values (9, 9)") == (
            "25006",
            "cannot execute INSERT while wal2lake.as_of_lsn is set",
        )
        assert refused("truncate ao.orders")[0] == "25006"
        assert refused("select * from ao_local")[0] == "55000"
        client.execute("set wal2lake.as_of_lsn = 'FFFFFFFF/0'")
        assert refused("select * from ao.orders")[0] == "55000"
        client.execute("set wal2lake.as_of_lsn = '0/1'")
        assert refused("select * from ao.orders")[0] == "72000"
        client.execute("set wal2lake.as_of_lsn = ''")
        # Where no state of exactly that LSN is known, the one that is read is named.
        first, second = client.execute(
            "select distinct lsn from wal2lake.snapshots where tablename = 'orders'"
            " and lsn >= %s::pg_lsn order by lsn limit 2",
            (lsns[0],),
        ).fetchall()
        assert first[0] != second[0]
        high, low = first[0].split("/")
        client.execute(f"set wal2lake.as_of_lsn = '{high}/{int(low, 16) + 1:X}'")
        notices.clear()
        assert seen() == (10, 10)
        assert [n for n in notices if f"at {first[0]}, the newest" in n]
    # The same for a reader outside of the node, by the versions that are listed.
    [[version]] = node.sql(
        "select version from wal2lake.snapshots where tablename = 'orders'"
        f" and lsn = '{first[0]}'"
    )
    outside = DeltaTable(
        str(node.directory / "warehouse" / "ao" / "orders"), version=int(str(version))
    )
    assert outside.version() == int(str(version))
    found = psql(
        node.conninfo(),
        "-Atc",
        f"set wal2lake.as_of_lsn = '{lsns[1]}'",
        "-c",
        both,
        "-c",
        "show wal2lake.as_of_lsn",
    )
    assert found.stdout.splitlines()[1:] == ["20|20", lsns[1]], found.stderr
