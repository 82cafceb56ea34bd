"""Typed Arrow to PostgreSQL's binary format: ``arrow_to_binary``.

Comes in: a result's column and its PostgreSQL type. Goes out: what that type's send
function would write for each value, None for NULL. Called by the front door (DataRow in
binary format).

Fixed-width types are turned big-endian a column at a time. Columns that hold canonical text
of a type that Spark lacks go by way of that text. A type whose binary form is not here is
refused by name: text under a binary label would be read as something else.

Sources: the send functions in src/backend/utils/adt; ``pgtypes.binary``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.pgtypes.binary import (
    DATE_EPOCH,
    DATE_INFINITY,
    TIMESTAMP_EPOCH,
    TIMESTAMP_INFINITY,
    array_to_binary,
    char_to_binary,
    jsonb_to_binary,
    length_prefixed,
    numeric_to_binary,
    uuid_to_binary,
)
from wal2lake.pgtypes.decode.text import text_to_arrow
from wal2lake.pgtypes.encode.interval import interval_of
from wal2lake.pgtypes.encode.text import arrow_to_text
from wal2lake.pgtypes.mapping import mapping_for, result_type
from wal2lake.pgtypes.registry.pg_type import format_type, type_by_oid

Values = list[bytes | None]


def arrow_to_binary(
    array: pa.Array | pa.ChunkedArray, type_oid: int, typmod: int = -1
) -> Values:
    """One binary value per row, None for null.

    Raises FeatureNotSupportedError (0A000) for a type whose binary form is not known here,
    and for a value that only text can carry.
    """
    if isinstance(array, pa.ChunkedArray):
        return [v for c in array.chunks for v in arrow_to_binary(c, type_oid, typmod)]
    if pa.types.is_null(array.type):
        return [None] * len(array)
    if pa.types.is_dictionary(array.type):
        return arrow_to_binary(array.dictionary_decode(), type_oid, typmod)
    fixed = _FIXED.get(type_oid)
    if fixed is not None:
        return _fixed(array, type_oid, fixed)
    from_text = _FROM_TEXT.get(type_oid)
    if from_text is not None:
        texts = arrow_to_text(array, type_oid, typmod)
        return [None if text is None else from_text(text) for text in texts]
    if type_oid == _BYTEA:
        return _typed(array, type_oid, pa.binary()).to_pylist()  # type: ignore[no-any-return]
    if type_oid == _RECORD and pa.types.is_struct(array.type):
        return _records(array)
    known = type_by_oid(type_oid)
    if known is not None and known.is_array:
        return _arrays(array, type_oid, known.element_oid, typmod)
    raise no_binary(type_oid)


def no_binary(type_oid: int) -> FeatureNotSupportedError:
    """The refusal, naming the type."""
    return FeatureNotSupportedError(
        f"binary format is not supported for type {format_type(type_oid)}",
        hint="Ask for the text format, or cast the column to text.",
    )


_BOOL, _BYTEA, _DATE, _TIMESTAMP, _TIMESTAMPTZ, _RECORD = 16, 17, 1082, 1114, 1184, 2249

_FIXED: Mapping[int, tuple[pa.DataType, str]] = MappingProxyType(
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
"""Fixed-width types: the Arrow type that holds their value, and its bytes."""

_EPOCHS = MappingProxyType(
    {
        _DATE: (DATE_EPOCH, DATE_INFINITY),
        _TIMESTAMP: (TIMESTAMP_EPOCH, TIMESTAMP_INFINITY),
        _TIMESTAMPTZ: (TIMESTAMP_EPOCH, TIMESTAMP_INFINITY),
    }
)


def _fixed(array: pa.Array, type_oid: int, fixed: tuple[pa.DataType, str]) -> Values:
    arrow, dtype = fixed
    infinite: dict[int, int] = {}
    epoch, infinity = _EPOCHS.get(type_oid, (0, 0))
    if epoch and _is_text(array):
        texts = array.to_pylist()
        for row, text in enumerate(texts):
            if text in ("infinity", "-infinity"):
                infinite[row] = infinity if text == "infinity" else ~infinity
                texts[row] = None
        array = pa.array(texts, pa.string())
    valid = array.is_valid().to_pylist()
    typed = _typed(array, type_oid, arrow)
    if pa.types.is_temporal(arrow):
        typed = typed.view(pa.int32() if arrow.bit_width == 32 else pa.int64())
    numbers = typed.fill_null(False if type_oid == _BOOL else 0).to_numpy(
        zero_copy_only=False
    )
    if epoch:
        numbers = numbers - epoch
        for row, value in infinite.items():
            numbers[row] = value
            valid[row] = True
    packed = numbers.astype(dtype).tobytes()
    width = np.dtype(dtype).itemsize
    return [
        packed[at * width : at * width + width] if present else None
        for at, present in enumerate(valid)
    ]


def _is_text(array: pa.Array) -> bool:
    return bool(pa.types.is_string(array.type) or pa.types.is_large_string(array.type))


_TEXT_KINDS = MappingProxyType(
    {26: "bigint", 28: "bigint", 29: "bigint", 5069: "decimal(20,0)"}
)
"""How the text of a type without mapping of its own is read."""


def _typed(array: pa.Array, type_oid: int, arrow: pa.DataType) -> pa.Array:
    """The column as ``arrow``; canonical text is converted by the type's mapping."""
    if not _is_text(array):
        if pa.types.is_timestamp(array.type) and pa.types.is_timestamp(arrow):
            array = array.cast(pa.timestamp("us", array.type.tz), safe=False)
            return array.view(arrow)
        return array.cast(arrow)
    name = format_type(type_oid)
    chosen = _TEXT_KINDS.get(type_oid)
    overrides = None if chosen is None else {name: chosen}
    found = text_to_arrow(array, mapping_for(type_oid, overrides=overrides))
    if found.bad is not None:
        raise FeatureNotSupportedError(
            f"a value of type {name} has no binary format here: "
            f"{found.failures[0].message}",
            hint="Ask for the text format, or cast the column to text.",
        )
    return found.array if found.array.type == arrow else found.array.cast(arrow)


def _text_type(text: bytes) -> bytes:
    return text


def _pg_lsn(text: bytes) -> bytes:
    high, _, low = text.partition(b"/")
    return struct.pack("!Q", int(high, 16) << 32 | int(low, 16))


def _time(text: bytes) -> bytes:
    hours, minutes, seconds = text.split(b":")
    whole, _, fraction = seconds.partition(b".")
    clock = (int(hours) * 60 + int(minutes)) * 60 + int(whole)
    return struct.pack("!q", clock * 1_000_000 + int(fraction.ljust(6, b"0")))


_FROM_TEXT: Mapping[int, Callable[[bytes], bytes]] = MappingProxyType(
    {
        18: lambda text: char_to_binary(text.decode()),
        19: _text_type,
        25: _text_type,
        114: _text_type,
        142: _text_type,
        705: _text_type,
        1042: _text_type,
        1083: _time,
        1043: _text_type,
        1186: lambda text: interval_of(text.decode()).to_binary(),
        1700: lambda text: numeric_to_binary(text.decode()),
        1790: _text_type,
        2950: lambda text: uuid_to_binary(text.decode()),
        3220: _pg_lsn,
        3802: jsonb_to_binary,
    }
)


def _arrays(array: pa.Array, oid: int, element_oid: int, typmod: int) -> Values:
    if _is_text(array):
        array = _typed(array, oid, mapping_for(oid).arrow_type)
    if not (pa.types.is_list(array.type) or pa.types.is_large_list(array.type)):
        raise no_binary(oid)
    if pa.types.is_list(array.type.value_type):
        raise no_binary(oid)
    elements = arrow_to_binary(array.flatten(), element_oid, typmod)
    rows: Values = []
    at = 0
    for length in array.value_lengths().to_pylist():
        if length is None:
            rows.append(None)
            continue
        rows.append(array_to_binary(element_oid, elements[at : at + length]))
        at += length
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
