"""A log file that the operating system does not let us read was said to be corrupted, with the
advice to restore it from a backup."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any, NoReturn

import pyarrow.parquet as pq
import pytest
from tests.fakes.lake_log import EVERYTHING, write_log

from wal2lake.changelog import LogReader
from wal2lake.changelog.manifest import LogFile
from wal2lake.errors import CorruptLogError, StorageError
from wal2lake.lake.staging.logrows import LogPart, read_rows
from wal2lake.testing.rowmodel import RowEvent


def refuse(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_it_is_a_storage_error_and_passes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_log(
        tmp_path / "seg.parquet", [RowEvent(1, 0, "I", (1, 1, "a", "b"))]
    )
    file = LogFile("seg.parquet", 1, 0)
    reader = LogReader(tmp_path)
    part = LogPart(source, 0, None)
    with monkeypatch.context() as patched:
        patched.setattr(pq, "ParquetFile", refuse)
        with pytest.raises(StorageError, match="Too many open files") as caught:
            reader.read(file)
        assert caught.value.sqlstate == "58030"
        with pytest.raises(StorageError, match="Too many open files"):
            list(read_rows(part, EVERYTHING, lambda present: []))
    assert reader.read(file).num_rows == 1
    (tmp_path / "seg.parquet").unlink()
    with pytest.raises(CorruptLogError):
        reader.read(file)
    with pytest.raises(CorruptLogError):
        list(read_rows(part, EVERYTHING, lambda present: []))
