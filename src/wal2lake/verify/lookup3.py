"""PostgreSQL's hash_bytes_extended() over columns: Jenkins' lookup3 on all rows at once.

Comes in: an Arrow array of bytes, seeds. Goes out: one unsigned 64-bit number for each row and
seed, equal to that of PostgreSQL on a little-endian machine. Called by ``rowhashes``.

lookup3 reads 12 bytes at a time into three words of 32 bits, which it mixes. Here each step reads
the next 12 bytes of all rows that have so many. Rows are sorted by length, longest first, so the
rows of a step are the first ones of the arrays: a slice, not a selection. The words are read once
for all seeds. Rows are processed in groups that fit into a core's cache.

Source: hash_bytes_extended() in src/common/hashfn.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

Words = NDArray[np.uint32]

_STEP: Final = 12
"""Bytes that lookup3 reads at a time."""

_GROUP_ROWS: Final = 8192
"""Rows of a group: its arrays take some 300 kB, which fits into the second-level cache."""

_START: Final = 0x9E3779B9 + 3923095
"""The golden ratio and PostgreSQL's own constant; the length is added."""

_MIX: Final = (
    (0, 2, 1, 4),
    (1, 0, 2, 6),
    (2, 1, 0, 8),
    (0, 2, 1, 16),
    (1, 0, 2, 19),
    (2, 1, 0, 4),
)
"""mix(): for each (x, y, z, bits): x -= y; x ^= rot(y, bits); y += z."""

_FINAL: Final = (
    (2, 1, 14),
    (0, 2, 11),
    (1, 0, 25),
    (2, 1, 16),
    (0, 2, 4),
    (1, 0, 14),
    (2, 1, 24),
)
"""final(): for each (x, y, bits): x ^= y; x -= rot(y, bits)."""


def _tail_masks() -> NDArray[np.uint8]:
    masks = np.zeros((_STEP, _STEP), np.uint8)
    for length in range(_STEP):
        masks[length, :length] = 0xFF
    return masks


_TAILS: Final = _tail_masks().view("<u4").astype(np.uint32)
"""For each number of remaining bytes, the mask of the three words that have them."""


def hash_bytes(array: pa.Array, seeds: Sequence[int]) -> NDArray[np.uint64]:
    """Hash each value of a binary array without nulls; the result is (seed, row).

    A seed is an unsigned 64-bit number. Zero is the hash without a seed, as in PostgreSQL.
    """
    count = len(array)
    hashes = np.empty((len(seeds), count), np.uint64)
    if not count:
        return hashes
    wide = pa.types.is_large_binary(array.type)
    offset_type = np.int64 if wide else np.int32
    _, offsets_buffer, data = array.buffers()
    offsets = np.frombuffer(offsets_buffer, offset_type)[
        array.offset : array.offset + count + 1
    ].astype(np.int64)
    data_bytes = np.frombuffer(data or b"", np.uint8)[: offsets[-1]]
    # The last row is read in steps of 12 bytes, too.
    padded = np.empty(len(data_bytes) + _STEP, np.uint8)
    padded[: len(data_bytes)] = data_bytes
    padded[len(data_bytes) :] = 0
    # All sequences of 12 bytes, without a copy.
    windows: NDArray[Any] = np.ndarray(
        (len(padded) - _STEP + 1,), f"V{_STEP}", padded, strides=(1,)
    )
    for first in range(0, count, _GROUP_ROWS):
        last = min(first + _GROUP_ROWS, count)
        starts = offsets[first:last]
        lengths = offsets[first + 1 : last + 1] - starts
        hashes[:, first:last] = _group(windows, starts, lengths, seeds)
    return hashes


def _group(
    windows: NDArray[Any],
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    seeds: Sequence[int],
) -> NDArray[np.uint64]:
    steps = lengths // _STEP
    order = np.argsort(-steps, kind="stable")
    starts, lengths, steps = starts[order], lengths[order], steps[order]
    rows = len(starts)
    state = [np.empty((len(seeds), rows), np.uint32) for _ in range(3)]
    scratch = (np.empty_like(state[0]), np.empty_like(state[0]))
    _begin(state, lengths, seeds, scratch)
    # For each step, the number of rows that have so many whole steps.
    having = rows - np.searchsorted(steps[::-1], np.arange(steps[0]), side="right")
    for step, active in enumerate(having.tolist()):
        words = _words(windows, starts[:active] + step * _STEP)
        part = [column[:, :active] for column in state]
        for column, word in zip(part, words, strict=True):
            column += word
        _mix(part, (scratch[0][:, :active], scratch[1][:, :active]))
    words = _words(windows, starts + steps * _STEP)
    remaining = lengths - steps * _STEP
    for number, (column, word) in enumerate(zip(state, words, strict=True)):
        word = word & _TAILS[remaining, number]
        # The lowest byte of the last word is reserved for the length.
        column += word << 8 if number == 2 else word
    _final(state, scratch)
    hashes = np.empty((len(seeds), rows), np.uint64)
    hashes[:, order] = (state[1].astype(np.uint64) << 32) | state[2]
    return hashes


def _begin(
    state: list[Words],
    lengths: NDArray[np.int64],
    seeds: Sequence[int],
    scratch: tuple[Words, Words],
) -> None:
    begin = (lengths + _START).astype(np.uint32)
    for column in state:
        column[:] = begin
    for number, seed in enumerate(seeds):
        if seed:
            part = [column[number] for column in state]
            part[0] += np.uint32(seed >> 32)
            part[1] += np.uint32(seed & 0xFFFFFFFF)
            _mix(part, (scratch[0][number], scratch[1][number]))


def _words(
    windows: NDArray[Any], positions: NDArray[np.int64]
) -> tuple[Words, Words, Words]:
    """Read the three little-endian words at each position."""
    read = windows[positions].view("<u4").reshape(-1, 3)
    return read[:, 0], read[:, 1], read[:, 2]


def _rotated(column: Words, bits: int, scratch: tuple[Words, Words]) -> Words:
    rotated, low = scratch
    np.left_shift(column, np.uint32(bits), out=rotated)
    np.right_shift(column, np.uint32(32 - bits), out=low)
    np.bitwise_or(rotated, low, out=rotated)
    return rotated


def _mix(state: Sequence[Words], scratch: tuple[Words, Words]) -> None:
    for x, y, z, bits in _MIX:
        state_x, state_y = state[x], state[y]
        state_x -= state_y
        state_x ^= _rotated(state_y, bits, scratch)
        state_y += state[z]


def _final(state: Sequence[Words], scratch: tuple[Words, Words]) -> None:
    for x, y, bits in _FINAL:
        state_x, state_y = state[x], state[y]
        state_x ^= state_y
        state_x -= _rotated(state_y, bits, scratch)
