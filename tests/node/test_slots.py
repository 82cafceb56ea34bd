"""Slots as a user meets them: one that was lost, and none that is left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Database

from wal2lake.errors import PublisherError
from wal2lake.observe.failpoints import arm
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.proxy import TcpProxy
from wal2lake.testing.waits import wait_until

SLOTS = (
    "select slot_name from pg_replication_slots where database = current_database()"
    " order by 1"
)
ERROR = "select error from wal2lake.subscription_errors where subname = '{}'"


@pytest.mark.slow
def test_a_lost_slot_is_an_error_until_its_hint_has_been_followed(
    lend_node: Callable[[Path], Node], pg18: Database, tmp_path: Path
) -> None:
    node = lend_node(tmp_path)
    pg18.psql(
        "create table t (id int primary key); insert into t values (1);"
        " create publication p for table t"
    )
    create = (
        f"create subscription lost connection {quote_literal(pg18.conninfo())}"
        " publication p"
    )
    node.sql(create)
    mirror = Mirror(node, pg18.conninfo(), "lost")
    mirror.synced()
    pg18.psql("insert into t values (2)")
    mirror.caught_up()
    node.sql("alter subscription lost disable")
    drop = "select pg_drop_replication_slot('lost')"
    wait_until(
        lambda: pg18.psql("select active from pg_replication_slots") == "f",
        describe="the slot is free",
    )
    pg18.psql(drop)
    pg18.psql("insert into t values (3)")
    node.sql("alter subscription lost enable")
    missing = 'replication slot "lost" does not exist'
    (error,) = node.wait_for(ERROR.format("lost"), lambda r: missing in str(r))[0]
    way_out = "ALTER SUBSCRIPTION ... REFRESH PUBLICATION WITH (recopy = true)"
    assert way_out in str(error)
    # Made anew it would skip the third row.
    pg18.psql("select pg_create_logical_replication_slot('lost', 'pgoutput')")
    anew = "It was dropped and created again, or advanced by hand"
    (error,) = node.wait_for(ERROR.format("lost"), lambda r: anew in str(r))[0]
    assert way_out in str(error)
    assert node.sql("select id from t order by id") == [("1",), ("2",)]
    node.sql(way_out.replace("...", "lost"))
    mirror.synced()
    pg18.psql("insert into t values (4)")
    mirror.assert_equal(["public.t"])
    assert node.sql(ERROR.format("lost")) == []
    node.sql("drop subscription lost")
    assert pg18.psql(SLOTS) == ""


def test_a_slot_made_anew_before_the_first_start_is_refused(
    lend_node: Callable[[Path], Node], pg18: Database, tmp_path: Path
) -> None:
    node = lend_node(tmp_path)
    pg18.psql("create table t (id int primary key); create publication p for table t")
    node.sql(
        f"create subscription anew connection {quote_literal(pg18.conninfo())}"
        " publication p with (enabled = false, copy_data = false)"
    )
    pg18.psql("select pg_drop_replication_slot('anew')")
    pg18.psql("insert into t values (1)")
    pg18.psql("select pg_create_logical_replication_slot('anew', 'pgoutput')")
    node.sql("alter subscription anew enable")
    anew = "It was dropped and created again, or advanced by hand"
    node.wait_for(ERROR.format("anew"), lambda r: anew in str(r))
    node.sql("drop subscription anew")
    assert pg18.psql(SLOTS) == ""


@pytest.mark.slow
def test_no_slot_is_left_by_a_drop_or_a_kill_in_the_middle_of_a_copy(
    lend_node: Callable[[Path], Node], pg18: Database, tmp_path: Path
) -> None:
    points = tmp_path / "points"
    points.mkdir()
    node = lend_node(points)
    pg18.psql(
        "create table t (id int primary key);"
        " insert into t select generate_series(1, 1000);"
        " create publication p for table t"
    )
    mirror = Mirror(node, pg18.conninfo(), "cut")

    def create(**through: str) -> None:
        """Until its copy has begun, which then stands still for a while."""
        arm(points, "copy.range_recorded", "pause 5")
        node.sql(
            "create subscription cut connection"
            f" {quote_literal(pg18.conninfo(**through))} publication p"
        )
        wait_until(
            lambda: not (points / "copy.range_recorded").exists(),
            timeout_seconds=60,
            describe="the copy has begun",
        )
        assert "_sync_" in pg18.psql(SLOTS)

    create()
    node.sql("drop subscription cut")
    wait_until(lambda: pg18.psql(SLOTS) == "", describe="all slots are gone")
    node.sql("drop table t")
    create()
    node.kill("receiver")
    mirror.synced()
    wait_until(lambda: pg18.psql(SLOTS) == "cut", describe="the copy's slot is gone")
    node.sql("drop subscription cut")
    node.sql("drop table t")
    create()
    node.kill("tree")
    wait_until(
        lambda: "_sync_" not in pg18.psql(SLOTS), describe="it dies with its connection"
    )
    node.start()
    mirror.synced()
    pg18.psql("insert into t values (0)")
    mirror.assert_equal(["public.t"])
    node.sql("drop subscription cut")
    wait_until(lambda: pg18.psql(SLOTS) == "", describe="all slots are gone")
    node.sql("drop table t")
    # The source is away when the copy's subscription is to go: PostgreSQL's way out.
    with TcpProxy("127.0.0.1", pg18.server.port) as proxy:
        create(host="127.0.0.1", port=str(proxy.port))
        proxy.refuse()
        proxy.cut()
        with pytest.raises(PublisherError) as caught:
            node.sql("drop subscription cut")
        assert caught.value.sqlstate == "08006"
        assert caught.value.message.startswith(
            "could not connect to publisher when attempting to drop replication slot"
            ' "cut": '
        )
        assert caught.value.hint == (
            "Use ALTER SUBSCRIPTION ... DISABLE to disable the subscription, and then"
            " use ALTER SUBSCRIPTION ... SET (slot_name = NONE) to disassociate it from"
            " the slot."
        )
        # It is back for a moment: the copy begins again, and is whole.
        proxy.accept()
        mirror.synced()
        assert node.value("select count(*) from t") == "1001"
        node.sql("drop subscription cut")
        wait_until(lambda: pg18.psql(SLOTS) == "", describe="all slots are gone")
        node.sql("drop table t")
        create(host="127.0.0.1", port=str(proxy.port))
        proxy.refuse()
        proxy.cut()
        for command in ("disable", "set (slot_name = none)"):
            node.sql(f"alter subscription cut {command}")
        node.sql("drop subscription cut")
        proxy.accept()
    wait_until(
        lambda: (
            pg18.psql(
                "select slot_name, active from pg_replication_slots"
                " where database = current_database()"
            )
            == "cut|f"
        ),
        describe="the copy's slot is gone, the other one the publisher's to drop",
    )
    pg18.psql("select pg_drop_replication_slot('cut')")
