"""Alerts: one when a problem begins, one when it ends, each once; webhooks and commands."""

from __future__ import annotations

import contextlib
import http.server
import json
import socket
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal2lake.health import Concern, Problem, Severity
from wal2lake.testing.waits import wait_until
from wal2lake.web.alerts import ledger as ledger_module
from wal2lake.web.alerts.channels import Command, DeliveryError, Webhook
from wal2lake.web.alerts.ledger import Alert, AlertLedger

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
        st.sampled_from(
            [
                ("sent", None),
                ("refused", None),
                ("lost", None),
                ("answer lost", None),
                ("killed before", None),
                ("killed behind", None),
                ("restart", None),
            ]
        ),
    ),
    max_size=40,
)


class _Receiver:
    """The other side: drops what it has already, by id and event."""

    def __init__(self) -> None:
        self.told: dict[str, list[tuple[str, str]]] = {}
        self.doubted: set[str] = set()

    def take(self, alert: Alert) -> None:
        heard = self.told.setdefault(str(alert.problem["subject"]), [])
        if (alert.event, alert.id) not in heard:
            heard.append((alert.event, alert.id))

    def check(self, names: frozenset[str]) -> None:
        """Each problem that is there has begun and not ended; each other one has ended; none has
        begun before the end of the one before."""
        for subject, heard in self.told.items():
            running = None
            for event, id_ in heard:
                if event == "begin":
                    assert running is None
                    running = id_
                else:
                    assert running == id_ or (running is None and id_ in self.doubted)
                    running = None
            assert (running is not None) is (subject in names)
        assert set(names) <= set(self.told)


def reread(ledger: AlertLedger) -> AlertLedger:
    again = AlertLedger(5)
    again.restore(json.loads(json.dumps(ledger.to_json())))
    return again


@given(STEPS)
def test_begins_and_ends_alternate_and_none_is_lost(
    steps: Sequence[tuple[str, Any]],
) -> None:
    ledger, now, receiver = AlertLedger(5), START, _Receiver()
    names: frozenset[str] = frozenset()
    for what, value in steps:
        now += timedelta(seconds=6)
        if what == "look":
            names = value
            ledger.observe(map(problem, sorted(names)), now)
            continue
        if what == "restart":
            ledger = reread(ledger)
            continue
        alert = ledger.due(now)
        if alert is None:
            continue
        ledger.attempt(alert)
        if what in ("lost", "answer lost", "killed before", "killed behind"):
            receiver.doubted.add(alert.id)
        if what in ("sent", "answer lost", "killed behind"):
            receiver.take(alert)
        if what.startswith("killed"):
            ledger = reread(ledger)
        elif what == "sent":
            ledger.sent(alert)
        else:
            ledger.failed(alert, now, doubtful=what != "refused")
            again = ledger.due(now)
            assert again is None or again.id != alert.id
    for _ in range(4):
        ledger.observe(map(problem, sorted(names)), now)
        now += timedelta(seconds=400)
        while (alert := ledger.due(now)) is not None:
            ledger.attempt(alert)
            receiver.take(alert)
            ledger.sent(alert)
    receiver.check(names)


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
    ledger.attempt(begin)
    ledger.observe([], START)
    ledger.sent(begin)
    end = ledger.due(START)
    assert end is not None
    assert (end.event, end.id) == ("end", begin.id)


def test_only_what_a_restart_must_know_is_written() -> None:
    ledger = AlertLedger(0)
    assert not ledger.observe([problem("a")], START), "it is not announced"
    begin = ledger.due(START)
    assert begin is not None
    assert ledger.attempt(begin), "it may have been accepted"
    assert not ledger.attempt(begin)
    ledger.sent(begin)
    later = replace(problem("a"), message="the disk of a is full")
    assert not ledger.observe([later], START), "the words of a lag change each second"
    assert ledger.observe([], START)
    assert not ledger.observe([], START)
    assert ledger.observe([later], START)


def test_a_begin_whose_note_a_kill_has_lost_is_repeated_with_its_id() -> None:
    ledger = AlertLedger(0)
    ledger.observe([problem("a")], START)
    begin = ledger.due(START)
    assert begin is not None
    ledger.attempt(begin)
    ledger = reread(ledger)
    assert ledger.due(START) is None, "whether the problem is still there is not known"
    ledger.observe([problem("a")], START + timedelta(seconds=5))
    again = ledger.due(START + timedelta(seconds=5))
    assert again is not None
    assert (again.event, again.id) == ("begin", begin.id)


def test_a_begin_that_was_refused_and_is_over_says_nothing() -> None:
    ledger = AlertLedger(0)
    ledger.observe([problem("a")], START)
    begin = ledger.due(START)
    assert begin is not None
    ledger.attempt(begin)
    assert ledger.failed(begin, START, doubtful=False)
    assert ledger.to_json() == []
    ledger.observe([], START)
    assert ledger.due(START + timedelta(days=1)) is None


def test_a_clock_that_is_set_back_delays_no_alert_for_long() -> None:
    year = timedelta(days=365)
    ledger = AlertLedger(5)
    ledger.observe([problem("a")], START + year)
    assert ledger.due(START) is not None, "it has lasted, as far as is known"
    begin = ledger.due(START + year + timedelta(seconds=5))
    assert begin is not None
    ledger.attempt(begin)
    ledger.failed(begin, START + year, doubtful=False)
    assert ledger.due(START + year) is None, "it pauses"
    assert ledger.due(START) is not None
    assert ledger.due(START + year - timedelta(seconds=200)) is None


def test_ends_that_nobody_accepts_are_given_up_beyond_a_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(ledger_module, "_MOST_ENDS", 3)
    ledger = AlertLedger(0)
    names = "abcde"
    ledger.observe(map(problem, names), START)
    for _ in names:
        begin = ledger.due(START)
        assert begin is not None
        ledger.attempt(begin)
        ledger.sent(begin)
    for second, kept in enumerate(("bcde", "cde", "de", "e", "")):
        ledger.observe(map(problem, kept), START + timedelta(seconds=second))
    ends = [entry["problem"]["subject"] for entry in ledger.to_json()]
    assert ends == ["c", "d", "e"], "the last ones stay"
    assert ledger.given_up == 2
    ledger.observe(map(problem, names), START + timedelta(seconds=9))
    assert len(ledger.to_json()) == 3, "what is there is never given up"


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
        thread = threading.Thread(target=listening.serve_forever, args=(0.01,))
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
    [
        ("/redirect", "answers 302"),
        ("/hang", r"timed out|took more than 0\.3"),
        ("", "answers 503"),
    ],
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
    ],
)
def test_a_webhook_that_does_not_speak_http_is_an_error(answer: bytes) -> None:
    with (
        raw_server(lambda client: client.sendall(answer)) as address,
        pytest.raises(DeliveryError, match="webhook cannot be used"),
    ):
        Webhook(f"http:{address}", timeout_seconds=5).deliver("{}", FACTS)


def test_a_webhook_s_user_and_password_are_sent_and_never_logged(
    server: tuple[str, type[_Answers]],
) -> None:
    url, kind = server
    place = url.removeprefix("http://")
    Webhook(f"http://me:p%40ss%C3%BC@{place}/ok").deliver("{}", FACTS)
    ((headers, _),) = kind.received
    assert headers["Authorization"] == "Basic bWU6cEBzc8O8"
    assert headers["Host"] == place
    for wrong in (":x", "[", "[::1/", ":99999999/", "[::1]x/", "a\x01b/", ""):
        with pytest.raises(DeliveryError) as caught:
            Webhook(f"http://me:secret@{wrong}").deliver("{}", FACTS)
        assert "secret" not in str(caught.value)
        assert not caught.value.doubtful


def test_the_words_of_an_answer_are_quoted_in_part() -> None:
    answer = b"HTTP/1.1 503 " + b"x" * 60_000 + b"\r\n\r\n"
    with (
        raw_server(lambda client: client.sendall(answer)) as address,
        pytest.raises(DeliveryError, match="answers 503 xxx") as caught,
    ):
        Webhook(f"http:{address}", timeout_seconds=5).deliver("{}", FACTS)
    assert len(str(caught.value)) < 700


@contextlib.contextmanager
def raw_server(serve: Callable[[socket.socket], None]) -> Iterator[str]:
    """A server that takes one connection, and what the client sends first: its URL."""
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def run() -> None:
            with contextlib.suppress(OSError):
                client, _ = listening.accept()
                with client:
                    client.recv(4096)
                    serve(client)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield f"//127.0.0.1:{listening.getsockname()[1]}/"
        finally:
            # A client whose time was over before it connected does not come any more.
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()


def drip(client: socket.socket) -> None:
    """Send a byte of an answer now and then, until the client goes."""
    client.sendall(b"HTTP/1.1 ")
    while True:
        client.sendall(b"x")
        time.sleep(0.05)


def drip_a_handshake(client: socket.socket) -> None:
    """Send a record of TLS, byte by byte."""
    client.sendall(b"\x16\x03\x03\x40\x00")
    while True:
        client.sendall(b"\x02")
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("scheme", "serve", "doubtful"),
    [("http:", drip, True), ("https:", drip_a_handshake, False)],
)
def test_a_webhook_that_drips_does_not_hold_its_channel(
    scheme: str, serve: Callable[[socket.socket], None], doubtful: bool
) -> None:
    began = time.monotonic()
    with (
        raw_server(serve) as address,
        pytest.raises(DeliveryError, match="took more than 2 seconds") as caught,
    ):
        # Long enough to connect and send on a busy machine.
        Webhook(scheme + address, timeout_seconds=2).deliver("{}", FACTS)
    assert time.monotonic() - began < 20
    assert caught.value.doubtful is doubtful


@pytest.mark.parametrize("kept", [0, 1])
def test_without_threads_a_delivery_fails_and_the_next_one_may_succeed(
    server: tuple[str, type[_Answers]], monkeypatch: pytest.MonkeyPatch, kept: int
) -> None:
    url, kind = server
    webhook = Webhook(f"{url}/ok", timeout_seconds=10)
    start = threading.Thread.start
    left = [kept]

    def limited(thread: threading.Thread) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("can't start new thread")
        start(thread)

    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", limited)
        with pytest.raises(DeliveryError, match="could not start a thread"):
            webhook.deliver("{}", FACTS)
    assert kind.received == []
    webhook.deliver("{}", FACTS)
    assert len(kind.received) == 1


def test_a_resolver_that_hangs_does_not_hold_its_channel(
    server: tuple[str, type[_Answers]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, kind = server
    asked: list[str] = []
    goes_on = threading.Event()
    resolve = socket.getaddrinfo

    def hanging(host: str, *args: Any, **kwargs: Any) -> Any:
        asked.append(host)
        goes_on.wait(30)
        return resolve("127.0.0.1", *args, **kwargs)

    monkeypatch.setattr(socket, "getaddrinfo", hanging)
    place = url.replace("127.0.0.1", "alerts.example")
    webhook = Webhook(f"{place}/ok", timeout_seconds=0.3)
    began = time.monotonic()
    for _ in range(3):
        with pytest.raises(DeliveryError, match=r"took more than 0\.3") as caught:
            webhook.deliver("{}", FACTS)
        assert not caught.value.doubtful, "nothing has been sent"
    assert time.monotonic() - began < 10
    assert asked == ["alerts.example"], "one thread waits, however often it is tried"
    goes_on.set()
    Webhook(f"{place}/ok", timeout_seconds=10).deliver('{"event": "begin"}', FACTS)
    assert len(kind.received) == 1


def test_a_silent_address_does_not_hide_the_next_one(
    server: tuple[str, type[_Answers]], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, kind = server
    port = int(url.rpartition(":")[2])
    family = (socket.AF_INET, socket.SOCK_STREAM, 0, "")
    with full_server() as silent:
        found = [(*family, silent), (*family, ("127.0.0.1", port))]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *of, **more: found)
        Webhook("http://alerts.example/ok", timeout_seconds=3).deliver("{}", FACTS)
    assert len(kind.received) == 1


@contextlib.contextmanager
def full_server() -> Iterator[tuple[str, int]]:
    """The address of a server whose queue is full, so that the kernel answers nobody."""
    with contextlib.ExitStack() as open_sockets:
        listening = open_sockets.enter_context(socket.socket())
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        address: tuple[str, int] = listening.getsockname()
        for _ in range(4):
            client = open_sockets.enter_context(socket.socket())
            client.setblocking(False)
            client.connect_ex(address)
        yield address


@pytest.mark.parametrize("body", [b"zz\r\n", b"", b"5\r\nab"])
def test_an_answer_of_2xx_accepts_whatever_follows(body: bytes) -> None:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    with raw_server(lambda client: client.sendall(head + body)) as address:
        Webhook(f"http:{address}", timeout_seconds=5).deliver("{}", FACTS)


@pytest.mark.parametrize(
    ("answer", "doubtful"),
    [(b"503 Service Unavailable", False), (b"504 Gateway Timeout", True)],
)
def test_a_gateway_that_got_no_answer_leaves_a_doubt(
    answer: bytes, doubtful: bool
) -> None:
    text = b"HTTP/1.1 %s\r\nContent-Length: 0\r\n\r\n" % answer
    with (
        raw_server(lambda client: client.sendall(text)) as address,
        pytest.raises(DeliveryError, match="it answers 50") as caught,
    ):
        Webhook(f"http:{address}", timeout_seconds=5).deliver("{}", FACTS)
    assert caught.value.doubtful is doubtful


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
    assert caught.value.doubtful is ("took more" in words)
    assert time.monotonic() - began < 20


def test_a_command_that_has_ended_is_not_waited_for_because_of_its_background(
    tmp_path: Path,
) -> None:
    file = tmp_path / "sent"
    # The background keeps the standard error open.
    Command(f"(sleep 1; touch {file}) &", timeout_seconds=300).deliver("{}", FACTS)
    assert not file.exists()
    wait_until(file.exists, describe="the background has ended")
    with pytest.raises(DeliveryError, match="exit code 3: no way"):
        Command("echo no way >&2; sleep 5 & exit 3").deliver("{}", FACTS)


def test_a_command_that_never_ends_what_it_says_takes_no_memory() -> None:
    tracemalloc.start()
    try:
        with pytest.raises(DeliveryError, match=r"took more than 0\.5 seconds"):
            Command("exec cat /dev/zero >&2", timeout_seconds=0.5).deliver("{}", FACTS)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()


def test_a_command_that_says_much_is_quoted_with_the_end() -> None:
    talk = "head -c 300000 /dev/zero | tr '\\0' x >&2; echo the end >&2; exit 1"
    with pytest.raises(DeliveryError, match=r"exit code 1: x+the end$") as caught:
        Command(talk, timeout_seconds=60).deliver("{}", FACTS)
    assert len(str(caught.value)) < 700


def test_a_command_that_does_not_read_is_judged_by_its_exit_code() -> None:
    Command("exit 0").deliver("x" * 300_000, FACTS)
    Command("exec <&-; sleep 0.2").deliver("x" * 300_000, FACTS)


def test_a_command_that_cannot_be_run_is_an_error() -> None:
    with pytest.raises(DeliveryError, match="command failed"):
        Command("echo \0").deliver("{}", FACTS)


def test_what_a_command_leaves_in_the_background_goes_on(tmp_path: Path) -> None:
    file = tmp_path / "sent"
    # As mail does, which returns before its message has gone.
    command = f"(sleep 0.3; touch {file}) >/dev/null 2>&1 &"
    Command(command).deliver("{}", FACTS)
    wait_until(file.exists, describe="the background has ended")
