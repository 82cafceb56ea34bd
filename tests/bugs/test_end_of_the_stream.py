"""The end of a CopyBoth stream that came together with data was reported as "no COPY in
progress", libpq's word for being asked once too often, and a CopyDone of the server's made
the receiver turn for ever. What libpq held while its socket was silent waited for the next
bytes, or was never read."""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from psycopg import pq

from wal2lake.errors import PublisherError
from wal2lake.pg.connection import Session, open_pgconn
from wal2lake.pg.replication import CopyBothStream
from wal2lake.testing.waits import wait_until


def message(kind: bytes, body: bytes) -> bytes:
    """One backend message."""
    return kind + struct.pack(">i", len(body) + 4) + body


SHUTDOWN = "terminating connection due to administrator command"
ERROR = message(
    b"E", b"SFATAL\0VFATAL\0C57P01\0M" + SHUTDOWN.encode() + b"\0Hask again\0\0"
)
COPY_DONE = message(b"c", b"")
COMPLETE = message(b"C", b"COPY 0\0")
READY = message(b"Z", b"I")
PAYLOAD = b"w" + bytes(24) + b"B123"
DATA = message(b"d", PAYLOAD)


class Walsender:
    """A server that accepts any connection and any command, then sends what it is told."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._client: socket.socket | None = None
        self.told = bytearray()
        self.thread = threading.Thread(target=self._serve, daemon=True)
        self.thread.start()

    def send(self, data: bytes) -> None:
        assert self._client is not None
        self._client.sendall(data)

    def close(self) -> None:
        if self._client is not None:
            self._client.shutdown(socket.SHUT_RDWR)
        self.thread.join(10)
        if self._client is not None:
            self._client.close()

    def _serve(self) -> None:
        client, _ = self._listener.accept()
        size = struct.unpack(">i", client.recv(4))[0]
        client.recv(size - 4)
        client.sendall(message(b"R", struct.pack(">i", 0)) + message(b"Z", b"I"))
        client.recv(4096)
        self._client = client
        client.sendall(message(b"W", struct.pack(">bh", 0, 0)))
        while data := client.recv(4096):
            self.told += data


@contextmanager
def streaming() -> Iterator[tuple[Walsender, CopyBothStream]]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)
        server = Walsender(listener)
        port = listener.getsockname()[1]
        pgconn = open_pgconn(
            f"host=127.0.0.1 port={port} user=x dbname=x sslmode=disable"
            " gssencmode=disable connect_timeout=30"
        )
        session = Session(pgconn)
        try:
            yield server, CopyBothStream(session, "START_REPLICATION")
        finally:
            session.close()
            server.close()


@pytest.fixture
def wake() -> Iterator[int]:
    """A descriptor that never becomes readable."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours.fileno()


def sizes_until_the_end(stream: CopyBothStream, wake: int) -> list[int]:
    """What the stream brings before it ends; an error of its passes through."""
    sizes: list[int] = []
    deadline = time.monotonic() + 30
    while (found := stream.read(0.5, 1 << 20, wake)) is not None:
        sizes += found.sizes
        assert time.monotonic() < deadline, "the stream does not end"
    return sizes


def test_an_error_that_comes_with_data_is_told_in_the_servers_words(wake: int) -> None:
    with streaming() as (server, stream):
        server.send(DATA + ERROR)
        found = wait_until(lambda: stream.read(0.5, 1 << 20, wake))
        assert found.sizes == [len(PAYLOAD)]
        with pytest.raises(PublisherError) as caught:
            stream.read(0.5, 1 << 20, wake)
        assert caught.value.message == SHUTDOWN
        assert (caught.value.sqlstate, caught.value.hint) == ("57P01", "ask again")


def test_a_status_update_after_the_end_tells_the_servers_words_too(wake: int) -> None:
    with streaming() as (server, stream):
        server.send(DATA + ERROR)
        found = wait_until(lambda: stream.read(0.5, 1 << 20, wake))
        assert found.sizes == [len(PAYLOAD)]
        with pytest.raises(PublisherError) as caught:
            stream.write(b"r" + bytes(33))
        assert caught.value.message == SHUTDOWN


@pytest.mark.parametrize("data", [b"", DATA], ids=["alone", "with data"])
@pytest.mark.parametrize(
    "end",
    [COPY_DONE, COPY_DONE + COMPLETE + READY, COMPLETE + READY, COMPLETE],
    ids=["CopyDone", "CopyDone and all", "CommandComplete", "and no ReadyForQuery"],
)
def test_a_stream_that_the_server_ends_in_order_has_ended(
    wake: int, data: bytes, end: bytes
) -> None:
    with streaming() as (server, stream):
        server.send(data + end)
        assert sizes_until_the_end(stream, wake) == [len(PAYLOAD)] * bool(data)
        stream.write(b"r" + bytes(33))
        assert stream.read(0.5, 1 << 20, wake) is None
        stream.finish()


def test_a_stream_that_has_ended_is_finished_at_once(wake: int) -> None:
    with streaming() as (server, stream):
        server.send(DATA + COPY_DONE)
        wait_until(lambda: (stream.read(0.5, 1 << 20, wake) or found_nothing()).sizes)
        stream.finish()
        wait_until(lambda: server.told.endswith(COPY_DONE), describe="CopyDone is sent")


def found_nothing() -> Any:
    raise AssertionError("the stream ended without its data")


class SilentSocket:
    """A libpq connection that holds more than its socket shows, as OpenSSL makes it."""

    def __init__(self, *, tls: bool = True) -> None:
        self._ours, self._theirs = socket.socketpair()
        self.socket = self._ours.fileno()
        self.ssl_in_use = tls
        self.nonblocking = 0
        self.decrypted: list[bytes] = []
        """What the next calls of consume_input bring, one each."""
        self.held: list[bytes] = []
        self.ended = False

    def exec_(self, command: bytes) -> Any:
        class Result:
            status = pq.ExecStatus.COPY_BOTH

        return Result()

    def consume_input(self) -> None:
        if self.decrypted:
            self.held.append(self.decrypted.pop(0))

    def get_copy_data(self, asynchronous: int) -> tuple[int, bytes]:
        assert not self.ended, "asked again after the end"
        if not self.held:
            return 0, b""
        payload = self.held.pop(0)
        if not payload:
            self.ended = True
            return -1, b""
        return len(payload), payload

    def put_copy_end(self) -> None:
        return

    def close(self) -> None:
        self._ours.close()
        self._theirs.close()


@pytest.fixture
def silent() -> Iterator[SilentSocket]:
    made = SilentSocket()
    yield made
    made.close()


def over(pgconn: SilentSocket) -> CopyBothStream:
    given: Any = pgconn
    return CopyBothStream(Session(given), "START_REPLICATION")


def test_what_openssl_holds_is_read_though_the_socket_is_silent(
    silent: SilentSocket, wake: int
) -> None:
    stream = over(silent)
    silent.decrypted = [b"one", b"three"]
    found = stream.read(0.01, 1 << 20, wake)
    assert found is not None
    assert found.sizes == [3, 5], "all of it, not one piece for each time-out"
    found = stream.read(0.01, 1 << 20, wake)
    assert found is not None and found.sizes == []


def within(seconds: float, what: Callable[[], None]) -> None:
    start = time.monotonic()
    what()
    assert time.monotonic() - start < seconds


def test_the_farewell_reads_what_libpq_holds_before_it_waits(
    silent: SilentSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    # One wait would last as long as the whole farewell.
    monkeypatch.setattr("wal2lake.pg.replication._FAREWELL_WATCH_SECONDS", 60.0)
    stream = over(silent)
    # Two pieces fill the bound of one drain, and the end is behind them.
    silent.held = [bytes(1 << 20), bytes(1 << 20), b"tail", b""]
    within(1.0, stream.finish)
    assert silent.ended


def test_the_farewell_reads_what_openssl_holds(silent: SilentSocket) -> None:
    stream = over(silent)
    silent.decrypted = [b"tail", b""]
    within(1.0, stream.finish)
    assert silent.ended


def test_the_farewell_is_bounded_in_time(
    silent: SilentSocket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wal2lake.pg.replication._FAREWELL_SECONDS", 0.05)
    stream = over(silent)
    within(20.0, stream.finish)
    # A server that never stops sending is no exception.
    monkeypatch.setattr(
        silent, "get_copy_data", lambda asynchronous: (1 << 20, bytes(1 << 20))
    )
    within(20.0, stream.finish)
