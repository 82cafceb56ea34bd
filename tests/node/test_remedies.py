"""What hints of a stopped subscription say, followed on a whole node."""

from __future__ import annotations

from collections.abc import Callable

from tests.conftest import Database

from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

ERROR = "select error from wal2lake.subscription_errors where subname = 'rm'"


def stopped(node: Node, text: str) -> str:
    """The subscription's error, once it is this one."""
    [(error,)] = node.wait_for(
        ERROR, lambda rows: bool(rows) and text in (rows[0][0] or "")
    )
    assert error is not None
    return error


def test_a_table_is_dropped_and_refreshed_with_another_type_and_another_column(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    pg18.psql(
        "create schema rm; create table rm.a (id int primary key, v int[]);"
        " insert into rm.a values (1, '{1}');"
        " create publication rm for tables in schema rm"
    )
    mirror = subscribe(pg18, "rm")
    mirror.synced()
    pg18.psql("insert into rm.a values (2, '{{1,2},{3,4}}')")
    error = stopped(node, "multidimensional array")
    assert 'add "rm.a.v = string" to type_mappings' in error
    node.sql("alter subscription rm set (type_mappings = 'rm.a.v = string')")
    node.sql("drop table rm.a")
    node.sql("alter subscription rm refresh publication")
    mirror.synced()
    pg18.psql("insert into rm.a values (3, '{{5}}')")
    mirror.caught_up()
    assert node.sql("select id, v from rm.a order by id") == [
        ("1", "{1}"),
        ("2", "{{1,2},{3,4}}"),
        ("3", "{{5}}"),
    ]
    pg18.psql("alter table rm.a add column n int; insert into rm.a values (4, null, 4)")
    error = stopped(node, 'is missing replicated column: "n"')
    assert "drop the table here and run ALTER SUBSCRIPTION" in error
    node.sql("drop table rm.a")
    node.sql("alter subscription rm refresh publication")
    mirror.synced()
    pg18.psql("update rm.a set n = id")
    mirror.caught_up()
    rows = node.sql("select id, n from rm.a order by id")
    assert rows == [(str(i), str(i)) for i in range(1, 5)]
    assert node.sql(ERROR) == []
