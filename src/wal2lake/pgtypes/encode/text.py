"""Typed Arrow to PostgreSQL's text: ``arrow_to_text``.

Comes in: a column of a query's result, or of a table, and its PostgreSQL type. Goes out:
the bytes of each value as psql shows them at the source, None for NULL. Called by the session
(DataRow in text format) and by capture for the walsender.

The Arrow type determines the form of a value. The PostgreSQL type is used if the Arrow type is not
sufficient (float4 or float8, with or without time zone, a declared scale). A string column of any
type is passed through, because it has PostgreSQL's canonical text already, with DateStyle ISO and
TimeZone UTC.

Sources: the output functions in src/backend/utils/adt; array_out; record_out; hstore_out.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, tzinfo

import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.pgtypes.encode.datetime import (
    FEW,
    dates_column,
    dates_text,
    durations_text,
    times_text,
    timestamps_column,
    timestamps_text,
)
from wal2lake.pgtypes.encode.float import FLOAT4, FLOAT8, float_text
from wal2lake.pgtypes.registry.pg_type import numeric_precision_scale, type_by_oid
from wal2lake.pgtypes.timezone import zone_for

Texts = list[bytes | None]

_FLOAT4, _FLOAT8, _TIMESTAMP, _TIMESTAMPTZ, _NUMERIC = 700, 701, 1114, 1184, 1700


@dataclass(frozen=True, slots=True)
class TextStyle:
    """Settings of the session that change the text of values."""

    zone: tzinfo
    extra_float_digits: int
    bytea_hex: bool


def arrow_to_text(
    array: pa.Array | pa.ChunkedArray,
    type_oid: int,
    typmod: int = -1,
    *,
    timezone: str = "UTC",
    datestyle: str = "ISO",
    extra_float_digits: int = 1,
    bytea_output: str = "hex",
) -> Texts:
    """Convert each row to text, None for null.

    The settings are PostgreSQL's. Raises FeatureNotSupportedError for a DateStyle other
    than ISO (the order, as in ``ISO, MDY``, does not affect output) and for an Arrow type without
    equivalent in PostgreSQL; UsageError (22023) for an unknown time zone.
    """
    if datestyle.partition(",")[0].strip().upper() != "ISO":
        raise FeatureNotSupportedError(
            f'DateStyle "{datestyle}" is not supported', hint="Use ISO."
        )
    zone = UTC if timezone == "UTC" else zone_for(timezone)[1]
    style = TextStyle(zone, extra_float_digits, bytea_output.lower() == "hex")
    if isinstance(array, pa.ChunkedArray):
        return [
            t for chunk in array.chunks for t in _texts(chunk, type_oid, typmod, style)
        ]
    return _texts(array, type_oid, typmod, style)


def plain_text(
    array: pa.Array, type_oid: int, typmod: int = -1, *, timezone: str = "UTC"
) -> pa.Array | None:
    """Return the texts of ``arrow_to_text`` as Arrow binary; None: not possible for this type or
    these values, or the result would be long."""
    if array.nbytes > _MUCH:
        return None
    texts = _plain(array, type_oid, typmod, timezone)
    return None if texts is None else texts.cast(pa.binary())


_MUCH = 1 << 28
"""Bytes of values up to which ``plain_text`` is used. An Arrow array of text has less than
2 GiB."""


def _plain(array: pa.Array, oid: int, typmod: int, timezone: str) -> pa.Array | None:
    types, arrow = pa.types, array.type
    if types.is_string(arrow) or types.is_large_string(arrow):
        return array
    if types.is_boolean(arrow):
        return pc.if_else(array, "t", "f")
    if types.is_floating(arrow) or oid in (_FLOAT4, _FLOAT8):
        return None
    if types.is_integer(arrow):
        return array.cast(pa.string())
    if types.is_decimal(arrow):
        array = _as_declared(array, typmod if oid == _NUMERIC else -1)
        is_plain = 0 <= array.type.scale <= _PLAIN_SCALE
        return array.cast(pa.string()) if is_plain else None
    if types.is_date(arrow):
        return dates_column(array.cast(pa.date32()))
    if types.is_timestamp(arrow):
        zoned = _is_zoned(array, oid)
        if zoned and timezone != "UTC":
            return None
        return timestamps_column(_in_microseconds(array), zoned=zoned)
    return None


def _texts(array: pa.Array, oid: int, typmod: int, style: TextStyle) -> Texts:
    types, arrow = pa.types, array.type
    if types.is_dictionary(arrow):
        return _texts(array.dictionary_decode(), oid, typmod, style)
    if types.is_null(arrow):
        return [None] * len(array)
    if types.is_string(arrow):
        return array.view(_BINARY).to_pylist()  # type: ignore[no-any-return]
    if types.is_large_string(arrow) or arrow.id == _VIEW:
        return array.cast(pa.large_binary()).to_pylist()  # type: ignore[no-any-return]
    if types.is_boolean(arrow):
        return [None if v is None else b"t" if v else b"f" for v in array.to_pylist()]
    if types.is_floating(arrow) or oid in (_FLOAT4, _FLOAT8):
        return _floats(array, oid, style.extra_float_digits)
    if types.is_integer(arrow):
        return _integers(array)
    if types.is_decimal(arrow):
        return _decimals(array, typmod if oid == _NUMERIC else -1)
    if types.is_date(arrow):
        return dates_text(array.cast(pa.date32()))
    if types.is_timestamp(arrow):
        return _timestamps(array, oid, style)
    if types.is_time(arrow):
        return times_text(array.cast(pa.time64("us")))
    if types.is_duration(arrow):
        return durations_text(array.cast(pa.duration("us")))
    if types.is_binary(arrow) or types.is_large_binary(arrow):
        return _bytea(array, style.bytea_hex)
    if types.is_map(arrow):
        return _maps(array, style)
    if types.is_list(arrow) or types.is_large_list(arrow):
        return _lists(array, oid, typmod, style)
    if types.is_struct(arrow):
        return _records(array, style)
    raise FeatureNotSupportedError(f"a value of Arrow type {arrow} has no text form")


_VIEW = pa.string_view().id
_BINARY = pa.binary()


def _integers(array: pa.Array) -> Texts:
    if len(array) <= FEW:
        return [None if v is None else b"%d" % v for v in array.to_pylist()]
    return array.cast(pa.string()).cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]


def _floats(array: pa.Array, oid: int, extra_float_digits: int) -> Texts:
    single = oid == _FLOAT4 or (oid != _FLOAT8 and pa.types.is_float32(array.type))
    form = FLOAT4 if single else FLOAT8
    typed = array.cast(pa.float32() if single else pa.float64(), safe=False)
    numbers = typed.to_pylist()
    digits = typed.cast(pa.string()).to_pylist()
    return [
        None if n is None else float_text(n, d, form, extra_float_digits)
        for n, d in zip(numbers, digits, strict=True)
    ]


_PLAIN_SCALE = 6
"""Up to this scale Arrow writes every decimal with all digits and without an exponent."""


def _as_declared(array: pa.Array, typmod: int) -> pa.Array:
    limits = numeric_precision_scale(typmod)
    if limits is not None and 0 <= limits[1] < array.type.scale:
        # A query's result can have more digits than declared; then all digits are shown.
        with contextlib.suppress(pa.ArrowInvalid):
            return array.cast(pa.decimal128(38, limits[1]))
    return array


def _decimals(array: pa.Array, typmod: int) -> Texts:
    array = _as_declared(array, typmod)
    if 0 <= array.type.scale <= _PLAIN_SCALE:
        return array.cast(pa.string()).cast(pa.binary()).to_pylist()  # type: ignore[no-any-return]
    return [None if v is None else f"{v:f}".encode() for v in array.to_pylist()]


def _timestamps(array: pa.Array, oid: int, style: TextStyle) -> Texts:
    zone = style.zone if _is_zoned(array, oid) else None
    return timestamps_text(_in_microseconds(array), zone)


def _is_zoned(array: pa.Array, oid: int) -> bool:
    return oid == _TIMESTAMPTZ or (oid != _TIMESTAMP and array.type.tz is not None)


def _in_microseconds(array: pa.Array) -> pa.Array:
    """Truncate to microseconds, PostgreSQL's precision."""
    return array.cast(pa.timestamp("us", array.type.tz), safe=False)


_BACKSLASH = ord("\\")


def _bytea(array: pa.Array, as_hex: bool) -> Texts:
    if as_hex:
        return [
            None if v is None else b"\\x" + v.hex().encode() for v in array.to_pylist()
        ]
    return [None if v is None else _escaped_bytes(v) for v in array.to_pylist()]


def _escaped_bytes(value: bytes) -> bytes:
    """Print bytes with bytea_output = escape."""
    if value.isascii() and _BACKSLASH not in value and value.decode().isprintable():
        return value
    return b"".join(
        b"\\\\"
        if b == _BACKSLASH
        else b"\\%03o" % b
        if not 32 <= b < 127
        else bytes([b])
        for b in value
    )


# --- composite values -------------------------------------------------------------------


def _lists(array: pa.Array, oid: int, typmod: int, style: TextStyle) -> Texts:
    pg_type = type_by_oid(oid)
    is_array = pg_type is not None and pg_type.is_array
    element_oid = pg_type.element_oid if pg_type is not None and is_array else 0
    delimiter = pg_type.delimiter if pg_type is not None and is_array else ","
    inner = array.type.value_type
    if pa.types.is_list(inner) or pa.types.is_large_list(inner):
        texts = _texts(array.flatten(), oid, typmod, style)
    else:
        texts = _texts(array.flatten(), element_oid, typmod, style)
        quote = _quoter(delimiter)
        texts = [None if t is None else quote(t) for t in texts]
    marked = [b"NULL" if t is None else t for t in texts]
    join = delimiter.encode().join
    rows: Texts = []
    start = 0
    for length in array.value_lengths().to_pylist():
        if length is None:
            rows.append(None)
            continue
        rows.append(b"{" + join(marked[start : start + length]) + b"}")
        start += length
    return rows


def _quoter(delimiter: str) -> Callable[[bytes], bytes]:
    """Return array_out's rule: quote a text that would not read back as itself."""
    special = re.compile(
        rb'["\\{}\s' + re.escape(delimiter.encode()) + rb"]|\A(?:null)?\Z",
        re.IGNORECASE,
    )

    def quote(text: bytes) -> bytes:
        return _quoted(text) if special.search(text) else text

    return quote


def _quoted(text: bytes) -> bytes:
    return b'"' + text.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"'


def _maps(array: pa.Array, style: TextStyle) -> Texts:
    """Print maps as hstore_out does: keys and values quoted, in stored order."""
    keys = _texts(array.keys, 0, -1, style)
    items = _texts(array.items, 0, -1, style)
    offsets = array.offsets.to_pylist()
    rows: Texts = []
    for row, valid in enumerate(array.is_valid().to_pylist()):
        if not valid:
            rows.append(None)
            continue
        pairs = range(offsets[row], offsets[row + 1])
        rows.append(b", ".join(_pair(keys[n], items[n]) for n in pairs))
    return rows


def _pair(key: bytes | None, item: bytes | None) -> bytes:
    shown = b"NULL" if item is None else _quoted(item)
    return _quoted(key or b"") + b"=>" + shown


_RECORD_SPECIAL = re.compile(rb'["\\(),\s]|\A\Z')


def _records(array: pa.Array, style: TextStyle) -> Texts:
    """Print records as record_out does: ``(1,"a b",)``; NULL is empty."""
    columns = [_texts(column, 0, -1, style) for column in array.flatten()]
    rows: Texts = []
    for row, valid in enumerate(array.is_valid().to_pylist()):
        fields = b",".join(_record_field(column[row]) for column in columns)
        rows.append(b"(" + fields + b")" if valid else None)
    return rows


def _record_field(text: bytes | None) -> bytes:
    if text is None:
        return b""
    if _RECORD_SPECIAL.search(text):
        doubled = text.replace(b"\\", b"\\\\").replace(b'"', b'""')
        return b'"' + doubled + b'"'
    return text
