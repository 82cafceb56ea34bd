"""An fsync of a streamed transaction's file that failed was done again, and that one succeeds
whatever the first has lost: the journal went, and the rows might not be on disk. The receiver also
tried for ever what a log refuses that must be opened again."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.publisher import Change, content, gulp
from tests.fakes.streaming import Source

from wal2lake.changelog import ChangeLog, files
from wal2lake.errors import StorageError, UnusableLogError
from wal2lake.model import Lsn, Oid
from wal2lake.receive.threads.pauses import Pauses
from wal2lake.receive.threads.sealer import Sealer
from wal2lake.settings import LogSettings

SMALL = LogSettings(journal_file_bytes=600, segment_bytes=3000)

pytestmark = pytest.mark.usefixtures("no_fsync")


def failing_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first fsync of a piece loses its pages, as Linux does, and says so once."""
    lost: list[Path] = []

    def sync_file(path: Path) -> None:
        if not lost:
            lost.append(path)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(files, "sync_file", sync_file)


def prepared(directory: Path) -> tuple[ChangeLog, Source]:
    """A prepared transaction that the next seal makes durable."""
    source = Source()
    log = ChangeLog.open(directory, SMALL)
    log.connected(Lsn(0), streaming=True, two_phase=True)
    one = source.begin()
    one.items += [(one.xid, Change(1, "I", (b"%d" % i, b"x" * 60))) for i in range(40)]
    source.block(one)
    source.end(one, "prepare")
    for message in source.wire:
        log.append(*gulp([message]))
    source.wire.clear()
    log.sync()
    while log.absorb(0):
        pass
    return log, source


def test_a_piece_whose_fsync_failed_is_written_anew_from_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, source = prepared(tmp_path)
    numbers = files.journal_numbers(tmp_path)
    failing_once(monkeypatch)
    with pytest.raises(StorageError):
        log.seal()
    lost = list(tmp_path.glob("spool-*.parquet"))
    for _ in range(2):
        with pytest.raises(UnusableLogError, match="must be opened again"):
            log.seal()
    assert lost
    assert list(tmp_path.glob("spool-*.json")) == []
    assert files.journal_numbers(tmp_path) == numbers
    log.close()
    for path in lost:
        path.write_bytes(b"")
    log = ChangeLog.open(tmp_path, SMALL)
    log.connected(log.logged, streaming=True, two_phase=True)
    (ended,) = source.prepared.values()
    source.finish(ended, commit=True)
    log.append(*gulp(source.wire))
    log.sync()
    while log.absorb(0):
        pass
    log.seal()
    assert content(tmp_path) == source.committed
    log.close()


def test_the_receiver_ends_when_its_log_must_be_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, _ = prepared(tmp_path / "1")
    failing_once(monkeypatch)
    noted: list[str | None] = []
    anything: Any = SimpleNamespace(
        oid=Oid(1),
        set=lambda **_: None,
        note_error=lambda oid, worker, text, _=None: noted.append(text),
    )
    stop, ended = threading.Event(), threading.Event()
    sealer = Sealer(
        log,
        tmp_path / "1",
        SMALL,
        anything,
        anything,
        anything,
        Pauses(anything, Oid(1)),
        applied=lambda: Lsn(0),
        stop=stop,
    )

    def work() -> None:
        with pytest.raises(UnusableLogError):
            sealer.work()
        ended.set()

    seal = threading.Thread(target=work)
    seal.start()
    try:
        assert ended.wait(30)
    finally:
        stop.set()
        seal.join(30)
    assert len(noted) == 1
    log.close()
