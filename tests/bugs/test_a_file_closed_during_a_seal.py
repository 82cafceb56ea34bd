"""A seal asked which journal files are still needed, and removed one that was closed after that: it
held the changes of a prepared transaction, of which nothing but the Prepare was left."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.publisher import Change, content, gulp
from tests.fakes.streaming import Source

from wal2lake.changelog import ChangeLog, files
from wal2lake.model import Lsn
from wal2lake.settings import LogSettings

pytestmark = pytest.mark.usefixtures("no_fsync")


@pytest.mark.parametrize("streamed", [True, False])
def test_a_journal_file_that_is_closed_during_a_seal_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, streamed: bool
) -> None:
    source = Source()
    log = ChangeLog.open(
        tmp_path, LogSettings(journal_file_bytes=600, segment_bytes=3000)
    )
    log.connected(Lsn(0), streaming=True, two_phase=True)
    source.emit(b"before")
    log.append(*gulp(source.wire))
    source.wire.clear()
    log.sync()
    while log.absorb(0):
        pass

    one = source.begin()
    one.items += [(one.xid, Change(1, "I", (b"%d" % i, b"x" * 60))) for i in range(40)]
    if streamed:
        source.block(one, 30)
    source.end(one, "prepare")
    source.finish(source.prepared[one.xid], commit=True)
    asked, last = log._handover.oldest_file, files.journal_numbers(tmp_path)[-1]

    def meanwhile() -> int | None:
        """Between the question and the removal the journal's thread goes on."""
        needed = asked()
        for message in source.wire:
            log.append(*gulp([message]))
        log.sync()
        source.wire.clear()
        return needed

    monkeypatch.setattr(log._handover, "oldest_file", meanwhile)
    log.seal()
    monkeypatch.undo()
    numbers = files.journal_numbers(tmp_path)
    assert numbers[0] <= last < numbers[-1] - 2
    log.close()
    ChangeLog.open(tmp_path).close()
    assert content(tmp_path) == source.committed
