"""Constants of row filters: their canonical text.

Takes the text of a constant and the type that the context gives it; returns a constant whose text
is PostgreSQL's output. An invalid text is refused with the error of the type's input function.

Source: the input functions in src/backend/utils/adt; make_const() in parse_node.c.
"""

from __future__ import annotations

import math
import re
from typing import Final

import pyarrow as pa

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.pgtypes import format_type
from wal2lake.pgtypes.decode.conversion import Failures
from wal2lake.pgtypes.decode.inputs import read_as
from wal2lake.pgtypes.encode.text import arrow_to_text
from wal2lake.pgtypes.expressions import Expression, ExpressionNode
from wal2lake.pgtypes.expressions.operators import FLOATS, INTEGERS
from wal2lake.pgtypes.expressions.values import (
    BOOL,
    BYTEA,
    DATE,
    FLOAT4,
    INT4,
    INT8,
    NUMERIC,
    SUPPORTED,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    array_items,
    array_text,
    is_array,
    single,
)
from wal2lake.pgtypes.registry.pg_type import type_by_oid
from wal2lake.sql.query.values.moments import parse_moment

UNKNOWN: Final = 705
"""Type of a string constant that has no type from its context yet."""

_INTEGER: Final = re.compile(r"\s*([+-]?[0-9]+)\s*\Z")
_FLOAT: Final = re.compile(
    r"\s*[+-]?(?:(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:e[+-]?[0-9]+)?|nan|inf(?:inity)?)\s*\Z",
    re.IGNORECASE,
)
_MOMENTS: Final = {
    DATE: pa.date32(),
    TIMESTAMP: pa.timestamp("us"),
    TIMESTAMPTZ: pa.timestamp("us", "UTC"),
}
"""Arrow types in which dates and timestamps are stored."""


def number(text: str) -> Expression:
    """Return the constant of a number with its sign."""
    if re.fullmatch(r"-?[0-9]+", text):
        value = int(text)
        for kind in (INT4, INT8):
            if abs(value) < 1 << (INTEGERS[kind] - 1):
                return Expression(ExpressionNode.CONST, kind, value=str(value))
    return constant(text, NUMERIC, "UTC")


def constant(text: str, kind: int, zone: str) -> Expression:
    """Return ``'text'`` as a constant of the type; ``zone`` is the session's TimeZone."""
    return Expression(ExpressionNode.CONST, kind, value=_canonical(text, kind, zone))


def _canonical(text: str, kind: int, zone: str) -> str:
    if kind in INTEGERS:
        return _integer(text, kind)
    if kind in FLOATS:
        return _float(text, kind)
    if kind in (DATE, TIMESTAMP, TIMESTAMPTZ):
        return _moment(text, kind, zone)
    if kind in (NUMERIC, UUID):
        failures = Failures()
        value = read_as(pa.array([text]), kind, -1, failures)[0].as_py()
        if value is None:
            raise _invalid(text, kind)
        return str(value)
    if kind == BOOL:
        return _boolean(text)
    if kind == BYTEA:
        return _bytea(text)
    if is_array(kind):
        return _array(text, kind, zone)
    return text


def _array(text: str, kind: int, zone: str) -> str:
    array_type = type_by_oid(kind)
    assert array_type is not None
    if array_type.element_oid not in SUPPORTED:
        raise FeatureNotSupportedError(
            f"an array of type {format_type(kind)} in a publication WHERE expression is"
            " not supported"
        )
    items = array_items(text)
    if items is None:
        if text.strip()[:1] == "[" or text.count("{") > 1:
            raise FeatureNotSupportedError(
                "an array of several dimensions in a publication WHERE expression is not"
                " supported"
            )
        detail = None
        if not text.strip().startswith("{"):
            detail = 'Array value must start with "{" or dimension information.'
        elif not text.rstrip().endswith("}"):
            detail = "Unexpected end of input."
        raise UsageError(
            f'malformed array literal: "{text}"', sqlstate="22P02", detail=detail
        )
    element = array_type.element_oid
    return array_text(
        [None if item is None else _canonical(item, element, zone) for item in items]
    )


def _invalid(text: str, kind: int) -> UsageError:
    return UsageError(
        f'invalid input syntax for type {format_type(kind)}: "{text}"',
        sqlstate="22P02",
    )


def _out_of_range(text: str, kind: int, before: str = "value ") -> UsageError:
    return UsageError(
        f'{before}"{text}" is out of range for type {format_type(kind)}',
        sqlstate="22003",
    )


def _integer(text: str, kind: int) -> str:
    match = _INTEGER.match(text)
    if match is None:
        raise _invalid(text, kind)
    value, limit = int(match[1]), 1 << (INTEGERS[kind] - 1)
    if not -limit <= value < limit:
        raise _out_of_range(text, kind)
    return str(value)


def _float(text: str, kind: int) -> str:
    if not _FLOAT.match(text):
        raise _invalid(text, kind)
    value = float(text)
    if kind == FLOAT4:
        value = single(value)
    if math.isinf(value) and "inf" not in text.lower():
        raise _out_of_range(text.strip(), kind, before="")
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    shown = _shortest_single(value) if kind == FLOAT4 else repr(value)
    return shown.removesuffix(".0")


def _shortest_single(value: float) -> str:
    """Format a real with the fewest digits that distinguish it from others."""
    for digits in range(1, 10):
        shown = f"{value:.{digits}g}"
        if single(float(shown)) == value:
            return repr(float(shown))
    return repr(value)


def _boolean(text: str) -> str:
    word = text.strip().lower()
    for shown, words in (("true", "true yes on 1"), ("false", "false no off 0")):
        for full in words.split():
            if word and word != "o" and full.startswith(word):
                return shown
    raise _invalid(text, BOOL)


def _bytea(text: str) -> str:
    if text.startswith("\\x"):
        digits = re.sub(r"\s", "", text[2:])
        if len(digits) % 2 or re.search(r"[^0-9A-Fa-f]", digits):
            raise UsageError("invalid hexadecimal data", sqlstate="22023")
        return "\\x" + digits.lower()
    if re.search(r"\\(?![0-3][0-7]{2}|\\)", text.replace("\\\\", "")):
        raise UsageError("invalid input syntax for type bytea", sqlstate="22P02")
    raw = re.sub(
        rb"\\(\\|[0-3][0-7]{2})",
        lambda m: b"\\" if m[1] == b"\\" else bytes([int(m[1], 8)]),
        text.encode(),
    )
    return "\\x" + raw.hex()


def _moment(text: str, kind: int, zone: str) -> str:
    number = parse_moment(text, kind, zone)
    stored = pa.array([number], _MOMENTS[kind])
    shown = arrow_to_text(stored, kind)[0]
    assert shown is not None
    return shown.decode()
