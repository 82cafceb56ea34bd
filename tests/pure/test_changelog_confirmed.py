"""The file that says how far the publisher's slot may have been told."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from wal2lake.changelog import files
from wal2lake.changelog.confirmed import Confirmed, ConfirmedFile
from wal2lake.errors import ConfigurationError, CorruptLogError, StorageError
from wal2lake.model import Lsn

SECTOR, RECORD = 512, 92


def last(directory: Path) -> Confirmed | None:
    with ConfirmedFile.open(directory) as one:
        return one.last


def test_what_was_recorded_last_is_read_with_its_slot(tmp_path: Path) -> None:
    assert last(tmp_path) is None
    with ConfirmedFile.open(tmp_path) as one:
        for slot, position in (("a", 300), ("a", 400), ("b" * 63, 200)):
            one.record(slot, Lsn(position))
            assert one.last == Confirmed(slot, Lsn(position))
            assert last(tmp_path) == one.last
    with ConfirmedFile.open(tmp_path) as one:
        one.record("a", Lsn(2**64 - 1))
    assert last(tmp_path) == Confirmed("a", Lsn(2**64 - 1))


@settings(
    max_examples=examples(60),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(writes=st.integers(1, 5), kept=st.integers(0, SECTOR), junk=st.booleans())
def test_a_record_that_a_crash_tore_leaves_the_one_before(
    tmp_path: Path, writes: int, kept: int, junk: bool
) -> None:
    path = tmp_path / "confirmed"
    path.unlink(missing_ok=True)
    with ConfirmedFile.open(tmp_path) as one:
        for i in range(1, writes + 1):
            one.record("s", Lsn(i))
        before = path.read_bytes()
        one.record("s", Lsn(99))
        written = path.read_bytes()
    after = bytearray(written)
    place = (writes + 1) % 2 * SECTOR
    rest = slice(place + kept, place + SECTOR)
    after[rest] = b"\xee" * (SECTOR - kept) if junk else before[rest]
    path.write_bytes(after)
    found = last(tmp_path)
    whole = bytes(after[place : place + RECORD]) == written[place : place + RECORD]
    assert found == Confirmed("s", Lsn(99 if whole else writes))
    with ConfirmedFile.open(tmp_path) as one:
        one.record("s", Lsn(100))
    assert last(tmp_path) == Confirmed("s", Lsn(100))


def test_a_file_without_a_whole_record_is_corrupt(tmp_path: Path) -> None:
    with ConfirmedFile.open(tmp_path) as one:
        one.record("s", Lsn(1))
    path = tmp_path / "confirmed"
    content = bytearray(path.read_bytes())
    content[SECTOR + 20] ^= 1
    path.write_bytes(content)
    with pytest.raises(CorruptLogError, match="invalid checksum in file") as caught:
        ConfirmedFile.open(tmp_path)
    assert f'Remove "{path}"' in str(caught.value.hint)
    path.write_bytes(b"")
    with pytest.raises(CorruptLogError):
        ConfirmedFile.open(tmp_path)
    # What the hint says.
    path.unlink()
    assert last(tmp_path) is None
    content[SECTOR + 20] ^= 1
    content[SECTOR + 7] = 2
    path.write_bytes(content)
    with pytest.raises(ConfigurationError, match="unsupported log format version 2"):
        ConfirmedFile.open(tmp_path)


def test_what_could_not_be_made_durable_is_not_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with ConfirmedFile.open(tmp_path) as one:
        one.record("s", Lsn(1))
        one.record("s", Lsn(2))
        with monkeypatch.context() as patch:

            def fail(descriptor: int) -> None:
                raise OSError(errno.EIO, os.strerror(errno.EIO))

            patch.setattr(files, "sync_data", fail)
            for _ in range(3):
                with pytest.raises(StorageError, match="could not write to file"):
                    one.record("s", Lsn(3))
                assert one.last == Confirmed("s", Lsn(2))
                # However often it is tried, what was recorded before stays whole.
                data = bytearray((tmp_path / "confirmed").read_bytes())
                data[SECTOR : 2 * SECTOR] = bytes(SECTOR)
                other = tmp_path / "other"
                other.mkdir(exist_ok=True)
                (other / "confirmed").write_bytes(data)
                assert last(other) == Confirmed("s", Lsn(2))
        one.record("s", Lsn(4))
    assert last(tmp_path) == Confirmed("s", Lsn(4))


def test_a_file_that_is_closed_is_not_written(tmp_path: Path) -> None:
    one = ConfirmedFile.open(tmp_path)
    one.record("s", Lsn(1))
    one.close()
    one.close()
    with pytest.raises(StorageError, match="is closed"):
        one.record("s", Lsn(2))
    assert last(tmp_path) == Confirmed("s", Lsn(1))
