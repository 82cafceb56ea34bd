"""A walsender that is told to stop ends when its client has confirmed what it was sent."""

from __future__ import annotations

import os
import socket
import struct
import threading
from types import SimpleNamespace
from typing import Any

import pytest

from wal2lake.model import Lsn
from wal2lake.publish.statistics import Counts
from wal2lake.publish.walsender.stream import End, Stream
from wal2lake.testing.waits import wait_until
from wal2lake.wire.copyboth import StandbyStatus, write_standby_status

LOG_END = Lsn(1000)
WAIT_SECONDS = 20.0


class Client:
    """The other end of a stream that has sent all there is."""

    def __init__(self) -> None:
        self._ours, self.socket = socket.socketpair()
        self.socket.settimeout(WAIT_SECONDS)
        self._grown, self._grows = os.pipe()
        unused: Any = SimpleNamespace(info=lambda *_, **__: None)
        self.lags_us: list[tuple[int | None, ...]] = []
        page: Any = SimpleNamespace(set=lambda **_: None, set_lags=self.lags_us.append)
        reader: Any = SimpleNamespace(
            newest=lambda: SimpleNamespace(sealed_lsn=LOG_END)
        )
        decoding: Any = SimpleNamespace(
            position=LOG_END, counts=Counts(), advance=lambda go_on: 0
        )
        self.confirmed: list[Lsn] = []
        self.stream = Stream(
            self._ours,
            self._grown,
            reader,
            decoding,
            page,
            self.confirmed.append,
            0,
            unused,
        )
        self.ends: list[End] = []
        self.thread = threading.Thread(
            target=lambda: self.ends.append(self.stream.run())
        )
        self.thread.start()

    def status(self, written: int, flushed: int) -> None:
        at = StandbyStatus(Lsn(written), Lsn(flushed), Lsn(flushed), 0, False)
        body = write_standby_status(at)
        self.socket.sendall(b"d" + struct.pack(">i", len(body) + 4) + body)

    def stop(self) -> None:
        self.stream.stop()
        os.write(self._grows, b"g")

    def close(self) -> None:
        self.socket.close()
        self.thread.join(WAIT_SECONDS)
        self._ours.close()
        os.close(self._grows)
        os.close(self._grown)


def test_a_client_that_has_written_all_is_asked_until_it_has_flushed() -> None:
    client = Client()

    def asked() -> None:
        # A keepalive that wants an answer.
        wanted = b"k" + struct.pack(">Q", LOG_END)
        found = b""
        while not (wanted in found and found.rpartition(wanted)[2][8:9] == b"\1"):
            found += client.socket.recv(4096)

    try:
        asked()
        client.status(LOG_END, 500)
        wait_until(lambda: client.stream._written > 0, describe="the status is heard")
        client.stop()
        asked()
        client.status(LOG_END, 700)
        asked()
        client.status(LOG_END, LOG_END)
        client.thread.join(WAIT_SECONDS)
        assert client.ends == [End.ORDERED]
        # How long each position took, from when it was sent.
        behind, written, everywhere = client.lags_us
        assert behind[0] is not None and behind[1:] == written[1:] == (None, None)
        assert None not in everywhere and everywhere[0] == behind[0]
    finally:
        client.close()


@pytest.mark.parametrize("flushes", [True, False])
def test_it_ends_when_the_client_has_all(flushes: bool) -> None:
    client = Client()
    try:
        # CopyBothResponse, and a keepalive that says where the log ends.
        found = b""
        while struct.pack(">Q", LOG_END) not in found:
            found += client.socket.recv(4096)
        client.stop()
        client.status(LOG_END if flushes else LOG_END - 1, 500 if flushes else 0)
        # It has heard that, and answers.
        wait_until(lambda: client.stream._written > 0, describe="the status is heard")
        client.thread.join(0.2)
        assert not client.ends
        client.status(LOG_END, LOG_END if flushes else 0)
        client.thread.join(WAIT_SECONDS)
        assert client.ends == [End.ORDERED]
        assert client.confirmed[-1:] == ([LOG_END] if flushes else [])
        assert client.socket.recv(4096).endswith(b"C\0\0\0\x0bCOPY 0\0")
    finally:
        client.close()
