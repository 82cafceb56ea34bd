"""A tablesync worker that has caught up says CopyDone at once. When it came while a keepalive was
being sent to it, the walsender heard it and then waited for it, for ten seconds, and so did the
subscriber with the table that it had copied."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace
from typing import Any

import pytest

from wal2lake.model import Lsn
from wal2lake.publish.statistics import Counts
from wal2lake.publish.walsender.stream import End, Stream

LOG_END = Lsn(1000)


def test_nothing_is_waited_for_behind_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, client = socket.socketpair()
    ours.setblocking(False)
    grown, grows = os.pipe()

    def looks_at_the_log(go_on: object) -> int:
        """Behind the moment in which the client was heard last, before it is sent anything."""
        client.sendall(b"c\0\0\0\4")
        return 0

    unused: Any = SimpleNamespace(info=lambda *_, **__: None)
    page: Any = SimpleNamespace(set=lambda **_: None, set_lags=lambda lags_us: None)
    reader: Any = SimpleNamespace(newest=lambda: SimpleNamespace(sealed_lsn=LOG_END))
    decoding: Any = SimpleNamespace(
        position=LOG_END, counts=Counts(), advance=looks_at_the_log
    )
    stream = Stream(ours, grown, reader, decoding, page, lambda lsn: None, 0, unused)
    ended_before_waits: list[bool] = []
    monkeypatch.setattr(
        stream,
        "_watch",
        lambda events: ended_before_waits.append(stream._end is not None),
    )
    try:
        assert stream.run() is End.DONE
        assert not any(ended_before_waits)
        assert client.recv(4096).endswith(b"c\0\0\0\4")
    finally:
        for one in (ours, client):
            one.close()
        for descriptor in (grown, grows):
            os.close(descriptor)
