"""The ring of commit times by position, against a list of all of them."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from wal2lake.catalog.mapped.committimes import (
    GROUPS,
    INTERVALS_US,
    CommitTimes,
    times_path,
)
from wal2lake.model import Lsn, Oid

_OID = Oid(7)
_ERROR = 0.033
"""Longest interval of a level, as a part of the age from which the level is used."""


def _truth(commits: list[tuple[int, int]], lsn: int) -> int | None:
    return next((when for end, when in commits if end > lsn), None)


_steps = st.lists(
    st.one_of(
        st.tuples(
            st.just("append"),
            st.integers(1, 50),
            st.integers(-20_000, 2 * INTERVALS_US[-1]),
        ),
        st.tuples(st.just("reopen"), st.just(0), st.just(0)),
        st.tuples(st.just("resend"), st.integers(0, 100), st.just(0)),
        st.tuples(st.just("clear"), st.just(0), st.just(0)),
    ),
    max_size=60,
)


@given(_steps, st.lists(st.integers(0, 3000), max_size=20))
def test_answers_are_those_of_a_list(
    steps: list[tuple[str, int, int]], lsns: list[int]
) -> None:
    commits: list[tuple[int, int]] = []
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        times = CommitTimes.open_writer(directory, _OID)
        reader = CommitTimes.open_reader(directory, _OID)
        assert reader is not None
        for step, distance, elapsed in steps:
            if step == "append":
                end, when = commits[-1] if commits else (0, 0)
                commits.append((end + distance, when + elapsed))
                times.append(Lsn(commits[-1][0]), commits[-1][1])
            elif step == "reopen":
                times.close()
                times = CommitTimes.open_writer(directory, _OID)
            elif step == "clear":
                times.clear()
                commits.clear()
            elif commits:
                # A receiver that ended before the log was durable gets the rest again.
                logged = max(0, commits[-1][0] - distance)
                times.cut(Lsn(logged))
                assert times.last_end <= logged
                for end, when in commits:
                    times.append(Lsn(end), when)
        for lsn in (*lsns, *(end for end, _ in commits)):
            truth, found = _truth(commits, lsn), reader.first_after(Lsn(lsn))
            assert (found is None) == (truth is None)
            if found is not None and truth is not None:
                # Never younger than the truth.
                assert found <= truth
        times.close()
        reader.close()


@pytest.mark.parametrize("resent", [0, 10, 30_000])
@pytest.mark.parametrize("busy", [True, False])
def test_lag_of_days_is_known_to_three_percent(
    tmp_path: Path, busy: bool, resent: int
) -> None:
    numbers = random.Random(20)
    commits: list[tuple[int, int]] = []
    end = when = 0
    with CommitTimes.open_writer(tmp_path, _OID) as times:
        for _ in range(35_000):
            end += numbers.randrange(1, 1000)
            # Bursts of milliseconds and nights without a commit.
            when += numbers.choice(
                [1_000, 5_000, 5_000_000] if busy else [1_000, 60_000_000]
            )
            commits.append((end, when))
            times.append(Lsn(end), when)
        if resent:
            # A receiver that was killed gets the last ones again.
            logged = commits[-resent][0]
            times.cut(Lsn(logged))
            assert times.last_end == logged
            assert times.first_after(Lsn(logged)) is None
            for end, when in commits[-resent:]:
                times.append(Lsn(end), when)
        newest = when
        reach = INTERVALS_US[-1] * (GROUPS - 65)
        for lsn, truth in [(0, commits[0][1])] + [
            (end - 1, when) for end, when in numbers.sample(commits, 2_000)
        ]:
            found = times.first_after(Lsn(lsn))
            assert found is not None
            age = newest - truth
            if age <= reach:
                assert truth - max(INTERVALS_US[0], age * _ERROR) <= found <= truth
            else:
                assert newest - reach - 2 * INTERVALS_US[-1] <= found
        assert times.first_after(Lsn(end)) is None


def test_there_is_nothing_to_read_before_a_writer(tmp_path: Path) -> None:
    assert CommitTimes.open_reader(tmp_path, _OID) is None
    path = times_path(tmp_path, _OID)
    assert not path.exists()
    path.write_bytes(b"short")
    assert CommitTimes.open_reader(tmp_path, _OID) is None
    path.unlink()
    with CommitTimes.open_writer(tmp_path, _OID) as times:
        size = path.stat().st_size
        assert times.first_after(Lsn(0)) is None
        assert path.stat().st_mode & 0o777 == 0o600
    # A file of another version is not read, and the writer begins it anew.
    path.write_bytes(b"\x02".ljust(size, b"\0"))
    assert CommitTimes.open_reader(tmp_path, _OID) is None
    CommitTimes.open_writer(tmp_path, _OID).close()
    reader = CommitTimes.open_reader(tmp_path, _OID)
    assert reader is not None
    reader.close()


@settings(max_examples=examples(40))
@given(st.data())
def test_a_damaged_file_is_emptied_or_ascends(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        with CommitTimes.open_writer(directory, _OID) as times:
            for number in range(1, 40):
                times.append(Lsn(number * 10), number * 300_000)
        path = times_path(directory, _OID)
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 5))):
            place = data.draw(st.integers(1, len(content) // 8 - 1)) * 8
            word = data.draw(st.integers(0, (1 << 64) - 1))
            content[place : place + 8] = word.to_bytes(8, "little")
        path.write_bytes(content)
        with CommitTimes.open_writer(directory, _OID) as times:
            before = times.last_end
            times.first_after(Lsn(5))
            if before < 1 << 62:
                times.append(Lsn(before + 1), 1 << 50)
                assert times.last_end == before + 1
            times.clear()
            times.append(Lsn(3), 9)
            assert times.first_after(Lsn(2)) == 9


def test_readers_see_no_torn_group(tmp_path: Path) -> None:
    # The time of a commit follows from its position, so a mixture of two groups shows.
    scale = INTERVALS_US[0]
    stop = threading.Event()
    wrong: list[tuple[int, int | None]] = []
    looks = 0

    def read() -> None:
        nonlocal looks
        reader = CommitTimes.open_reader(tmp_path, _OID)
        assert reader is not None
        numbers = random.Random(3)
        while not stop.is_set():
            last = reader.last_end
            lsn = max(0, last - numbers.choice([1, 10, 900, 1000, 1100, 5000]))
            found = reader.first_after(Lsn(lsn))
            looks += 1
            truth = (lsn + 1) * scale
            if found is None or not truth - INTERVALS_US[2] <= found <= truth:
                wrong.append((lsn, found))
        reader.close()

    interval = sys.getswitchinterval()
    with CommitTimes.open_writer(tmp_path, _OID) as times:
        for number in range(1, 10_000):
            times.append(Lsn(number), number * scale)
        sys.setswitchinterval(1e-5)
        try:
            thread = threading.Thread(target=read)
            thread.start()
            deadline = time.monotonic() + 1.0
            number = 10_000
            while time.monotonic() < deadline:
                times.append(Lsn(number), number * scale)
                number += 1
            stop.set()
            thread.join()
        finally:
            sys.setswitchinterval(interval)
    assert looks
    assert wrong == []


_WRITER = """
import sys
from pathlib import Path
from wal2lake.catalog.mapped.committimes import CommitTimes
from wal2lake.model import Lsn, Oid
times = CommitTimes.open_writer(Path(sys.argv[1]), Oid(7))
number = times.last_end
print("begun", flush=True)
while True:
    number += 1
    times.append(Lsn(number), number * 10_000)
"""


def test_a_killed_writer_is_continued(tmp_path: Path) -> None:
    last = 0
    for _ in range(2):
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert writer.stdout is not None
        writer.stdout.readline()
        time.sleep(0.05)
        writer.send_signal(signal.SIGKILL)
        writer.wait()
        writer.stdout.close()
        with CommitTimes.open_writer(tmp_path, _OID) as times:
            assert times.last_end > last
            last = times.last_end
            for age in (0, 500, 3_000):
                if age >= last:
                    continue
                found = times.first_after(Lsn(last - 1 - age))
                assert found is not None
                truth = (last - age) * 10_000
                assert truth - max(20_000, age * 10_000 * _ERROR) <= found <= truth
