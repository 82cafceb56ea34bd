"""Applies the rule of a function or operator to its operands.

Comes in: a node and its operands. Goes out: an operand. A function without a rule is refused,
because many functions of Spark have the same name and another meaning (``array_agg``, ``chr``,
``initcap``, ``left`` with a negative length ...).

Sources: PostgreSQL manual, chapter 9; pg_operator.dat, pg_proc.dat.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from sqlglot import exp

from wal2lake.errors import UsageError
from wal2lake.pgtypes.abbreviations import expression_zone, interval_zone
from wal2lake.sql.query.analysis.functions import (
    arithmetic,
    arrays,
    calls,
    json,
    patterns,
    strings,
)
from wal2lake.sql.query.values import casts, moments
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.numeric import spark
from wal2lake.sql.query.values.types import Operand, plain

NO_SUCH_FUNCTION: Final = "no_such_function"
"""Key in the ``meta`` of a call: no function of this name has this number of arguments."""

Arguments = dict[str, Any]
_TEXT: Final = plain(t.TEXT)


def call(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    """Apply the rule for the node's kind; raises 0A000 if there is none."""
    operands = [o for o in arguments.values() if isinstance(o, Operand)]
    operands += [o for v in arguments.values() if isinstance(v, list) for o in v]
    if isinstance(node, exp.Anonymous):
        if node.meta.get(NO_SUCH_FUNCTION):
            raise strings.no_function(node.name.lower(), *(o.type for o in operands))
        return calls.call(node.name.lower(), arguments["expressions"], zone)
    rule = _RULES.get(type(node))
    if rule is None:
        name = node.sql_name() if isinstance(node, exp.Func) else node.key
        operation = f"function {name.lower()}()" if isinstance(node, exp.Func) else name
        raise t.refuse(operation)
    if any(not o.type.known for o in operands) and not isinstance(node, exp.Bracket):
        return Operand(node, t.NOTHING)
    return rule(node, arguments, zone)


# ---- conditional expressions -------------------------------------------------------------


_ONE_KIND: Final = {
    t.NUMERIC: "Cast all of them to the same numeric(precision,scale), with at most 38"
    " digits.",
    t.BPCHAR: "Cast them to text.",
}
"""HINT of GREATEST and LEAST by the common type."""


def _choice(name: str, ordered: bool) -> Callable[..., Operand]:
    """Build the rule of COALESCE, GREATEST or LEAST."""

    def rule(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
        operands = [arguments["this"], *arguments["expressions"]]
        converted = casts.common(operands, name, zone)
        kind = converted[0].type.computed()
        if ordered and casts.order_operand(converted[0], zone) is not converted[0].node:
            raise t.refuse(f"{name} of {kind.name}", _ONE_KIND.get(kind.oid))
        node.set("this", converted[0].node)
        node.set("expressions", [o.node for o in converted[1:]])
        return Operand(node, kind)

    return rule


def _compared_as(left: Operand, right: Operand, zone: str) -> Operand:
    """Convert the left operand of ``=`` to the type of the operator's left side."""
    a, b = left.type, right.type
    if a.string and (b.string or b.oid == t.UNKNOWN):
        is_char = t.BPCHAR in (a.oid, b.oid) and t.TEXT not in (a.oid, b.oid)
        return casts.convert(left, plain(t.BPCHAR if is_char else t.TEXT), zone)
    exact = a.oid in t.INTEGERS or a.oid == t.NUMERIC
    if exact and b.oid in t.FLOATS:
        return casts.convert(left, plain(t.FLOAT8), zone)
    if a.oid in t.INTEGERS and b.oid == t.NUMERIC:
        return casts.convert(left, plain(t.NUMERIC), zone)
    return left


def _nullif(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    left, right = arguments["this"], arguments["expression"]
    a, b = casts.comparable(left, "=", right, zone)
    value = _compared_as(casts.as_known(left, zone), right, zone)
    result = exp.Case(
        ifs=[exp.If(this=exp.EQ(this=a.copy(), expression=b), true=exp.Null())],
        default=value.node.copy(),
    )
    return Operand(result, value.type.computed())


# ---- operators and other functions -----------------------------------------------------


def _element(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    array: Operand = arguments["this"]
    indexes = arguments["expressions"]
    if array.type.known and array.type.element is None:
        raise t.refuse(f"a subscript of {array.type.name}")
    if len(indexes) != 1 or not isinstance(indexes[0], Operand):
        raise t.refuse("several subscripts")
    if isinstance(indexes[0].node, exp.Slice):
        ends = indexes[0].node
        return arrays.sliced(array, ends.this, ends.args.get("expression"))
    index = casts.settled(indexes[0], plain(t.INT4), zone)
    if index.type.known and index.type.oid not in t.INTEGERS:
        raise UsageError("array subscript must have type integer", sqlstate="42804")
    element = array.type.element or t.NOTHING
    # The result is NULL outside the array's bounds, where Spark's brackets fail.
    place = _from_zero(index.node)
    result = exp.Anonymous(this="get", expressions=[array.node, place])
    return Operand(result, element.computed())


def _from_zero(index: exp.Expression) -> exp.Expression:
    """The 0-based index of Spark's get() for a subscript."""
    if isinstance(index, exp.Literal) and index.name.isdigit():
        return exp.Literal.number(int(index.name) - 1)
    if isinstance(index, exp.Binary):
        index = exp.Paren(this=index)
    return spark(":i - 1", i=index)


def _slice(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    """Check the ends of ``array[low:high]``, for ``_element``."""
    for operand in arguments.values():
        if isinstance(operand, Operand) and operand.type.oid not in t.INTEGERS:
            raise t.refuse("a slice with ends that are no integers")
    return Operand(node, plain(t.INT4))


def _pair(function: Callable[..., Operand]) -> Callable[..., Operand]:
    """Build a rule from a function of the two operands of an operator."""

    def rule(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
        return function(arguments["this"], arguments["expression"], zone)

    return rule


def _matched(fold: bool) -> Callable[..., Operand]:
    """Build the rule of ``~`` or ``~*``."""

    def rule(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
        return patterns.matches(arguments["this"], arguments["expression"], fold, zone)

    return rule


def _arrow(as_text: bool) -> Callable[..., Operand]:
    """Build the rule of ``->`` or ``->>``."""

    def rule(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
        return json.arrow(arguments["this"], arguments["expression"], as_text, zone)

    return rule


def _path(as_text: bool) -> Callable[..., Operand]:
    """Build the rule of ``#>`` or ``#>>``."""

    def rule(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
        steps = json.path_steps(arguments["expression"], zone)
        return json.path(arguments["this"], steps, as_text)

    return rule


def _joined(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    """Translate ``||`` of arrays, bytea or text."""
    left, right = arguments["this"], arguments["expression"]
    kinds = {left.type.oid, right.type.oid}
    if kinds == {t.BYTEA, t.UNKNOWN}:
        # An untyped constant has the type of the other side.
        for key in ("this", "expression"):
            operand = arguments[key]
            if operand.type.oid == t.UNKNOWN:
                operand = casts.settled(operand, t.plain(t.BYTEA), zone)
                node.set(key, operand.node)
        return Operand(exp.Paren(this=node), t.plain(t.BYTEA))
    if left.type.element is not None or right.type.element is not None:
        texts = [o for o in (left, right) if o.type.string]
        if not texts:
            return arrays.joined(left, right, zone)
        element = (left if left.type.element is not None else right).type.element
        if element is not None and element.string:
            return arrays.joined(left, right, zone)
    return strings.joined(node, arguments, zone)


def _substring(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    start = arguments.get("start")
    if isinstance(start, Operand) and start.type.oid not in t.INTEGERS:
        if "length" in arguments:
            raise t.refuse("this form of substring()")
        return patterns.extracted(arguments["this"], start, zone)
    return strings.substring(node, arguments, zone)


def _grouping(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    """Translate grouping(): one bit for each argument, the lowest for the last."""
    bits = [exp.Grouping(expressions=[o.node]) for o in arguments["expressions"]]
    shifted = [
        spark(f"cast(:x as int) * {1 << place}", x=bit)
        for place, bit in enumerate(reversed(bits))
    ]
    whole = shifted[0]
    for part in shifted[1:]:
        whole = exp.Add(this=whole, expression=part)
    return Operand(exp.Paren(this=whole), plain(t.INT4))


def _local_now(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    now = Operand(exp.CurrentTimestamp(), plain(t.TIMESTAMPTZ))
    return moments.converted(now, t.TIMESTAMP, zone)


def _at_time_zone(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    zone_operand = arguments["zone"]
    if not isinstance(zone_operand.node, exp.Literal):
        raise t.refuse("AT TIME ZONE with a zone that is not constant")
    operand = arguments["this"]
    if operand.type.oid not in t.MOMENTS:
        raise t.refuse(f"AT TIME ZONE of {operand.type.name}")
    if operand.type.oid == t.DATE:
        operand = moments.converted(operand, t.TIMESTAMPTZ, zone)
    text = zone_operand.node.name
    if zone_operand.type.oid == t.INTERVAL:
        return moments.at_time_zone(operand, *interval_zone(text))
    if zone_operand.type.oid != t.UNKNOWN and not zone_operand.type.string:
        raise strings.no_function("timezone", zone_operand.type, operand.type)
    return moments.at_time_zone(operand, *expression_zone(text, zone))


def _truncated(node: exp.Expression, arguments: Arguments, zone: str) -> Operand:
    unit = arguments["unit"]
    zone_operand = arguments.get("zone")
    unit_name = unit.node.name if isinstance(unit, Operand) else unit.name
    operand = arguments["this"]
    if isinstance(zone_operand, Operand):
        if operand.type.oid in t.MOMENTS:
            operand = moments.converted(operand, t.TIMESTAMPTZ, zone)
        zone = zone_operand.node.name
    return moments.date_trunc(str(unit_name), operand, zone)


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
    exp.Add: arithmetic.arithmetic,
    exp.Sub: arithmetic.arithmetic,
    exp.Mul: arithmetic.arithmetic,
    exp.Div: arithmetic.arithmetic,
    exp.Mod: arithmetic.arithmetic,
    exp.Neg: arithmetic.negative,
    exp.Abs: arithmetic.absolute,
    exp.ExplodingGenerateSeries: arithmetic.series,
    exp.Round: arithmetic.rounded,
    exp.Trunc: arithmetic.rounded,
    exp.Ceil: arithmetic.rounded,
    exp.Floor: arithmetic.rounded,
    exp.BitwiseAnd: arithmetic.bits,
    exp.BitwiseOr: arithmetic.bits,
    exp.BitwiseXor: arithmetic.bits,
    exp.BitwiseNot: arithmetic.bits,
    exp.Lower: strings.textual("lower"),
    exp.Upper: strings.textual("upper"),
    exp.Replace: strings.textual("replace"),
    exp.Reverse: strings.textual("reverse"),
    exp.MD5: strings.md5,
    exp.Trim: strings.textual("btrim"),
    exp.StrPosition: strings.textual("strpos", plain(t.INT4)),
    exp.StartsWith: strings.textual("starts_with", plain(t.BOOL)),
    exp.Length: strings.length,
    exp.Repeat: strings.counted("repeat", "times", 0),
    exp.Pad: strings.counted("lpad", "expression", 0),
    exp.SplitPart: strings.counted("split_part", "part_index", 1),
    exp.Substring: _substring,
    exp.DPipe: _joined,
    exp.RegexpLike: _matched(False),
    exp.RegexpILike: _matched(True),
    exp.JSONExtract: _arrow(False),
    exp.JSONExtractScalar: _arrow(True),
    exp.JSONBExtract: _path(False),
    exp.JSONBExtractScalar: _path(True),
    exp.JSONBContainsTopKey: _pair(json.has_key),
    exp.ArrayContainsAll: _pair(arrays.contains),
    exp.ArrayOverlaps: _pair(arrays.overlaps),
    exp.Localtimestamp: _local_now,
    exp.Grouping: _grouping,
    exp.Concat: strings.concat,
    exp.Like: strings.like,
    exp.ILike: strings.like,
    exp.Coalesce: _choice("COALESCE", False),
    exp.Greatest: _choice("GREATEST", True),
    exp.Least: _choice("LEAST", True),
    exp.Nullif: _nullif,
    exp.Bracket: _element,
    exp.Slice: _slice,
    exp.AtTimeZone: _at_time_zone,
    exp.TimestampTrunc: _truncated,
    exp.Extract: _extracted,
    exp.CurrentTimestamp: _now,
    exp.CurrentDate: _today,
    exp.Rand: _random,
}
