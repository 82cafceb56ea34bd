"""Floating point numbers as PostgreSQL prints them.

Comes in: a float, or a float4's shortest digits. Goes out: text. Called by ``text``.

PostgreSQL prints the shortest digits that read back as the same number, and among those the
closest to it, with one restriction that Python and Arrow do not have: digits that are exactly
half way between two numbers are not used, although rounding to even would read them back (1e23 is
printed as 9.999999999999999e+22). This can only happen if the spacing of numbers is so wide that
17 (9) digits can be a midpoint, so only large numbers are checked again. An exponent is written
from 1e+15 on (float4: 1e+06) and below 1e-04.

Sources: src/common/d2s.c, f2s.c (STRICTLY_SHORTEST 0); float8out_internal and float4out in
src/backend/utils/adt/float.c.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

_DIGITS = re.compile(r"-?(\d*)\.?(\d*)(?:[eE]([+-]?\d+))?\Z")


@dataclass(frozen=True, slots=True)
class FloatFormat:
    """Differences between float4 and float8."""

    digits: int
    """FLT_DIG or DBL_DIG, to which extra_float_digits is added."""
    fixed_below: int
    """The decimal exponent from which an exponent is written."""
    midpoints_from: float
    """Below this magnitude no short decimal is a midpoint."""
    max_digits: int
    single: bool


FLOAT4 = FloatFormat(6, 6, 2.0**22, 9, True)
FLOAT8 = FloatFormat(15, 15, 2.0**52, 17, False)


def float_text(
    number: float, shortest: str, form: FloatFormat, extra_float_digits: int = 1
) -> bytes:
    """Print one number. ``shortest`` is any spelling of its shortest digits.

    extra_float_digits <= 0 prints so many digits less than ``digits``, like C's %g.
    """
    if number != number:
        return b"NaN"
    if number in (math.inf, -math.inf):
        return b"Infinity" if number > 0 else b"-Infinity"
    if extra_float_digits <= 0:
        return f"{number:.{max(1, form.digits + extra_float_digits)}g}".encode()
    sign = "-" if math.copysign(1.0, number) < 0 else ""
    if number == 0:
        return f"{sign}0".encode()
    match = _DIGITS.match(shortest)
    assert match is not None, "not a number's digits"
    digits = (match[1] + match[2]).lstrip("0")
    exponent = int(match[3] or 0) + len(match[1]) - 1
    if not match[1].strip("0"):
        exponent -= len(match[1] + match[2]) - len(digits)
    digits = digits.rstrip("0")
    if abs(number) >= form.midpoints_from:
        digits, exponent = _not_midpoint(abs(number), digits, exponent, form)
    return (sign + _layout(digits, exponent, form.fixed_below)).encode()


def _layout(digits: str, exponent: int, fixed_below: int) -> str:
    """Print d.ddd x 10^exponent in PostgreSQL's layout."""
    if not -4 <= exponent < fixed_below:
        mantissa = digits[0] + ("." + digits[1:] if len(digits) > 1 else "")
        return f"{mantissa}e{'-' if exponent < 0 else '+'}{abs(exponent):02d}"
    if exponent < 0:
        return "0." + "0" * (-exponent - 1) + digits
    whole = digits[: exponent + 1].ljust(exponent + 1, "0")
    return whole + ("." + digits[exponent + 1 :] if len(digits) > exponent + 1 else "")


def _neighbours(number: float, single: bool) -> tuple[Fraction, Fraction]:
    """Return the next lower and the next higher number; above the largest, one spacing higher."""
    exact = Fraction(number)
    if single:
        below = float(np.nextafter(np.float32(number), np.float32(0)))
        largest = number == float(np.finfo(np.float32).max)
        above = number if largest else _next_float4(number)
    else:
        below = math.nextafter(number, 0)
        largest = math.isinf(math.nextafter(number, math.inf))
        above = math.nextafter(number, math.inf)
    if largest:
        return Fraction(below), 2 * exact - Fraction(below)
    return Fraction(below), Fraction(above)


def _next_float4(number: float) -> float:
    return float(np.nextafter(np.float32(number), np.float32(np.inf)))


def _not_midpoint(
    number: float, digits: str, exponent: int, form: FloatFormat
) -> tuple[str, int]:
    """Return the digits, or the shortest other digits if they are a midpoint."""
    exact = Fraction(number)
    below, above = _neighbours(number, form.single)
    low, high = (below + exact) / 2, (exact + above) / 2
    scale = Fraction(10) ** (exponent - len(digits) + 1)
    if low < int(digits) * scale < high:
        return digits, exponent
    for length in range(1, form.max_digits + 1):
        unit = Fraction(10) ** (exponent - length + 1)
        floor = exact // unit
        candidates = [n for n in (floor, floor + 1) if low < n * unit < high]
        if candidates:
            best = min(candidates, key=lambda n: (abs(n * unit - exact), n % 2))
            text = str(best)
            return text.rstrip("0"), exponent + len(text) - length
    raise AssertionError("no digits read back as the number")
