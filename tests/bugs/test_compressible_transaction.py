"""A streamed transaction of rows that compress well was read back into memory at its commit, all
of it, for its files were small."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.publisher import Change, content, gulp
from tests.fakes.streaming import Source

from wal2lake.changelog import ChangeLog, manifest
from wal2lake.changelog.segments import SegmentWriter
from wal2lake.model import Lsn
from wal2lake.settings import LogSettings
from wal2lake.wire.columnar import Decoded

SIZES = LogSettings(journal_file_bytes=1 << 20, segment_bytes=512 << 10)

pytestmark = pytest.mark.usefixtures("no_fsync")


@pytest.mark.parametrize("restarted", ["no", "yes", "from an older version"])
def test_a_large_transaction_is_not_in_memory_at_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarted: str
) -> None:
    add, largest = SegmentWriter.add, 0

    def watched(self: SegmentWriter, decoded: Decoded) -> None:
        nonlocal largest
        add(self, decoded)
        largest = max(largest, self.buffered_bytes)

    monkeypatch.setattr(SegmentWriter, "add", watched)
    source = Source()
    log = ChangeLog.open(tmp_path, SIZES)
    log.connected(Lsn(0), streaming=True, two_phase=True)
    one = source.begin()
    for part in range(40):
        one.items += [
            (one.xid, Change(1, "I", (b"%d" % i, b"x" * 5000)))
            for i in range(10 * part, 10 * part + 10)
        ]
        one.items.append((one.xid, b"m" * 500))
        source.block(one)
        log.append(*gulp(source.wire))
        source.wire.clear()
        log.sync()
        log.absorb(0)
        log.seal()
    (spool,) = log._spools._all()
    assert 0 < spool.piece_bytes <= SIZES.segment_bytes // 8
    source.end(one, "prepare" if restarted != "no" else "commit")
    if restarted != "no":
        log.append(*gulp(source.wire))
        source.wire.clear()
        log.sync()
        while log.absorb(0):
            pass
        log.seal()
        log.close()
        if restarted == "from an older version":
            (path,) = tmp_path.glob("spool-*.json")
            members = manifest.unseal(path.read_bytes(), path)
            del members["raw_bytes"]
            path.write_bytes(manifest.seal(members))
        log = ChangeLog.open(tmp_path, SIZES)
        log.connected(log.logged, streaming=True, two_phase=True)
        source.finish(source.prepared[one.xid], commit=True)
    log.append(*gulp(source.wire))
    log.sync()
    while log.absorb(0):
        pass
    log.seal()
    assert largest < SIZES.segment_bytes
    assert content(tmp_path) == source.committed
    log.close()
