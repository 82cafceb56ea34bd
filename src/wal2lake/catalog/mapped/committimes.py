"""Commit times of one subscription's source by position, shared by mapped memory.

``run/sub-<oid>.times`` answers one question: when was the first transaction committed that a stage
of the pipeline has not passed? Its age is the number of seconds that the stage is behind.

The receiver appends pairs (end LSN, commit time). They are gathered in groups: a group has the end
of its last transaction and the commit time of its first, so an answer is never younger than the
truth, and older by at most the group's interval. There are five levels with longer and longer
intervals; each is a ring of groups. A level passes a group on to the next one when it begins
another, so most pairs touch the first level only. A position is looked up in the finest level that
still has it; below the oldest group of the last level, that group is the answer.

    level      interval      reaches back, on a source that commits all the time
    0          10 ms         9.6 s
    1          100 ms        96 s
    2          1 s           16 min
    3          20 s          5.3 h
    4          10 min        6.6 days

There is one writer and no lock. A word is stored in one machine instruction. A group is written
outside of the part of its ring that readers look at, then published by the ring's count of groups;
a reader whose groups were overwritten meanwhile sees it by the count and looks again. In place only
the newest group changes: its end grows, its time shrinks, and every mixture of the two is a correct
group. So a receiver may be killed at any instruction, and the next one continues. After a crash of
the machine the file may have pages of different moments: if the ends of a ring do not ascend, all
are emptied when the writer opens the file. ``receive.measures`` adds what only the log has.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Final

from wal2lake.catalog.mapped.words import MappedWords
from wal2lake.model import Lsn, Oid

INTERVALS_US: Final = (10_000, 100_000, 1_000_000, 20_000_000, 600_000_000)
"""Longest time between the commits of a group, by level, in microseconds. A group is a hundredth
of the age at which its level is first needed, about."""

GROUPS: Final = 1024
"""Groups in the ring of a level."""

_SPARE: Final = 64
"""Oldest groups of a ring that readers leave alone, so that the writer can add as many during one
look."""

_VERSION: Final = 1
_HEADER: Final = 8
"""Words before the first ring. The first is the version, the others are not used."""
_RING_HEADER: Final = 8
"""Words before a ring's ends: the number of groups that were ever begun; 1 if ``cut`` found that
groups had been forgotten already. The others are not used."""
_RING: Final = _RING_HEADER + 2 * GROUPS
_SIZE: Final = 8 * (_HEADER + len(INTERVALS_US) * _RING)

_LOOKS: Final = 8
"""Looks at a ring that the writer changes meanwhile, before the next level is asked."""


class CommitTimes:
    """The mapped file. Use ``open_writer`` or ``open_reader``. Threads may share a reader."""

    def __init__(self, mapped: MappedWords) -> None:
        """Use ``open_writer`` or ``open_reader``."""
        self._map = mapped
        self._words = mapped.words
        self._rings: list[_Ring] = []
        coarser = None
        for level in reversed(range(len(INTERVALS_US))):
            first = _HEADER + level * _RING
            coarser = _Ring(self._words, first, INTERVALS_US[level], coarser)
            self._rings.insert(0, coarser)

    @classmethod
    def open_writer(cls, directory: Path, subid: Oid) -> CommitTimes:
        """Map the file in ``directory`` (the node's ``run/``) for the receiver, the only writer.

        Creates the file if it is missing, and empties what a crash of the machine has damaged.
        Raises OSError."""
        times = cls(MappedWords.open_writer(times_path(directory, subid), _SIZE, "q"))
        if times._words[0] != _VERSION:
            times.clear()
            times._words[0] = _VERSION
        if not all(ring.is_sound for ring in times._rings):
            times.clear()
        return times

    @classmethod
    def open_reader(cls, directory: Path, subid: Oid) -> CommitTimes | None:
        """Map the file for reading; None: there is none, or one of another version."""
        mapped = MappedWords.open_reader(times_path(directory, subid), _SIZE, "q")
        if mapped is None:
            return None
        times = cls(mapped)
        if times._words[0] != _VERSION:
            times.close()
            return None
        return times

    def append(self, end: Lsn, commit_time: int) -> None:
        """Add transactions up to ``end``, of which the first was committed at ``commit_time``
        (microseconds since 2000-01-01 UTC). Transactions that were added before are ignored."""
        self._rings[0].append(end, commit_time)

    @property
    def last_end(self) -> Lsn:
        """End of the last transaction that was added; 0: none."""
        return Lsn(self._rings[0].last_end())

    def cut(self, end: Lsn) -> None:
        """Forget transactions behind ``end``. The receiver's first call: it gets them again, or
        those of another slot."""
        for ring in self._rings:
            if ring.last_end() > end:
                ring.cut(end)

    def clear(self) -> None:
        """Forget everything, because positions of another slot mean nothing for this one. Called
        only while no receiver runs."""
        for ring in self._rings:
            ring.clear()

    def first_after(self, lsn: Lsn) -> int | None:
        """Return the commit time of the first transaction that ends behind ``lsn``, in microseconds
        since 2000-01-01 UTC; None: no such transaction is known."""
        answer: int | None = None
        for ring in self._rings:
            is_known, time = ring.find(lsn)
            # A coarser level that has nothing behind the position has only not been passed the
            # group that a finer one has found.
            answer = answer if time is None else time
            if is_known:
                break
        return answer

    def close(self) -> None:
        """Unmap the file. The file stays."""
        self._map.close()

    def __enter__(self) -> CommitTimes:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class _Ring:
    """Groups of one level."""

    def __init__(
        self,
        words: memoryview[int],
        first: int,
        interval_us: int,
        coarser: _Ring | None,
    ) -> None:
        self._words = words
        self._coarser = coarser
        self._interval = interval_us
        self._count = first
        self._forgotten = first + 1
        self._ends = first + _RING_HEADER
        self._times = self._ends + GROUPS

    def _end(self, number: int) -> int:
        return self._words[self._ends + number % GROUPS]

    def _time(self, number: int) -> int:
        return self._words[self._times + number % GROUPS]

    # ---- the writer ---------------------------------------------------------------

    def append(self, end: int, time: int) -> None:
        """Add transactions to the newest group, or begin one with them. Transactions that the ring
        has already are ignored."""
        words = self._words
        newest = words[self._count] - 1
        if newest < 0:
            self._begin(end, time)
            return
        slot = newest % GROUPS
        before, begun = words[self._ends + slot], words[self._times + slot]
        if end <= before:
            return
        if time >= begun + self._interval:
            # First: a writer that is killed in between passes the group on again.
            if self._coarser is not None:
                self._coarser.append(before, begun)
            self._begin(end, time)
            return
        if time < begun:
            words[self._times + slot] = time
        words[self._ends + slot] = end

    def _begin(self, end: int, time: int) -> None:
        number = self._words[self._count]
        self._words[self._times + number % GROUPS] = time
        self._words[self._ends + number % GROUPS] = end
        self._words[self._count] = number + 1

    def last_end(self) -> int:
        """Return the end of the newest group; 0 if there is none."""
        count = self._words[self._count]
        return self._end(count - 1) if count else 0

    def cut(self, end: int) -> None:
        """Forget transactions behind ``end``."""
        groups = self._groups()
        forgotten = self._has_forgotten(self._words[self._count])
        self.clear()
        self._words[self._forgotten] = int(forgotten)
        before = 0
        for group_end, time in groups:
            if before < end:
                self._begin(min(group_end, end), time)
            before = group_end

    @property
    def is_sound(self) -> bool:
        """Whether the ends ascend."""
        count = self._words[self._count]
        if not 0 <= count < 1 << 62:
            return False
        ends = [0, *(end for end, _ in self._groups())]
        return all(before < end for before, end in pairwise(ends))

    def clear(self) -> None:
        """Forget everything."""
        self._words[self._count] = 0
        self._words[self._forgotten] = 0

    def _groups(self) -> list[tuple[int, int]]:
        count = self._words[self._count]
        return [(self._end(i), self._time(i)) for i in range(_first(count), count)]

    # ---- readers --------------------------------------------------------------------

    def find(self, lsn: int) -> tuple[bool, int | None]:
        """Return the time of the first group that ends behind ``lsn``, None if there is none; and
        False if the ring may have forgotten an earlier one."""
        for _ in range(_LOOKS):
            count = self._words[self._count]
            first = _first(count)
            number = first + bisect_right(range(first, count), lsn, key=self._end)
            time = self._time(number) if number < count else None
            is_known = number > first or not self._has_forgotten(count)
            # No group from ``first`` on has been overwritten meanwhile.
            if count <= self._words[self._count] < first + GROUPS:
                return is_known, time
        return False, None

    def _has_forgotten(self, count: int) -> bool:
        return _first(count) > 0 or self._words[self._forgotten] != 0


def _first(count: int) -> int:
    """Return the number of the oldest group that readers look at."""
    return max(0, count - GROUPS + _SPARE)


def times_path(directory: Path, subid: Oid) -> Path:
    """Return the path of a subscription's commit times under ``run/``."""
    return directory / f"sub-{int(subid)}.times"
