"""Values of a statement's parameters.

Comes in: one parameter's type OID and its text or bytes. Goes out: its canonical text
(``binary_param_to_text``) or a Python value (``text_param_to_python``) to bind into Spark
SQL. Called by the session at Bind.

Values are converted one by one, because there are few parameters. Errors quote the value: it is
the client's own, and PostgreSQL's message quotes it, too.

Source: PostgreSQL manual, section 54.7 (Bind); the receive functions in
src/backend/utils/adt.
"""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from typing import Any

import pyarrow as pa

from wal2lake.errors import UsageError
from wal2lake.pgtypes.decode.text import text_to_arrow
from wal2lake.pgtypes.encode.binary import no_binary
from wal2lake.pgtypes.mapping import mapping_for
from wal2lake.pgtypes.receive.remote import NoDecoder, reader_for
from wal2lake.pgtypes.receive.value.cursor import decoded
from wal2lake.pgtypes.timezone import zone_for


def text_param_to_python(
    type_oid: int, text: str, *, typmod: int = -1, timezone: str = "UTC"
) -> object:
    """Convert a parameter in text format to a Python value.

    The value is a bool, int, float, Decimal (any numeric), date, datetime (aware for timestamptz),
    bytes or list; values of types that Spark lacks, and of unknown types, stay str. ``timezone``
    is the session's: a timestamptz without offset is local to it. Raises UsageError with
    PostgreSQL's SQLSTATE for a text that is not a value of the type, or not one that Spark can
    hold.
    """
    if type_oid == _NUMERIC:
        return _decimal(text)
    mapping = mapping_for(type_oid, typmod)
    values = pa.array([text.encode()], pa.binary())
    converted = text_to_arrow(values, mapping)
    if converted.bad is not None and type_oid == _TIMESTAMPTZ:
        local = text_to_arrow(values, mapping_for(_TIMESTAMP))
        if local.bad is None:
            naive: datetime = _python(local.array, text)
            return naive.replace(tzinfo=zone_for(timezone)[1]).astimezone(UTC)
    if converted.bad is not None:
        failure = converted.failures[0]
        raise UsageError(f'{failure.message}: "{text}"', sqlstate=failure.sqlstate)
    return _python(converted.array, text)


def _python(array: pa.Array, text: str) -> Any:
    try:
        return array[0].as_py()
    except (OverflowError, ValueError):
        # Python has only the years 1 to 9999.
        raise UsageError(
            f'date/time value "{text}" is not supported here', sqlstate="0A000"
        ) from None


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
    """Convert a parameter in binary format to canonical text (TimeZone UTC, DateStyle ISO).

    Type 0 (unspecified) is text. Raises UsageError: 22P03 for bytes that the type's receive
    function would refuse, 22021 for text that is not UTF-8; FeatureNotSupportedError for a
    type whose binary form is not supported.
    """
    if type_oid == _UNSPECIFIED:
        return decoded(data)
    if type_oid in _RECORDS:
        # The fields of an anonymous composite type are not known.
        raise no_binary(type_oid)
    try:
        reader = reader_for(type_oid, {})
    except NoDecoder:
        raise no_binary(type_oid) from None
    return reader(data)


_NUMERIC, _TIMESTAMP, _TIMESTAMPTZ = 1700, 1114, 1184
_UNSPECIFIED = 0
_RECORDS = (2249, 2287)
"""record and record[]."""
