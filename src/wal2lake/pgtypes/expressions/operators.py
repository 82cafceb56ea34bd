"""Operators, functions and casts of row filters.

Comes in: a name and the types of the operands, as the analysis has resolved them. Goes out: a
function of Python values (``values``) that are not NULL. Called by ``evaluate``, once for each
node.

CREATE PUBLICATION accepts ``SUPPORTED_OPERATORS`` and ``SUPPORTED_FUNCTIONS``. Some operators that
are immutable in PostgreSQL are not supported, for example numeric division, whose scale depends on
the digits of both operands.

Source: int.c, int8.c, numeric.c, float.c, varlena.c, varchar.c, date.c, like_match.c.
"""

from __future__ import annotations

import math
import operator
import re
import struct
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Context, Decimal
from functools import lru_cache, partial
from typing import Any, Final

from wal2lake.errors import UsageError
from wal2lake.pgtypes.expressions.members import member, member_text
from wal2lake.pgtypes.expressions.patterns import regular_expression
from wal2lake.pgtypes.expressions.values import (
    BPCHAR,
    BYTEA,
    DATE,
    DAY_MICROSECONDS,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    NUMERIC,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    VARCHAR,
    Value,
    single,
)
from wal2lake.pgtypes.registry.pg_type import format_type, numeric_precision_scale

Function = Callable[..., Value]

INTEGERS: Final = {INT2: 16, INT4: 32, INT8: 64}
"""Number of bits of each integer type."""
FLOATS: Final = (FLOAT4, FLOAT8)
TEXTS: Final = (TEXT, VARCHAR, BPCHAR)

COMPARISONS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
ARITHMETIC: Final = ("+", "-", "*", "/", "%")
LIKES: Final = ("~~", "!~~")
MATCHES: Final = ("~", "!~", "~*", "!~*")
"""Operators of regular expressions."""
MEMBERS: Final[dict[str, Callable[[Any, Any], Value]]] = {
    "->": member,
    "->>": member_text,
}
SUPPORTED_OPERATORS: Final = (
    *COMPARISONS,
    *ARITHMETIC,
    "||",
    *LIKES,
    *MATCHES,
    *MEMBERS,
)
SUPPORTED_FUNCTIONS: Final = (
    "abs",
    "char_length",
    "character_length",
    "length",
    "lower",
    "mod",
    "octet_length",
    "upper",
)

_DIGITS: Final = 400_000
"""More digits than any product of two numeric values has."""
_EXACT: Final = Context(prec=_DIGITS, traps=[])


def operation(name: str, left: int, right: int, result: int) -> Function:
    """Return the function of a binary operator."""
    if name in COMPARISONS:
        return comparison(name, left, right)
    if name == "||":
        return operator.add
    if name in MEMBERS:
        return MEMBERS[name]
    if name in MATCHES:
        return _matching(name)
    if name in LIKES:
        return _not_like if name == "!~~" else _like
    if DATE in (left, right):
        return _days_between if result == INT4 else _days_away(name)
    if result in INTEGERS:
        return _in_range(_INTEGER_OPERATIONS[name], result)
    if result == NUMERIC:
        return _NUMERIC_OPERATIONS[name]
    return _float_operation(name, result)


def sign(name: str, kind: int) -> Function:
    """Return the function of a unary + or -."""
    if name == "+":
        return lambda a: a
    if kind in INTEGERS:
        return _in_range(operator.neg, kind)
    if kind == NUMERIC:
        return lambda a: a if a.is_nan() else a.copy_negate()
    return operator.neg


def function(name: str, kinds: tuple[int, ...], result: int) -> Function:
    """Return the function with this name."""
    match name:
        case "abs":
            if result in INTEGERS:
                return _in_range(abs, result)
            return _numeric_abs if result == NUMERIC else abs
        case "mod":
            return operation("%", kinds[0], kinds[1], result)
        case "octet_length":
            return len
        case "length" if kinds[0] == BYTEA:
            return len
        case "lower" | "upper":
            # Collation "C" converts only ASCII letters.
            return operator.methodcaller(name)
        case _:
            if kinds[0] == BPCHAR:
                return lambda a: len(a.rstrip(b" ").decode())
            return lambda a: len(a.decode())


def _numeric_abs(a: Decimal) -> Decimal:
    return a.copy_abs()


def comparison(name: str, left: int, right: int) -> Function:
    """Return a comparison. NaN is equal to itself and above all other numbers; trailing blanks of
    char do not count; a date is a timestamp at midnight."""
    compare = COMPARISONS[name]
    if left in FLOATS or left == NUMERIC:
        return lambda a, b: compare(*_ranked(a, b))
    if left == right == BPCHAR:
        return lambda a, b: compare(a.rstrip(b" "), b.rstrip(b" "))
    if left != right and DATE in (left, right):
        convert_left = _midnight if left == DATE else _itself
        convert_right = _midnight if right == DATE else _itself
        return lambda a, b: compare(convert_left(a), convert_right(b))
    return compare


def _ranked(a: Any, b: Any) -> tuple[Any, Any]:
    if a == a and b == b:
        return a, b
    return a != a, b != b


def _itself(a: Value) -> Value:
    return a


def _midnight(a: Value) -> Value:
    return a * DAY_MICROSECONDS


_DAYS: Final = range(-2_451_545, 2_145_031_949)
"""The days of type date, counted from 2000-01-01."""
_TIMESTAMP_DAYS: Final = range(-2_451_545, 109_203_528 - 2_451_545)


def _days_away(name: str) -> Function:
    """Return the function of a date and a number of days; infinity stays."""
    compute = operator.add if name == "+" else operator.sub

    def moved(a: Value, b: Value) -> Value:
        day = compute(a, b)
        if math.isfinite(day) and day not in _DAYS:
            raise UsageError("date out of range", sqlstate="22008")
        return day

    return moved


def _days_between(a: Value, b: Value) -> Value:
    if not (math.isfinite(a) and math.isfinite(b)):
        raise UsageError("cannot subtract infinite dates", sqlstate="22008")
    return a - b


def _timestamp(a: Value) -> Value:
    if math.isfinite(a) and a not in _TIMESTAMP_DAYS:
        raise UsageError("date out of range for timestamp", sqlstate="22008")
    return _midnight(a)


# ---- numbers ----------------------------------------------------------------------------


def _in_range(compute: Function, kind: int) -> Function:
    limit = 1 << (INTEGERS[kind] - 1)
    name = format_type(kind)

    def checked(*args: Value) -> Value:
        result = compute(*args)
        if not -limit <= result < limit:
            raise UsageError(f"{name} out of range", sqlstate="22003")
        return result

    return checked


def _by_zero() -> UsageError:
    return UsageError("division by zero", sqlstate="22012")


def _quotient(a: int, b: int) -> int:
    """Divide, rounding towards zero."""
    if not b:
        raise _by_zero()
    magnitude = abs(a) // abs(b)
    return magnitude if (a < 0) == (b < 0) else -magnitude


def _remainder(a: int, b: int) -> int:
    """Return the remainder, with the sign of the dividend."""
    if not b:
        raise _by_zero()
    magnitude = abs(a) % abs(b)
    return -magnitude if a < 0 else magnitude


_INTEGER_OPERATIONS: Final[dict[str, Function]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
    "%": _remainder,
}


def _numeric_remainder(a: Decimal, b: Decimal) -> Decimal:
    if not b and not a.is_nan():
        raise _by_zero()
    return _EXACT.remainder(a, b)


_NUMERIC_OPERATIONS: Final[dict[str, Function]] = {
    "+": _EXACT.add,
    "-": _EXACT.subtract,
    "*": _EXACT.multiply,
    "%": _numeric_remainder,
}


def _float_operation(name: str, result: int) -> Function:
    compute: Function = {
        "+": operator.add,
        "-": operator.sub,
        "*": operator.mul,
        "/": _float_quotient,
    }[name]

    def checked(a: float, b: float) -> float:
        computed: float = compute(a, b)
        if result == FLOAT4:
            computed = single(computed)
        if math.isinf(computed) and not (math.isinf(a) or math.isinf(b)):
            raise UsageError("value out of range: overflow", sqlstate="22003")
        if computed == 0 and a and b and name in "*/" and not math.isinf(b):
            raise UsageError("value out of range: underflow", sqlstate="22003")
        return computed

    return checked


def _float_quotient(a: float, b: float) -> float:
    if b == 0:
        if a != a:
            return a
        raise _by_zero()
    return a / b


# ---- text -------------------------------------------------------------------------------


def _like(text: bytes, pattern: bytes) -> bool:
    return _pattern(pattern).fullmatch(text.decode()) is not None


def _not_like(text: bytes, pattern: bytes) -> bool:
    return not _like(text, pattern)


@lru_cache(maxsize=256)
def _pattern(pattern: bytes) -> re.Pattern[str]:
    """Compile a LIKE pattern. The cache is bounded because a pattern may be from a column."""
    parts, escaped = [], False
    for char in pattern.decode():
        if escaped:
            parts.append(re.escape(char))
            escaped = False
        elif char == "\\":
            escaped = True
        else:
            parts.append({"%": ".*", "_": "."}.get(char) or re.escape(char))
    if escaped:
        raise UsageError(
            "LIKE pattern must not end with escape character", sqlstate="22025"
        )
    return re.compile("".join(parts), re.DOTALL)


def can_match(pattern: str, name: str) -> bool:
    """Return whether a regular expression has the same meaning in all locales."""
    ignores_case = name.endswith("*")
    return regular_expression(pattern, ignores_case=ignores_case) is not None


def _matching(name: str) -> Function:
    ignores_case, negated = name.endswith("*"), name.startswith("!")

    def matching(text: bytes, pattern: bytes) -> bool:
        regular = regular_expression(pattern.decode(), ignores_case=ignores_case)
        assert regular is not None
        return (regular.search(text.decode()) is None) is negated

    return matching


# ---- casts ------------------------------------------------------------------------------


def can_cast(source: int, target: int) -> bool:
    """Return whether there is a cast, explicit or not, that is immutable and supported here."""
    return _cast(source, target) is not None


def cast(source: int, target: int, typmod: int) -> Function:
    """Return the function that converts values of ``source`` to ``target``."""
    convert = _itself if source == target else _cast(source, target)
    assert convert is not None
    fit = _length(target, typmod)
    if fit is None:
        return convert
    return lambda a: fit(convert(a))


def _cast(source: int, target: int) -> Function | None:
    numbers = (*INTEGERS, NUMERIC, *FLOATS)
    if source == target:
        return _itself
    if source in TEXTS and target in TEXTS:
        trims = source == BPCHAR
        return (lambda a: a.rstrip(b" ")) if trims else _itself
    if source in numbers and target in numbers:
        return _number(source, target)
    match source, target:
        case (16, 23):
            return int
        case (23, 16):
            return bool
        case (1082, 1114):
            return _timestamp
        case (1114, 1082):
            return lambda a: a if math.isinf(a) else a // DAY_MICROSECONDS
    return None


def _number(source: int, target: int) -> Function:
    if target in INTEGERS:
        rounded: Function = _itself
        if source not in INTEGERS:
            rounded = _rounded if source == NUMERIC else round
        name = format_type(target)

        def whole(a: Value) -> int:
            if source not in INTEGERS and not math.isfinite(a):
                kind = "NaN" if a != a else "infinity"
                raise UsageError(
                    f"cannot convert {kind} to {name}"
                    if source == NUMERIC
                    else f"{name} out of range",
                    sqlstate="0A000" if source == NUMERIC else "22003",
                )
            return int(rounded(a))

        return _in_range(whole, target)
    if target == NUMERIC:
        if source in INTEGERS:
            return Decimal
        digits = 6 if source == FLOAT4 else 15
        # All digits before the decimal point are kept: they count for the scale of results.
        return lambda a: Decimal(f"{Decimal(f'{a:.{digits}g}'):f}")
    if source == NUMERIC:
        return partial(_read_float, target)
    return _to_single if target == FLOAT4 else float


def _read_float(target: int, a: Decimal) -> float:
    """Read a number's text as float8in() and float4in() do."""
    number = single(_to_odd(a)) if target == FLOAT4 else float(a)
    if a.is_finite() and (math.isinf(number) or (not number and a)):
        raise UsageError(
            f'"{a:f}" is out of range for type {format_type(target)}', sqlstate="22003"
        )
    return number


def _to_single(a: Value) -> float:
    number = single(_to_odd(Decimal(a)) if isinstance(a, int) else a)
    if math.isinf(number) and math.isfinite(a):
        raise UsageError("value out of range: overflow", sqlstate="22003")
    if not number and a:
        raise UsageError("value out of range: underflow", sqlstate="22003")
    return number


def _to_odd(a: Decimal) -> float:
    """Round to a double that is then rounded to ``real``. Between two doubles the one whose last
    bit is set is chosen, because it is never halfway between two singles."""
    number = float(a)
    if not math.isfinite(number) or Decimal(number) == a:
        return number
    (bits,) = struct.unpack("q", struct.pack("d", number))
    if bits & 1:
        return number
    return math.nextafter(number, math.inf if Decimal(number) < a else -math.inf)


def _rounded(a: Decimal) -> Decimal:
    return a.quantize(Decimal(1), ROUND_HALF_UP, _EXACT)


def _length(target: int, typmod: int) -> Function | None:
    """Return the function that an explicit cast applies to a value that is too long, or has too
    many digits."""
    if typmod < 0:
        return None
    if target in (VARCHAR, BPCHAR):
        limit = typmod - 4

        def cut(a: bytes) -> bytes:
            fitted = a.decode()[:limit]
            return (fitted if target == VARCHAR else fitted.ljust(limit)).encode()

        return cut
    if target != NUMERIC:
        return None
    limits = numeric_precision_scale(typmod)
    assert limits is not None
    precision, scale = limits

    def scaled(a: Decimal) -> Decimal:
        if a.is_nan():
            return a
        fitted = a
        if a.is_finite():
            fitted = a.quantize(Decimal((0, (1,), -scale)), ROUND_HALF_UP, _EXACT)
        if not fitted.is_finite() or (
            fitted and fitted.adjusted() >= precision - scale
        ):
            raise UsageError("numeric field overflow", sqlstate="22003")
        return fitted

    return scaled


NUMBERS: Final = (*INTEGERS, NUMERIC, *FLOATS)
MOMENTS: Final = (DATE, TIMESTAMP, TIMESTAMPTZ)
