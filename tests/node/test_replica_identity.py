"""Tables whose rows are named by their whole content: REPLICA IDENTITY FULL without a key."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from tests.conftest import Database
from tests.fakes.outside import assert_equal_outside

from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

TABLES = ("ri.few", "ri.wide", "ri.whole")


@pytest.mark.slow
@pytest.mark.parametrize("options", ["streaming = off", "binary = true"])
def test_one_of_identical_rows_is_updated_or_deleted(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror], options: str
) -> None:
    pg18.psql(
        "create schema ri;"
        " create table ri.few (a int, f float8, t text);"
        " create table ri.whole (a int primary key, t text);"
        ' create table ri.wide ("A b" numeric, ts timestamptz, j jsonb, l int[],'
        "   r float4, big text, c char(3), e bytea);"
        " alter table ri.few replica identity full;"
        " alter table ri.whole replica identity full;"
        " alter table ri.wide replica identity full;"
        " alter table ri.wide alter big set storage external;"
        " insert into ri.few select g % 4, null, null from generate_series(1, 40) g;"
        " insert into ri.few values (1, 0.0, 'x'), (1, -0.0, 'x'), (1, 'nan', 'x'),"
        "   (1, 'nan', 'x'), (null, null, null), (null, null, null);"
        " insert into ri.whole select g, 'w' || g from generate_series(1, 30) g;"
        " insert into ri.wide select g % 5 + 0.50, '2026-01-01', '{\"a\": 1}',"
        "   array[1, null], 1.5, repeat('long', 3000) || g % 3, 'c', '\\x00ff'"
        "   from generate_series(1, 30) g;"
        " create publication ri for tables in schema ri"
    )
    policy = "value_policies = 'ri.wide.ts = clamp'"
    mirror = subscribe(pg18, "ri", f"with ({options}, {policy})")
    mirror.synced()
    # ctid names one row of several that are identical.
    one = "ctid = (select min(ctid) from ri.few where {})"
    pg18.transactions(
        [
            "update ri.few set t = 'one' where " + one.format("a = 2"),
            "delete from ri.few where " + one.format("a = 3"),
            "delete from ri.few where " + one.format("a is null"),
            "delete from ri.few where f = 0 and f::text = '-0';"
            " update ri.few set a = 9 where " + one.format("f = 'nan'"),
            # There and back, and rows that come and go in one transaction.
            "update ri.few set t = 'two' where t = 'one';"
            " update ri.few set t = null where t = 'two';"
            " insert into ri.few values (7, 1, 'y'), (7, 1, 'y');"
            " delete from ri.few where ctid = (select max(ctid) from ri.few where a = 7)",
            # Unchanged TOAST: the old row has it.
            "update ri.wide set c = 'd' where \"A b\" = 1.50",
            "delete from ri.wide where ctid = (select min(ctid) from ri.wide)",
            "update ri.wide set r = '-0', l = '{}', j = null, e = null, ts = null"
            " where ctid = (select max(ctid) from ri.wide)",
            # A value that is stored as another one is found as that.
            "insert into ri.wide (ts) values ('294276-01-01'), ('294275-01-01')",
            "delete from ri.wide where ts = '294276-01-01';"
            " update ri.wide set ts = '2026-01-01' where ts = '294275-01-01'",
            "update ri.whole set a = a + 100 where a < 10; delete from ri.whole where a = 20",
        ]
    )
    mirror.assert_equal(TABLES)
    pg18.transactions(
        ["truncate ri.few; insert into ri.few values (1), (1), (1)"]
        + ["delete from ri.few where ctid = (select min(ctid) from ri.few)"] * 2
    )
    mirror.assert_equal(TABLES)
    rng = random.Random(5)
    for _ in range(3):
        pg18.transactions([_random(rng) for _ in range(40)])
        mirror.assert_equal(["ri.few"])
    assert_equal_outside(node, pg18.conninfo(), ("ri.few", "ri.whole"))


def test_rows_are_named_by_the_columns_of_their_time(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    pg18.psql(
        "create schema rg; create table rg.t (a int);"
        " alter table rg.t replica identity full; insert into rg.t values (1), (1);"
        " create publication rg for table rg.t"
    )
    node.sql("create schema rg")
    node.sql("create table rg.t (a int, c int)")
    mirror = subscribe(pg18, "rg")
    mirror.synced()
    node.sql("alter subscription rg disable")
    pg18.transactions(
        [
            "insert into rg.t values (2)",
            "delete from rg.t where a = 2",
            "alter table rg.t add column c int",
            "update rg.t set c = 5 where ctid = (select min(ctid) from rg.t)",
            "insert into rg.t values (1, 6)",
            "update rg.t set c = 7 where c = 6",
            "delete from rg.t where c = 5",
        ]
    )
    node.sql("alter subscription rg enable")
    mirror.assert_equal(["rg.t"])
    assert node.sql("select error from wal2lake.subscription_errors") == []


def _random(rng: random.Random) -> str:
    """Any change of one row or of some."""
    some = f"a = {rng.randrange(4)}"
    one = f"ctid = (select min(ctid) from ri.few where {some})"
    return rng.choice(
        [
            f"insert into ri.few values ({rng.randrange(4)}, {rng.randrange(2)}, null)",
            f"insert into ri.few select {rng.randrange(4)}, 0 from generate_series(1, 3)",
            f"update ri.few set a = {rng.randrange(4)} where {one}",
            f"update ri.few set f = f + 1 where {some}",
            f"delete from ri.few where {one}",
            f"savepoint s; delete from ri.few where {some}; rollback to s",
        ]
    )
