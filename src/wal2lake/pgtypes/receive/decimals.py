"""numeric's binary form to decimal(p,s), a whole column at a time.

Comes in: a BinaryArray of numeric_send's output and a decimal type. Goes out: the decimals,
and which rows have none: NaN, infinities, too large, not exact, not well formed. Called by
``kernels``; ``columns`` then says of those rows what text format would have said.

A numeric is a row of base-10000 digits, the first worth 10000^weight. So the value times 10^s
is Horner's rule over the digit positions that decimal(p,s) has room for, the same for all
rows: one gather and one multiplication per position. Up to 18 digits fit 64 bits; beyond,
four 32-bit limbs carry.

Source: numeric_send in src/backend/utils/adt/numeric.c.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal2lake.pgtypes.decode.conversion import Mask, packed

Ints = npt.NDArray[np.int64]
Words = npt.NDArray[np.uint64]

_HEADER: Final = 8
_NARROW: Final = 18
"""Decimal digits that a signed 64-bit number always holds."""
_LIMB: Final = np.uint64(32)
_LIMB_MASK: Final = np.uint64(0xFFFFFFFF)


def decimals(values: pa.BinaryArray, arrow: Any) -> tuple[pa.Array, Mask]:
    """The decimals (null where odd or null), and which rows are odd."""
    data, offsets, null = packed(values)
    count = len(values)
    present = np.ones(count, np.bool_) if null is None else ~null
    lengths = np.diff(offsets)
    sound = present & (lengths >= _HEADER)
    rows = np.flatnonzero(sound)
    at = offsets[:-1][rows].astype(np.int64)
    digits = _u16(data, at)
    weight = _u16(data, at + 2).astype(np.int16).astype(np.int64)
    sign = _u16(data, at + 4)
    good = lengths[rows] == _HEADER + 2 * digits
    good &= (sign == 0) | (sign == 0x4000)
    weight[digits == 0] = -1
    groups = _Groups(data, at + _HEADER, np.where(good, digits, 0), weight, good)
    halves = _scaled(groups, arrow.precision, arrow.scale)
    negative = sign == 0x4000
    low = np.where(negative, ~halves[0] + np.uint64(1), halves[0])
    borrow = np.where(halves[0] == 0, np.uint64(1), np.uint64(0))
    high = np.where(negative, ~halves[1] + borrow, halves[1])
    words = np.zeros((count, 2), np.uint64)
    chosen = rows[groups.good]
    words[chosen, 0] = low[groups.good]
    words[chosen, 1] = high[groups.good]
    valid = np.zeros(count, np.bool_)
    valid[chosen] = True
    bitmap = (
        None if valid.all() else pa.py_buffer(np.packbits(valid, bitorder="little"))
    )
    array = pa.Array.from_buffers(arrow, count, [bitmap, pa.py_buffer(words)])
    return array, present & ~valid


def _u16(data: npt.NDArray[np.uint8], at: Ints) -> Ints:
    return data[at].astype(np.int64) << 8 | data[at + 1]


class _Groups:
    """The base-10000 digits of many numbers by their position; ``good`` shrinks."""

    __slots__ = ("_at", "_count", "_data", "_weight", "good")

    def __init__(
        self,
        data: npt.NDArray[np.uint8],
        at: Ints,
        count: Ints,
        weight: Ints,
        good: Mask,
    ) -> None:
        self._data, self._at, self._count, self._weight = data, at, count, weight
        self.good = good

    def within(self, top: int, bottom: int) -> None:
        """No digit may be above position ``top`` or below ``bottom``."""
        some = self._count > 0
        self.good &= ~some | (self._weight <= top)
        self.good &= ~some | (self._weight - self._count + 1 >= bottom)

    def digit(self, position: int) -> Ints:
        """The digits worth 10000^position, 0 where there are none."""
        index = self._weight - position
        has = self.good & (index >= 0) & (index < self._count)
        found = np.zeros(len(index), np.int64)
        found[has] = _u16(self._data, self._at[has] + 2 * index[has])
        self.good &= found <= 9999
        found[~self.good] = 0
        return found


def _steps(groups: _Groups, precision: int, scale: int) -> Iterator[tuple[int, Ints]]:
    """(factor, addend) of each step of Horner's rule."""
    whole = precision - scale
    top, bottom = -(-whole // 4) - 1, -(-scale // 4)
    groups.within(top, -bottom)
    for position in range(top, -bottom - 1, -1):
        digit = groups.digit(position)
        factor = 10_000
        if position == top and whole % 4:
            # The highest group has room for fewer than four digits.
            groups.good &= digit < 10 ** (whole % 4)
        if position == -bottom and scale % 4:
            factor = 10 ** (scale % 4)
            unit = 10_000 // factor
            groups.good &= digit % unit == 0
            digit = digit // unit
        yield factor, np.where(groups.good, digit, 0)


def _scaled(groups: _Groups, precision: int, scale: int) -> tuple[Words, Words]:
    """The absolute values times 10^scale: lower and upper 64 bits."""
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
