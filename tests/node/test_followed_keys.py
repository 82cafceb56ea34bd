"""With schema_changes = follow: a new key at the publisher, and partitions that come and go there,
these beside a native subscriber."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from tests.conftest import Database
from tests.node.conftest import answers

from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

Subscribe = Callable[..., Mirror]


@pytest.mark.slow
def test_keys_are_followed_and_partitions_come_as_they_do_natively(
    pg18: Database, peer: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema kc; create table kc.t (id int primary key, a int, b text);"
        " insert into kc.t values (1, 10, 'x'), (2, 20, 'y');"
        " create table kc.d (id int primary key, a int); insert into kc.d values (1, 1);"
        " create publication kr with (publish_via_partition_root = true);"
        " create publication kq"
    )
    for root, publication in (("r", "kr"), ("q", "kq")):
        pg18.psql(
            f"create table kc.{root} (id int primary key, v text) partition by range (id);"
            f" create table kc.{root}1 partition of kc.{root} for values from (0) to (10);"
            f" create table kc.{root}2 (id int primary key, v text);"
            f" insert into kc.{root} values (1, 'one');"
            f" insert into kc.{root}2 values (11, 'there before');"
            f" alter publication {publication} add table kc.{root}"
        )
    pg18.psql(
        "create publication kc for table kc.t, kc.d, kc.r"
        " with (publish_via_partition_root = true)"
    )
    peer.psql("create schema kc")
    for table in ("r", "q1", "q2"):
        peer.psql(f"create table kc.{table} (id int primary key, v text)")
    pg18.psql("select pg_create_logical_replication_slot('kn', 'pgoutput')")
    peer.psql(
        f"create subscription kn connection {quote_literal(pg18.conninfo())}"
        " publication kr, kq with (create_slot = false, slot_name = kn)"
    )
    mirror = subscribe(pg18, "kc", "with (schema_changes = follow)")
    leaves = subscribe(pg18, "kq", "with (schema_changes = follow)")
    mirror.synced()
    leaves.synced()

    # Here one value is there twice.
    node.sql("insert into kc.d values (7, 1)")
    pg18.transactions(
        [
            f"alter table kc.{table} drop constraint {table}_pkey, add primary key (a)"
            for table in "td"
        ]
    )
    pg18.transactions(
        [
            "update kc.t set b = 'z' where a = 10;"
            " insert into kc.t values (1, 30, 'an id that was there')",
            "delete from kc.t where a = 20; insert into kc.d values (2, 2)",
        ]
    )
    mirror.assert_equal(["kc.t"])
    assert node.sql("select id, a from kc.d order by 1") == [
        ("1", "1"),
        ("2", "2"),
        ("7", "1"),
    ]
    history = node.sql(
        "select tablename, outcome from wal2lake.schema_history"
        " where change = 'REPLICA IDENTITY (\"a\")' order by 1 desc"
    )
    assert history == [
        ("t", "changed"),
        ("d", "left out: rows that are here have null, or one value twice"),
    ]
    keys = (
        "select c.relname, a.attname from pg_index i join pg_class c on c.oid = i.indrelid"
        " join pg_attribute a on a.attrelid = c.oid and a.attnum = any(i.indkey)"
        " where c.relnamespace = 'kc'::regnamespace and c.relname in ('t', 'd')"
        " and i.indisprimary order by 1 desc"
    )
    assert node.sql(keys) == [("t", "a"), ("d", "id")]

    # Of a partition that comes under its root only rows that come later are sent.
    for root in "rq":
        pg18.psql(
            f"alter table kc.{root} attach partition kc.{root}2"
            f" for values from (10) to (20); insert into kc.{root} values (12, 'after')"
        )
    pg18.psql("update kc.t set b = 'end'")
    node.sql("alter subscription kc refresh publication")
    node.sql("alter subscription kq refresh publication")
    peer.psql("alter subscription kn refresh publication")
    # One that goes takes its rows along there, and not here.
    pg18.psql(
        "alter table kc.r detach partition kc.r1; insert into kc.r1 values (5, 'alone');"
        " update kc.r set v = 'later' where id = 12; insert into kc.q values (13, 'later')"
    )
    mirror.assert_equal(["kc.t"])
    leaves.assert_equal(["kc.q1", "kc.q2"])
    rows = {
        "r": [("1", "one"), ("12", "later")],
        "q1": [("1", "one")],
        "q2": [("11", "there before"), ("12", "after"), ("13", "later")],
    }
    for table, expected in rows.items():
        query = f"select id, v from kc.{table} order by id"
        assert node.sql(query) == expected
        text = "\n".join("|".join(row) for row in expected)

        wait_until(
            partial(answers, peer.psql, query, text),
            describe=f"the native subscriber has the same of {table}",
        )
