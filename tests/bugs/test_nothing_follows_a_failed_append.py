"""A receiver that was stopped while the log's disk was full gave the group in hand up and went
on with the next: if that one fitted, it was made durable behind a hole. After the restart the
log's end was beyond the lost transaction, and the publisher never sent it again."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.fakes.publisher import Gulp, content, gulp, inserts, payloads

from wal2lake.changelog import ChangeLog
from wal2lake.changelog.journal.journal import Journal
from wal2lake.errors import InternalError, ProtocolViolation, StorageError
from wal2lake.model import Lsn, Oid
from wal2lake.receive import gulps
from wal2lake.receive.threads.logwriter import LogWriter
from wal2lake.receive.threads.pauses import Pauses
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.usefixtures("no_fsync")

FIRST, LARGE, SMALL = inserts(100, 1), inserts(200, 100, size=50), inserts(300, 1)


class NearlyFullDisk:
    """os.pwritev on a disk that has ``room`` for small writes only."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, room: int | None) -> None:
        self.room = room
        self._real = os.pwritev
        monkeypatch.setattr(os, "pwritev", self)

    def __call__(self, descriptor: int, data: Sequence[bytes], offset: int) -> int:
        if self.room is not None and sum(map(len, data)) > self.room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return self._real(descriptor, data, offset)


class Receiving:
    """A receiver's journal thread on a real log, fed as its reader does."""

    def __init__(self, log: ChangeLog) -> None:
        catalog: Any = SimpleNamespace(
            note_error=lambda oid, worker, text, _=None: None
        )
        self._stop = threading.Event()
        self.pauses = Pauses(catalog, Oid(1))
        self._writer = LogWriter(log, self.pauses, stop=self._stop, wake=lambda: None)
        self.failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work)
        self._thread.start()

    def _work(self) -> None:
        try:
            self._writer.work()
        except BaseException as error:
            self.failure = error

    def feed(self, data: bytes, lengths: Any) -> None:
        self._writer.put(gulps.Gulp(data, lengths, open_at_end=False))

    def stop(self) -> None:
        """As the end of ``run``."""
        self._stop.set()
        self._writer.end()
        self._thread.join(30)
        assert not self._thread.is_alive()


def test_a_stop_while_the_disk_is_full_leaves_no_hole_in_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = NearlyFullDisk(monkeypatch, room=1000)
    log = ChangeLog.open(tmp_path)
    log.connected(Lsn(0))
    receiving = Receiving(log)
    receiving.feed(*gulp(payloads(FIRST)))
    wait_until(lambda: log.logged == 108, describe="the first transaction is logged")
    receiving.feed(*gulp(payloads(LARGE)))
    wait_until(lambda: bool(receiving.pauses), describe="the disk is full")
    receiving.feed(*gulp(payloads(SMALL)))
    receiving.stop()
    assert receiving.failure is None
    log.close()
    disk.room = None
    log = ChangeLog.open(tmp_path)
    assert log.logged == 108, "the publisher must send the large one again"
    log.close()
    assert content(tmp_path) == [FIRST]


def opened(directory: Path, **sizes: int) -> Journal:
    journal = Journal(directory, **sizes)
    assert list(journal.recover()) == []
    return journal


def shorter(one: Gulp) -> Gulp:
    data, lengths = one
    return data[: -int(lengths[-1])], lengths[:-1]


@pytest.mark.parametrize("file_bytes", [1, 1 << 20])
def test_after_a_failed_append_the_journal_takes_the_same_gulp_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file_bytes: int
) -> None:
    journal = opened(tmp_path, file_bytes=file_bytes)
    first, large, small = (gulp(payloads(t)) for t in (FIRST, LARGE, SMALL))
    journal.append(*first)
    disk = NearlyFullDisk(monkeypatch, room=1000)
    for _ in range(2):
        with pytest.raises(StorageError):
            journal.append(*large)
        for other in (small, first, shorter(large)):
            with pytest.raises(InternalError, match="after a failed append"):
                journal.append(*other)
        with pytest.raises(InternalError, match="after a failed append"):
            journal.append_connect(Lsn(108))
        assert journal.sync() == 108
    disk.room = None
    # Space alone does not make it right.
    with pytest.raises(InternalError, match="after a failed append"):
        journal.append(*small)
    # The same by content: the caller may have joined it anew.
    data, lengths = large
    journal.append(bytes(bytearray(data)), lengths.copy())
    journal.append(*small)
    assert journal.sync() == 308
    journal.close()


def test_other_lengths_make_another_gulp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = opened(tmp_path)
    journal.append_connect(Lsn(0))
    disk = NearlyFullDisk(monkeypatch, room=0)
    data, lengths = gulp(payloads(FIRST))
    with pytest.raises(StorageError):
        journal.append(data, lengths)
    disk.room = None
    with pytest.raises(InternalError, match="after a failed append"):
        journal.append(data, np.array([len(data)], np.uint32))
    journal.append(data, lengths)
    journal.close()


def test_nothing_follows_a_gulp_that_was_refused(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    data, lengths = gulp(payloads(FIRST))
    foreign = bytearray(data)
    foreign[25] = ord("?")
    with pytest.raises(ProtocolViolation):
        journal.append(bytes(foreign), lengths)
    with pytest.raises(InternalError, match="after a failed append"):
        journal.append(*gulp(payloads(SMALL)))
    journal.close()
