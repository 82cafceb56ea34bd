"""What hints about slots and files of tables say, followed on a whole node."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conftest import Database
from tests.node.test_remedies import ERROR, stopped

from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until


@pytest.mark.slow
def test_a_slot_that_cannot_be_used_is_replaced_as_each_hint_says(
    pg18: Database, node: Node
) -> None:
    """One subscription, whose slot is not there, a physical one, and made anew above what
    was received."""
    pg18.psql(
        "create schema rz; create table rz.a (id int primary key);"
        " insert into rz.a values (1); create publication rz for tables in schema rz"
    )
    node.sql(
        f"create subscription rz connection {quote_literal(pg18.conninfo())}"
        " publication rz with (create_slot = false)"
    )
    mirror = Mirror(node, pg18.conninfo(), "rz")
    try:
        error = stopped(node, "rz", 'replication slot "rz" does not exist')
        made = "SELECT pg_create_logical_replication_slot('rz', 'pgoutput')"
        assert f"HINT:  Create it on the publisher: {made}." in error
        pg18.psql(made)
        mirror.synced()
        pg18.psql("insert into rz.a values (2)")
        mirror.assert_equal(["rz.a"])

        pg18.psql("select pg_create_physical_replication_slot('rz_test')")
        node.sql("alter subscription rz set (slot_name = 'rz_test')")
        error = stopped(node, "rz", "cannot use physical replication slot")
        assert "Name the subscription's own slot with ALTER SUBSCRIPTION" in error
        pg18.psql("insert into rz.a values (3)")
        node.sql("alter subscription rz set (slot_name = 'rz')")
        mirror.assert_equal(["rz.a"])
        # The other way: one that is not there, and all is copied again.
        node.sql("alter subscription rz set (slot_name = 'rz_test')")
        assert "If there is none, name one that is not there, and then:" in stopped(
            node, "rz", "cannot use physical replication slot"
        )
        node.sql("alter subscription rz set (slot_name = 'rz_new')")
        node.sql("alter subscription rz refresh publication with (recopy = true)")
        mirror.synced()
        pg18.psql("insert into rz.a values (4)")
        mirror.assert_equal(["rz.a"])

        node.sql("alter subscription rz disable")
        wait_until(
            lambda: (
                pg18.psql(
                    "select active from pg_replication_slots where slot_name = 'rz_new'"
                )
                == "f"
            ),
            describe="the slot is free",
        )
        pg18.psql(
            "select pg_drop_replication_slot('rz_new'); insert into rz.a values (5);"
            " select pg_create_logical_replication_slot('rz_new', 'pgoutput');"
            " select pg_create_logical_replication_slot('rz_other', 'pgoutput')"
        )
        node.sql("alter subscription rz enable")
        error = stopped(node, "rz", "It was dropped and created again")
        assert (
            "To go on without it: ALTER SUBSCRIPTION ... SET (slot_name = ...) with"
            " another slot."
        ) in error
        node.sql("alter subscription rz set (slot_name = 'rz_other')")
        pg18.psql("insert into rz.a values (6)")
        mirror.caught_up()
        rows = node.sql("select id from rz.a order by id")
        assert rows == [(str(i),) for i in (1, 2, 3, 4, 6)]
        assert node.sql(ERROR.format("rz")) == []
    finally:
        node.sql("drop subscription rz; drop schema rz cascade")
        pg18.psql(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots"
            " where slot_name like 'rz%' and not active"
        )


def test_a_table_whose_files_are_damaged_is_copied_as_the_hint_says(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    pg18.psql(
        "create schema rl; create table rl.a (id int primary key, v text);"
        " insert into rl.a select i, 'x' from generate_series(1, 2000) i;"
        " create publication rl for tables in schema rl"
    )
    mirror = subscribe(pg18, "rl")
    mirror.synced()
    pg18.psql("delete from rl.a where id = 1")
    mirror.caught_up()
    files = list((node.directory / "warehouse/rl/a").glob("deletion_vector_*.bin"))
    assert files
    for file in files:
        file.write_bytes(b"\1" * file.stat().st_size)
    pg18.psql("delete from rl.a where id = 2")
    error = stopped(node, "rl", "is damaged")
    assert "Restore the file from a backup, or drop the table here and run" in error
    node.sql("drop table rl.a")
    node.sql("alter subscription rl refresh publication")
    mirror.synced()
    pg18.psql("delete from rl.a where id = 3")
    mirror.assert_equal(["rl.a"])
    assert node.sql(ERROR.format("rl")) == []
