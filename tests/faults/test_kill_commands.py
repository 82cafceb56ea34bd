"""SIGKILL at each durable step of CREATE and DROP SUBSCRIPTION: no slot is left that nobody owns,
no half subscription, and the same statement can be repeated."""

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

SLOTS = "select slot_name from pg_replication_slots where database = current_database()"
SUBSCRIPTIONS = "select subname from pg_subscription"


class World:
    """One node whose commands can be killed, and a source with two tables."""

    def __init__(
        self, lend_node: Callable[[Path], Node], source: Database, points: Path
    ) -> None:
        points.mkdir()
        self.points = points
        self.source = source
        self.node = lend_node(points)
        source.psql(
            "create table public.a (id int primary key, v text);"
            " create table public.b (id int primary key);"
            " insert into public.a select i, md5(i::text) from generate_series(1, 100) i;"
            " insert into public.b values (1);"
            " create publication c for all tables"
        )
        self.mirror = Mirror(self.node, source.conninfo(), "c")

    def create(self, conninfo: str | None = None) -> None:
        through = quote_literal(conninfo or self.source.conninfo())
        self.node.sql(f"create subscription c connection {through} publication c")

    def create_again(self) -> None:
        """Tables stay after DROP; as in PostgreSQL, a copy wants them empty."""
        self.node.sql("truncate public.a, public.b")
        self.create()

    def drop(self) -> None:
        self.node.sql("drop subscription c")

    def killed(self, name: str, action: str, command: Callable[[], None]) -> None:
        """The command meets its end at a failpoint; afterwards the node runs again."""
        arm(self.points, name, action)
        with pytest.raises(PublisherError):
            command()
        assert not (self.points / name).exists(), f"{name} was not reached"
        if action == "kill-tree":
            self.node.wait_end()
            self.node.start()
        self.node.wait_for("select 1")

    def slots(self) -> str:
        return self.source.psql(SLOTS)

    def gone(self) -> None:
        """Neither a slot nor a subscription nor a log, without anybody's doing."""
        wait_until(
            lambda: self.slots() == "" and self.node.sql(SUBSCRIPTIONS) == [],
            timeout_seconds=30,
            describe=lambda: (
                f"slots {self.slots()!r} are gone\n{self.node.log_text()[-3000:]}"
            ),
        )
        # The node is lent: the publisher's log of another test may be there.
        assert list((self.node.directory / "log").glob("[0-9]*")) == []
        assert list((self.node.directory / "run").glob("*.progress")) == []

    def equal(self) -> None:
        """The subscription is there with its slot, and mirrors what is written now."""
        self.mirror.synced()
        # The snapshot's own is dropped a moment after its last table has joined.
        wait_until(lambda: self.slots() == "c", describe="its own slot is left alone")
        self.source.psql(
            "update public.a set v = v || '!'; insert into public.b"
            " select max(id) + 1 from public.b"
        )
        self.mirror.assert_equal(["public.a", "public.b"])


def test_a_killed_create_or_drop_subscription_is_undone_or_finished(
    lend_node: Callable[[Path], Node], pg18: Database, tmp_path: Path
) -> None:
    world = World(lend_node, pg18, tmp_path / "points")
    world.killed("subscription.slot_created", "kill", world.create)
    world.gone()
    world.killed("subscription.recorded", "kill", world.create)
    world.equal()
    world.killed("subscription.slot_dropped", "kill", world.drop)
    world.gone()


@pytest.mark.slow
@pytest.mark.parametrize("action", ["kill", "kill-tree"])
def test_sigkill_at_each_step_of_create_and_drop_subscription(
    lend_node: Callable[[Path], Node], pg18: Database, tmp_path: Path, action: str
) -> None:
    world = World(lend_node, pg18, tmp_path / "points")
    for step in ("slot_planned", "slot_created"):
        world.killed(f"subscription.{step}", action, world.create)
        world.gone()
    world.killed("subscription.recorded", action, world.create)
    for step in ("drop_marked", "slot_dropped", "log_removed"):
        world.equal()
        world.killed(f"subscription.{step}", action, world.drop)
        world.gone()
        world.create_again()
    world.equal()


@pytest.mark.slow
def test_what_a_killed_command_left_waits_for_its_publisher_and_can_be_repeated(
    lend_node: Callable[[Path], Node], pg18: Database, tmp_path: Path
) -> None:
    world = World(lend_node, pg18, tmp_path / "points")
    with TcpProxy("127.0.0.1", pg18.server.port) as proxy:
        through = pg18.conninfo(host="127.0.0.1", port=str(proxy.port))

        def create() -> None:
            world.create(through)

        arm(world.points, "subscription.slot_created", "kill")
        with pytest.raises(PublisherError):
            create()
        proxy.refuse()
        world.node.wait_for("select 1")
        wait_until(
            lambda: "interrupted CREATE SUBSCRIPTION" in world.node.log_text(),
            describe="the slot that cannot be dropped yet is reported",
        )
        assert "HINT:  A slot that nobody reads holds" in world.node.log_text()
        assert world.slots() == "c"
        proxy.accept()
        world.gone()
        # Not waiting for the node to clean up: the statement does.
        arm(world.points, "subscription.slot_created", "kill")
        with pytest.raises(PublisherError):
            create()
        proxy.refuse()
        world.node.wait_for("select 1")
        proxy.accept()
        create()
        world.equal()
        # And a DROP.
        arm(world.points, "subscription.drop_marked", "kill")
        with pytest.raises(PublisherError):
            world.drop()
        proxy.cut()
        proxy.refuse()
        world.node.wait_for(
            "select subname from wal2lake.subscription_errors where error like"
            " 'could not connect to publisher when attempting to drop replication slot%'"
        )
        with pytest.raises(PublisherError) as refusal:
            world.node.sql("alter subscription c enable")
        assert refusal.value.message == 'subscription "c" is being dropped'
        proxy.accept()
        world.gone()
