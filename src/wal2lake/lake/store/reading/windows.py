"""Chooses the parts of large ranges that are in memory while the ranges are read. Pure.

In: ranges that will be read from their beginnings, in pieces, by turns, as pyarrow reads the
columns of a row group; reads whose bytes are missing. Out: what to keep, what to ask for.

Each range has a share of the memory. A read that finds nothing is the end of a window: the range
gets its next share, and in the same round each other range of whose share less than half is left.

    range 1   read read read miss      the round asks for a whole share
    range 2   read read read           less than half is left: asks for as much as was read
    range 3   read                     more than half is left: asks for nothing

Called by ``objectreader``.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

from wal2lake.lake.store.port import Range


class Window:
    """The parts in memory of ranges that are read by turns."""

    def __init__(self, ranges: Sequence[Range], most_bytes: int) -> None:
        """``ranges`` do not overlap. ``most_bytes``: of all that is in memory, unless single reads
        are larger."""
        self._ranges = sorted(
            byte_range for byte_range in ranges if byte_range[0] < byte_range[1]
        )
        self._starts = [start for start, _ in self._ranges]
        self._share = max(1, most_bytes // max(1, len(self._ranges)))
        # By range: what is in memory begins at ``first`` and ends at ``got``; the next read is
        # expected at ``at``.
        self._first = list(self._starts)
        self._at = list(self._starts)
        self._got = list(self._starts)

    def note(self, start: int, end: int) -> None:
        """Note a read."""
        index = self._index(start, end)
        if index is not None:
            self._at[index] = end

    def move(self, start: int, end: int) -> tuple[list[Range], list[Range]] | None:
        """Return what to keep and what to ask for, so that a read finds its bytes; None if it is
        not of these ranges. Both are in ascending order. What is kept counts from now on, what is
        asked for after ``add``."""
        index = self._index(start, end)
        if index is None:
            return None
        self._at[index] = start
        keep: list[Range] = []
        ask: list[Range] = []
        for i, (_, last) in enumerate(self._ranges):
            position = self._at[i]
            if not self._first[i] <= position <= self._got[i]:
                # It is read again from an earlier place, or from a later one.
                self._got[i] = position
            share = max(self._share, end - start) if i == index else self._share
            upto = min(position + share, last)
            # A read that was larger than the share may have left more.
            self._first[i], self._got[i] = position, min(self._got[i], upto)
            if position < self._got[i]:
                keep.append((position, self._got[i]))
            if self._got[i] < upto and (
                i == index or self._got[i] - position < self._share // 2
            ):
                ask.append((self._got[i], upto))
        return keep, ask

    def add(self, ranges: Sequence[Range]) -> None:
        """Note that ranges that ``move`` asked for are in memory."""
        for start, end in ranges:
            index = self._index(start, end)
            if index is not None:
                self._got[index] = end

    def _index(self, start: int, end: int) -> int | None:
        """Return the number of the range that has these bytes."""
        index = bisect_right(self._starts, start) - 1
        if index < 0 or end > self._ranges[index][1]:
            return None
        return index
