"""Typed Arrow to PostgreSQL's binary format: ``arrow_to_binary``.

Comes in: a result's column and its PostgreSQL type. Goes out: the output of that type's send
function for each value, None for NULL. Called by the session (DataRow in binary format).

Columns of fixed-width types are converted to big-endian at once. Columns with the canonical text
of a type that Spark lacks are converted from that text. A type whose binary form is not supported
is refused by name: clients would misread text that is marked as binary.

Sources: the send functions in src/backend/utils/adt; ``pgtypes.binary``.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.pgtypes.binary import (
    DATE_EPOCH,
    DATE_INFINITY,
    TIMESTAMP_EPOCH,
    TIMESTAMP_INFINITY,
    array_to_binary,
    length_prefixed,
)
from wal2lake.pgtypes.decode.text import text_to_arrow
from wal2lake.pgtypes.encode.ranges import ranges_to_binary
from wal2lake.pgtypes.encode.text import arrow_to_text
from wal2lake.pgtypes.encode.values import FROM_TEXT
from wal2lake.pgtypes.mapping import mapping_for, result_type
from wal2lake.pgtypes.moments import (
    FIRST_DAY,
    FIRST_MICROSECOND,
    INFINITE_DAY,
    INFINITE_MICROSECOND,
)
from wal2lake.pgtypes.registry.pg_type import (
    format_type,
    multirange_range,
    range_subtype,
    type_by_oid,
)

Values = list[bytes | None]


def arrow_to_binary(
    array: pa.Array | pa.ChunkedArray, type_oid: int, typmod: int = -1
) -> Values:
    """Convert each row to a binary value, None for null.

    Raises FeatureNotSupportedError (0A000) for a type whose binary form is not supported,
    and for a value that has only a text form.
    """
    if isinstance(array, pa.ChunkedArray):
        return [v for c in array.chunks for v in arrow_to_binary(c, type_oid, typmod)]
    if pa.types.is_null(array.type):
        return [None] * len(array)
    if pa.types.is_dictionary(array.type):
        return arrow_to_binary(array.dictionary_decode(), type_oid, typmod)
    if type_oid in FIXED:
        return _fixed(array, type_oid)
    if type_oid in _NUMBERED and pa.types.is_integer(array.type):
        return _fixed(array, _OID)
    if type_oid in ITS_OWN_TEXT:
        return arrow_to_text(array, type_oid, typmod)
    from_text = FROM_TEXT.get(type_oid)
    if from_text is not None:
        texts = arrow_to_text(array, type_oid, typmod)
        try:
            return [None if text is None else from_text(text) for text in texts]
        except ValueError:
            raise no_binary(type_oid) from None
    in_range = multirange_range(type_oid) or type_oid
    subtype = range_subtype(in_range)
    if subtype is not None:
        return ranges_to_binary(
            arrow_to_text(array, type_oid, typmod),
            lambda bounds: arrow_to_binary(bounds, subtype),
            several=in_range != type_oid,
        )
    if type_oid == _BYTEA:
        return _typed(array, type_oid, pa.binary()).to_pylist()  # type: ignore[no-any-return]
    if type_oid == _RECORD and pa.types.is_struct(array.type):
        return _records(array)
    pg_type = type_by_oid(type_oid)
    if pg_type is not None and pg_type.is_array:
        return _arrays(array, type_oid, pg_type.element_oid, typmod)
    raise no_binary(type_oid)


def no_binary(type_oid: int) -> FeatureNotSupportedError:
    """Build the error that names the type."""
    return FeatureNotSupportedError(
        f"binary format is not supported for type {format_type(type_oid)}",
        hint="Ask for the text format, or cast the column to text.",
    )


_OID = 26
_NUMBERED = frozenset({2205, 2206, 4089, 4096})
"""regclass, regtype, regnamespace, regrole: sent as numbers if the column has numbers."""

_BOOL, _BYTEA, _DATE, _TIMESTAMP, _TIMESTAMPTZ, _RECORD = 16, 17, 1082, 1114, 1184, 2249

FIXED: Mapping[int, tuple[pa.DataType, str]] = MappingProxyType(
    {
        _BOOL: (pa.bool_(), "u1"),
        20: (pa.int64(), ">i8"),
        21: (pa.int16(), ">i2"),
        23: (pa.int32(), ">i4"),
        26: (pa.uint32(), ">u4"),
        28: (pa.uint32(), ">u4"),
        29: (pa.uint32(), ">u4"),
        5069: (pa.uint64(), ">u8"),
        700: (pa.float32(), ">f4"),
        701: (pa.float64(), ">f8"),
        _DATE: (pa.date32(), ">i4"),
        _TIMESTAMP: (pa.timestamp("us"), ">i8"),
        _TIMESTAMPTZ: (pa.timestamp("us", "UTC"), ">i8"),
    }
)
"""Fixed-width types: the Arrow type of their value, and its byte layout."""

_INFINITE_MOMENT = (INFINITE_MICROSECOND, TIMESTAMP_INFINITY, FIRST_MICROSECOND)

_EPOCHS = MappingProxyType(
    {
        _DATE: (DATE_EPOCH, INFINITE_DAY, DATE_INFINITY, FIRST_DAY),
        _TIMESTAMP: (TIMESTAMP_EPOCH, *_INFINITE_MOMENT),
        _TIMESTAMPTZ: (TIMESTAMP_EPOCH, *_INFINITE_MOMENT),
    }
)
"""2000-01-01, the stored and the sent number of infinity, and the first day of the calendar."""


def _fixed(array: pa.Array, type_oid: int) -> Values:
    numbers, valid = fixed_numbers(array, type_oid)
    packed = numbers.tobytes()
    width = numbers.dtype.itemsize
    return [
        packed[row * width : row * width + width] if present else None
        for row, present in enumerate(valid.tolist())
    ]


def fixed_numbers(
    array: pa.Array, type_oid: int
) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the big-endian values of a column whose type is in ``FIXED``, and which values are not
    null. Raises FeatureNotSupportedError like ``arrow_to_binary``."""
    arrow, dtype = FIXED[type_oid]
    valid = array.is_valid().to_numpy(zero_copy_only=False)
    typed = _typed(array, type_oid, arrow)
    if isinstance(typed, pa.ChunkedArray):
        typed = typed.combine_chunks()
    if pa.types.is_temporal(arrow):
        typed = typed.view(pa.int32() if arrow.bit_width == 32 else pa.int64())
    numbers = typed.fill_null(False if type_oid == _BOOL else 0).to_numpy(
        zero_copy_only=False
    )
    if type_oid in _EPOCHS:
        numbers = _since_2000(numbers, type_oid)
    return numbers.astype(dtype), valid


def _since_2000(numbers: NDArray[Any], type_oid: int) -> NDArray[Any]:
    epoch, stored, sent, first = _EPOCHS[type_oid]
    high, low = numbers == stored, numbers == -stored
    if ((numbers < first) & ~low).any():
        # Another writer has stored a value that PostgreSQL does not have; the sent value would
        # mean another time.
        raise UsageError(f"{format_type(type_oid)} out of range", sqlstate="22008")
    shifted = np.where(high | low, 0, numbers - numbers.dtype.type(epoch))
    shifted[high], shifted[low] = sent, ~sent
    return shifted


def _is_text(array: pa.Array) -> bool:
    return bool(pa.types.is_string(array.type) or pa.types.is_large_string(array.type))


_TEXT_KINDS = MappingProxyType(
    {26: "bigint", 28: "bigint", 29: "bigint", 5069: "decimal(20,0)"}
)
"""Spark types with which the text of types without a mapping of their own is read."""


def _typed(array: pa.Array, type_oid: int, arrow: pa.DataType) -> pa.Array:
    """Convert the column to ``arrow``; canonical text is converted by the type's mapping."""
    if not _is_text(array):
        if pa.types.is_timestamp(array.type) and pa.types.is_timestamp(arrow):
            array = array.cast(pa.timestamp("us", array.type.tz), safe=False)
            return array.view(arrow)
        return array.cast(arrow)
    name = format_type(type_oid)
    chosen = _TEXT_KINDS.get(type_oid)
    overrides = None if chosen is None else {name: chosen}
    converted = text_to_arrow(array, mapping_for(type_oid, overrides=overrides))
    if converted.bad is not None:
        raise FeatureNotSupportedError(
            f"a value of type {name} has no binary format here: "
            f"{converted.failures[0].message}",
            hint="Ask for the text format, or cast the column to text.",
        )
    return (
        converted.array
        if converted.array.type == arrow
        else converted.array.cast(arrow)
    )


ITS_OWN_TEXT = frozenset({19, 25, 114, 142, 705, 1042, 1043, 1790})
"""Types whose send function writes their text."""


def _arrays(array: pa.Array, oid: int, element_oid: int, typmod: int) -> Values:
    if _is_text(array):
        array = _typed(array, oid, mapping_for(oid).arrow_type)
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        raise no_binary(oid)
    if pa.types.is_list(array.type.value_type):
        raise no_binary(oid)
    elements = arrow_to_binary(array.flatten(), element_oid, typmod)
    rows: Values = []
    start = 0
    for length in array.value_lengths().to_pylist():
        if length is None:
            rows.append(None)
            continue
        rows.append(array_to_binary(element_oid, elements[start : start + length]))
        start += length
    return rows


def _records(array: pa.Array) -> Values:
    columns = []
    for column in array.flatten():
        oid, typmod = result_type(column.type)
        columns.append((oid, arrow_to_binary(column, oid, typmod)))
    head = struct.pack("!i", len(columns))
    rows: Values = []
    for row, valid in enumerate(array.is_valid().to_pylist()):
        fields = b"".join(
            struct.pack("!I", oid) + length_prefixed(values[row])
            for oid, values in columns
        )
        rows.append(head + fields if valid else None)
    return rows
