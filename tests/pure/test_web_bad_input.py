"""Nonsense and greed at the HTTP port: the process stays up, answers others, and stays small."""

from __future__ import annotations

import random
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPException

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.web import WebProcess

from wal2lake.testing.waits import wait_until
from wal2lake.web.bounds import HEAD_BYTES, MAX_CONNECTIONS

MEMORY_LIMIT = 120 << 20


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    process = WebProcess(tmp_path_factory.mktemp("bad") / "node").start()
    try:
        yield process
        assert process.rss_bytes() < MEMORY_LIMIT
        assert "Traceback" not in process.log_text(), process.log_text()
        assert process.stop() == 0
    finally:
        process.close()


def send(web: WebProcess, data: bytes, *, timeout: float = 15.0) -> bytes:
    """Send bytes and the end, and return all that comes back."""
    with socket.create_connection(("127.0.0.1", web.port), timeout=timeout) as client:
        received = b""
        with suppress(OSError):
            client.sendall(data)
            client.shutdown(socket.SHUT_WR)
            while chunk := client.recv(65536):
                received += chunk
        return received


def lives(web: WebProcess) -> bool:
    """Whether the process answers; at its limit it closes the connection instead."""
    try:
        return web.get("/health/live")[0] == 200
    except (OSError, HTTPException):
        return False


TOKENS = st.sampled_from(
    [
        b"GET ",
        b"HEAD ",
        b"POST ",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"/health/live",
        b"/metrics",
        b"/v1/config?warehouse=lsn-0-0",
        b"/v1/oauth/tokens",
        b"/v1/%2F/namespaces/%1F/tables/%ff",
        b"/%ff%00",
        b"/../../etc/passwd",
        b"http://evil.example/",
        b" HTTP/1.1\r\n",
        b" HTTP/1.0\r\n",
        b" HTTP/9.9\r\n",
        b"Host: localhost\r\n",
        b"Host: \xff\r\n",
        b"Content-Length: 99999999999999\r\n",
        b"Content-Length: -1\r\n",
        b"Transfer-Encoding: chunked\r\n",
        b"Connection: upgrade\r\nUpgrade: websocket\r\n",
        b"Expect: 100-continue\r\n",
        b"Authorization: Basic ////\r\n",
        b"Authorization: Bearer 10.99.\xff\r\n",
        b"If-None-Match: W/,*\r\n",
        b"Accept: application/openmetrics-text;version=\xc3\xa9\r\n",
        b"Accept: application/openmetrics-text;version=1.x.;q=;;,,\r\n",
        b"Range: bytes=0-\r\n",
        b"\r\n",
        b"\n",
        b"ffffffffffffffff\r\n",
        b"0\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\x00\x00\x00\x08\x04\xd2\x16\x2f",
    ]
)
"""Pieces of requests, and first bytes of other protocols."""


@settings(
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(st.lists(st.one_of(TOKENS, st.binary(max_size=64)), max_size=14))
def test_whatever_is_sent_the_process_goes_on(web, pieces):
    answer = send(web, b"".join(pieces))
    assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
    assert b"Traceback" not in answer


def test_after_all_nonsense_others_are_answered(web):
    generator = random.Random(5)
    for _ in range(100):
        send(web, generator.randbytes(generator.randrange(400)))
    assert lives(web)


@pytest.mark.parametrize(
    "path",
    ["/%2e%2e/%2e%2e/etc/passwd", "//", "/metrics/", "/health/", "/\\", "/a" * 4000],
)
def test_a_path_that_is_none_is_404(web, path):
    status, headers, _ = web.get(path)
    assert status in (404, 307)
    assert headers["x-content-type-options"] == "nosniff"


@pytest.mark.parametrize(
    "accept",
    [
        "application/openmetrics-text;version=abc",
        "application/openmetrics-text;version=",
        "application/openmetrics-text;version=99.0.0;escaping=nonsense",
        "text/plain;version=1.0.0;escaping=;q=x",
        "text/plain;version=1.0.0\tx=y",
        ";;;=,=;",
        "*/*",
    ],
)
def test_a_strange_accept_header_gets_an_answer_with_its_type(web, accept):
    status, headers, body = web.get("/metrics", headers={"Accept": accept})
    assert status == 200 and b"wal2lake_node_ready" in body
    kind = headers["content-type"]
    assert "\n" not in kind and kind.startswith(("text/plain", "application/openm"))
    assert body.endswith(b"# EOF\n") == kind.startswith("application/")


def test_a_huge_head_is_refused(web):
    head = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX: "
    answer = send(web, head + b"x" * (HEAD_BYTES * 20))
    assert answer == b"" or b" 400 " in answer.split(b"\r\n")[0]
    many = b"".join(b"X-%d: y\r\n" % number for number in range(20_000))
    answer = send(web, head + b"\r\n" + many)
    assert answer == b"" or b" 400 " in answer.split(b"\r\n")[0]
    assert lives(web)


def test_a_body_is_not_read(web):
    head = b"POST /metrics HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
    answer = send(web, head % (1 << 30) + b"x" * (1 << 20))
    assert answer == b"" or answer.startswith(b"HTTP/1.1 405 ")
    assert lives(web)


def test_a_form_for_a_token_is_bounded(web):
    head = (
        b"POST /v1/oauth/tokens HTTP/1.1\r\nHost: localhost\r\n"
        b"Content-Type: application/x-www-form-urlencoded\r\nContent-Length: %d\r\n\r\n"
    )
    answer = send(web, head % (1 << 30) + b"x" * (1 << 20))
    assert answer == b"" or answer.startswith(b"HTTP/1.1 400 ")
    for body in (b"\xff\x00", b"&" * 5000, b"a=1&" * 4000, b"grant_type=%ff", b"="):
        answer = send(web, head % len(body) + body)
        assert answer.startswith(b"HTTP/1.1 400 "), answer
    # It ends before it is complete.
    assert send(web, head % 100 + b"grant") == b""
    assert lives(web)


@pytest.mark.slow
def test_a_form_that_does_not_arrive_is_not_waited_for(web):
    head = b"POST /v1/oauth/tokens HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n"
    with socket.create_connection(("127.0.0.1", web.port), timeout=30) as client:
        client.sendall(head)
        assert client.recv(65536).startswith(b"HTTP/1.1 400 ")
        while client.recv(65536):
            pass
    assert lives(web)


def test_the_tables_are_for_those_who_have_a_token(web):
    for path in (
        "/v1/config",
        "/v1/latest/namespaces",
        "/v1/latest/namespaces/a/tables/b",
        "/v1/",
        "/v1//",
        "/%761/config",
    ):
        status, headers, _ = web.get(path)
        assert (status, headers["content-type"]) == (401, "application/json"), path
        assert headers["x-content-type-options"] == "nosniff"
    status, _, _ = web.get("/v1/config", headers={"Host": "evil.example"})
    assert status == 403


def test_a_hundred_connections_that_say_nothing_leave_room_for_others(web):
    with ExitStack() as stack:
        for _ in range(100 - 20):
            stack.enter_context(socket.create_connection(("127.0.0.1", web.port)))
        assert lives(web)


def test_more_connections_than_the_limit_are_closed_and_make_room_when_they_end(web):
    with ExitStack() as stack:
        clients = [
            stack.enter_context(socket.create_connection(("127.0.0.1", web.port)))
            for _ in range(MAX_CONNECTIONS + 40)
        ]
        for client in clients:
            client.settimeout(0.0)

        def closed() -> int:
            count = 0
            for client in clients:
                with suppress(BlockingIOError):
                    try:
                        count += client.recv(1) == b""
                    except ConnectionError:
                        count += 1
            return count

        wait_until(lambda: closed() >= 40)
    wait_until(lambda: lives(web))


@pytest.mark.slow
def test_a_client_that_sends_its_request_byte_by_byte_is_cut(web):
    with socket.create_connection(("127.0.0.1", web.port), timeout=30) as client:
        began = time.monotonic()
        with suppress(ConnectionError):
            for byte in (
                b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 99
            ):
                client.sendall(bytes([byte]))
                time.sleep(0.25)
        assert time.monotonic() - began < 20
    assert lives(web)


def test_a_client_that_does_not_read_does_not_fill_the_memory(web):
    request = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
    before = web.rss_bytes()
    with ExitStack() as stack:
        for _ in range(20):
            client = stack.enter_context(
                socket.create_connection(("127.0.0.1", web.port))
            )
            client.settimeout(0.2)
            # A pipeline of requests, whose answers nobody takes.
            with suppress(OSError):
                client.sendall(request * 2000)
        assert lives(web)
    assert web.rss_bytes() - before < 30 << 20


def test_ten_scrapers_share_a_reading(web):
    seen: list[bytes] = []

    def scrape() -> None:
        for _ in range(5):
            _, _, body = web.get("/metrics")
            seen.append(
                next(
                    line
                    for line in body.splitlines()
                    if line.startswith(b"wal2lake_reading_timestamp_seconds ")
                )
            )

    began = time.monotonic()
    threads = [threading.Thread(target=scrape) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 50
    assert len(set(seen)) <= (time.monotonic() - began) + 2
