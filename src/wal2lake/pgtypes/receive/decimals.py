"""numeric's binary form to decimal(p,s), whole columns at a time.

Comes in: a BinaryArray of numeric_send's output and a decimal type. Goes out: the decimals,
and the rows without one: NaN, infinities, too large, not exact, malformed. Called by
``kernels``; ``columns`` then reports for those rows the same error as for text format.

A numeric is a sequence of base-10000 digits; the first has the weight 10000^weight. So the value
times 10^s is Horner's rule over the digit positions of decimal(p,s), which are the same for all
rows: one gather and one multiplication per position. Up to 18 digits fit in 64 bits; more digits
use four 32-bit limbs with carry.

Source: numeric_send in src/backend/utils/adt/numeric.c.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal2lake.pgtypes.decode.conversion import Mask, packed

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_HEADER: Final = 8
_NEGATIVE: Final = 0x4000
_NARROW: Final = 18
"""Number of decimal digits that always fit in a signed 64-bit number."""
_LIMB: Final = np.uint64(32)
_LIMB_MASK: Final = np.uint64(0xFFFFFFFF)


def decimals(values: pa.BinaryArray, arrow: Any) -> tuple[pa.Array, Mask]:
    """Return the decimals (null in odd and null rows), and which rows are odd."""
    data, offsets, null = packed(values)
    count = len(values)
    present = np.ones(count, np.bool_) if null is None else ~null
    lengths = np.diff(offsets)
    rows = np.flatnonzero(present & (lengths >= _HEADER))
    whole = len(rows) == count
    starts = offsets[:-1].astype(np.int64)
    if not whole:
        starts, lengths = starts[rows], lengths[rows]
    header = _gather(data, starts, np.uint64)
    digits = (header >> np.uint64(48)).view(np.int64)
    weight = (header >> np.uint64(32)).astype(np.int16).astype(np.int64)
    sign = (header >> np.uint64(16)).astype(np.uint16)
    negative = sign == _NEGATIVE
    good = lengths == _HEADER + 2 * digits
    good &= negative | (sign == 0)
    groups = _Groups(data, starts + _HEADER, digits * good, weight, good)
    low, high = _scaled(groups, arrow.precision, arrow.scale)
    good = groups.good
    if negative.any():
        borrow = (low == 0).astype(np.uint64)
        low = np.where(negative, ~low + np.uint64(1), low)
        high = np.where(negative, ~high + borrow, high)
    if not good.all():
        whole = False
        rows, low, high = rows[good], low[good], high[good]
    words = np.zeros((count, 2), np.uint64)
    chosen: Any = slice(None) if whole else rows
    words[chosen, 0], words[chosen, 1] = low, high
    valid = np.zeros(count, np.bool_)
    valid[chosen] = True
    bitmap = None if whole else pa.py_buffer(np.packbits(valid, bitorder="little"))
    array = pa.Array.from_buffers(arrow, count, [bitmap, pa.py_buffer(words)])
    return array, present & ~valid


def _gather(
    data: npt.NDArray[np.uint8], positions: Ints, kind: type[Any]
) -> npt.NDArray[Any]:
    """Return the unsigned integers at these positions, which may be unaligned."""
    size = np.dtype(kind).itemsize
    room = max(len(data) - size + 1, 0)
    integers = np.ndarray((room,), kind, data, 0, (1,))[positions]
    return integers.byteswap(inplace=True) if sys.byteorder == "little" else integers


class _Groups:
    """The base-10000 digits of many numbers by position. ``good`` excludes more and more rows."""

    __slots__ = ("_count", "_data", "_starts", "_weight", "good")

    def __init__(
        self,
        data: npt.NDArray[np.uint8],
        starts: Ints,
        count: Ints,
        weight: Ints,
        good: Mask,
    ) -> None:
        """``starts`` has the position of each number's digits, ``count`` their number."""
        self._data, self._starts, self._weight = data, starts, weight
        self._count = count.view(np.uint64)
        self.good = good

    def within(self, top: int, bottom: int) -> None:
        """Exclude numbers with digits above position ``top`` or below ``bottom``."""
        count = self._count.view(np.int64)
        inside = (self._weight <= top) & (self._weight - count + 1 >= bottom)
        self.good &= inside | (count == 0)

    def digit(self, position: int) -> Ints:
        """Return the digits with weight 10000^position, 0 if a number has none."""
        if not len(self._starts):
            return np.zeros(0, np.int64)
        index = self._weight - position
        # As unsigned numbers, negative indexes are above every count.
        has = index.view(np.uint64) < self._count
        digits = _gather(self._data, (self._starts + 2 * index) * has, np.uint16)
        return digits.astype(np.int64) * has


def _steps(groups: _Groups, precision: int, scale: int) -> Iterator[tuple[int, Ints]]:
    """Yield (factor, addend) of each step of Horner's rule."""
    whole = precision - scale
    top, bottom = -(-whole // 4) - 1, -(-scale // 4)
    groups.within(top, -bottom)
    for position in range(top, -bottom - 1, -1):
        digit = groups.digit(position)
        # The highest group may have room for fewer than four digits.
        fewer = position == top and whole % 4
        groups.good &= digit < (10 ** (whole % 4) if fewer else 10_000)
        factor = 10_000
        if position == -bottom and scale % 4:
            factor = 10 ** (scale % 4)
            digit, rest = np.divmod(digit, 10_000 // factor)
            groups.good &= rest == 0
        yield factor, digit


def _scaled(groups: _Groups, precision: int, scale: int) -> tuple[Words, Words]:
    """Return the absolute values times 10^scale: lower and upper 64 bits."""
    count = len(groups.good)
    if precision <= _NARROW:
        narrow = np.zeros(count, np.int64)
        for factor, addend in _steps(groups, precision, scale):
            narrow = narrow * factor + addend
        return narrow.view(np.uint64), np.zeros(count, np.uint64)
    limbs = [np.zeros(count, np.uint64) for _ in range(4)]
    for factor, addend in _steps(groups, precision, scale):
        carry = addend.view(np.uint64)
        for i, limb in enumerate(limbs):
            product = limb * np.uint64(factor) + carry
            limbs[i], carry = product & _LIMB_MASK, product >> _LIMB
    return limbs[0] | limbs[1] << _LIMB, limbs[2] | limbs[3] << _LIMB
