"""The misbehaving proxy behaves as ordered."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from wal2lake.testing.proxy import TcpProxy
from wal2lake.testing.waits import WaitTimeout, wait_until


@pytest.fixture
def echo() -> Iterator[int]:
    """A server that answers with what it gets; its port."""
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            while chunk := client.recv(65536):
                client.sendall(chunk)

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = listener.accept()
                threading.Thread(target=serve, args=(client,), daemon=True).start()

    threading.Thread(target=accept, daemon=True).start()
    yield listener.getsockname()[1]
    with contextlib.suppress(OSError):
        listener.shutdown(socket.SHUT_RDWR)
    listener.close()


@pytest.fixture
def proxy(echo: int) -> Iterator[TcpProxy]:
    with TcpProxy("127.0.0.1", echo) as made:
        yield made


@contextlib.contextmanager
def connected(proxy: TcpProxy) -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", proxy.port), timeout=10) as client:
        yield client


def receive(client: socket.socket, size: int) -> bytes:
    got = b""
    while len(got) < size and (chunk := client.recv(65536)):
        got += chunk
    return got


def test_bytes_pass_through_unchanged(proxy):
    sent = bytes(range(256)) * 4000
    with connected(proxy) as client:
        sender = threading.Thread(target=client.sendall, args=(sent,))
        sender.start()
        assert receive(client, len(sent)) == sent
        sender.join()
    wait_until(lambda: proxy.connections == 0)


def test_a_cut_breaks_open_connections_and_lets_new_ones_in(proxy):
    with connected(proxy) as client:
        client.sendall(b"x")
        assert receive(client, 1) == b"x"
        assert proxy.cut() == 1
        with pytest.raises(ConnectionResetError):
            client.sendall(b"y")
            client.recv(1)
    with connected(proxy) as client:
        client.sendall(b"z")
        assert receive(client, 1) == b"z"


def test_a_stall_holds_bytes_back_and_loses_none(proxy):
    with connected(proxy) as client:
        proxy.stall()
        client.sendall(b"late")
        client.settimeout(0.2)
        with pytest.raises(TimeoutError):
            client.recv(1)
        proxy.resume()
        client.settimeout(10)
        assert receive(client, 4) == b"late"


def test_a_delay_and_a_limit_take_their_time(proxy):
    with connected(proxy) as client:
        proxy.delay(0.1)
        begin = time.monotonic()
        client.sendall(b"x")
        assert receive(client, 1) == b"x"
        assert time.monotonic() - begin >= 0.2
        proxy.delay(0)
        proxy.limit(100_000)
        begin = time.monotonic()
        client.sendall(bytes(30_000))
        assert len(receive(client, 30_000)) == 30_000
        assert time.monotonic() - begin >= 0.25


def test_refused_connections_fail_and_open_ones_go_on(proxy):
    with connected(proxy) as client:
        client.sendall(b"x")
        assert receive(client, 1) == b"x"
        proxy.refuse()
        with pytest.raises(OSError), connected(proxy) as late:
            late.sendall(b"x")
            if not late.recv(1):
                raise ConnectionResetError
        client.sendall(b"y")
        assert receive(client, 1) == b"y"


def test_a_wait_names_what_it_waited_for():
    with pytest.raises(WaitTimeout, match=r"not within 0.05 s: pigs fly"):
        wait_until(lambda: False, timeout_seconds=0.05, describe="pigs fly")
    assert wait_until(lambda: 7) == 7
