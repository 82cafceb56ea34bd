"""Bound parameters: the values that a client sends beside its statement.

Comes in: one parameter's type OID and its text or bytes. Goes out: its canonical text
(``binary_param_to_text``) or a Python value (``text_param_to_python``) to bind into Spark
SQL. Called by the front door at Bind.

One value at a time: parameters are few. Errors quote the value, for it is the client's own
and PostgreSQL's message does so too.

Source: PostgreSQL manual, section 54.7 (Bind); the receive functions in
src/backend/utils/adt.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from types import MappingProxyType

import pyarrow as pa

from wal2lake.errors import UsageError
from wal2lake.model import Lsn
from wal2lake.pgtypes.binary import (
    DATE_EPOCH,
    DATE_INFINITY,
    TIMESTAMP_EPOCH,
    TIMESTAMP_INFINITY,
    array_from_binary,
    char_from_binary,
    incorrect_format,
    jsonb_from_binary,
    numeric_from_binary,
    uuid_from_binary,
)
from wal2lake.pgtypes.decode.text import text_to_arrow
from wal2lake.pgtypes.encode.binary import no_binary
from wal2lake.pgtypes.encode.datetime import (
    clock_text,
    date_text,
)
from wal2lake.pgtypes.encode.text import arrow_to_text
from wal2lake.pgtypes.mapping import mapping_for
from wal2lake.pgtypes.registry.pg_type import type_by_oid
from wal2lake.pgtypes.timezone import zone_for

_DAY = 86_400_000_000


def text_param_to_python(
    type_oid: int, text: str, *, typmod: int = -1, timezone: str = "UTC"
) -> object:
    """A parameter given as text, as the Python value that it means.

    bool, int, float, Decimal (any numeric), date, datetime (aware for timestamptz), bytes,
    list; types that Spark lacks, and unknown ones, stay str. ``timezone`` is the session's:
    a timestamptz without offset is local to it. Raises UsageError with PostgreSQL's
    SQLSTATE for text that is not a value of the type, or one that Spark cannot hold.
    """
    if type_oid == _NUMERIC:
        return _decimal(text)
    mapping = mapping_for(type_oid, typmod)
    values = pa.array([text.encode()], pa.binary())
    found = text_to_arrow(values, mapping)
    if found.bad is not None and type_oid == _TIMESTAMPTZ:
        local = text_to_arrow(values, mapping_for(_TIMESTAMP))
        if local.bad is None:
            naive: datetime = local.array[0].as_py()
            return naive.replace(tzinfo=zone_for(timezone)[1]).astimezone(UTC)
    if found.bad is not None:
        failure = found.failures[0]
        raise UsageError(f'{failure.message}: "{text}"', sqlstate=failure.sqlstate)
    value: object = found.array[0].as_py()
    return value


def _decimal(text: str) -> Decimal:
    try:
        value = Decimal(text.strip())
    except InvalidOperation:
        value = Decimal("sNaN")
    if value.is_snan():
        raise UsageError(
            f'invalid input syntax for type numeric: "{text}"', sqlstate="22P02"
        )
    return value


def binary_param_to_text(type_oid: int, data: bytes) -> str:
    """A parameter given in binary, as canonical text (TimeZone UTC, DateStyle ISO).

    Type 0 (unspecified) is text. Raises UsageError: 22P03 for bytes that the type's receive
    function would refuse, 22021 for text that is not UTF-8; FeatureNotSupportedError for a
    type whose binary form is not known here.
    """
    reader = _READERS.get(type_oid)
    if reader is not None:
        return reader(data)
    known = type_by_oid(type_oid)
    if known is not None and known.is_array:
        element = known.element_oid
        if element not in _READERS:
            raise no_binary(type_oid)
        return array_from_binary(data, element, _READERS[element], known.delimiter)
    raise no_binary(type_oid)


def _text(data: bytes) -> str:
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise UsageError(
            'invalid byte sequence for encoding "UTF8"', sqlstate="22021"
        ) from None
    if "\0" in text:
        raise UsageError(
            'invalid byte sequence for encoding "UTF8": 0x00', sqlstate="22021"
        )
    return text


def _unpack(layout: str) -> Callable[[bytes], int | float]:
    form = struct.Struct(layout)

    def unpack(data: bytes) -> int | float:
        if len(data) != form.size:
            raise incorrect_format()
        (number,) = form.unpack(data)
        return number  # type: ignore[no-any-return]

    return unpack


def _integer(layout: str) -> Callable[[bytes], str]:
    unpack = _unpack(layout)
    return lambda data: str(unpack(data))


def _bool(data: bytes) -> str:
    return "t" if _unpack("!B")(data) else "f"


def _float(layout: str, oid: int) -> Callable[[bytes], str]:
    unpack = _unpack(layout)

    def read(data: bytes) -> str:
        (text,) = arrow_to_text(pa.array([unpack(data)], pa.float64()), oid)
        return (text or b"").decode()

    return read


def _date(data: bytes) -> str:
    days = int(_unpack("!i")(data))
    if days in (DATE_INFINITY, ~DATE_INFINITY):
        return "infinity" if days > 0 else "-infinity"
    return "".join(date_text(days + DATE_EPOCH))


def _timestamp(suffix: str) -> Callable[[bytes], str]:
    def read(data: bytes) -> str:
        number = int(_unpack("!q")(data))
        if number in (TIMESTAMP_INFINITY, ~TIMESTAMP_INFINITY):
            return "infinity" if number > 0 else "-infinity"
        day, rest = divmod(number + TIMESTAMP_EPOCH, _DAY)
        date, era = date_text(day)
        return f"{date} {clock_text(rest)}{suffix}{era}"

    return read


def _time(data: bytes) -> str:
    number = int(_unpack("!q")(data))
    if not 0 <= number <= _DAY:
        raise UsageError("time out of range", sqlstate="22008")
    return clock_text(number)


_NUMERIC, _TIMESTAMP, _TIMESTAMPTZ = 1700, 1114, 1184

_READERS: Mapping[int, Callable[[bytes], str]] = MappingProxyType(
    {
        0: _text,
        16: _bool,
        17: lambda data: "\\x" + data.hex(),
        18: char_from_binary,
        19: _text,
        20: _integer("!q"),
        21: _integer("!h"),
        23: _integer("!i"),
        25: _text,
        26: _integer("!I"),
        28: _integer("!I"),
        29: _integer("!I"),
        114: _text,
        142: _text,
        700: _float("!f", 700),
        701: _float("!d", 701),
        705: _text,
        1042: _text,
        1043: _text,
        1082: _date,
        1083: _time,
        _TIMESTAMP: _timestamp(""),
        _TIMESTAMPTZ: _timestamp("+00"),
        _NUMERIC: numeric_from_binary,
        2950: uuid_from_binary,
        3220: lambda data: str(Lsn(int(_unpack("!Q")(data)))),
        3802: lambda data: _text(jsonb_from_binary(data)),
        5069: _integer("!Q"),
    }
)
