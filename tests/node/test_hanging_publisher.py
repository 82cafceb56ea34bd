"""A publisher that hangs is the matter of its own subscription alone.

One lock of the whole node was held while a command talked to its publisher: one that took the
connection and never answered stopped all CREATE, DROP and GRANT of the node, and nothing ended the
command."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from functools import partial

import pytest
from tests.conftest import Database

from wal2lake.errors import PublisherError
from wal2lake.pg import connect
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import find_installation
from wal2lake.testing.proxy import TcpProxy
from wal2lake.testing.waits import wait_until

SLOTS = "select slot_name from pg_replication_slots where database = current_database()"
AT_WORK = "select 1 from pg_stat_activity where state = 'active' and query like {}"
CANCELED = "canceling statement due to user request"
AWAY = "canceling statement due to statement timeout"


class Statement:
    """psql with a statement that does not end by itself."""

    def __init__(self, node: Node, sql: str) -> None:
        self._process = subprocess.Popen(
            [find_installation(18).bin / "psql", "-Xqd", node.conninfo(), "-c", sql],
            stderr=subprocess.PIPE,
            text=True,
        )

    @property
    def runs(self) -> bool:
        return self._process.poll() is None

    def cancel(self) -> str:
        """Ctrl-C; returns what it said."""
        assert self.runs, self._process.communicate()
        self._process.send_signal(signal.SIGINT)
        return self.said()

    def said(self) -> str:
        """All of it, at its end."""
        return self._process.communicate(timeout=20)[1]

    def kill(self) -> None:
        self._process.kill()
        self._process.communicate()


class World:
    """A node, a source with one table, and a network in between that may stall."""

    def __init__(self, node: Node, source: Database, proxy: TcpProxy) -> None:
        self.node, self.source, self.proxy = node, source, proxy
        self.made: list[Statement] = []
        source.psql("create table h.t (id int primary key); create publication h")
        self.conninfo = source.conninfo(host="127.0.0.1", port=str(proxy.port))
        self.create = (
            f"create subscription h connection {quote_literal(self.conninfo)}"
            " publication h"
        )

    def begin(self, sql: str) -> Statement:
        self.made.append(Statement(self.node, sql))
        return self.made[-1]

    def others_work(self, meanwhile: Statement) -> None:
        """Whatever the node does for others, it does while that one waits."""
        self.node.sql(
            "create table h.mine (id int); grant select on h.mine to public;"
            " drop table h.mine"
        )
        assert meanwhile.runs

    def refused(self, sql: str) -> str:
        """A command that waits until its own time-out."""
        with pytest.raises(PublisherError) as caught:
            self.node.sql(f"set statement_timeout = 300; {sql}")
        assert caught.value.sqlstate == "57014", caught.value
        return caught.value.message

    def slots(self) -> str:
        return self.source.psql(SLOTS)

    @contextlib.contextmanager
    def slots_wait(self) -> Iterator[None]:
        """No slot can be made meanwhile: a transaction of the source runs."""
        with connect(self.source.conninfo(), application_name="test") as other:
            other.query("begin; select pg_current_xact_id()")
            yield
            other.query("rollback")

    def wait_for_slot(self) -> None:
        wait_until(
            lambda: self.source.psql(AT_WORK.format("'CREATE_REPL%'")),
            describe="a slot is being made",
        )


def has_accepted(proxy: TcpProxy, before: int) -> bool:
    """Whether somebody has connected since ``before`` connections."""
    return proxy.accepted > before


@pytest.fixture
def world(node: Node, pg18: Database) -> Iterator[World]:
    node.sql("create schema h")
    pg18.psql("create schema h")
    with TcpProxy("127.0.0.1", pg18.server.port) as proxy:
        found = World(node, pg18, proxy)
        yield found
        for statement in found.made:
            statement.kill()
        proxy.resume()
        node.sql("drop subscription if exists h; drop schema h cascade")


def test_a_publisher_that_hangs_stops_only_the_commands_of_its_subscription(
    world: World,
) -> None:
    node, proxy, source = world.node, world.proxy, world.source
    # It takes the connection, and says nothing.
    proxy.stall()
    creating = world.begin(world.create)
    wait_until(lambda: proxy.connections, describe="the node asks")
    world.others_work(creating)
    assert AWAY in world.refused(world.create), "the same name waits for its turn"
    assert CANCELED in creating.cancel()
    proxy.resume()
    # It answers, up to the creation of the slot; then nothing comes through any more.
    source.psql("alter publication h add table h.t")
    with world.slots_wait():
        creating = world.begin(world.create)
        world.wait_for_slot()
        world.others_work(creating)
        proxy.stall()
        assert CANCELED in creating.cancel()
        assert node.sql("select 1 from pg_subscription where subname = 'h'") == []
        assert node.sql("select 1 from pg_tables where schemaname = 'h'") == []
        proxy.resume()
    # The source may have made it all the same; the node sees to that.
    node.wait_for("select 1")
    wait_until(lambda: world.slots() == "", describe="the slot is gone")
    # What was there before is looked at again.
    with world.slots_wait():
        creating = world.begin(world.create)
        world.wait_for_slot()
        node.sql("create table h.t (id int) partition by range (id)")
    assert 'partitioned table "h.t" has no partition' in creating.said()
    assert world.slots() == ""
    node.sql(f"drop table h.t; {world.create}")
    node.wait_for("select 1 from pg_subscription_rel where srsubstate = 'r'")
    # REFRESH, DROP and what they may not stop.
    proxy.stall()
    for sql in ("alter subscription h refresh publication", "drop subscription h"):
        before = proxy.accepted
        waiting = world.begin(sql)
        wait_until(partial(has_accepted, proxy, before), describe="the node asks")
        world.others_work(waiting)
        assert AWAY in world.refused("alter subscription h disable")
        assert CANCELED in waiting.cancel()
    node.sql("set statement_timeout = '20s'; alter subscription h disable")
    proxy.resume()
    node.sql("drop subscription h")
    assert world.slots() == ""


def test_a_recopy_that_waits_for_its_slot_can_be_cancelled_and_dropped(
    world: World,
) -> None:
    node, source = world.node, world.source
    source.psql("alter publication h add table h.t; insert into h.t values (1)")
    node.sql(world.create)
    node.wait_for("select 1 from pg_subscription_rel where srsubstate = 'r'")
    oid = node.value("select oid from pg_subscription where subname = 'h'")
    node.sql("alter subscription h disable")
    wait_until(lambda: not source.psql(f"{SLOTS} and active"))
    source.psql("select pg_drop_replication_slot('h')")
    with world.slots_wait():
        copying = world.begin(
            "alter subscription h refresh publication with (recopy = true)"
        )
        world.wait_for_slot()
        world.others_work(copying)
        assert CANCELED in copying.cancel()
        # As a crash leaves it that comes while the log is removed.
        (node.directory / "log" / f"{oid}.old").mkdir()
        # The node goes on by itself, and steps aside for whoever wants something else.
        world.wait_for_slot()
        node.sql(
            "set statement_timeout = '20s'; alter subscription h set (slot_name = none);"
            " drop subscription h"
        )
    wait_until(lambda: world.slots() == "", describe="nobody has left a slot")
    assert not list((node.directory / "log").glob(f"{oid}*"))
