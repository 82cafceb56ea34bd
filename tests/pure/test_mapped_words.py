"""Files of words that processes map: made once, whole, whoever comes first."""

from __future__ import annotations

import errno
import fcntl
import multiprocessing
import os
from pathlib import Path

import pytest

from wal2lake.catalog.mapped.words import MappedWords

SIZE = 64


def test_a_file_of_another_size_is_made_anew(tmp_path: Path) -> None:
    path = tmp_path / "words"
    assert MappedWords.open_reader(path, SIZE, "q") is None
    path.write_bytes(b"\xff" * (SIZE - 8))
    assert MappedWords.open_reader(path, SIZE, "q") is None
    with MappedWords.open_writer(path, SIZE, "q") as writer:
        assert list(writer.words) == [0] * 8
        writer.words[3] = -1
        reader = MappedWords.open_reader(path, SIZE, "Q")
        assert reader is not None
        with reader:
            assert reader.words[3] == (1 << 64) - 1
            with pytest.raises(TypeError):
                reader.words[3] = 1
            writer.clear()
            assert reader.words[3] == 0
    assert path.stat().st_size == SIZE
    assert path.stat().st_blocks > 0, "a store needs no new place on the disk"


def _store(path: Path, number: int) -> None:
    with MappedWords.open_writer(path, 8 * 512, "q") as mapped:
        mapped.words[number] = number + 1


def test_processes_that_make_it_at_once_lose_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    for attempt in range(10):
        path = tmp_path / str(attempt)
        workers = [
            context.Process(target=_store, args=(path, number)) for number in range(6)
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0
        with MappedWords.open_writer(path, 8 * 512, "q") as mapped:
            assert list(mapped.words[:6]) == [1, 2, 3, 4, 5, 6]


def test_a_file_that_is_mapped_is_not_locked(tmp_path: Path) -> None:
    path = tmp_path / "words"
    with (
        MappedWords.open_writer(path, SIZE, "q"),
        path.open("rb") as file,
    ):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_full_disk_is_an_error_and_the_next_attempt_makes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "words"

    def full(descriptor: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patched:
        patched.setattr(os, "write", full)
        with pytest.raises(OSError, match="No space left"):
            MappedWords.open_writer(path, SIZE, "q")
    with MappedWords.open_writer(path, SIZE, "q") as mapped:
        assert mapped.words[0] == 0
