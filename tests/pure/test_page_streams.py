"""The page's routes and streams of events, over a real server: limits, stalls, failures."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.fakes import scenes
from tests.fakes.pageserver import PageServer

from wal2lake.catalog import Catalog
from wal2lake.testing.waits import wait_until
from wal2lake.web.api import PageFeed
from wal2lake.web.api.documents import TABLE_COLUMNS


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "catalog.sqlite"
    Catalog.create(path, "me", None).close()
    return path


@pytest.fixture
def server(catalog: Path) -> Iterator[PageServer]:
    with PageServer(catalog, streams=3, interval_seconds=0.05) as running:
        yield running


def connect(server: PageServer) -> http.client.HTTPConnection:
    return http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=20)


def ask(server: PageServer, path: str) -> tuple[int, Any]:
    connection = connect(server)
    connection.request("GET", path)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    kind = answer.headers.get("content-type", "")
    return answer.status, json.loads(body) if "json" in kind else body


class Stream:
    """One browser that reads events."""

    def __init__(self, server: PageServer) -> None:
        self._connection = connect(server)
        self._connection.request("GET", "/api/events")
        self.answer = self._connection.getresponse()

    def event(self) -> tuple[str, Any]:
        """Return the next event."""
        lines: list[str] = []
        while line := self.answer.readline():
            text = line.decode().rstrip("\n")
            if text:
                lines.append(text)
            elif lines and lines[0].startswith("event: "):
                return lines[0][7:], json.loads(lines[1].removeprefix("data: "))
            else:
                lines = []
        return "end", None

    def wait(self, name: str) -> Any:
        """Return the data of the next event of this name."""
        for _ in range(200):
            found, data = self.event()
            if found == name:
                return data
            assert found != "end", f"the stream ends before {name}"
        raise AssertionError(f"no event {name}")

    def close(self) -> None:
        """Leave."""
        self.answer.close()
        self._connection.close()


# ---- documents --------------------------------------------------------------------


def test_the_documents_of_a_calm_node(server):
    status, state = ask(server, "/api/state")
    assert status == 200
    [shop] = state["state"]["subscriptions"]
    assert [one["stage"] for one in shop["stages"]] == [
        "source",
        "received",
        "durable",
        "applied",
        "visible",
    ]
    status, tables = ask(server, "/api/tables")
    assert tables["columns"] == list(TABLE_COLUMNS)
    assert len(tables["rows"]) == shop["tables"]["total"] == 14
    status, history = ask(server, "/api/history?subscription=16400&seconds=300")
    assert status == 200 and len(history["times"]) == len(history["visible"]) > 0


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/api/history", 400),
        ("/api/history?subscription=x", 400),
        ("/api/history?subscription=-1", 400),
        ("/api/history?subscription=0", 400),
        ("/api/history?subscription=1&seconds=99999999", 400),
        ("/api/history?subscription=1&points=0", 400),
        ("/api/history?subscription=%D9%A1", 400),
        ("/api/history?subscription=99", 200),
        ("/api/table/x", 400),
        ("/api/table/99999999999999999999", 400),
        ("/api/table/16500", 404),
        ("/api/table/..%2f..%2fcatalog.sqlite", 404),
        ("/static/../api.py", 404),
        ("/static/..%2f..%2fapp.py", 404),
        ("/static/%2e%2e/app.py", 404),
        ("/static/", 404),
        ("/api/nothing", 404),
    ],
)
def test_what_makes_no_sense_is_refused(server, path, status):
    assert ask(server, path)[0] == status


def test_a_refusal_is_a_sentence(server):
    assert ask(server, "/api/table/16500") == (
        404,
        {"error": "no table has the OID 16500"},
    )
    assert ask(server, "/api/history?subscription=x") == (
        400,
        {"error": "subscription must be a number"},
    )


# ---- streams ----------------------------------------------------------------------


def test_a_stream_begins_with_everything_and_goes_on_with_changes(server):
    stream = Stream(server)
    name, hello = stream.event()
    assert name == "hello" and len(hello["tables"]) == 14
    assert hello["problems"]["total"] == 0
    assert stream.wait("state")["taken_at"] > hello["state"]["taken_at"]
    changes = stream.wait("tables")
    assert 0 < len(changes["rows"]) <= 14 and changes["gone"] == []
    server.scene = scenes.troubled
    assert stream.wait("problems")["total"] == 7
    server.scene = scenes.empty
    gone: list[object] = []
    while len(gone) < 17:
        gone += stream.wait("tables")["gone"]
    stream.close()


def test_an_unreadable_node_is_said_and_the_last_state_stays(server):
    stream = Stream(server)
    stream.wait("hello")
    server.failure = OSError("catalog.sqlite: Input/output error")
    assert stream.wait("trouble") == "catalog.sqlite: Input/output error"
    state = ask(server, "/api/state")[1]
    assert state["trouble"] and state["state"]["node"]["state"] == "ready"
    late = Stream(server)
    assert late.wait("hello")["trouble"] == "catalog.sqlite: Input/output error"
    server.failure = None
    assert stream.wait("trouble") is None
    stream.wait("state")
    stream.close()
    late.close()


def test_streams_are_limited_and_a_place_is_free_again(server):
    streams = [Stream(server) for _ in range(3)]
    for stream in streams:
        stream.wait("hello")
    status, answer = ask(server, "/api/events")
    assert (status, answer) == (503, {"error": "3 pages are open, which is the limit"})
    streams.pop().close()
    wait_until(
        lambda: server.feed.subscribers == 2,
        timeout_seconds=10,
        describe=lambda: "the stream has ended",
    )
    again = Stream(server)
    again.wait("hello")
    for stream in (again, *streams):
        stream.close()


def test_a_head_of_the_stream_ends(server):
    connection = connect(server)
    connection.request("HEAD", "/api/events")
    assert connection.getresponse().status == 200
    connection.close()
    assert server.feed.subscribers == 0


def test_a_browser_that_does_not_read_is_dropped(server):
    server.scene = scenes.many
    server.read_again()
    address = urlsplit(server.url)
    stalled = socket.socket()
    # Before the connection: a large window would take many readings.
    stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stalled.connect((address.hostname, address.port))
    stalled.sendall(b"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    wait_until(
        lambda: server.feed.subscribers == 1,
        timeout_seconds=10,
        describe=lambda: "the stream has begun",
    )
    beside = Stream(server)
    beside.wait("hello")
    wait_until(
        lambda: server.feed.subscribers == 1,
        timeout_seconds=30,
        describe=lambda: "the stalled stream is dropped",
    )
    assert beside.wait("state")["node"]["state"] == "ready"
    beside.close()
    stalled.close()


def test_all_streams_share_one_reading(catalog):
    reads = 0

    def counted(now):
        nonlocal reads
        reads += 1
        return scenes.calm(now)

    with PageServer(catalog, counted, interval_seconds=0.2) as server:
        streams = [Stream(server) for _ in range(8)]
        for stream in streams:
            for _ in range(5):
                stream.wait("state")
        before = server.feed.latest.number
        for stream in streams:
            stream.close()
    assert reads <= before + 2


def test_the_end_of_the_feed_ends_the_streams(server):
    stream = Stream(server)
    stream.wait("hello")
    loop = server.feed.loop
    assert loop is not None
    loop.call_soon_threadsafe(server.feed.stop)
    assert "end" in [stream.event()[0] for _ in range(20)]
    stream.close()


def test_an_idle_feed_reads_seldom():
    feed = PageFeed(lambda: scenes.calm(scenes.EPOCH))
    assert feed.pause(0.1, looking=False) == pytest.approx(4.9)
    assert feed.pause(0.1, looking=True) == pytest.approx(0.9)
    # A reading that takes long gets at most half of one core.
    assert feed.pause(3.0, looking=True) == pytest.approx(3.0)
