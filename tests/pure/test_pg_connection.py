"""A connection to a server that does not behave, or with a conninfo that does not."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
import time
from collections.abc import Iterator

import pytest

from wal2lake.errors import PublisherError, UsageError
from wal2lake.pg.connection import Session, open_pgconn


@pytest.mark.parametrize("given", ["abc", "", "1.5", "1_0", "10s", "0x10", "\u0665"])
def test_a_timeout_that_is_no_number_is_refused_in_libpqs_words(given: str) -> None:
    with pytest.raises(UsageError) as caught:
        open_pgconn(f"host=127.0.0.1 port=1 connect_timeout='{given}'")
    assert caught.value.sqlstate == "22023"
    assert caught.value.message == (
        f'invalid integer value "{given}" for connection option "connect_timeout"'
    )


@pytest.mark.parametrize("given", ["0", " 7 ", "+7", "-1"])
def test_what_libpq_takes_for_a_number_is_one(given: str) -> None:
    with pytest.raises(PublisherError) as caught:
        open_pgconn(f"host=127.0.0.1 port=1 connect_timeout='{given}'")
    assert caught.value.sqlstate == "08006"


def message(kind: bytes, body: bytes) -> bytes:
    return kind + struct.pack(">i", len(body) + 4) + body


@contextlib.contextmanager
def silent_server() -> Iterator[int]:
    """Its port: it lets everybody in and answers nothing."""
    clients: list[socket.socket] = []

    def serve(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            client, _ = listener.accept()
            clients.append(client)
            size = struct.unpack(">i", client.recv(4))[0]
            client.recv(size - 4)
            client.sendall(message(b"R", struct.pack(">i", 0)) + message(b"Z", b"I"))

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve, args=(listener,), daemon=True)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            thread.join(10)
            for client in clients:
                client.close()


def test_an_answer_that_does_not_come_is_not_waited_for_longer_than_said() -> None:
    with silent_server() as port:
        pgconn = open_pgconn(
            f"host=127.0.0.1 port={port} user=x dbname=x sslmode=disable"
            " gssencmode=disable connect_timeout=30"
        )
        session = Session(pgconn, 0.2)
        try:
            start = time.monotonic()
            with pytest.raises(PublisherError) as caught:
                session.value("select 1")
            assert 0.2 <= time.monotonic() - start < 10
            assert caught.value.sqlstate == "08006"
            assert caught.value.message == (
                "the server has not answered within 0.2 seconds"
            )
        finally:
            session.close()
