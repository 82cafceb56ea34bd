"""A PREPARE without changes in a journal whose first file was gone counted as one whose changes
are lost: its COMMIT PREPARED was refused at every start, and the subscription stood for ever."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.publisher import content, gulp
from tests.fakes.streaming import Running, Source

from wal2lake.changelog import ChangeLog, files, prepared_transactions
from wal2lake.model import Lsn, Xid
from wal2lake.settings import LogSettings
from wal2lake.wire.pgoutput import CommitPrepared, Prepare

SMALL = LogSettings(journal_file_bytes=600, segment_bytes=3000)

pytestmark = pytest.mark.usefixtures("no_fsync")


def trimmed(directory: Path) -> tuple[ChangeLog, Source]:
    """A log whose journal begins behind its CONNECT."""
    source = Source()
    log = ChangeLog.open(directory, SMALL)
    log.connected(Lsn(0), streaming=True, two_phase=True)
    for _ in range(40):
        source.emit(b"m" * 100)
        log.append(*gulp(source.wire))
        source.wire.clear()
        log.sync()
        log.absorb(0)
        log.seal()
    assert files.journal_numbers(directory)[0] > 1
    return log, source


def prepare(source: Source) -> tuple[Xid, Lsn, Lsn, str]:
    """PostgreSQL sends no Begin Prepare for it."""
    one = source.begin()
    lsn = Lsn(source.next_lsn)
    del source.running[one.xid]
    source.say(Prepare(lsn, Lsn(lsn + 8), 5, Xid(one.xid), "empty"), lsn + 8)
    return Xid(one.xid), lsn, Lsn(lsn + 8), "empty"


@pytest.mark.parametrize("together", [True, False])
def test_an_empty_prepared_transaction_outlives_a_restart(
    tmp_path: Path, together: bool
) -> None:
    log, source = trimmed(tmp_path)
    xid, lsn, _, gid = prepare(source)
    end = CommitPrepared(Lsn(lsn + 50), Lsn(lsn + 58), 5, xid, gid)
    if together:
        source.say(end, lsn + 58)
    log.append(*gulp(source.wire))
    source.wire.clear()
    log.sync()
    log.close()
    log = ChangeLog.open(tmp_path, SMALL)
    listed = [one.gid for one in prepared_transactions(tmp_path)]
    assert listed == ([] if together else ["empty"])
    if not together:
        log.connected(log.logged, streaming=True, two_phase=True)
        source.say(end, lsn + 58)
        log.append(*gulp(source.wire))
        log.sync()
        while log.absorb(0):
            pass
        log.seal()
    assert log.sealed == lsn + 58
    (*_, last) = content(tmp_path)
    assert last == Running(xid).as_committed(lsn + 50)
    assert prepared_transactions(tmp_path) == []
    log.close()
