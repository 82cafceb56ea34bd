"""The receiver's process: what it says of the error that ends it, and whom that disables."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.publisher import inserts, payloads
from tests.fakes.receiver import SUBSCRIPTION, Receiver
from tests.fakes.walsender import FakeWalsender, Scripted

from wal2lake.catalog import WorkerKind
from wal2lake.changelog import ChangeLog
from wal2lake.errors import CorruptLogError, LogInUseError, PublisherError
from wal2lake.receive import __main__ as module
from wal2lake.receive import walreceiver
from wal2lake.receive.threads.logwriter import LogWriter
from wal2lake.receive.walreceiver import WalReceiver
from wal2lake.wire.frontback import Diagnostic, ErrorResponse

pytestmark = pytest.mark.usefixtures("no_fsync")

ONE = inserts(100, 3)
SCRIPT = [Scripted(ONE.end_lsn, tuple(payloads(ONE)))]


@pytest.fixture
def publisher() -> Iterator[FakeWalsender]:
    with FakeWalsender([SCRIPT]) as one:
        yield one


@pytest.fixture
def receiver(publisher: FakeWalsender, tmp_path: Path) -> Receiver:
    one = Receiver(tmp_path, publisher)
    one.catalog.set_options(SUBSCRIPTION, {"disable_on_error": "true"})
    (tmp_path / "wal2lake.toml").write_text("[log]\nsegment_interval_ms = 10\n")
    return one


@pytest.fixture(autouse=True)
def as_it_was(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """It sets up a process of its own; this one goes on."""
    monkeypatch.setattr(module, "configure", lambda process: None)
    monkeypatch.setattr(module, "limit_connecting", lambda milliseconds: None)
    handlers = {n: signal.getsignal(n) for n in (signal.SIGTERM, signal.SIGINT)}
    interval = sys.getswitchinterval()
    yield
    sys.setswitchinterval(interval)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def run(receiver: Receiver) -> str:
    """The error of a process that ends with 1."""
    directory = str(receiver.settings.directory)
    assert module.main(["-D", directory, "--subscription", str(SUBSCRIPTION)]) == 1
    (noted,) = receiver.catalog.errors()
    assert noted.worker is WorkerKind.RECEIVER
    return noted.error


def enabled(receiver: Receiver) -> bool:
    found = receiver.catalog.subscription(SUBSCRIPTION)
    assert found is not None
    return found.enabled


def fail(error: BaseException) -> Any:
    def failing(*_: object, **__: object) -> None:
        raise error

    return failing


def test_an_error_while_it_streams_disables_who_asks_for_it(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WalReceiver, "_read", fail(CorruptLogError("rotten")))
    assert run(receiver) == "rotten"
    assert not enabled(receiver)


def test_what_may_pass_while_it_streams_disables_nobody(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(WalReceiver, "_read", fail(PublisherError("gone")))
    assert run(receiver) == "gone"
    assert enabled(receiver)


@pytest.mark.parametrize(
    ("severity", "sqlstate", "stays"),
    [
        # Before PostgreSQL 18; it comes again at the same place of the WAL.
        ("ERROR", "42704", False),
        ("ERROR", "58P01", False),
        ("ERROR", "53100", True),
        ("ERROR", "57014", True),
        ("FATAL", "XX000", True),
        ("FATAL", "57P01", True),
    ],
)
def test_an_error_that_the_publisher_ends_the_stream_with_disables_if_it_lasts(
    receiver: Receiver,
    publisher: FakeWalsender,
    severity: str,
    sqlstate: str,
    stays: bool,
) -> None:
    publisher.failure = ErrorResponse(Diagnostic(severity, sqlstate, "cannot go on"))
    assert "cannot go on" in run(receiver)
    assert receiver.catalog.errors()[0].sqlstate == sqlstate
    assert enabled(receiver) == stays


def test_an_error_before_it_streams_disables_nobody(receiver: Receiver) -> None:
    receiver.catalog.update_subscription(
        SUBSCRIPTION, system_identifier="another", timeline=1
    )
    assert "different system identifier" in run(receiver)
    assert enabled(receiver)


def test_a_log_that_another_process_has_disables_nobody(receiver: Receiver) -> None:
    log = ChangeLog.open(receiver.log)
    assert "is in use by another process" in run(receiver)
    assert enabled(receiver)
    log.close()


@pytest.mark.parametrize("streams", [False, True])
def test_a_bug_is_told_in_sql_and_its_traceback_in_the_log(
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    streams: bool,
) -> None:
    where, name = (WalReceiver, "_read") if streams else (ChangeLog, "open")
    monkeypatch.setattr(where, name, fail(ValueError("boom")))
    assert run(receiver) == "internal error\nHINT:  The server log has the details."
    told = capsys.readouterr()
    assert "Traceback" in told.out + told.err
    assert "ValueError: boom" in told.out + told.err
    assert enabled(receiver) is not streams


def test_a_log_that_a_thread_still_writes_is_left_to_the_end_of_the_process(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An fsync may hang. Closed under its thread, the journal's descriptor could be another
    file's by the time it returns, the catalog's for one."""
    over, begun = threading.Event(), threading.Event()

    def hang(self: LogWriter) -> None:
        begun.set()
        assert over.wait(60)

    def read(*_: object) -> None:
        assert begun.wait(60)
        raise PublisherError("gone")

    monkeypatch.setattr(walreceiver, "_JOIN_SECONDS", 0.1, raising=False)
    monkeypatch.setattr(LogWriter, "work", hang)
    monkeypatch.setattr(WalReceiver, "_read", read)
    closed: list[ChangeLog] = []
    close = ChangeLog.close
    monkeypatch.setattr(ChangeLog, "close", lambda log: closed.append(log))
    try:
        assert run(receiver) == "gone"
        assert closed == []
        with pytest.raises(LogInUseError):
            ChangeLog.open(receiver.log)
    finally:
        over.set()
    monkeypatch.undo()
    for one in closed:
        close(one)
