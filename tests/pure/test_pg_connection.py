"""A connection to a server that does not behave, or with a conninfo that does not."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from wal2lake.catalog import Catalog, Subscription
from wal2lake.errors import PublisherError, UsageError
from wal2lake.model import Oid
from wal2lake.pg.connection import (
    CONNECT_TIMEOUT,
    Session,
    connect,
    limit_connecting,
    open_pgconn,
)
from wal2lake.settings import Settings


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


@pytest.mark.parametrize(
    ("variable", "given", "seconds"), [("1", "", 1), ("60", "connect_timeout=1", 1)]
)
def test_a_server_that_says_nothing_is_given_up_at_the_limit(
    monkeypatch: pytest.MonkeyPatch, variable: str, given: str, seconds: float
) -> None:
    monkeypatch.setenv(CONNECT_TIMEOUT, variable)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        start = time.monotonic()
        with pytest.raises(PublisherError, match="timeout expired") as caught:
            connect(f"host=127.0.0.1 port={port} {given}", application_name="x")
        assert seconds <= time.monotonic() - start < seconds + 10
        assert "subscription.connect_timeout_ms" in str(caught.value.hint)


@pytest.mark.parametrize("unset", [None, ""])
def test_the_limit_is_in_whole_seconds_and_never_none(
    monkeypatch: pytest.MonkeyPatch, unset: str | None
) -> None:
    for milliseconds, seconds in ((1000, "1"), (1001, "2"), (30_000, "30")):
        monkeypatch.setenv(CONNECT_TIMEOUT, unset or "")
        if unset is None:
            monkeypatch.delenv(CONNECT_TIMEOUT)
        assert limit_connecting(milliseconds) == {CONNECT_TIMEOUT: seconds}
        assert os.environ[CONNECT_TIMEOUT] == seconds


@pytest.mark.parametrize("given", ["7", "0", "soon"])
def test_the_environment_that_an_operator_has_set_wins_over_the_setting(
    monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    monkeypatch.setenv(CONNECT_TIMEOUT, given)
    assert limit_connecting(1000) == {CONNECT_TIMEOUT: given}
    assert os.environ[CONNECT_TIMEOUT] == given


def test_a_receivers_setting_holds_for_its_connections(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(CONNECT_TIMEOUT, raising=False)
    settings = Settings(directory=tmp_path)
    settings.run_directory.mkdir(parents=True)
    (tmp_path / "wal2lake.toml").write_text(
        "[subscription]\nconnect_timeout_ms = 1000\n"
    )
    catalog = Catalog.create(settings.catalog_file, "boss", None)
    about = ("--subscription", "1")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        catalog.create_subscription(
            Subscription(
                Oid(1),
                "s",
                Oid(10),
                True,
                f"host=127.0.0.1 port={listener.getsockname()[1]}",
                "s",
                ("p",),
            ),
            [],
        )
        start = time.monotonic()
        done = subprocess.run(
            [sys.executable, "-m", "wal2lake.receive", "-D", tmp_path, *about],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert done.returncode == 1
    assert "connection to server failed: timeout expired" in done.stderr
    assert time.monotonic() - start < 25


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
