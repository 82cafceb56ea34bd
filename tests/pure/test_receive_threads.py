"""What stands beside the reader: none of it makes the reader wait."""

from __future__ import annotations

import gc
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.publisher import gulp, inserts, payloads

from wal2lake.catalog import WorkerKind
from wal2lake.changelog import ChangeLog
from wal2lake.errors import PublisherError, StorageError
from wal2lake.model import Lsn, Oid
from wal2lake.receive.gulps import Gulp
from wal2lake.receive.threads import verifier as module
from wal2lake.receive.threads.logwriter import LogWriter
from wal2lake.receive.threads.pauses import Pauses
from wal2lake.receive.threads.verifier import PositionVerifier
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.usefixtures("no_fsync")


class Server:
    """What the verifier connects to: its flush position, and what goes wrong with it."""

    def __init__(self) -> None:
        self.position = Lsn(1000)
        self.connections = 0
        self.questions = 0
        self.refusing = False
        self.cut = False
        self.answering = threading.Event()
        self.answering.set()
        self.recorded: list[Lsn] = []
        self.disk_full = False
        self.woken = 0

    def connect(self) -> Any:
        self.connections += 1
        if self.refusing:
            raise PublisherError("sorry, too many clients already", sqlstate="53300")
        self.cut = False
        return SimpleNamespace(value=self._value, close=lambda: None)

    def _value(self, sql: str) -> str:
        assert "flush_lsn" in sql
        self.questions += 1
        assert self.answering.wait(30)
        if self.cut:
            raise PublisherError("server closed the connection unexpectedly")
        return str(self.position)

    def record(self, position: Lsn) -> None:
        if self.disk_full:
            raise StorageError("no space")
        self.recorded.append(position)

    def wake(self) -> None:
        self.woken += 1


@contextmanager
def verifying(server: Server, retry: float = 0.05) -> Iterator[PositionVerifier]:
    one = PositionVerifier(
        server.connect,
        server.record,
        server.wake,
        verified=Lsn(500),
        retry_interval_seconds=retry,
        subscription="s",
    )
    one.start()
    try:
        yield one
    finally:
        server.answering.set()
        assert not one.stop().is_alive()


def reached(one: PositionVerifier, position: int) -> None:
    wait_until(lambda: one.position == position, describe=f"{position} is verified")


def test_nothing_is_asked_of_the_server_until_a_keepalive_passes_what_is_known() -> (
    None
):
    server = Server()
    with verifying(server) as one:
        one.request(Lsn(500))
        one.request(Lsn(900))
        reached(one, 1000)
        assert server.recorded == [1000]
        wait_until(lambda: server.woken == 1)
        one.request(Lsn(1000))
        server.position = Lsn(2000)
        one.request(Lsn(1500))
        reached(one, 2000)
    assert (server.connections, server.questions) == (1, 2)


def test_who_asks_never_waits_for_the_server() -> None:
    server = Server()
    server.answering.clear()
    with verifying(server) as one:
        one.request(Lsn(900))
        wait_until(lambda: server.questions == 1)
        # The server hangs with the first question; these return.
        one.request(Lsn(950))
        assert one.position == 500
        server.answering.set()
        reached(one, 1000)


def test_a_refused_connection_is_tried_at_the_retry_interval_and_told_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = Server()
    server.refusing = True
    with verifying(server, retry=0.2) as one:
        for _ in range(200):
            one.request(Lsn(900))
        wait_until(lambda: server.connections == 3)
        for position in range(901, 950):
            one.request(Lsn(position))
        assert server.connections == 3, "no sooner for being asked again"
        assert one.position == 500
        server.refusing = False
        reached(one, 1000)
    told = capsys.readouterr()
    assert (told.out + told.err).count("could not verify the publisher's position") == 1


def test_a_session_that_was_cut_off_is_replaced_at_once_and_untold(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = Server()
    with verifying(server, retry=60.0) as one:
        one.request(Lsn(900))
        reached(one, 1000)
        server.cut, server.position = True, Lsn(2000)
        one.request(Lsn(1500))
        reached(one, 2000)
    assert server.connections == 2
    told = capsys.readouterr()
    assert "could not verify" not in told.out + told.err


def test_a_position_that_cannot_be_recorded_is_not_verified() -> None:
    server = Server()
    server.disk_full = True
    with verifying(server) as one:
        one.request(Lsn(900))
        wait_until(lambda: server.questions >= 2)
        assert one.position == 500
        assert server.woken == 0
        server.disk_full = False
        reached(one, 1000)


def test_a_full_disk_is_told_as_such_and_costs_the_publisher_no_connection(
    capsys: pytest.CaptureFixture[str],
) -> None:
    server = Server()
    with verifying(server) as one:
        one.request(Lsn(900))
        reached(one, 1000)
        server.disk_full, server.position = True, Lsn(2000)
        one.request(Lsn(1500))
        wait_until(lambda: server.questions >= 4)
        assert one.position == 1000
        server.disk_full = False
        reached(one, 2000)
    assert server.connections == 1
    told = capsys.readouterr()
    assert (told.out + told.err).count("could not record the publisher's position") == 1
    assert "could not verify" not in told.out + told.err


def test_a_keepalive_that_lies_is_not_asked_about_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_NOT_THERE_SECONDS", 60.0)
    server = Server()
    with verifying(server) as one:
        one.request(Lsn(5000))
        reached(one, 1000)
        for _ in range(100):
            one.request(Lsn(5000))
        assert server.questions == 1


def test_what_waits_for_the_disk_is_counted_by_the_reader_alone(tmp_path: Path) -> None:
    """Two threads once changed one number; a lost subtraction would have stopped the
    reader for good."""
    catalog: Any = SimpleNamespace(note_error=lambda oid, worker, text, _=None: None)
    log = ChangeLog.open(tmp_path)
    log.connected(Lsn(0))
    pauses, stop = Pauses(catalog, Oid(1)), threading.Event()
    woken = threading.Event()
    writer = LogWriter(log, pauses, stop=stop, wake=woken.set)
    changed: list[str] = []

    class Watched(LogWriter):
        __slots__ = ()

        def __setattr__(self, name: str, value: object) -> None:
            changed.append(f"{name} by {threading.current_thread().name}")
            super().__setattr__(name, value)

    writer.__class__ = Watched
    thread = threading.Thread(target=writer.work, name="journal")
    thread.start()
    data, lengths = gulp(payloads(inserts(100, 3)))
    writer.put(Gulp(data, lengths, open_at_end=False))
    assert woken.wait(30)
    assert [int(one.lsn) for one in writer.collect()] == [108]
    writer.end()
    thread.join(30)
    assert not thread.is_alive()
    log.close()
    assert changed
    assert not [one for one in changed if one.endswith("by journal")]


def test_no_gulp_is_held_while_the_next_is_waited_for(tmp_path: Path) -> None:
    """One value may be of 256 MiB."""
    catalog: Any = SimpleNamespace(note_error=lambda oid, worker, text, _=None: None)
    log = ChangeLog.open(tmp_path)
    log.connected(Lsn(0))
    written = threading.Event()
    pauses, stop = Pauses(catalog, Oid(1)), threading.Event()
    writer = LogWriter(log, pauses, stop=stop, wake=written.set)
    thread = threading.Thread(target=writer.work)
    thread.start()
    data, lengths = gulp(payloads(inserts(100, 3)))
    mine = sys.getrefcount(data)
    writer.put(Gulp(data, lengths, open_at_end=False))
    assert written.wait(30)
    assert len(list(writer.collect())) == 1
    assert log.absorb(30), "the beginning of the connection"
    # All of its time is waited for more.
    wait_until(lambda: log.absorb(0.01))
    wait_until(
        lambda: sys.getrefcount(data) == mine,
        describe=lambda: f"held by {gc.get_referrers(data)}",
    )
    writer.end()
    thread.join(30)
    log.close()


def test_gulps_that_waited_are_asked_about_at_once(tmp_path: Path) -> None:
    """Each question costs a connection to the publisher, and the journal waits for it."""
    catalog: Any = SimpleNamespace(note_error=lambda oid, worker, text, _=None: None)
    log = ChangeLog.open(tmp_path)
    log.connected(Lsn(0))
    pauses, stop = Pauses(catalog, Oid(1)), threading.Event()
    asked: list[tuple[int, bool]] = []
    writer = LogWriter(
        log,
        pauses,
        stop=stop,
        wake=lambda: None,
        before=lambda one: asked.append((len(one.lengths), one.open_at_end)),
    )
    for at in (100, 200, 300):
        data, lengths = gulp(payloads(inserts(at, 3)))
        writer.put(Gulp(data, lengths, open_at_end=at == 300))
    writer.end()
    writer.work()
    assert asked == [(3 * len(lengths), True)]
    assert [int(one.lsn) for one in writer.collect()] == [308, 308, 308]
    log.close()


def test_the_reader_stops_at_the_bound_and_goes_on_below_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("wal2lake.receive.threads.logwriter._QUEUE_BYTES", 500)
    catalog: Any = SimpleNamespace(note_error=lambda oid, worker, text, _=None: None)
    log = ChangeLog.open(tmp_path)
    log.connected(Lsn(0))
    stop = threading.Event()
    writer = LogWriter(log, Pauses(catalog, Oid(1)), stop=stop, wake=lambda: None)
    assert not writer.is_full
    data, lengths = gulp(payloads(inserts(100, 10)))
    assert len(data) > 500
    writer.put(Gulp(data, lengths, open_at_end=False))
    assert writer.is_full
    thread = threading.Thread(target=writer.work)
    thread.start()
    found: list[Any] = []
    collect: Callable[[], object] = lambda: found.extend(writer.collect())  # noqa: E731
    wait_until(lambda: [collect(), found][1])
    assert not writer.is_full
    writer.end()
    thread.join(30)
    log.close()


class BrokenObserver:
    """Measurements that fail from the chosen call on."""

    def __init__(self, failing: str) -> None:
        self._failing = failing
        self.calls: list[str] = []

    def begin(self) -> None:
        self._call("begin")

    def logging(self, data: bytes, lengths: object) -> None:
        self._call("logging")

    def durable(self) -> None:
        self._call("durable")

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name == self._failing:
            raise ValueError("a bug")


@pytest.mark.parametrize("failing", ["begin", "logging", "durable"])
def test_measurements_that_fail_do_not_stop_the_log(
    tmp_path: Path, failing: str
) -> None:
    catalog: Any = SimpleNamespace(note_error=lambda oid, worker, text, _=None: None)
    log = ChangeLog.open(tmp_path)
    log.connected(Lsn(0))
    observer = BrokenObserver(failing)
    writer = LogWriter(
        log,
        Pauses(catalog, Oid(1)),
        stop=threading.Event(),
        wake=lambda: None,
        observer=observer,
    )
    for first in (100, 200):
        data, lengths = gulp(payloads(inserts(first, 3)))
        writer.put(Gulp(data, lengths, open_at_end=False))
    writer.end()
    writer.work()
    assert len(list(writer.collect())) == 2
    assert observer.calls[-1] == failing
    log.close()


class Notes:
    """The catalog's errors of a receiver, on a disk that may be full."""

    def __init__(self) -> None:
        self.error: str | None = "an older one"
        self.full = False

    def note_error(
        self, oid: Oid, worker: WorkerKind, text: str | None, _: str | None = None
    ) -> None:
        if not self.full:
            self.error = text
        elif text is None:
            raise StorageError("no space")


def pauses_on(notes: Notes) -> Pauses:
    catalog: Any = notes
    return Pauses(catalog, Oid(1))


def test_an_error_that_cannot_be_cleared_does_not_stop_what_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "wal2lake.receive.threads.logwriter.STORAGE_RETRY_SECONDS", 0.01
    )
    notes = Notes()
    pauses = pauses_on(notes)
    log = ChangeLog.open(tmp_path)
    log.connected(Lsn(0))
    refused: list[bool] = []
    append, sync = log.append, log.sync

    def full_once(data: bytes, lengths: Any) -> None:
        if not refused:
            refused.append(True)
            raise StorageError("no space")
        notes.full = True
        append(data, lengths)

    def told_before_it_is_durable() -> Lsn:
        assert pauses, "the pause ends with what is durable, not before"
        return sync()

    monkeypatch.setattr(log, "append", full_once)
    monkeypatch.setattr(log, "sync", told_before_it_is_durable)
    writer = LogWriter(log, pauses, stop=threading.Event(), wake=lambda: None)
    data, lengths = gulp(payloads(inserts(100, 3)))
    writer.put(Gulp(data, lengths, open_at_end=False))
    writer.end()
    writer.work()
    assert [int(one.lsn) for one in writer.collect()] == [108]
    assert not pauses
    assert notes.error == "no space", "as long as it cannot be written"
    pauses.settle()
    notes.full = False
    pauses.settle()
    assert notes.error is None
    log.close()


def test_what_is_noted_last_is_what_holds_when_there_is_space_again(
    capsys: pytest.CaptureFixture[str],
) -> None:
    notes = Notes()
    pauses = pauses_on(notes)
    pauses.settle()
    assert notes.error == "an older one", "nothing is owed"
    notes.full = True
    for _ in range(3):
        pauses.record()
    told = capsys.readouterr()
    assert (told.out + told.err).count("could not clear an error") == 1
    notes.full = False
    pauses.begin("the log is full", StorageError("no space"))
    assert notes.error == "no space"
    pauses.settle()
    assert notes.error == "no space"
    pauses.end("the log is full")
    assert notes.error is None
