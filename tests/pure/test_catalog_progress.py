"""The positions that receiver, engine and front door share by mapped memory."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal2lake.catalog import ProgressFile
from wal2lake.catalog.mapped.progress import Progress, progress_path
from wal2lake.model import Lsn, Oid

LSNS = st.integers(0, (1 << 64) - 1)


def test_a_new_file_says_nothing_has_happened(tmp_path: Path) -> None:
    with ProgressFile(tmp_path, Oid(7)) as progress:
        assert progress.read() == Progress(
            0, Lsn(), Lsn(), Lsn(), Lsn(), 0, 0, Lsn(), 0, 0, Lsn()
        )
    path = progress_path(tmp_path, Oid(7))
    assert path.name == "sub-7.progress"
    assert path.stat().st_mode & 0o777 == 0o600


def test_what_one_opening_stores_another_sees_at_once_and_later(tmp_path: Path) -> None:
    with (
        ProgressFile(tmp_path, Oid(7)) as writer,
        ProgressFile(tmp_path, Oid(7)) as reader,
    ):
        writer.set(received=Lsn(30), logged=Lsn(20), applied=Lsn(10), receiver_pid=99)
        found = reader.read()
        assert (found.received, found.logged, found.applied) == (30, 20, 10)
        assert found.receiver_pid == 99
        assert reader.word("logged") == 20
    with ProgressFile(tmp_path, Oid(7)) as later:
        assert later.read() == found


def test_each_subscription_has_its_own(tmp_path: Path) -> None:
    with ProgressFile(tmp_path, Oid(7)) as one, ProgressFile(tmp_path, Oid(8)) as two:
        one.set(applied=5)
        assert two.word("applied") == 0


def test_a_word_nobody_has_declared_is_refused(tmp_path: Path) -> None:
    with ProgressFile(tmp_path, Oid(7)) as progress, pytest.raises(KeyError):
        progress.set(flushed=1)


@given(received=LSNS, logged=LSNS, applied=LSNS)
def test_a_reading_keeps_received_at_or_above_logged_at_or_above_applied(
    tmp_path_factory: pytest.TempPathFactory, received: int, logged: int, applied: int
) -> None:
    with ProgressFile(tmp_path_factory.getbasetemp(), Oid(9)) as progress:
        progress.set(received=received, logged=logged, applied=applied)
        found = progress.read()
        assert found.received >= found.logged >= found.applied == applied
        # Nothing is made smaller than its writer said.
        assert found.received >= received
        assert found.logged >= logged


def test_a_reading_is_in_order_while_all_three_move(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between any two words that are read, receiver and engine get on."""
    word = ProgressFile.word
    position = 100

    def moving(self: ProgressFile, name: str) -> int:
        nonlocal position
        found = word(self, name)
        position += 10
        self.set(received=position, logged=position, applied=position)
        return found

    with ProgressFile(tmp_path, Oid(7)) as progress:
        progress.set(received=100, logged=100, applied=100)
        monkeypatch.setattr(ProgressFile, "word", moving)
        found = progress.read()
    # Read in the wrong order this would need lies to be in order: each word is one
    # that was stored.
    assert (found.applied, found.logged, found.received) == (100, 110, 120)


def _store(directory: Path) -> None:
    with ProgressFile(directory, Oid(7)) as progress:
        progress.set(applied=(1 << 64) - 1)


def test_another_process_sees_it(tmp_path: Path) -> None:
    with ProgressFile(tmp_path, Oid(7)) as progress:
        child = multiprocessing.get_context("spawn").Process(
            target=_store, args=(tmp_path,)
        )
        child.start()
        child.join(30)
        assert child.exitcode == 0
        assert progress.word("applied") == (1 << 64) - 1
