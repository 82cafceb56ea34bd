"""A message that could not be decoded cost a streamed transaction that was confirmed: recovery
removed its checkpoint, though the journal files that it stood for were gone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.publisher import Change, content, gulp
from tests.fakes.streaming import Running, Source

from wal2lake.changelog import ChangeLog, files
from wal2lake.errors import ProtocolViolation
from wal2lake.model import Lsn
from wal2lake.settings import LogSettings
from wal2lake.wire.columnar import Event, StreamDecoder
from wal2lake.wire.columnar.framing import Frames

SMALL = LogSettings(journal_file_bytes=600, segment_bytes=3000)

pytestmark = pytest.mark.usefixtures("no_fsync")


def refuse(monkeypatch: pytest.MonkeyPatch, gid: bytes) -> None:
    """A decoder that cannot read the messages of one prepared transaction."""
    read = StreamDecoder._mark

    def mark(self: StreamDecoder, frames: Frames, at: int) -> Event | None:
        if gid in frames.message(at):
            raise ProtocolViolation("a message of the future")
        return read(self, frames, at)

    monkeypatch.setattr(StreamDecoder, "_mark", mark)


def checkpointed(directory: Path) -> tuple[ChangeLog, Source, Running]:
    """A log with an open transaction of which the journal has not all any more."""
    source = Source()
    log = ChangeLog.open(directory, SMALL)
    log.connected(Lsn(0), streaming=True, two_phase=True)
    one = source.begin()
    for i in range(40):
        one.items.append((one.xid, Change(1, "I", (b"%d" % i, b"x" * 60))))
        source.block(one)
        source.emit(b"other")
        log.append(*gulp(source.wire))
        source.wire.clear()
        log.sync()
        log.absorb(0)
        log.seal()
    assert len(list(directory.glob("spool-*.json"))) == 1
    assert files.journal_numbers(directory)[0] > 1
    return log, source, one


def ended_behind(log: ChangeLog, source: Source, one: Running) -> int:
    """Something that cannot be decoded, then the open transaction's commit, both confirmed."""
    future = source.begin()
    future.items.append((future.xid, Change(2, "I", (b"1", b"y"))))
    source.end(future, "prepare")
    refused = source.next_lsn
    source.end(one, "commit")
    log.append(*gulp(source.wire))
    source.wire.clear()
    assert log.sync() == source.wal[-1].end
    log.close()
    return refused


def test_a_newer_decoder_finds_the_streamed_transaction_behind_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, source, one = checkpointed(tmp_path)
    ended_behind(log, source, one)
    refuse(monkeypatch, b"g102")
    for _ in range(2):
        log = ChangeLog.open(tmp_path, SMALL)
        assert log.undecodable is not None
        with pytest.raises(ProtocolViolation, match="of the future"):
            log.ask_again(Lsn(source.wal[-1].end))
        log.close()
    monkeypatch.undo()
    log = ChangeLog.open(tmp_path, SMALL)
    assert log.undecodable is None
    assert content(tmp_path) == source.committed
    log.close()


def test_what_is_asked_for_again_leaves_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, source, one = checkpointed(tmp_path)
    confirmed = log.logged
    ended_behind(log, source, one)
    refuse(monkeypatch, b"g102")
    log = ChangeLog.open(tmp_path, SMALL)
    log.ask_again(confirmed)
    assert list(tmp_path.glob("spool-*.json")) == []
    monkeypatch.undo()
    log.connected(log.logged, streaming=True, two_phase=True)
    source.connect(log.logged)
    log.append(*gulp(source.wire))
    log.sync()
    while log.absorb(0):
        pass
    log.seal()
    assert content(tmp_path) == source.committed
    log.close()
