"""The real web process on a directory without a running node."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.web import WebProcess

from wal2lake.testing.waits import wait_until
from wal2lake.web.bounds import Acceptor

MEMORY_LIMIT = 120 << 20


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebProcess]:
    process = WebProcess(tmp_path_factory.mktemp("web") / "node").start()
    yield process
    process.close()


def test_live_is_200_and_ready_says_why_not(web):
    assert web.json("/health/live") == (200, {"status": "live"})
    status, answer = web.json("/health/ready")
    assert status == 503
    assert answer["reasons"][0]["message"] == "the node is stopped"


@pytest.mark.parametrize("path", ["/health/live", "/nothing", "/"])
def test_every_answer_keeps_a_browser_from_doing_more_than_showing_it(web, path):
    _, headers, _ = web.get(path)
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers
    assert not [name for name in headers if name.startswith("access-control")]


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_only_get_and_head_are_answered(web, method):
    status, headers, _ = web.get("/health/live", method=method)
    assert status == 405 and headers["allow"] == "GET, HEAD"
    assert headers["connection"] == "close"
    assert web.get("/health/live", method="HEAD")[::2] == (200, b"")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8080", 200),
        ("127.0.0.1:1", 200),
        ("[::1]:5481", 200),
        ("[::1]", 200),
        ("evil.example", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost:80@evil.example", 403),
        ("", 403),
        ("10.0.0.1:5481", 403),
    ],
)
def test_the_host_header_must_name_this_machine(web, host, status):
    found, _, body = web.get("/health/live", headers={"Host": host})
    assert found == status
    assert status == 200 or b"must be localhost" in body


def test_a_taken_port_is_logged_once_with_its_remedy_and_tried_again(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        process = WebProcess(tmp_path / "node", web__listen=f"127.0.0.1:{port}")
        try:
            process.start(wait=False)
            wait_until(lambda: "another node" in process.log_text())
            other.close()
            wait_until(lambda: process.urls == (f"http://127.0.0.1:{port}/",))
            assert process.log_text().count("Address already in use") == 1
            assert process.stop() == 0
        finally:
            process.close()


def test_sighup_moves_the_process_to_other_addresses(tmp_path):
    process = WebProcess(tmp_path / "node")
    try:
        before = process.start().urls
        process.configure(web__listen="127.0.0.1:0, [::1]:0, 127.0.0.2:0")
        process.reload()
        # The address that stays keeps its port.
        wait_until(lambda: len(process.urls) == 3 and process.urls[0] == before[0])
        (process.directory / "wal2lake.toml").write_text("nonsense")
        process.reload()
        wait_until(lambda: "could not reload" in process.log_text())
        assert process.json("/health/live")[0] == 200
    finally:
        process.close()


def test_the_process_is_small(web):
    assert web.rss_bytes() < MEMORY_LIMIT
    maps = Path(f"/proc/{web.process.pid}/maps").read_text()
    for name in ("numpy", "pyarrow", "duckdb", "pyspark", "psycopg", "libpq"):
        assert name not in maps


def test_small_answers_are_sent_at_once():
    """The second write of an answer would wait 40 ms for the client's TCP."""
    made: asyncio.Future[asyncio.BaseTransport]

    class Greeter(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            made.set_result(transport)

    async def accept() -> int:
        nonlocal made
        made = asyncio.get_running_loop().create_future()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            acceptor = Acceptor([listener], Greeter, lambda: 0, None)
            with socket.create_connection(listener.getsockname()):
                transport = await asyncio.wait_for(made, 10)
                accepted = transport.get_extra_info("socket")
                delay_off = accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
                transport.close()
            acceptor.close()
        return int(delay_off)

    assert asyncio.run(accept())
