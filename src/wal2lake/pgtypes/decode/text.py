"""PostgreSQL's text to typed Arrow: ``text_to_arrow``, the hot path of copy and apply.

Comes in: one column's values as the publisher sent them in text format, as Arrow binary,
and the column's mapping. Goes out: a ``Conversion``. Runs inside Spark's Python workers:
no session, no logger, everything picklable.

We set the parameters of the publisher's session: DateStyle ISO, IntervalStyle postgres,
extra_float_digits 3, bytea_output hex, client_encoding UTF8. TimeZone UTC gives the fast path of
timestamptz; values in any other zone are read, too.

Each kind of mapping has one conversion, in the module of its family.

Source: PostgreSQL manual, chapter 8; section 54.5 (TupleData, text).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

import numpy as np
import pyarrow as pa

from wal2lake.pgtypes.decode.array import decode_array, decode_hstore
from wal2lake.pgtypes.decode.conversion import Conversion, ConversionFailure
from wal2lake.pgtypes.decode.datetime import decode_date, decode_timestamp
from wal2lake.pgtypes.decode.scalar import (
    decode_bool,
    decode_bytea,
    decode_decimal,
    decode_float,
    decode_integer,
    decode_text_family,
)
from wal2lake.pgtypes.mapping import ConversionKind, TypeMapping


def _array(values: pa.BinaryArray, mapping: TypeMapping) -> Conversion:
    return decode_array(values, mapping, _convert)


def _hstore(values: pa.BinaryArray, mapping: TypeMapping) -> Conversion:
    return decode_hstore(values, mapping, decode_text_family)


_CONVERSIONS: Mapping[
    ConversionKind, Callable[[pa.BinaryArray, TypeMapping], Conversion]
] = MappingProxyType(
    {
        ConversionKind.BOOL: decode_bool,
        ConversionKind.INTEGER: decode_integer,
        ConversionKind.FLOAT: decode_float,
        ConversionKind.DECIMAL: decode_decimal,
        ConversionKind.DATE: decode_date,
        ConversionKind.TIMESTAMP: decode_timestamp,
        ConversionKind.TIMESTAMPTZ: decode_timestamp,
        ConversionKind.TEXT: decode_text_family,
        ConversionKind.BYTEA: decode_bytea,
        ConversionKind.ARRAY: _array,
        ConversionKind.HSTORE: _hstore,
    }
)


def text_to_arrow(
    values: pa.Array | pa.ChunkedArray, mapping: TypeMapping
) -> Conversion:
    """Convert one column.

    ``values`` are binary (string and large variants are accepted), null for SQL NULL. No value is
    ever changed: a value that the target cannot hold is null in the result and listed in
    ``failures`` (row numbers count over all chunks). Never raises because of a value.
    """
    if not isinstance(values, pa.ChunkedArray):
        return _convert(_binary(values), mapping)
    chunks: list[pa.Array] = []
    bad: list[pa.Array] = []
    rows_by_reason: dict[tuple[str, str], list[np.ndarray]] = {}
    start = 0
    for chunk in values.chunks:
        part = _convert(_binary(chunk), mapping)
        chunks.append(part.array)
        missing = pa.array(np.zeros(len(chunk), np.bool_))
        bad.append(missing if part.bad is None else part.bad)
        for failure in part.failures:
            reason = (failure.sqlstate, failure.message)
            rows_by_reason.setdefault(reason, []).append(failure.rows + start)
        start += len(chunk)
    array = pa.chunked_array(chunks, mapping.arrow_type)
    if not rows_by_reason:
        return Conversion(array, None)
    failures = [
        ConversionFailure(sqlstate, message, np.concatenate(rows))
        for (sqlstate, message), rows in rows_by_reason.items()
    ]
    failures.sort(key=lambda f: int(f.rows[0]))
    return Conversion(array, pa.concat_arrays(bad), tuple(failures))


def _binary(values: pa.Array) -> pa.BinaryArray:
    return values if values.type == pa.binary() else values.cast(pa.binary())


def _convert(values: pa.BinaryArray, mapping: TypeMapping) -> Conversion:
    return _CONVERSIONS[mapping.kind](values, mapping)
