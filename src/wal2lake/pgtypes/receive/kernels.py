"""Whole columns of binary values to Arrow with NumPy: the hot path of binary = true.

Comes in: a BinaryArray of one type's binary form and the mapping. Goes out: the typed array,
and the rows that are not null but have no value in it (*odd* rows: timestamps out of range,
NaN in a decimal, values of a wrong size). ``columns`` converts those as text, so that the result
and the error messages are the same as in text format.

There is a kernel if the type is stored as its default Arrow type; with another type, chosen by an
override, values are converted as text.

Sources: the send functions in src/backend/utils/adt.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal2lake.pgtypes.binary import (
    DATE_EPOCH,
    DATE_INFINITY,
    TIMESTAMP_EPOCH,
    TIMESTAMP_INFINITY,
)
from wal2lake.pgtypes.decode.conversion import Mask, binary_array, packed, without
from wal2lake.pgtypes.mapping import ConversionKind, TypeMapping
from wal2lake.pgtypes.moments import (
    FIRST_DAY,
    FIRST_MICROSECOND,
    INFINITE_DAY,
    INFINITE_MICROSECOND,
    LAST_DAY,
    LAST_MICROSECOND,
)
from wal2lake.pgtypes.receive.decimals import decimals

Kernel = Callable[[pa.BinaryArray, TypeMapping], tuple[pa.Array, Mask | None]]
Numbers = npt.NDArray[Any]

_UUID_BYTES: Final = 16
_UUID_DASHES: Final = (8, 13, 18, 23)
_HEX: Final = np.frombuffer(b"0123456789abcdef", np.uint8)


def _of_size(
    values: pa.BinaryArray, size: int
) -> tuple[npt.NDArray[np.uint8], Mask | None, Mask | None]:
    """Return the bytes of the values of this size, the rows without a value, and the odd rows."""
    data, offsets, null = packed(values)
    wrong = np.diff(offsets) != size
    if null is not None:
        wrong &= ~null
    if not wrong.any():
        return data, null, None
    data, _, null = packed(without(values, wrong))
    return data, null, wrong


def _fixed(values: pa.BinaryArray, layout: str) -> tuple[Numbers, Mask | None, Any]:
    """Return one number per row (0: none), the rows without a number, and the odd rows."""
    form = np.dtype(layout)
    data, null, odd = _of_size(values, form.itemsize)
    numbers = np.frombuffer(data, form).astype(form.newbyteorder("="))
    if null is None:
        return numbers, None, odd
    spread = np.zeros(len(values), numbers.dtype)
    spread[~null] = numbers
    return spread, null, odd


def _bool(values: pa.BinaryArray, mapping: TypeMapping) -> tuple[pa.Array, Mask | None]:
    numbers, null, odd = _fixed(values, ">u1")
    return pa.array(numbers != 0, mapping.arrow_type, mask=null), odd


def _number(layout: str) -> Kernel:
    def read(
        values: pa.BinaryArray, mapping: TypeMapping
    ) -> tuple[pa.Array, Mask | None]:
        numbers, null, odd = _fixed(values, layout)
        if numbers.dtype.kind == "f":
            # Replace every NaN by the NaN that its text is read as.
            numbers[np.isnan(numbers)] = np.nan
        return pa.array(numbers, mapping.arrow_type, mask=null), odd

    return read


@dataclass(frozen=True, slots=True)
class _Scale:
    """Range and epoch of dates or timestamps."""

    first: int
    """Lowest number since 1970, like ``last`` and the result."""
    last: int
    epoch: int
    infinity: int
    """Sent number of infinity; -infinity is its complement."""
    infinite: int
    """Stored number of infinity; -infinity is its negative."""


_DAYS: Final = _Scale(FIRST_DAY, LAST_DAY, DATE_EPOCH, DATE_INFINITY, INFINITE_DAY)
_MICROSECONDS: Final = _Scale(
    FIRST_MICROSECOND,
    LAST_MICROSECOND,
    TIMESTAMP_EPOCH,
    TIMESTAMP_INFINITY,
    INFINITE_MICROSECOND,
)


def _moment(layout: str, scale: _Scale) -> Kernel:
    """Return the kernel of dates or timestamps."""

    def read(
        values: pa.BinaryArray, mapping: TypeMapping
    ) -> tuple[pa.Array, Mask | None]:
        numbers, null, odd = _fixed(values, layout)
        low, high = scale.first - scale.epoch, scale.last - scale.epoch
        outside = (numbers < low) | (numbers > high)
        if not outside.any():
            numbers += numbers.dtype.type(scale.epoch)
            return pa.array(numbers, mask=null).view(mapping.arrow_type), odd
        ends = (
            (numbers == scale.infinity, scale.infinite),
            (numbers == ~scale.infinity, -scale.infinite),
        )
        numbers[outside] = 0
        numbers += numbers.dtype.type(scale.epoch)
        for where, stored in ends:
            numbers[where] = stored
            outside &= ~where
        if outside.any():
            odd = outside if odd is None else odd | outside
            null = outside if null is None else null | outside
        return pa.array(numbers, mask=null).view(mapping.arrow_type), odd

    return read


def _decimal(
    values: pa.BinaryArray, mapping: TypeMapping
) -> tuple[pa.Array, Mask | None]:
    array, odd = decimals(values, mapping.arrow_type)
    return array, odd if odd.any() else None


def _bytes(
    values: pa.BinaryArray, mapping: TypeMapping
) -> tuple[pa.Array, Mask | None]:
    del mapping
    return values, None


def _uuid(values: pa.BinaryArray, mapping: TypeMapping) -> tuple[pa.Array, Mask | None]:
    data, null, odd = _of_size(values, _UUID_BYTES)
    count = len(data) // _UUID_BYTES
    digits = np.empty((count, 2 * _UUID_BYTES), np.uint8)
    whole = data.reshape(count, _UUID_BYTES)
    digits[:, ::2], digits[:, 1::2] = _HEX[whole >> 4], _HEX[whole & 15]
    width = 2 * _UUID_BYTES + len(_UUID_DASHES)
    texts = np.full((count, width), ord("-"), np.uint8)
    texts[:, [i for i in range(width) if i not in _UUID_DASHES]] = digits
    present = np.ones(len(values), np.bool_) if null is None else ~null
    offsets = np.zeros(len(values) + 1, np.int32)
    offsets[1:] = np.cumsum(np.where(present, width, 0))
    array = binary_array(texts.reshape(-1), offsets, null)
    return array.cast(mapping.arrow_type), odd


_BY_TYPE: Mapping[int, tuple[ConversionKind, pa.DataType | None, Kernel]] = (
    MappingProxyType(
        {
            16: (ConversionKind.BOOL, pa.bool_(), _bool),
            17: (ConversionKind.BYTEA, pa.binary(), _bytes),
            20: (ConversionKind.INTEGER, pa.int64(), _number(">i8")),
            21: (ConversionKind.INTEGER, pa.int16(), _number(">i2")),
            23: (ConversionKind.INTEGER, pa.int32(), _number(">i4")),
            26: (ConversionKind.INTEGER, pa.int64(), _number(">u4")),
            700: (ConversionKind.FLOAT, pa.float32(), _number(">f4")),
            701: (ConversionKind.FLOAT, pa.float64(), _number(">f8")),
            1082: (
                ConversionKind.DATE,
                pa.date32(),
                _moment(">i4", _DAYS),
            ),
            1114: (
                ConversionKind.TIMESTAMP,
                pa.timestamp("us"),
                _moment(">i8", _MICROSECONDS),
            ),
            1184: (
                ConversionKind.TIMESTAMPTZ,
                pa.timestamp("us", "UTC"),
                _moment(">i8", _MICROSECONDS),
            ),
            1700: (ConversionKind.DECIMAL, None, _decimal),
            2950: (ConversionKind.TEXT, pa.string(), _uuid),
        }
    )
)
"""By type OID, the storage that has a kernel. For numeric it may be any decimal type."""


def kernel_for(oid: int, mapping: TypeMapping) -> Kernel | None:
    """Return the kernel of a built-in type with this mapping; None: convert as text."""
    entry = _BY_TYPE.get(oid)
    if entry is None:
        return None
    kind, arrow, kernel = entry
    if kind is not mapping.kind or (arrow is not None and arrow != mapping.arrow_type):
        return None
    return kernel
