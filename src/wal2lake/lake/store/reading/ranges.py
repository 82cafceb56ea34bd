"""Divides ranges of an object into requests, and finds bytes in the answers. Pure.

In: ranges, parts of the object. Out: the ranges to ask for, bytes.

A request costs about as much time as some hundred kilobytes, so ranges that are close are asked
for together. A large range is asked for in parts, so that a part's answer comes within the time of
one request, and several are under way at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final

from wal2lake.lake.store.port import Range

Part = tuple[int, memoryview]
"""Offset of some bytes, and the bytes."""

HOLE_BYTES: Final = 256 << 10
"""Most bytes between two ranges that are asked for together. A guess: 5 ms at 50 MB/s, where a
request's first byte takes 20 to 100 ms."""

PART_BYTES: Final = 8 << 20
"""Most bytes of one request, as of an upload's. A slow network has them within its time."""


def requests_for(ranges: Iterable[Range], part_bytes: int = PART_BYTES) -> list[Range]:
    """Return the requests that get all of the ranges, in ascending order. ``part_bytes``: most
    bytes of one."""
    requests: list[Range] = []
    for start, end in sorted(
        byte_range for byte_range in ranges if byte_range[0] < byte_range[1]
    ):
        if requests:
            first, last = requests[-1]
            whole = max(last, end) - first
            if start <= last + HOLE_BYTES and (whole <= part_bytes or end <= last):
                requests[-1] = (first, max(last, end))
                continue
            # What an earlier request gets already is not asked for twice.
            start = max(start, last)
        while end - start > part_bytes:
            requests.append((start, start + part_bytes))
            start += part_bytes
        requests.append((start, end))
    return requests


def without_holes(part: Part, ranges: Iterable[Range]) -> list[Part]:
    """Return the wanted bytes of an answer, copied if others are among them, so that they keep no
    memory."""
    start, content = part
    end = start + len(content)
    joined: list[Range] = []
    for first, last in sorted(ranges):
        first, last = max(first, start), min(last, end)
        if first >= last:
            continue
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], last))
        else:
            joined.append((first, last))
    if len(joined) <= 1:
        return [part]
    return [
        (first, memoryview(bytes(content[first - start : last - start])))
        for first, last in joined
    ]


def only(parts: Iterable[Part], ranges: Sequence[Range]) -> list[Part]:
    """Return what parts have of the ranges, copied if it is not a whole part, so that nothing else
    keeps memory. ``ranges`` are in ascending order and do not overlap."""
    ends = [end for _, end in ranges]
    pieces: list[Part] = []
    for first, content in parts:
        for start, end in ranges[bisect_right(ends, first) :]:
            low, high = max(start - first, 0), min(end - first, len(content))
            if low >= high:
                break
            is_whole = high - low == len(content)
            kept = content if is_whole else memoryview(bytes(content[low:high]))
            pieces.append((first + low, kept))
    return pieces


def find(parts: Sequence[Part], start: int, end: int) -> memoryview | None:
    """Return the bytes of a range; None if some are missing. ``parts`` are in ascending order.
    Bytes of one part are not copied."""
    index = bisect_right(parts, start, key=lambda part: part[0]) - 1
    pieces: list[memoryview] = []
    while start < end:
        if index < 0 or index == len(parts):
            return None
        first, content = parts[index]
        taken = content[start - first : end - first] if start >= first else content[:0]
        if not taken:
            return None
        pieces.append(taken)
        start += len(taken)
        index += 1
    if len(pieces) == 1:
        return pieces[0]
    return memoryview(b"".join(pieces))
