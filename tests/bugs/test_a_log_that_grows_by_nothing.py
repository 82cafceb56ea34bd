"""A segment may end above its last transaction: a table has joined. Whoever has read it has read
all, and need not look again and again."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from tests.fakes.xids import Numbers

from wal2lake.changelog import LogReader
from wal2lake.model import Lsn
from wal2lake.publish.capture.writer import PublisherLogWriter
from wal2lake.publish.driver import Decoding


def test_a_note_is_read(tmp_path: Path, no_fsync: None) -> None:
    writer = PublisherLogWriter(tmp_path / "log", 1 << 20, xids=Numbers())
    writer.versions = {16384: 1}
    writer.seal(note=True)
    writer.versions = {16384: 1, 16385: 0}
    writer.seal(note=True)
    plugin = cast(Any, SimpleNamespace(streams=False))
    decoding = Decoding(
        LogReader(tmp_path / "log"), plugin, cast(Any, None), Lsn(1), 1 << 20
    )
    assert decoding.advance() == 0
    assert decoding.position == writer.sealed > 1
