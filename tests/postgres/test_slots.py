"""A receiver at a slot that vanished, was invalidated, made anew, or is somebody else's.

Nothing is skipped in silence, nothing made again: the run ends before it streams."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.conftest import Database

from wal2lake.catalog import Catalog, ProgressFile, Subscription
from wal2lake.changelog import ChangeLog
from wal2lake.changelog.confirmed import ConfirmedFile
from wal2lake.model import Lsn, Oid
from wal2lake.receive.source.slotcheck import UnusableSlot
from wal2lake.receive.walreceiver import WalReceiver
from wal2lake.settings import Settings
from wal2lake.testing.positions import END_OF_WAL
from wal2lake.testing.postgres import PostgresServer
from wal2lake.testing.waits import wait_until

SUBSCRIPTION = Oid(1)

Psql = Callable[[str], str]


class Receiver:
    """A subscription's receiver in this process, to publication p of a database."""

    def __init__(
        self, directory: Path, conninfo: str, psql: Psql, slot: str = "s"
    ) -> None:
        self.psql = psql
        self.slot = slot
        self.settings = Settings(directory=directory)
        self.settings.run_directory.mkdir(parents=True)
        self.catalog = Catalog.create(self.settings.catalog_file, "boss", None)
        self.catalog.create_subscription(
            Subscription(SUBSCRIPTION, "sub", Oid(10), True, conninfo, slot, ("p",)), []
        )
        self.log = self.settings.log_directory / "1"
        self.failure: list[BaseException] = []
        psql(
            "create table t (id int primary key); create table unpublished (id int);"
            " create publication p for table t"
        )
        self.make()

    def make(self) -> None:
        self.psql(
            f"select pg_create_logical_replication_slot('{self.slot}', 'pgoutput')"
        )

    def drop(self) -> None:
        wait_until(lambda: self._facts("not active") == "t", describe="it is idle")
        self.psql(f"select pg_drop_replication_slot('{self.slot}')")

    def _facts(self, columns: str) -> str:
        return self.psql(
            f"select {columns} from pg_replication_slots where slot_name = '{self.slot}'"
        )

    @contextmanager
    def running(self) -> Iterator[None]:
        subscription = self.catalog.subscription(SUBSCRIPTION)
        assert subscription is not None
        log = ChangeLog.open(self.log, self.settings.log)
        with ProgressFile(self.settings.run_directory, SUBSCRIPTION) as progress:
            receiver = WalReceiver(
                self.catalog, subscription, self.settings, log, progress
            )

            def run() -> None:
                try:
                    receiver.run(threading.Event())
                except BaseException as error:
                    self.failure.append(error)

            thread = threading.Thread(target=run)
            thread.start()
            try:
                yield
            finally:
                receiver.request_stop()
                thread.join(30)
                log.close()
                assert not thread.is_alive()

    def caught_up(self) -> None:
        """All that is there now is confirmed, of tables that are not published too."""
        target = self.psql(END_OF_WAL)
        wait_until(
            lambda: (
                self.failure or self._facts(f"confirmed_flush_lsn >= '{target}'") == "t"
            ),
            describe=f"{target} is confirmed",
        )
        assert self.failure == []

    def run(self, sql: str) -> None:
        """One connection, until it has confirmed what is written meanwhile."""
        with self.running():
            self.psql(sql)
            self.caught_up()
        assert self.failure == []

    def refused(self) -> UnusableSlot:
        """What ends the next run; the slot is as before it, but for when it was used last, and
        for what the server itself writes meanwhile."""
        facts = "to_jsonb(pg_replication_slots) - 'inactive_since' - 'safe_wal_size'"
        wait_until(lambda: self._facts("not active") in ("t", ""))
        before = self._facts(facts)
        with self.running():
            wait_until(lambda: self.failure, describe="the run has ended")
        (error,) = self.failure
        self.failure.clear()
        assert isinstance(error, UnusableSlot), error
        wait_until(lambda: self._facts("not active") in ("t", ""))
        assert self._facts(facts) == before
        return error

    @property
    def version(self) -> int:
        return int(self.psql("show server_version_num")) // 10000

    def received(self) -> Lsn:
        with ConfirmedFile.open(self.log) as confirmed:
            assert confirmed.last is not None
            return max(confirmed.last.position, self.logged())

    def logged(self) -> Lsn:
        log = ChangeLog.open(self.log, self.settings.log)
        log.close()
        return log.logged


@pytest.fixture
def receiver(any_pg: Database, tmp_path: Path) -> Receiver:
    name = f"slot_{any_pg.name}"
    return Receiver(tmp_path / "node", any_pg.conninfo(), any_pg.psql, name)


def test_a_slot_that_followed_keepalives_above_the_log_goes_on(
    receiver: Receiver,
) -> None:
    receiver.run("insert into t values (1)")
    for _ in range(3):
        receiver.run("insert into unpublished select generate_series(1, 1000)")
        confirmed = Lsn.parse(receiver._facts("confirmed_flush_lsn"))
        assert confirmed <= receiver.received()
        # PostgreSQL 14 tells the log of transactions that have nothing for it.
        if receiver.version > 14:
            assert receiver.logged() < confirmed
    receiver.run("insert into t values (2)")


def test_a_log_that_has_no_record_takes_the_slot_as_it_is(receiver: Receiver) -> None:
    receiver.run("insert into t values (1)")
    receiver.run("insert into unpublished select generate_series(1, 1000)")
    confirmed = Lsn.parse(receiver._facts("confirmed_flush_lsn"))
    (receiver.log / "confirmed").unlink()
    for key in (2, 3):
        logged = receiver.logged()
        receiver.run(f"insert into t values ({key})")
        assert receiver.logged() > logged
    assert receiver.received() > confirmed, "there is a record again"


def test_a_slot_that_vanished_is_named_with_the_way_out(receiver: Receiver) -> None:
    receiver.run("insert into t values (1)")
    receiver.drop()
    for _ in range(2):
        error = receiver.refused()
        assert error.sqlstate == "42704"
        assert error.message == f'replication slot "{receiver.slot}" does not exist'
        assert "REFRESH PUBLICATION WITH (recopy = true)" in str(error.hint)
        assert receiver._facts("*") == "", "nobody has made it again"


def test_a_slot_that_was_made_anew_skips_nothing_in_silence(receiver: Receiver) -> None:
    receiver.run("insert into t values (1)")
    receiver.run("insert into unpublished select generate_series(1, 1000)")
    receiver.drop()
    receiver.psql("insert into t values (2)")
    receiver.make()
    start = receiver._facts("confirmed_flush_lsn")
    error = receiver.refused()
    assert error.sqlstate == "55000"
    assert error.message == (
        f'replication slot "{receiver.slot}" starts at {start}, above'
        f" {receiver.received()}, up to where everything has been received"
    )
    assert "REFRESH PUBLICATION WITH (recopy = true)" in str(error.hint)
    receiver.refused()


def test_a_slot_that_was_advanced_by_hand_is_refused_too(receiver: Receiver) -> None:
    receiver.run("insert into t values (1)")
    receiver.psql("insert into t values (2)")
    wait_until(lambda: receiver._facts("not active") == "t")
    receiver.psql(
        f"select pg_replication_slot_advance('{receiver.slot}', pg_current_wal_lsn())"
    )
    assert "or advanced by hand" in str(receiver.refused().detail)


def test_another_slot_by_name_is_taken_with_a_warning_of_the_gap(
    receiver: Receiver, capsys: pytest.CaptureFixture[str]
) -> None:
    receiver.run("insert into t values (1)")
    receiver.drop()
    receiver.psql("insert into t values (2)")
    receiver.slot += "_2"
    receiver.make()
    receiver.catalog.update_subscription(SUBSCRIPTION, slot_name=receiver.slot)
    capsys.readouterr()
    receiver.run("insert into t values (3)")
    told = capsys.readouterr()
    assert (told.out + told.err).count("what was committed in between is not") == 1
    # From now on it is this one's.
    receiver.drop()
    receiver.psql("insert into t values (4)")
    receiver.make()
    assert "dropped and created again" in str(receiver.refused().detail)


def test_slots_of_another_kind_are_refused(
    pg18: Database, database: Callable[[int], Database], tmp_path: Path
) -> None:
    receiver = Receiver(
        tmp_path / "node", pg18.conninfo(), pg18.psql, f"kind_{pg18.name}"
    )
    receiver.run("insert into t values (1)")
    receiver.drop()
    pg18.psql(f"select pg_create_physical_replication_slot('{receiver.slot}')")
    assert receiver.refused().message == (
        "cannot use physical replication slot for logical decoding"
    )
    receiver.drop()
    other = database(18)
    other.psql(
        f"select pg_create_logical_replication_slot('{receiver.slot}', 'pgoutput')"
    )
    error = receiver.refused()
    assert error.message == (
        f'replication slot "{receiver.slot}" was not created in this database'
    )
    assert other.name in str(error.detail)
    receiver.drop()


@pytest.mark.parametrize("version", [16, 18])
def test_a_slot_that_lost_its_wal_is_an_error_in_postgresqls_words(
    tmp_path: Path, version: int
) -> None:
    settings = {"max_slot_wal_keep_size": "1MB", "min_wal_size": "32MB"}
    with PostgresServer(version, settings=settings) as server:
        receiver = Receiver(tmp_path / "node", server.conninfo(), server.psql)
        receiver.run("insert into t values (1)")
        wait_until(lambda: receiver._facts("not active") == "t")

        def lost() -> bool:
            server.psql(
                "insert into t select coalesce(max(id), 0) + 1 from t;"
                " select pg_switch_wal(); checkpoint"
            )
            return receiver._facts("wal_status") == "lost"

        wait_until(lost, describe="the slot has lost its WAL")
        error = receiver.refused()
        assert (error.sqlstate, error.message, error.detail) == (
            "55000",
            'can no longer access replication slot "s"',
            'This replication slot has been invalidated due to "wal_removed".',
        )
        assert "REFRESH PUBLICATION WITH (recopy = true)" in str(error.hint)
