"""A process with more open files than select takes goes on: waits work at any descriptor."""

from __future__ import annotations

import errno
import os
import resource
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.pure.test_pg_connection import silent_server

from wal2lake.errors import PublisherError
from wal2lake.launch.wakeup import READY, Wakeup, notify
from wal2lake.pg import connect, readable
from wal2lake.pg.credentials.command import read_password
from wal2lake.pg.waiting import wait_ready

FD_SETSIZE = 1024


@pytest.fixture
def crowded() -> Iterator[None]:
    """New descriptors are above 1023."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < 2 * FD_SETSIZE:
        resource.setrlimit(resource.RLIMIT_NOFILE, (2 * FD_SETSIZE, hard))
    with ExitStack() as stack:
        while (fileno := os.open(os.devnull, os.O_RDONLY)) < FD_SETSIZE:
            stack.callback(os.close, fileno)
        stack.callback(os.close, fileno)
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("crowded")
def test_a_socket_is_waited_for() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        assert ours.fileno() >= FD_SETSIZE
        assert not wait_ready(ours.fileno(), deadline=time.monotonic())
        assert wait_ready(ours.fileno(), writing=True)
        assert readable([ours.fileno(), theirs.fileno()], 0) == set()
        theirs.send(b"x")
        assert wait_ready(ours.fileno())
        assert readable([ours.fileno(), theirs.fileno()], None) == {ours.fileno()}
        closed = theirs.detach()
        os.close(closed)
        ours.recv(1)
        assert readable([ours.fileno()], None) == {ours.fileno()}, "it has ended"
        with pytest.raises(OSError, match=os.strerror(errno.EBADF)):
            readable([closed], 0)


@pytest.mark.usefixtures("crowded")
def test_a_server_that_does_not_answer_is_given_up() -> None:
    with (
        silent_server() as port,
        pytest.raises(PublisherError, match="has not answered"),
    ):
        connect(
            f"host=127.0.0.1 port={port} sslmode=disable gssencmode=disable",
            application_name="t",
            answer_timeout_seconds=0.2,
        )


@pytest.mark.usefixtures("crowded")
def test_a_password_command_is_read() -> None:
    assert read_password("echo secret") == "secret"


@pytest.mark.usefixtures("crowded")
def test_the_supervisor_wakes_up(tmp_path: Path) -> None:
    with Wakeup(tmp_path) as wakeup:
        assert wakeup.wait(0).words == ()
        notify(tmp_path, READY)
        os.kill(os.getpid(), signal.SIGHUP)
        assert wakeup.wait(10).words == (READY,)
