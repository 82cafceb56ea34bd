"""A receiver whose publisher fails over to a standby that has its slot (PostgreSQL 17 on).

What it had confirmed while nothing was pending is beyond what the standby had received: that is
other WAL, and must neither stop a healthy slot nor let one pass that was made anew."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.postgres.test_slots import SUBSCRIPTION, Receiver

from wal2lake.errors import PublisherError
from wal2lake.model import Lsn
from wal2lake.pg import Publisher, connect
from wal2lake.receive.source import source
from wal2lake.receive.source.slotcheck import UnusableSlot
from wal2lake.receive.source.source import SourceCheck
from wal2lake.testing.postgres import PostgresServer
from wal2lake.testing.waits import wait_until

SYNCED = "select count(*) from pg_replication_slots where synced and not temporary"


class FailoverReceiver(Receiver):
    """Its slot is one that standbys may have."""

    def make(self) -> None:
        self.psql(
            "select pg_create_logical_replication_slot"
            f"('{self.slot}', 'pgoutput', failover => true)"
        )

    def turn_to(self, server: PostgresServer) -> None:
        """As ALTER SUBSCRIPTION ... CONNECTION, or a name that leads elsewhere."""
        self.psql = server.psql
        self.catalog.update_subscription(SUBSCRIPTION, conninfo=server.conninfo())

    def timeline(self) -> int | None:
        found = self.catalog.subscription(SUBSCRIPTION)
        assert found is not None
        return found.timeline


@pytest.fixture
def primary() -> Iterator[PostgresServer]:
    with PostgresServer(18) as server:
        server.psql("select pg_create_physical_replication_slot('standby')")
        yield server


@pytest.fixture
def standby(primary: PostgresServer) -> Iterator[PostgresServer]:
    with PostgresServer(18) as server:
        server.stop()
        shutil.rmtree(server.data)
        server.installation.run(
            "pg_basebackup",
            f"--pgdata={server.data}",
            f"--dbname={primary.conninfo()}",
            "--checkpoint=fast",
            "--no-sync",
        )
        (server.data / "standby.signal").touch()
        server.installation.give(server.data)
        server.set(
            # Its quotes are not needed, and would be the setting's.
            primary_conninfo=primary.conninfo().replace("'", ""),
            primary_slot_name="standby",
            hot_standby_feedback="on",
        )
        server.start()
        yield server


@pytest.fixture
def receiver(
    primary: PostgresServer, standby: PostgresServer, tmp_path: Path
) -> FailoverReceiver:
    """A row is received, the standby has it and the slot, and more is confirmed above."""
    one = FailoverReceiver(tmp_path / "node", primary.conninfo(), primary.psql)
    one.run("insert into t values (1)")

    def synced() -> bool:
        # The standby takes a slot that has passed what the standby itself began with.
        primary.psql("insert into unpublished values (0)")
        primary.psql("select pg_log_standby_snapshot()")
        one.caught_up()
        standby.psql("select pg_sync_replication_slots()")
        return standby.psql(SYNCED) == "1"

    with one.running():
        wait_until(synced, timeout_seconds=60, describe="the standby has the slot")
    return one


def cut_off(primary: PostgresServer, standby: PostgresServer) -> None:
    """The standby receives no more."""
    standby.set(primary_conninfo="")
    wait_until(
        lambda: primary.psql("select count(*) from pg_stat_replication") == "0",
        describe="it has lost its primary",
    )


def test_a_visit_to_the_standby_leaves_no_trace(
    receiver: FailoverReceiver, primary: PostgresServer, standby: PostgresServer
) -> None:
    cut_off(primary, standby)
    receiver.run("insert into unpublished select generate_series(1, 20000)")
    before = receiver.received()
    receiver.turn_to(standby)
    with receiver.running():
        wait_until(lambda: receiver.failure, describe="it is refused")
    (error,) = receiver.failure
    receiver.failure.clear()
    assert isinstance(error, PublisherError)
    assert receiver.received() == before
    receiver.turn_to(primary)
    receiver.run("insert into t values (2)")


@pytest.mark.parametrize("anew", [False, True], ids=["the slot", "one made anew"])
def test_a_failover_behind_what_was_confirmed(
    receiver: FailoverReceiver,
    primary: PostgresServer,
    standby: PostgresServer,
    anew: bool,
) -> None:
    cut_off(primary, standby)
    receiver.run("insert into unpublished select generate_series(1, 20000)")
    confirmed = receiver.received()
    primary.kill()
    standby.psql("select pg_promote()")
    end = Lsn.parse(standby.psql("select pg_current_wal_lsn()"))
    assert end < confirmed
    receiver.turn_to(standby)
    if not anew:
        receiver.run("insert into t values (2)")
        assert receiver.timeline() == 2
        receiver.run("insert into t values (3)")
        return
    receiver.drop()
    receiver.psql("insert into t values (2)")
    receiver.make()
    assert Lsn.parse(receiver._facts("confirmed_flush_lsn")) < confirmed
    error = receiver.refused()
    assert isinstance(error, UnusableSlot)
    assert "dropped and created again" in str(error.detail)
    assert receiver.timeline() == 1


class StandbyReceiver(Receiver):
    """It reads from a standby, by a slot of the standby's own."""

    def __init__(
        self, directory: Path, primary: PostgresServer, standby: PostgresServer
    ) -> None:
        self._primary = primary
        self._standby = standby
        super().__init__(directory, standby.conninfo(), primary.psql)
        self.psql = standby.psql

    def _facts(self, columns: str) -> str:
        return self._standby.psql(
            f"select {columns} from pg_replication_slots where slot_name = '{self.slot}'"
        )

    def timeline(self) -> int | None:
        """The one on record."""
        found = self.catalog.subscription(SUBSCRIPTION)
        assert found is not None
        return found.timeline

    def make(self) -> None:
        standby = self.catalog.subscriptions()[0].conninfo

        def create() -> None:
            with connect(standby, application_name="x", replication=True) as session:
                Publisher(session).create_slot(self.slot)

        thread = threading.Thread(target=create)
        thread.start()

        def made() -> bool:
            # It waits for what the primary logs of running transactions.
            self._primary.psql("select pg_log_standby_snapshot()")
            return not thread.is_alive()

        wait_until(made, describe="the slot is made")


@pytest.mark.parametrize("seen", [True, False], ids=["seen", "not yet seen"])
def test_a_standby_that_is_promoted_while_it_streams_is_the_same_source(
    primary: PostgresServer,
    standby: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    seen: bool,
) -> None:
    """What was logged above the switch is no other history: while the server runs, and once it
    has been asked, for ever."""
    receiver = StandbyReceiver(tmp_path / "node", primary, standby)

    if not seen:
        monkeypatch.setattr(SourceCheck, "check_timeline", lambda self, session: None)
    with receiver.running():
        wait_until(lambda: receiver._facts("active") == "t")
        standby.psql("select pg_promote()")
        receiver.psql("insert into t values (1)")
        receiver.caught_up()
        if seen:
            wait_until(
                lambda: receiver.timeline() == 2, describe="the timeline is learnt"
            )
        receiver.psql("insert into t values (2)")
        receiver.caught_up()
    if seen:
        standby.restart()
    for i in (3, 4):
        receiver.run(f"insert into t values ({i})")
    assert receiver.timeline() == 2


def test_a_standby_that_follows_its_upstream_is_the_same_source_once_restarted(
    primary: PostgresServer,
    standby: PostgresServer,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The server above it was promoted; what was logged above the switch came from this one."""
    monkeypatch.setattr(source, "FOLLOW_SECONDS", 0.0)
    # A backup of the standby would need full_page_writes.
    with primary.standby("below") as below:
        above = standby.conninfo().replace("'", "")
        below.set(primary_conninfo=above, primary_slot_name="")
        wait_until(
            lambda: standby.psql("select count(*) from pg_stat_replication") == "1",
            describe="it follows the standby",
        )
        receiver = StandbyReceiver(tmp_path / "node", primary, below)
        # Who writes is the one that was promoted.
        receiver.psql = standby.psql
        with receiver.running():
            wait_until(lambda: receiver._facts("active") == "t")
            standby.psql("select pg_promote()")
            for i in (1, 2):
                receiver.psql(f"insert into t values ({i})")
                receiver.caught_up()
            wait_until(
                lambda: receiver.timeline() == 2, describe="the timeline is learnt"
            )
            receiver.psql("insert into t values (3)")
            receiver.caught_up()
        below.restart()
        receiver.run("insert into t values (4)")
        assert receiver.timeline() == 2
