"""Computes the value of a constant expression as Spark would, without Spark. Pure.

Comes in: an analysed expression for a column. ``values.literals`` and ``values.assign`` have
already read its text by the input function of its type, rounded the value and checked it, so a
constant is a literal inside casts to its type. Goes out: the value; or ``NotConstant`` if the
expression is not a constant, or if it has a cast whose result is left to Spark. Spark then computes
the expression like any other, so the value is the same in both ways.

Called by ``plain``, for INSERT ... VALUES and UPDATE ... SET. Sources: Spark's Cast.scala and
UTF8String.java; Java's BigDecimal.toString().
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

import pyarrow as pa
from sqlglot import exp

from wal2lake.pgtypes.moments import spark_number


@dataclass(frozen=True, slots=True)
class MomentConstant:
    """A date or timestamp."""

    number: int
    """The stored number of days or microseconds (``pgtypes.moments``)."""
    ddl: str
    """Spark's type: date, timestamp or timestamp_ntz."""


Constant = bool | int | float | Decimal | str | bytes | MomentConstant | None
"""The value of a constant. None: NULL."""


class NotConstant(Exception):
    """Raised for an expression whose value only Spark can compute."""


_Kind = exp.DataType.Type

_BITS: Final = {_Kind.SMALLINT: 15, _Kind.INT: 31, _Kind.BIGINT: 63}

_INTEGER: Final = re.compile("-?[0-9]{1,19}")
_DECIMAL: Final = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_FLOAT: Final = re.compile(r"-?(?:inf|nan|[0-9]+(?:\.[0-9]+)?(?:e[+-][0-9]+)?)")
_EXACT: Final = 1 << 53
"""Integers up to this one are exact as double precision."""

_SHORT_SCALE: Final = 6
"""The greatest scale of decimals that Java never prints with an exponent."""


def constant(node: exp.Expression) -> Constant:
    """Compute the value of an expression; raises NotConstant."""
    if isinstance(node, exp.Paren):
        return constant(node.this)
    if isinstance(node, exp.Null):
        return None
    if isinstance(node, exp.Boolean):
        return bool(node.this)
    if isinstance(node, exp.HexString):
        return bytes.fromhex(node.name)
    if isinstance(node, exp.Literal):
        # A number without a cast is a bigint at most; no cast has to read it.
        return str(node.name) if node.is_string else _integer(node.name, 63)
    if isinstance(node, exp.Neg):
        return _negative(constant(node.this))
    if isinstance(node, exp.Cast) and isinstance(node.to, exp.DataType):
        return _cast(constant(node.this), node.to)
    raise NotConstant


def can_store(value: Constant, ddl: str) -> bool:
    """Whether a column of the given Spark type stores the value unchanged."""
    kind = ddl.lower()
    if value is None:
        return True
    if kind.startswith("decimal("):
        precision, scale = map(int, kind.removeprefix("decimal(")[:-1].split(","))
        return isinstance(value, Decimal) and _fits(value, precision, scale)
    if isinstance(value, MomentConstant):
        return kind == value.ddl
    if type(value) is int:
        bits = {"smallint": 15, "int": 31, "bigint": 63}.get(kind)
        return bits is not None and _in_bits(value, bits)
    if kind == "float":
        return isinstance(value, float) and (
            value != value or _to_float32(repr(value)) == value
        )
    return _OF.get(kind) is type(value)


_OF: Final = {
    "boolean": bool,
    "double": float,
    "string": str,
    "binary": bytes,
}


def _negative(value: Constant) -> Constant:
    if isinstance(value, Decimal):
        return value.copy_negate() if value else value
    if isinstance(value, float):
        return -value
    # The smallest value of a type has no positive counterpart.
    if type(value) is int and value >= 0:
        return -value
    raise NotConstant


def _cast(value: Constant, to: exp.DataType) -> Constant:
    if value is None:
        return None
    if to.this in _BITS:
        if isinstance(value, str | int) and not isinstance(value, bool):
            return _integer(str(value), _BITS[to.this])
        raise NotConstant
    reader = _CASTS.get(to.this)
    if to.this is _Kind.DECIMAL:
        return _decimal(value, to)
    if reader is None:
        raise NotConstant
    return reader(value)


def _integer(text: str, bits: int) -> int:
    if _INTEGER.fullmatch(text) and _in_bits(int(text), bits):
        return int(text)
    raise NotConstant


def _in_bits(value: int, bits: int) -> bool:
    return -(1 << bits) <= value < 1 << bits


def _decimal(value: Constant, to: exp.DataType) -> Decimal:
    precision, scale = (int(limit.name) for limit in to.expressions)
    if isinstance(value, bool | float | bytes | MomentConstant | None) or (
        isinstance(value, str) and not _DECIMAL.fullmatch(value)
    ):
        raise NotConstant
    number = Decimal(value)
    if not _fits(number, precision, scale):
        raise NotConstant
    # The result has exactly the type's scale, and zero has no sign.
    sign, digits, exponent = number.as_tuple()
    assert isinstance(exponent, int)
    if number.is_zero():
        return Decimal((0, (0,), -scale))
    return Decimal((sign, (*digits, *(0,) * (scale + exponent)), -scale))


def _fits(value: Decimal, precision: int, scale: int) -> bool:
    """Whether the value needs no rounding for this precision and scale."""
    if value.is_zero():
        return True
    _, digits, exponent = value.as_tuple()
    assert isinstance(exponent, int)
    return -exponent <= scale and len(digits) + exponent <= precision - scale


def _to_text(value: Constant) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if isinstance(value, Decimal):
        exponent = value.as_tuple().exponent
        if isinstance(exponent, int) and -_SHORT_SCALE <= exponent <= 0:
            return f"{value:f}"
    raise NotConstant


def _to_double(value: Constant) -> float:
    if isinstance(value, str) and _FLOAT.fullmatch(value):
        return float(value)
    if type(value) is int and abs(value) <= _EXACT:
        return float(value)
    if isinstance(value, Decimal | float):
        return float(value)
    raise NotConstant


def _to_float(value: Constant) -> float:
    # Converting to double precision first could give another real.
    if isinstance(value, str) and _FLOAT.fullmatch(value):
        return _to_float32(value)
    raise NotConstant


def _to_float32(text: str) -> float:
    with suppress(pa.ArrowInvalid):
        number: float = pa.scalar(text).cast(pa.float32()).as_py()
        return number
    raise NotConstant


_DATE: Final = pa.date32()
_LOCAL: Final = pa.timestamp("us")
_INSTANT: Final = pa.timestamp("us", "UTC")


def _to_moment(value: Constant, kind: pa.DataType, ddl: str) -> MomentConstant:
    if isinstance(value, str) and value.endswith("Z") == (kind == _INSTANT):
        number = spark_number(value, kind)
        if number is not None:
            return MomentConstant(number, ddl)
    raise NotConstant


_CASTS: Final[Mapping[exp.DataType.Type, Callable[[Constant], Constant]]] = {
    _Kind.BOOLEAN: lambda value: _unchanged(value, bool),
    _Kind.BINARY: lambda value: _unchanged(value, bytes),
    _Kind.TEXT: _to_text,
    _Kind.DOUBLE: _to_double,
    _Kind.FLOAT: _to_float,
    _Kind.DATE: lambda value: _to_moment(value, _DATE, "date"),
    _Kind.TIMESTAMPNTZ: lambda value: _to_moment(value, _LOCAL, "timestamp_ntz"),
    _Kind.TIMESTAMPLTZ: lambda value: _to_moment(value, _INSTANT, "timestamp"),
}


def _unchanged(value: Constant, kind: type) -> Constant:
    if type(value) is kind:
        return value
    raise NotConstant
