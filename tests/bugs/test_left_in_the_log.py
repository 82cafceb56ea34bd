"""A crash leaves things in a table's log that are nobody's: temporary files, and Hadoop's companion
of a commit that did not survive. A later commit of that version, written without Hadoop, would have
been judged by the old companion and refused by Spark as corrupt."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

import pytest

from wal2lake.lake.delta.durability import discard_torn_commits

pytestmark = pytest.mark.usefixtures("no_fsync")

HOURS = 3600


@pytest.fixture
def log(tmp_path: Path) -> Path:
    made = tmp_path / "t" / "_delta_log"
    made.mkdir(parents=True)
    for name in (
        f"{0:020}.json",
        f".{0:020}.json.crc",
        f"{0:020}.crc",
        f".{0:020}.crc.crc",
    ):
        (made / name).write_text('{"commitInfo":{}}\n')
    return made


def names(log: Path) -> set[str]:
    return {path.name for path in log.iterdir()}


def test_a_companion_without_its_file_goes(log: Path) -> None:
    kept = names(log)
    for number in (0, 1):
        (log / f".{number:020}.checkpoint.parquet.crc").write_bytes(b"crc")
    (log / f".{1:020}.json.crc").write_bytes(b"crc")
    (log / f".{1:020}.crc.crc").write_bytes(b"crc")
    (log / "._last_checkpoint.crc").write_bytes(b"crc")
    assert discard_torn_commits(log.parent, 0) == ()
    assert names(log) == kept


def test_temporary_files_go_but_for_those_that_another_writer_may_be_at(
    log: Path,
) -> None:
    kept = names(log)
    ours = log / f".{1:020}.json.{uuid.uuid4().hex}.tmp"
    theirs = [log / f".{1:020}.json.{uuid.uuid4()}.tmp" for _ in range(2)]
    for path in (ours, *theirs):
        path.write_bytes(b"")
    for path in theirs:
        path.with_name(f".{path.name}.crc").write_bytes(b"")
    old = time.time() - 2 * HOURS
    os.utime(theirs[0], (old, old))
    # A name that is not a writer's is none of our business.
    (log / "notes.tmp").write_bytes(b"")
    assert discard_torn_commits(log.parent, 0) == ()
    assert names(log) == kept | {
        theirs[1].name,
        f".{theirs[1].name}.crc",
        "notes.tmp",
    }
