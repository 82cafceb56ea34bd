"""Alerts: one when a problem begins, one when it ends, each once; webhooks and commands."""

from __future__ import annotations

import http.server
import json
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.fakes.facts import NODE

from wal2lake.health import Concern, Problem, Severity
from wal2lake.testing.waits import wait_until
from wal2lake.web.alerts.channels import Command, DeliveryError, Webhook
from wal2lake.web.alerts.ledger import AlertLedger
from wal2lake.web.alerts.sending import Sender

START = datetime(2026, 1, 1, tzinfo=UTC)


def problem(subject: str) -> Problem:
    return Problem(
        "disk",
        Severity.WARNING,
        f"the disk of {subject} is nearly full",
        Concern.OPERATOR,
        since=START,
        subject=subject,
        remedy="VACUUM",
    )


STEPS = st.lists(
    st.one_of(
        st.frozensets(st.sampled_from("abc")).map(lambda names: ("look", names)),
        st.just(("sent", None)),
        st.just(("failed", None)),
        st.just(("restart", None)),
    ),
    max_size=40,
)


@given(STEPS)
def test_begins_and_ends_alternate_and_none_is_lost(
    steps: Sequence[tuple[str, Any]],
) -> None:
    ledger, now = AlertLedger(5), START
    told: dict[str, list[tuple[str, str]]] = {}

    def send() -> bool:
        alert = ledger.due(now)
        if alert is None:
            return False
        subject = str(alert.problem["subject"])
        told.setdefault(subject, []).append((alert.event, alert.id))
        ledger.sent(alert, now)
        return True

    names: frozenset[str] = frozenset()
    for what, value in steps:
        now += timedelta(seconds=6)
        if what == "look":
            names = value
            ledger.observe(map(problem, sorted(names)), now)
        elif what == "sent":
            send()
        elif what == "failed":
            failing = ledger.due(now)
            if failing is not None:
                ledger.failed(failing, now)
                again = ledger.due(now)
                assert again is None or again.id != failing.id
        else:
            content = json.loads(json.dumps(ledger.to_json()))
            ledger = AlertLedger(5)
            ledger.restore(content)
    for _ in range(3):
        ledger.observe(map(problem, sorted(names)), now)
        now += timedelta(seconds=400)
        while send():
            pass
    for subject, events in told.items():
        kinds = [event for event, _ in events]
        assert kinds == ["begin", "end"] * (len(kinds) // 2) + ["begin"] * (
            len(kinds) % 2
        )
        ids = [id_ for _, id_ in events]
        assert ids[0::2][: len(ids) // 2] == ids[1::2]
        assert len(set(ids[0::2])) == len(ids[0::2])
        assert (kinds[-1] == "begin") is (subject in names)
    assert set(names) <= set(told)


def test_a_problem_that_flickers_says_nothing() -> None:
    ledger = AlertLedger(5)
    for second in range(0, 40, 4):
        now = START + timedelta(seconds=second)
        ledger.observe([problem("a")] if second % 8 == 0 else [], now)
        assert ledger.due(now) is None


def test_a_begin_that_is_accepted_after_the_end_is_followed_by_its_end() -> None:
    ledger = AlertLedger(0)
    ledger.observe([problem("a")], START)
    begin = ledger.due(START)
    assert begin is not None
    ledger.observe([], START)
    ledger.sent(begin, START)
    end = ledger.due(START)
    assert end is not None
    assert (end.event, end.id) == ("end", begin.id)


def test_only_what_a_restart_must_know_is_written() -> None:
    ledger = AlertLedger(0)
    assert not ledger.observe([problem("a")], START), "it is not announced"
    begin = ledger.due(START)
    assert begin is not None
    ledger.sent(begin, START)
    later = replace(problem("a"), message="the disk of a is full")
    assert not ledger.observe([later], START), "the words of a lag change each second"
    assert ledger.observe([], START)
    assert not ledger.observe([], START)
    assert ledger.observe([later], START)


class _Answers(http.server.BaseHTTPRequestHandler):
    """Answers by the path; keeps the bodies."""

    received: list[tuple[dict[str, str], Any]]
    failing = 0

    def do_POST(self) -> None:
        kind = type(self)
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/hang":
            time.sleep(3)
        if self.path == "/redirect":
            self.send_response(302)
            self.send_header("Location", "/ok")
            self.end_headers()
            return
        if kind.failing > 0:
            kind.failing -= 1
            self.send_error(503)
            return
        kind.received.append((dict(self.headers), json.loads(body)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _ignored(request: Any, client_address: Any) -> None:
    """Take the error of a client that has gone."""


@pytest.fixture
def server() -> Iterator[tuple[str, type[_Answers]]]:
    """A web server: its URL and its class."""
    kind = type("Answers", (_Answers,), {"received": [], "failing": 0})
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind) as listening:
        # A client that gives up is part of the tests.
        listening.handle_error = _ignored  # type: ignore[method-assign]
        thread = threading.Thread(target=listening.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{listening.server_port}", kind
        listening.shutdown()
        thread.join()


FACTS = {"id": "7", "event": "begin"}


def test_a_webhook_takes_json_with_a_key_against_doubles(
    server: tuple[str, type[_Answers]],
) -> None:
    url, kind = server
    Webhook(f"{url}/ok").deliver('{"event": "begin"}', FACTS)
    ((headers, body),) = kind.received
    assert body == {"event": "begin"}
    assert headers["Content-Type"] == "application/json"
    assert headers["Idempotency-Key"] == "7-begin"


@pytest.mark.parametrize(
    ("path", "words"),
    [("/redirect", "answers 302"), ("/hang", "timed out"), ("", "answers 503")],
)
def test_a_webhook_that_does_not_accept_is_an_error(
    server: tuple[str, type[_Answers]], path: str, words: str
) -> None:
    url, kind = server
    kind.failing = 1
    with pytest.raises(DeliveryError, match=words) as caught:
        Webhook(f"{url}{path}", timeout_seconds=0.3).deliver("{}", FACTS)
    assert caught.value.hint == ("Check alerts.webhook_url. The alert is sent again.")


def test_a_webhook_that_is_not_there_is_an_error() -> None:
    for url in ("http://127.0.0.1:1/", "http://no.such.host.invalid/"):
        with pytest.raises(DeliveryError, match="webhook cannot be used"):
            Webhook(url, timeout_seconds=1).deliver("{}", FACTS)


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 204 " + b"x" * 70_000,
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_a_webhook_that_does_not_speak_http_is_an_error(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            client, _ = listening.accept()
            with client:
                client.recv(4096)
                client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
        with pytest.raises(DeliveryError, match="webhook cannot be used"):
            Webhook(url, timeout_seconds=5).deliver("{}", FACTS)
        thread.join()


def test_a_command_takes_json_from_its_input(tmp_path: Path) -> None:
    file = tmp_path / "said"
    Command(f'cat > {file}; echo "$WAL2LAKE_ALERT_EVENT" >> {file}').deliver(
        "{}", FACTS
    )
    assert file.read_text() == "{}begin\n"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("echo no way >&2; exit 3", "exit code 3: no way"),
        ("sleep 60 & sleep 60", "took more than 0.3 seconds"),
        ("no-such-command", "exit code 127"),
    ],
)
def test_a_command_that_fails_or_hangs_is_an_error(command: str, words: str) -> None:
    began = time.monotonic()
    with pytest.raises(DeliveryError, match=words) as caught:
        Command(command, timeout_seconds=0.3).deliver("x" * 200_000, FACTS)
    assert caught.value.hint == "Check alerts.command. The alert is sent again."
    assert time.monotonic() - began < 20


def test_what_a_command_leaves_in_the_background_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "sent"
    # As mail does, which returns before its message has gone.
    command = f"(sleep 0.3; touch {file}) >/dev/null 2>&1 &"
    Command(command).deliver("{}", FACTS)
    wait_until(file.exists, describe="the background has ended")


def test_a_sender_retries_and_a_restart_repeats_nothing(
    server: tuple[str, type[_Answers]], tmp_path: Path
) -> None:
    url, kind = server
    kind.failing = 1
    sender = Sender(Webhook(f"{url}/ok"), tmp_path, 0)
    sender.start()
    sender.observe(NODE, [problem("a")])
    wait_until(lambda: kind.received, describe="the begin")
    wait_until(lambda: (tmp_path / "alerts-webhook.json").exists())
    sender.stop()
    again = Sender(Webhook(f"{url}/ok"), tmp_path, 0)
    again.start()
    again.observe(NODE, [problem("a")])
    again.observe(NODE, [])
    wait_until(lambda: len(kind.received) >= 2, describe="the end")
    again.stop()
    begin, end = (body for _, body in kind.received)
    assert (begin["event"], end["event"]) == ("begin", "end")
    assert begin["id"] == end["id"]
    assert begin["node"]["port"] == 5480
    assert begin["problem"]["message"] == "the disk of a is nearly full"
    assert begin["problem"]["remedy"] == "VACUUM"
    assert end["ended_at"] is not None
