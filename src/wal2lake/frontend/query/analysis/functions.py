"""Rules of functions and operators: what they mean for the types of their operands.

Comes in: a node and its operands. Goes out: an operand. A function without a rule is refused:
Spark has many of the same name that do something else (``array_agg``, ``chr``, ``initcap``,
``left`` with a negative length ...).

Sources: PostgreSQL manual, chapter 9; pg_operator.dat, pg_proc.dat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sqlglot import exp

from wal2lake.errors import UsageError
from wal2lake.frontend.query.analysis import strings
from wal2lake.frontend.query.values import casts, moments, numeric
from wal2lake.frontend.query.values import types as t
from wal2lake.frontend.query.values.numeric import spark
from wal2lake.frontend.query.values.types import Operand, Type, plain

Arguments = dict[str, Any]
_TEXT: Final = plain(t.TEXT)


def call(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    """Apply the rule of the node's kind; 0A000 if there is none."""
    operands = [o for o in arguments.values() if isinstance(o, Operand)]
    operands += [o for v in arguments.values() if isinstance(v, list) for o in v]
    rule = _RULES.get(type(node))
    if rule is None:
        name = (
            node.name
            if isinstance(node, exp.Anonymous)
            else node.sql_name()
            if isinstance(node, exp.Func)
            else node.key
        )
        what = f"function {name.lower()}()" if isinstance(node, exp.Func) else name
        raise t.refuse(what)
    if any(not o.type.known for o in operands) and not isinstance(node, exp.Bracket):
        return Operand(node, t.NOTHING)
    return rule(node, arguments, zone)


# ---- arithmetic ------------------------------------------------------------------------

_SIGNS: Final[Mapping[type[exp.Expression], str]] = {
    exp.Add: "+",
    exp.Sub: "-",
    exp.Mul: "*",
    exp.Div: "/",
    exp.Mod: "%",
}


def _arithmetic(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    sign = _SIGNS[type(node)]
    left, right = arguments["this"], arguments["expression"]
    if left.type.oid == t.UNKNOWN and right.type.oid == t.UNKNOWN:
        raise UsageError(
            f"operator is not unique: unknown {sign} unknown",
            sqlstate="42725",
            hint="Could not choose a best candidate operator. You might need to add"
            " explicit type casts.",
        )
    if left.type.oid == t.UNKNOWN:
        left = casts.settled(left, _partner(right.type), zone)
    if right.type.oid == t.UNKNOWN:
        right = casts.settled(right, _partner(left.type), zone)
    a, b = left.type, right.type
    if sign in "+-" and (a.oid in t.MOMENTS or b.oid in t.MOMENTS):
        return moments.add(sign, left, right, zone)
    if not (a.number and b.number):
        if t.INTERVAL in (a.oid, b.oid) or t.TIME in (a.oid, b.oid):
            raise t.refuse(f"{a.name} {sign} {b.name}")
        raise t.no_operator(a, sign, b)
    if a.oid in t.FLOATS or b.oid in t.FLOATS:
        if sign == "%":
            raise t.no_operator(a, sign, b)
        kind = a if a.oid == b.oid else plain(t.FLOAT8)
        ddl = t.spark_name(kind)
        pair = [t.cast(o.node, ddl) for o in (left, right)]
        result = type(node)(this=pair[0], expression=pair[1])
        # Spark divides two floats as doubles.
        return Operand(t.cast(result, ddl), kind.computed())
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


def _negative(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    operand = arguments["this"]
    if operand.type.oid in t.INTEGERS or operand.type.oid in t.FLOATS:
        return Operand(exp.Neg(this=operand.node), operand.type.computed())
    if operand.type.oid == t.NUMERIC:
        return numeric.negate(operand)
    raise t.refuse(f"- {operand.type.name}")


def _series(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    """generate_series() of integers; one that leads nowhere has no rows."""
    given = [arguments[k] for k in ("start", "end", "step") if k in arguments]
    given = [casts.settled(o, plain(t.INT4), zone) for o in given]
    if any(o.type.oid not in t.INTEGERS for o in given):
        raise t.refuse("generate_series() of other types than integers")
    kind = plain(t.INT8 if any(o.type.oid == t.INT8 for o in given) else t.INT4)
    ddl = t.spark_name(kind)
    nodes = [t.cast(o.node, ddl) for o in given]
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


def _absolute(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    operand = _number("abs", arguments["this"])
    if operand.type.oid == t.NUMERIC:
        return numeric.absolute(operand)
    return Operand(exp.Abs(this=operand.node), operand.type.computed())


def _number(name: str, operand: Operand) -> Operand:
    if not operand.type.number:
        raise strings.no_function(name, operand.type)
    return operand


def _rounded(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    """round(), trunc(), ceil(), floor()."""
    name = {exp.Round: "round", exp.Trunc: "trunc", exp.Ceil: "ceil"}.get(
        type(node), "floor"
    )
    operand = _number(name, arguments["this"])
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
    precision, own = t.digits_of(operand.type)
    value = numeric.as_decimal(operand)
    kind = t.decimal(precision - own + scale + 1, scale)
    ddl = t.spark_name(kind)
    if name == "round" or own <= scale:
        return Operand(t.cast(value, ddl), kind)
    if name in ("ceil", "floor"):
        return Operand(t.cast(spark(f"{name}(:x)", x=value), ddl), kind)
    towards = spark(
        f"if(:x >= 0, floor(:x, {scale}), ceil(:x, {scale}))"
        if scale
        else "if(:x >= 0, floor(:x), ceil(:x))",
        x=value,
    )
    return Operand(t.cast(towards, ddl), kind)


def _double(name: str, template: str) -> Callable[..., Operand]:
    def rule(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
        operands = [o for o in arguments.values() if isinstance(o, Operand)]
        if any(o.type.oid == t.NUMERIC for o in operands):
            raise t.refuse(f"{name} of numeric", "Cast it to double precision.")
        for operand in operands:
            _number(name, operand)
        parts = {"ab"[i]: t.cast(o.node, "DOUBLE") for i, o in enumerate(operands)}
        return Operand(spark(template, **parts), plain(t.FLOAT8))

    return rule


def _bits(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    for operand in arguments.values():
        if isinstance(operand, Operand) and operand.type.oid not in t.INTEGERS:
            raise t.refuse(f"a bit operator on {operand.type.name}")
    oids = [o.type.oid for o in arguments.values() if isinstance(o, Operand)]
    order = (t.INT2, t.INT4, t.INT8)
    return Operand(exp.Paren(this=node), plain(max(oids, key=order.index)))


# ---- conditional expressions -------------------------------------------------------------


def _choice(name: str, ordered: bool) -> Callable[..., Operand]:
    """COALESCE, GREATEST, LEAST."""

    def rule(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
        operands = [arguments["this"], *arguments["expressions"]]
        same = casts.common(operands, name, zone)
        kind = same[0].type.computed()
        if ordered and casts.order_operand(same[0], zone) is not same[0].node:
            raise t.refuse(f"{name} of {kind.name}", numeric.ROUND_HINT)
        node.set("this", same[0].node)
        node.set("expressions", [o.node for o in same[1:]])
        return Operand(node, kind)

    return rule


def _nullif(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    left, right = arguments["this"], arguments["expression"]
    a, b = casts.comparable(left, "=", right, zone)
    value = casts.as_known(left, zone)
    result = exp.Case(
        ifs=[exp.If(this=exp.EQ(this=a.copy(), expression=b), true=exp.Null())],
        default=value.node.copy(),
    )
    return Operand(result, value.type.computed())


# ---- the rest ---------------------------------------------------------------------------


def _element(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    array: Operand = arguments["this"]
    indexes = arguments["expressions"]
    if len(indexes) != 1 or not isinstance(indexes[0], Operand) or node.find(exp.Slice):
        raise t.refuse("a slice of an array")
    if array.type.known and array.type.element is None:
        raise t.refuse(f"a subscript of {array.type.name}")
    element = array.type.element or t.NOTHING
    # NULL outside the array's bounds; Spark's own brackets raise there.
    result = exp.Anonymous(this="get", expressions=[array.node, indexes[0].node])
    return Operand(result, element.computed())


def _at_time_zone(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    where = arguments["zone"]
    if not isinstance(where.node, exp.Literal):
        raise t.refuse("AT TIME ZONE with a zone that is not constant")
    operand = arguments["this"]
    if operand.type.oid not in t.MOMENTS:
        raise t.refuse(f"AT TIME ZONE of {operand.type.name}")
    if operand.type.oid == t.DATE:
        operand = moments.converted(operand, t.TIMESTAMPTZ, zone)
    return moments.at_time_zone(operand, where.node.name)


def _truncated(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    unit = arguments["unit"]
    where = arguments.get("zone")
    shown = unit.node.name if isinstance(unit, Operand) else unit.name
    if isinstance(where, Operand):
        zone = where.node.name
    return moments.date_trunc(str(shown), arguments["this"], zone)


def _extracted(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    return moments.extract(node.this.name, arguments["expression"], zone)


def _now(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    return Operand(node, plain(t.TIMESTAMPTZ))


def _today(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    now = Operand(exp.CurrentTimestamp(), plain(t.TIMESTAMPTZ))
    return moments.converted(now, t.DATE, zone)


def _random(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    return Operand(node, plain(t.FLOAT8))


_RULES: Final[Mapping[type[exp.Expression], Callable[..., Operand]]] = {
    exp.Add: _arithmetic,
    exp.Sub: _arithmetic,
    exp.Mul: _arithmetic,
    exp.Div: _arithmetic,
    exp.Mod: _arithmetic,
    exp.Neg: _negative,
    exp.Abs: _absolute,
    exp.ExplodingGenerateSeries: _series,
    exp.Round: _rounded,
    exp.Trunc: _rounded,
    exp.Ceil: _rounded,
    exp.Floor: _rounded,
    exp.Pow: _double("power()", "power(:a, :b)"),
    exp.Exp: _double("exp()", "exp(:a)"),
    exp.BitwiseAnd: _bits,
    exp.BitwiseOr: _bits,
    exp.BitwiseXor: _bits,
    exp.BitwiseNot: _bits,
    exp.Lower: strings.textual("lower"),
    exp.Upper: strings.textual("upper"),
    exp.Replace: strings.textual("replace"),
    exp.Reverse: strings.textual("reverse"),
    exp.MD5: strings.textual("md5"),
    exp.Trim: strings.textual("btrim"),
    exp.StrPosition: strings.textual("strpos", plain(t.INT4)),
    exp.StartsWith: strings.textual("starts_with", plain(t.BOOL)),
    exp.Length: strings.length,
    exp.Left: strings.counted("left", "expression", 0),
    exp.Right: strings.counted("right", "expression", 0),
    exp.Repeat: strings.counted("repeat", "times", 0),
    exp.Pad: strings.counted("lpad", "expression", 0),
    exp.SplitPart: strings.counted("split_part", "part_index", 1),
    exp.Substring: strings.substring,
    exp.DPipe: strings.joined,
    exp.Concat: strings.concat,
    exp.Like: strings.like,
    exp.ILike: strings.like,
    exp.Coalesce: _choice("COALESCE", False),
    exp.Greatest: _choice("GREATEST", True),
    exp.Least: _choice("LEAST", True),
    exp.Nullif: _nullif,
    exp.Bracket: _element,
    exp.AtTimeZone: _at_time_zone,
    exp.TimestampTrunc: _truncated,
    exp.Extract: _extracted,
    exp.CurrentTimestamp: _now,
    exp.CurrentDate: _today,
    exp.Rand: _random,
}
