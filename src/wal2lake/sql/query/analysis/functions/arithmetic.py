"""Translates operators and functions of numbers, and generate_series().

Comes in: a node and its operands. Goes out: an operand. Called by ``rules``.

Sources: PostgreSQL manual 9.3, 9.26; pg_operator.dat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sqlglot import exp

from wal2lake.sql.query.analysis.functions import dates, strings
from wal2lake.sql.query.values import casts, floats, intervals, moments, numeric
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.moments import clock
from wal2lake.sql.query.values.numeric import let, spark
from wal2lake.sql.query.values.types import Operand, Type, plain

Arguments = dict[str, Any]

_SIGNS: Final[Mapping[type[exp.Expression], str]] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
}


def arithmetic(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    sign = _SIGNS[type(node)]
    left, right = arguments["this"], arguments["expression"]
    if left.type.oid == t.UNKNOWN and right.type.oid == t.UNKNOWN:
        raise t.not_unique(left.type, sign, right.type)
    if left.type.oid == t.UNKNOWN:
        left = casts.settled(left, _partner(right.type), zone)
    if right.type.oid == t.UNKNOWN:
        right = casts.settled(right, _partner(left.type), zone)
    a, b = left.type, right.type
    if sign in "+-" and t.TIME in (a.oid, b.oid):
        return clock.add(sign, left, right, zone)
    if sign in "+-" and (a.oid in t.MOMENTS or b.oid in t.MOMENTS):
        return moments.add(sign, left, right, zone)
    if not (a.number and b.number):
        if a.oid == b.oid == t.INTERVAL and sign in "+-":
            return intervals.add(sign, left, right)
        if sign == "*" and t.INTERVAL in (a.oid, b.oid):
            span, factor = (left, right) if a.oid == t.INTERVAL else (right, left)
            if factor.type.oid in t.INTEGERS:
                return intervals.scaled(span, factor.node)
        if t.INTERVAL in (a.oid, b.oid) or t.TIME in (a.oid, b.oid):
            raise t.refuse(f"{a.name} {sign} {b.name}")
        raise t.no_operator(a, sign, b)
    if a.oid in t.FLOATS or b.oid in t.FLOATS:
        if sign == "%":
            raise t.no_operator(a, sign, b)
        kind = a if a.oid == b.oid else plain(t.FLOAT8)
        result = floats.arithmetic(sign, left.node, right.node, t.spark_name(kind))
        return Operand(result, kind.computed())
    if a.oid in t.INTEGERS and b.oid in t.INTEGERS:
        return _integers(node, left, right)
    if isinstance(node, exp.Mul):
        return numeric.multiply(left, right)
    if isinstance(node, exp.Div):
        return numeric.divide(left, right)
    if isinstance(node, exp.Mod):
        return numeric.remainder(left, right)
    assert isinstance(node, (exp.Add, exp.Sub))
    return numeric.add(type(node), left, right)


def _partner(kind: Type) -> Type:
    return plain(kind.oid) if kind.element is None else kind


def _integers(node: exp.Expression, left: Operand, right: Operand) -> Operand:
    order = (t.INT2, t.INT4, t.INT8)
    kind = plain(max(left.type.oid, right.type.oid, key=order.index))
    ddl = t.spark_name(kind)
    if isinstance(node, exp.Div):
        whole = spark("(:a div :b)", a=left.node, b=right.node)
        return Operand(t.cast(whole, ddl), kind)
    pair = [
        t.cast(o.node, ddl) if o.type.oid != kind.oid else o.node for o in (left, right)
    ]
    result = type(node)(this=pair[0].copy(), expression=pair[1].copy())
    return Operand(exp.Paren(this=result), kind)


def negative(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    operand = arguments["this"]
    if operand.type.oid in t.INTEGERS or operand.type.oid in t.FLOATS:
        return Operand(exp.Neg(this=operand.node), operand.type.computed())
    if operand.type.oid == t.NUMERIC:
        return numeric.negate(operand)
    if operand.type.oid == t.INTERVAL:
        return intervals.scaled(operand, exp.Literal.number(-1))
    raise t.refuse(f"- {operand.type.name}")


def series(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    """Translate generate_series(); no rows if the step leads away from the end."""
    operands = [arguments[k] for k in ("start", "end", "step") if k in arguments]
    if any(o.type.oid in t.MOMENTS for o in operands):
        return dates.series(operands, zone)
    operands = [casts.settled(o, plain(t.INT4), zone) for o in operands]
    if any(o.type.oid not in t.INTEGERS for o in operands):
        raise t.refuse("generate_series() of other types than integers")
    kind = plain(t.INT8 if any(o.type.oid == t.INT8 for o in operands) else t.INT4)
    ddl = t.spark_name(kind)
    nodes = [t.cast(o.node, ddl) for o in operands]
    if len(nodes) == 2:
        nodes.append(t.cast(exp.Literal.number(1), ddl))
    error = t.failure("22023", "step size cannot equal zero")
    series = spark(
        f"explode(case when :c = 0 then {error} when sign(:c) * (:b - :a) >= 0"
        f" then sequence(:a, :b, :c) else cast(array() as array<{ddl}>) end)",
        a=nodes[0],
        b=nodes[1],
        c=nodes[2],
    )
    return Operand(series, kind)


OPERATOR: Final = "operator"
"""Key in the ``meta`` of a call that the client wrote as an operator: the operator."""


def absolute(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    """Translate abs(), and the operator ``@``."""
    operand = arguments["this"]
    operand = casts.settled(operand, plain(t.FLOAT8), zone)
    if OPERATOR in node.meta and not operand.type.number:
        raise t.no_operator(None, "@", operand.type)
    operand = number("abs", operand)
    if operand.type.oid == t.NUMERIC:
        return numeric.absolute(operand)
    return Operand(exp.Abs(this=operand.node), operand.type.computed())


def number(name: str, operand: Operand) -> Operand:
    if not operand.type.number:
        raise strings.no_function(name, operand.type)
    return operand


def rounded(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    """Translate round(), trunc(), ceil() and floor()."""
    name = {exp.Round: "round", exp.Trunc: "trunc", exp.Ceil: "ceil"}.get(
        type(node), "floor"
    )
    operand = number(name, arguments["this"])
    places = arguments.get("decimals")
    if operand.type.oid in t.FLOATS or (operand.type.oid != t.NUMERIC and not places):
        if places:
            raise strings.no_function(name, operand.type)
        if name != "round" and operand.type.oid in t.FLOATS:
            raise t.refuse(
                f"{name}() of {operand.type.name}", "Cast it to numeric(p,s)."
            )
        value = t.cast(operand.node, "DOUBLE")
        whole = operand.type.oid in t.INTEGERS
        return Operand(value if whole else spark("rint(:x)", x=value), plain(t.FLOAT8))
    scale = strings.constant_number(name, places) if places else 0
    if scale < 0 or scale > 30:
        raise t.refuse(f"{name}() to {scale} digits")
    if operand.type.exact_text:
        if name != "round":
            raise t.refuse(f"{name}() of numeric without precision", numeric.ROUND_HINT)
        kind = t.decimal(t.MAX_DIGITS, scale)
        return Operand(t.cast(operand.node, t.spark_name(kind)), kind)
    precision, old_scale = t.digits_of(operand.type)
    value = numeric.as_decimal(operand)
    kind = t.decimal(precision - old_scale + scale + 1, scale)
    ddl = t.spark_name(kind)
    if name == "round" or old_scale <= scale:
        return Operand(t.cast(value, ddl), kind)
    if name in ("ceil", "floor"):
        return Operand(t.cast(spark(f"{name}(:x)", x=value), ddl), kind)
    truncated = spark(
        f"if(:x >= 0, floor(:x, {scale}), ceil(:x, {scale}))"
        if scale
        else "if(:x >= 0, floor(:x), ceil(:x))",
        x=value,
    )
    return Operand(t.cast(truncated, ddl), kind)


def _as_double(name: str, operand: Operand, zone: str) -> exp.Expression:
    operand = number(name, casts.settled(operand, plain(t.FLOAT8), zone))
    if operand.type.oid == t.NUMERIC:
        raise t.refuse(f"{name}() of numeric", "Cast it to double precision.")
    return t.cast(operand.node, "DOUBLE")


def square_root(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate sqrt() of a float, the only such function that all libraries round alike."""
    error = t.failure("2201F", "cannot take square root of a negative number")
    node = let(
        f"if(:x < 0, cast({error} as double), sqrt(:x))",
        x=_as_double(name, operands[0], zone),
    )
    return Operand(node, plain(t.FLOAT8))


def angle(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate degrees() and radians()."""
    sign_ = "/" if name == "degrees" else "*"
    value = _as_double(name, operands[0], zone)
    degree = spark("0.0174532925199432957692D")
    node = floats.arithmetic(sign_, value, degree, "DOUBLE")
    return Operand(node, plain(t.FLOAT8))


def pi(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate pi()."""
    return Operand(spark("pi()"), plain(t.FLOAT8))


def sign(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate sign(): numeric for numeric, double precision for other types."""
    operand = number(name, casts.settled(operands[0], plain(t.FLOAT8), zone))
    if operand.type.exact_text:
        raise t.refuse("sign() of numeric without precision", numeric.ROUND_HINT)
    if operand.type.oid == t.NUMERIC:
        node = spark("cast(sign(:x) as decimal(1,0))", x=operand.node)
        return Operand(node, t.decimal(1, 0))
    # sign(NaN) is 0.
    node = let(
        "case when :x is null then null when :x > 0 and not isnan(:x) then 1D"
        " when :x < 0 then -1D else 0D end",
        x=t.cast(operand.node, "DOUBLE"),
    )
    return Operand(node, plain(t.FLOAT8))


def whole_quotient(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate div(), the quotient truncated towards zero."""
    if any(o.type.exact_text or not o.type.number for o in operands):
        raise t.refuse("div() of numeric without precision", numeric.ROUND_HINT)
    if any(o.type.oid in t.FLOATS for o in operands):
        raise strings.no_function(name, plain(t.FLOAT8))
    a, b = (numeric.as_decimal(o) for o in operands)
    # A quotient out of the range of bigint fails with 22003.
    return Operand(
        spark("cast(:a div :b as decimal(19,0))", a=a, b=b), t.decimal(19, 0)
    )


def to_hex(name: str, operands: Sequence[Operand], zone: str) -> Operand:
    """Translate to_hex() of an integer or bigint."""
    operand = casts.settled(operands[0], plain(t.INT4), zone)
    if operand.type.oid not in t.INTEGERS:
        raise strings.no_function(name, operand.type)
    value = t.cast(operand.node, "BIGINT")
    if operand.type.oid != t.INT8:
        value = spark("if(:x < 0, :x + 4294967296L, :x)", x=value)
    return Operand(spark("lower(hex(:x))", x=value), plain(t.TEXT))


def bits(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    for operand in arguments.values():
        if isinstance(operand, Operand) and operand.type.oid not in t.INTEGERS:
            raise t.refuse(f"a bit operator on {operand.type.name}")
    oids = [o.type.oid for o in arguments.values() if isinstance(o, Operand)]
    order = (t.INT2, t.INT4, t.INT8)
    return Operand(exp.Paren(this=node), plain(max(oids, key=order.index)))
