"""Translates arithmetic on real and double precision, which fails on overflow and underflow.

Comes in: expressions of one float type, or aggregates of such values. Goes out: Spark expressions.
Called by ``arithmetic`` and the aggregates.

Spark gives infinity, zero or NaN where PostgreSQL fails with 22003. An infinity that comes from an
operand is a result in both.

Sources: float4_mul, float8_div and their neighbours in float.h; float8_accum in float.c.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.numeric import let, spark

_INFINITY: Final = "double('Infinity')"
OVERFLOW: Final = t.failure("22003", "value out of range: overflow")
_UNDERFLOW: Final = t.failure("22003", "value out of range: underflow")
_BY_ZERO: Final = t.failure("22012", "division by zero")


def arithmetic(
    sign: str, left: exp.Expression, right: exp.Expression, ddl: str
) -> exp.Expression:
    """Add, subtract, multiply or divide two numbers of the Spark type ``ddl``."""
    a, b = f"cast(:a as {ddl})", f"cast(:b as {ddl})"
    finite_a, finite_b = f"abs({a}) <> {_INFINITY}", f"abs({b}) <> {_INFINITY}"
    result = f"{a} {sign} {b}"
    tests = []
    if sign == "/":
        # The division must not fail, because NaN / 0 is NaN.
        result = f"{a} / if({b} = 0, cast(1 as {ddl}), {b})"
        tests.append(
            f"when {b} = 0 and {a} is not null and not isnan({a})"
            f" then cast({_BY_ZERO} as {ddl})"
        )
    # Spark divides two reals in double precision.
    result = f"cast({result} as {ddl})"
    infinite = f"when abs({result}) = {_INFINITY} and {finite_a}"
    if sign != "/":
        infinite += f" and {finite_b}"
    tests.append(f"{infinite} then cast({OVERFLOW} as {ddl})")
    if sign in "*/":
        nonzero = f"{b} <> 0" if sign == "*" else finite_b
        tests.append(
            f"when {result} = 0 and {a} <> 0 and {nonzero}"
            f" then cast({_UNDERFLOW} as {ddl})"
        )
    text = f"case {' '.join(tests)} else {result} end"
    if any(_has_aggregate(node) for node in (left, right)):
        # In HAVING and ORDER BY Spark does not find an aggregate next to a lambda.
        return spark(text, a=left, b=right)
    return let(text, a=left, b=right)


def _has_aggregate(node: exp.Expression) -> bool:
    return any(
        not call.find_ancestor(exp.Window) for call in node.find_all(exp.AggFunc)
    )


def checked(
    result: exp.Expression,
    greatest: exp.Expression,
    ddl: str,
    squares: exp.Expression | None = None,
) -> exp.Expression:
    """The result of an aggregate; fails if finite values have made it infinite or NaN.

    ``greatest``: the greatest magnitude of the values (to Spark NaN is above infinity).
    ``squares``: a number that is infinite if there is an overflow in another part of the state.
    """
    number = f"cast(:r as {ddl})"
    test = f"abs({number}) = {_INFINITY} or isnan({number})"
    if squares is not None:
        test += f" or :s = {_INFINITY}"
    return spark(
        f"case when ({test}) and :g < {_INFINITY} then cast({OVERFLOW} as {ddl})"
        f" else {number} end",
        r=result,
        g=greatest,
        s=squares or exp.Null(),
    )


def squares(
    high: exp.Expression, low: exp.Expression, count: exp.Expression
) -> exp.Expression:
    """A number that is infinite if the sum of squares in the state of avg() may overflow.

    PostgreSQL's avg() has the same state as variance().
    """
    return spark("(:h - :l) * :n * (:h - :l) * :n", h=high, l=low, n=count)
