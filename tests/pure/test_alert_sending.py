"""Senders of alerts: their threads, their ledgers' files, and which of several is at work."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs
from tests.fakes.facts import NODE
from tests.fakes.web import WebProcess
from tests.pure.test_alerts import problem

from wal2lake.settings import FILE_NAME, Settings
from wal2lake.settings.sections import AlertSettings
from wal2lake.testing.tied import tied
from wal2lake.testing.waits import wait_until
from wal2lake.web.alerts import Alerts, sending
from wal2lake.web.alerts.channels import DeliveryError
from wal2lake.web.alerts.ledgerfile import LedgerFile
from wal2lake.web.alerts.sending import Sender


class _Noting:
    """A channel that keeps the alerts."""

    name = "noting"

    def __init__(self) -> None:
        self.taken: list[str] = []
        self.bodies: list[Any] = []
        self.error: BaseException | None = None
        """Raised by the next delivery, after it has taken the alert."""

    def deliver(self, text: str, facts: Mapping[str, str]) -> None:
        text.encode()
        self.taken.append(f"{facts['id']}-{facts['event']}")
        self.bodies.append(json.loads(text))
        if self.error is not None:
            error, self.error = self.error, None
            raise error

    def subjects(self, event: str) -> list[str]:
        return [
            body["problem"]["subject"] for body in self.bodies if body["event"] == event
        ]


def send_all(sender: Sender) -> None:
    while sender.send_next():
        pass


def file_of(directory: Path) -> Path:
    return directory / "alerts-noting.json"


def stages(directory: Path) -> list[tuple[str, str]]:
    entries = json.loads(file_of(directory).read_text())["entries"]
    return [(entry["problem"]["subject"], entry["stage"]) for entry in entries]


def test_a_sender_retries_and_a_restart_repeats_nothing(tmp_path: Path) -> None:
    channel = _Noting()
    channel.error = DeliveryError("no")
    sender = Sender(channel, tmp_path, 0)
    sender.start()
    sender.observe(NODE, [problem("a")])
    wait_until(lambda: len(channel.taken) == 2, describe="the begin, twice")
    wait_until(lambda: stages(tmp_path) == [("a", "announced")])
    sender.stop()
    again = Sender(channel, tmp_path, 0)
    again.start()
    again.observe(NODE, [problem("a")])
    again.observe(NODE, [])
    wait_until(lambda: len(channel.taken) >= 3, describe="the end")
    again.stop()
    _, begin, end = channel.bodies
    assert (begin["event"], end["event"]) == ("begin", "end")
    assert begin["id"] == end["id"]
    assert begin["node"]["port"] == 5480
    assert begin["problem"]["message"] == "the disk of a is nearly full"
    assert begin["problem"]["remedy"] == "VACUUM"
    assert end["ended_at"] is not None


class _Killed(BaseException):
    """The process ends here."""


def kill(sender: Sender) -> None:
    """Leave the file as a kill does: the kernel releases the lock, nobody writes."""
    sender._file.release()


def test_an_alert_is_on_record_before_it_is_sent(tmp_path: Path) -> None:
    channel = _Noting()
    channel.error = _Killed()
    killed = Sender(channel, tmp_path, 0)
    killed.observe(NODE, [problem("a")])
    with pytest.raises(_Killed):
        killed.send_next()
    kill(killed)
    again = Sender(channel, tmp_path, 0)
    again.observe(NODE, [])
    again.observe(NODE, [problem("a")])
    assert again.send_next()
    assert channel.taken[0] == channel.taken[1]
    again.observe(NODE, [])
    assert again.send_next()
    assert channel.taken[2] == channel.taken[0].replace("begin", "end")
    assert not again.send_next()


def test_a_second_sender_waits_until_the_first_one_has_ended(tmp_path: Path) -> None:
    serving, channel = _Noting(), _Noting()
    first, second = Sender(serving, tmp_path, 0), Sender(channel, tmp_path, 0)
    for sender in (first, second):
        sender.observe(NODE, [problem("a")])
        send_all(sender)
    # The second one fails here; the first one still serves.
    kill(second)
    first.observe(NODE, [problem("a"), problem("b")])
    second.observe(NODE, [problem("a"), problem("b"), problem("c")])
    send_all(second)
    send_all(first)
    assert serving.subjects("begin") == ["a", "b"] and channel.taken == []
    first.release()
    send_all(second)
    assert channel.subjects("begin") == ["c"]
    second.observe(NODE, [])
    send_all(second)
    assert sorted(channel.subjects("end")) == ["a", "b", "c"]
    assert not first.send_next(), "its successor has the file"


class _Slow(_Noting):
    """A channel that takes an alert when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.began = threading.Event()
        self.goes_on = threading.Event()

    def deliver(self, text: str, facts: Mapping[str, str]) -> None:
        self.began.set()
        assert self.goes_on.wait(60)
        super().deliver(text, facts)


def test_after_a_reload_the_delivery_under_way_is_noted_before_others_are_made(
    tmp_path: Path,
) -> None:
    slow, channel = _Slow(), _Noting()
    stopped, second = Sender(slow, tmp_path, 0), Sender(channel, tmp_path, 0)
    stopped.start()
    stopped.observe(NODE, [problem("a"), problem("b")])
    assert slow.began.wait(60)
    stopped.stop()
    second.observe(NODE, [problem("a"), problem("b"), problem("c")])
    with capture_logs() as logged:
        assert not second.send_next()
    assert channel.taken == [] and logged == [], "it waits for its own process"
    slow.goes_on.set()
    stopped._thread.join(60)
    send_all(second)
    assert (slow.subjects("begin"), channel.subjects("begin")) == (["a"], ["b", "c"])
    assert sorted(stages(tmp_path)) == [(name, "announced") for name in "abc"]


def test_a_look_waits_for_no_channel_and_for_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = _Slow()
    sender = Sender(slow, tmp_path, 0)
    sender.start()
    writing, goes_on = threading.Event(), threading.Event()
    write = LedgerFile.write

    def hanging(file: LedgerFile, entries: Any) -> None:
        writing.set()
        assert goes_on.wait(60)
        write(file, entries)

    monkeypatch.setattr(LedgerFile, "write", hanging)
    sender.observe(NODE, [problem("a")])
    assert writing.wait(60)
    sender.observe(NODE, [problem("a"), problem("b")])
    sender.set_delay(1)
    goes_on.set()
    assert slow.began.wait(60)
    sender.observe(NODE, [])
    sender.stop()
    slow.goes_on.set()
    sender._thread.join(60)
    assert not sender._thread.is_alive()


_HOLDER = """
import sys
from pathlib import Path
from wal2lake.web.alerts.ledgerfile import LedgerFile
file = LedgerFile(Path(sys.argv[1]))
assert file.lock()
file.write(file.read())
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other_process(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the ledger."""
    with subprocess.Popen(
        [sys.executable, "-c", _HOLDER, str(file_of(tmp_path))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_the_log_says_once_which_process_sends_and_a_kill_of_it_ends_that(
    tmp_path: Path, other_process: subprocess.Popen[str]
) -> None:
    channel = _Noting()
    sender = Sender(channel, tmp_path, 0)
    sender.observe(NODE, [problem("a")])
    with capture_logs() as logged:
        for _ in range(3):
            assert not sender.send_next()
    (line,) = logged
    assert line["event"] == (
        f"another process (PID {other_process.pid}) sends alerts by noting"
    )
    assert channel.taken == []
    other_process.kill()
    other_process.wait()
    with capture_logs() as logged:
        send_all(sender)
    assert [line["event"] for line in logged] == [
        "this process now sends alerts by noting"
    ]
    assert channel.subjects("begin") == ["a"]


def announced(directory: Path, *subjects: str) -> None:
    """Leave a ledger in which problems have been announced."""
    sender = Sender(_Noting(), directory, 0)
    sender.observe(NODE, map(problem, subjects))
    send_all(sender)
    sender.release()


@pytest.mark.parametrize("number", [errno.EIO, errno.EMFILE, errno.EACCES])
def test_a_ledger_that_cannot_be_read_is_not_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    announced(tmp_path, "a", "b")
    channel = _Noting()
    sender = Sender(channel, tmp_path, 0)
    sender.observe(NODE, [problem("a"), problem("c")])

    def failing(path: Path) -> bytes:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as patched, capture_logs() as logged:
        patched.setattr(Path, "read_bytes", failing)
        for _ in range(3):
            assert not sender.send_next()
    (line,) = logged
    assert f'could not read file "{file_of(tmp_path)}"' in str(line["error"])
    assert channel.taken == []
    send_all(sender)
    assert channel.subjects("begin") == ["c"] and channel.subjects("end") == ["b"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"null",
        b'{"owner": 7}',
        b"\xff",
        b"[" * 100_000,
        b'{"owner": 7, "entries": ["x"]}',
        b'{"owner": 7, "entries": [{"id": 1}]}',
    ],
)
def test_what_is_no_ledger_is_set_aside(tmp_path: Path, content: bytes) -> None:
    file_of(tmp_path).write_bytes(content)
    channel = _Noting()
    sender = Sender(channel, tmp_path, 0)
    sender.observe(NODE, [problem("a")])
    with capture_logs() as logged:
        send_all(sender)
    assert [line["event"] for line in logged] == [
        f'invalid data in file "{file_of(tmp_path)}"'
    ]
    aside = tmp_path / "alerts-noting.json.broken"
    assert str(aside) in logged[0]["detail"] and aside.read_bytes() == content
    assert channel.subjects("begin") == ["a"]
    assert stages(tmp_path) == [("a", "announced")]


def test_a_time_without_a_zone_is_no_ledgers(tmp_path: Path) -> None:
    announced(tmp_path, "a")
    content = file_of(tmp_path).read_text()
    file_of(tmp_path).write_text(content.replace("+00:00", ""))
    channel = _Noting()
    sender = Sender(channel, tmp_path, 0)
    sender.observe(NODE, [])
    send_all(sender)
    assert (tmp_path / "alerts-noting.json.broken").exists()


@pytest.mark.parametrize("with_stages", [True, False])
@pytest.mark.parametrize("with_owner", [True, False])
def test_ledgers_of_earlier_versions_are_read(
    tmp_path: Path, with_stages: bool, with_owner: bool
) -> None:
    announced(tmp_path, "a", "b")
    content = json.loads(file_of(tmp_path).read_text())
    if not with_stages:
        for entry in content["entries"]:
            del entry["stage"]
    content["owner"] = "0d1c7f44-6f0e-4c7c-bb34-2c9f2f3f9c11"
    earlier = content if with_owner else content["entries"]
    file_of(tmp_path).write_text(json.dumps(earlier))
    channel = _Noting()
    sender = Sender(channel, tmp_path, 0)
    sender.observe(NODE, [problem("a")])
    send_all(sender)
    assert channel.subjects("begin") == [] and channel.subjects("end") == ["b"]


def test_a_full_disk_keeps_what_the_ledger_has_and_keeps_no_alert_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    announced(tmp_path, "a")
    channel = _Noting()
    sender = Sender(channel, tmp_path, 0)
    sender.observe(NODE, [problem("a"), problem("b")])

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched, capture_logs() as logged:
        patched.setattr(os, "fsync", full)
        send_all(sender)
        send_all(sender)
    assert channel.subjects("begin") == ["b"]
    (line,) = logged
    assert "No space left on device" in str(line["error"])
    assert stages(tmp_path) == [("a", "announced")]
    assert not sender.send_next()
    assert stages(tmp_path) == [("a", "announced"), ("b", "announced")]


def test_without_a_lock_nothing_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    channel = _Noting()
    sender = Sender(channel, tmp_path / "missing", 0)
    sender.observe(NODE, [problem("a")])
    assert not sender.send_next() and channel.taken == []
    (tmp_path / "missing").mkdir()
    assert sender.send_next()


def test_a_bug_of_a_channel_is_a_failure_of_one_delivery(tmp_path: Path) -> None:
    channel = _Noting()
    channel.error = ZeroDivisionError()
    sender = Sender(channel, tmp_path, 0)
    sender.observe(NODE, [problem("a"), problem("b")])
    with capture_logs() as logged:
        assert not sender.send_next()
        assert sender.send_next()
    assert [line["event"] for line in logged] == ["could not send an alert"]
    assert channel.subjects("begin") == ["a", "b"]


def test_a_bug_does_not_end_the_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_LOOK_SECONDS", 0.01)
    channel = _Noting()
    sender = Sender(channel, tmp_path, 0)
    rounds = [0]
    send_next = Sender.send_next

    def failing(one: Sender) -> bool:
        rounds[0] += 1
        if rounds[0] <= 3:
            raise ZeroDivisionError
        return send_next(one)

    monkeypatch.setattr(Sender, "send_next", failing)
    sender.start()
    sender.observe(NODE, [problem("a")])
    wait_until(lambda: channel.taken, describe="the begin")
    sender.stop()


class _Refusing(_Noting):
    """A channel that accepts nothing."""

    def deliver(self, text: str, facts: Mapping[str, str]) -> None:
        super().deliver(text, facts)
        raise DeliveryError("no")


def test_a_channel_that_refuses_is_left_in_peace_however_many_alerts_are_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "_LOOK_SECONDS", 0.01)
    channel = _Refusing()
    sender = Sender(channel, tmp_path, 0)
    began = time.monotonic()
    sender.start()
    sender.observe(NODE, map(problem, "abcdefghijkl"))
    wait_until(lambda: len(channel.taken) >= 3)
    sender.stop()
    sender._thread.join(60)
    # After pauses of 1, 2 ... seconds; without them, all twelve in a moment.
    assert time.monotonic() - began >= 2 ** (len(channel.taken) - 1) - 1


def test_a_path_that_is_not_utf_8_keeps_no_alert_back(tmp_path: Path) -> None:
    channel = _Noting()
    sender = Sender(channel, tmp_path, 0)
    node = replace(NODE, directory=os.fsdecode(b"/srv/\xff"))
    sender.observe(node, [problem(os.fsdecode(b"/lake/\xfe"))])
    assert sender.send_next()
    assert channel.bodies[0]["node"]["directory"] == "/srv/?"
    assert channel.subjects("begin") == ["/lake/?"]


def of_alerts(directory: Path, command: str) -> Settings:
    (directory / "run").mkdir(exist_ok=True)
    alerts = AlertSettings(command=command, delay_ms=0)
    return Settings(directory, alerts=alerts)


def test_alerts_touch_nothing_before_their_process_serves(tmp_path: Path) -> None:
    alerts = Alerts(of_alerts(tmp_path, "cat"))
    alerts.observe(NODE, [problem("a")])
    assert list((tmp_path / "run").iterdir()) == []
    alerts.start()
    file = tmp_path / "run/alerts-command.json"
    wait_until(lambda: file.exists() and "announced" in file.read_text())
    alerts.stop()


def test_a_reload_replaces_a_sender_whose_thread_has_ended(tmp_path: Path) -> None:
    said = tmp_path / "said"
    settings = of_alerts(tmp_path, f"cat >> {said}; echo >> {said}")
    alerts = Alerts(settings)
    alerts.start()
    (first,) = alerts._senders
    alerts.reload(settings)
    alerts.start()
    assert alerts._senders == [first], "it goes on"
    first.stop()
    first._thread.join(60)
    alerts.reload(settings)
    alerts.start()
    alerts.observe(NODE, [problem("a")])
    wait_until(lambda: said.exists() and said.read_text().count("\n") == 1)
    alerts.stop()


@pytest.mark.slow
def test_of_two_web_processes_the_first_one_sends_and_the_other_one_takes_over(
    tmp_path: Path,
) -> None:
    said = tmp_path / "said"
    node = tmp_path / "node"
    web = WebProcess(
        node,
        web__listen="",
        alerts__command=f"cat >> {said}; echo >> {said}",
        alerts__delay_ms=0,
    )
    log = tmp_path / "log"

    def told(kind: str) -> list[str]:
        lines = said.read_text().splitlines() if said.exists() else []
        alerts = map(json.loads, lines)
        return [one["event"] for one in alerts if one["problem"]["kind"] == kind]

    with log.open("wb") as stream:
        web.start(wait=False)
        wait_until(lambda: told("stopped"), describe=web.log_text)
        assert web.process is not None
        first = web.process.pid
        second = subprocess.Popen(
            tied(sys.executable, "-m", "wal2lake.web", "-D", str(node)), stderr=stream
        )
        try:
            wait_until(
                lambda: f"(PID {first}) sends alerts by command" in log.read_text(),
                describe=log.read_text,
            )
            settings = (node / FILE_NAME).read_text()
            (node / FILE_NAME).write_text("nonsense")
            wait_until(lambda: told("settings"), describe=log.read_text)
            web.close()
            (node / FILE_NAME).write_text(settings)
            wait_until(lambda: len(told("settings")) > 1, describe=log.read_text)
        finally:
            web.close()
            second.kill()
            second.wait()
    assert told("settings") == ["begin", "end"]
    assert told("stopped") == ["begin"]


@pytest.mark.slow
def test_a_web_process_that_does_not_come_to_serve_takes_no_ledger(
    tmp_path: Path,
) -> None:
    web = WebProcess(tmp_path / "node", alerts__command="cat")
    (web.directory / "catalog.sqlite").write_bytes(b"no catalog" * 1000)
    web.start(wait=False)
    assert web.process is not None
    assert web.process.wait(60) == 1, web.log_text()
    assert not list((web.directory / "run").glob("*alerts*"))
