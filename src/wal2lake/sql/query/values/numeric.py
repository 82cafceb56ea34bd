"""Translates operations on numeric: exact order, sums and quotients.

Comes in: operands of exact number types. Goes out: Spark expressions with their types. Called by
``expressions`` and ``functions``.

A numeric has up to 131072 digits before the decimal point; each value has its own scale; NaN and
infinities exist. The lake therefore stores a column without precision as text. Operations:

    order, equality    by a key computed from the text, exact for every value
    + - sum            as decimal(37,16), printed with PostgreSQL's scale;
                       a value that does not fit fails with 22003
    / avg              decimals only; PostgreSQL's scale depends on the first base-10000
                       digits of the operands, and is computed in the same way
    *                  decimals only; with more than 38 digits the operands are narrowed,
                       and an operand that does not fit fails with 22003

Operands are always cast so that Spark's result type keeps every digit. Without the casts Spark
reduces the scale of the result to keep the digits before the decimal point.

Sources: numeric.c (select_div_scale, add_var, mul_var); Spark's DecimalPrecision.
"""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from functools import lru_cache
from typing import Final

import sqlglot
from sqlglot import exp

from wal2lake.sql.query.values.types import (
    MAX_DIGITS,
    NUMERIC,
    Operand,
    Type,
    cast,
    decimal,
    digits_of,
    refuse,
)

TEXT_NUMERIC: Final = Type(NUMERIC)
ROUND_HINT: Final = "Cast it to numeric(precision,scale) with at most 38 digits."
_WORK_SCALE: Final = 16
_WORK: Final = f"DECIMAL(37,{_WORK_SCALE})"


_RESERVED: Final = "wal2lake_"
"""The prefix of lambda parameters.

An expression inside the lambda's body may use names of tables and columns, which a parameter of the
same name would hide.
"""
_NO_PARAMETERS: Final = (exp.Alias, exp.ColumnDef, exp.Column)


@lru_cache(maxsize=1024)
def _template(text: str) -> exp.Expression:
    tree = sqlglot.parse_one(text, read="spark")
    for function in list(tree.find_all(exp.Lambda)):
        parameters = {parameter.name for parameter in function.expressions}
        for node in list(function.find_all(exp.Identifier)):
            if node.name in parameters and not isinstance(node.parent, _NO_PARAMETERS):
                if isinstance(node.parent, exp.Dot) and node.arg_key != "this":
                    continue
                node.set("this", f"{_RESERVED}{node.name}")
    return tree


def spark(text: str, **parts: exp.Expression) -> exp.Expression:
    """Parse Spark SQL and replace each ``:name`` by an expression."""
    tree = _template(text).copy()
    root = exp.Paren(this=tree)
    for node in list(root.find_all(exp.Placeholder)):
        node.replace(parts[str(node.this)].copy())
    inner: exp.Expression = root.this
    inner.pop()
    return inner


_NAMES: Final = re.compile(r"'(?:[^'\\]|\\.)*'|:(\w)\b", re.DOTALL)
"""A string constant, or the place of a value in a template."""


def let(text: str, **values: exp.Expression) -> exp.Expression:
    """Like ``spark``, but each value is computed once even if ``text`` uses it several times."""
    if all(isinstance(v, (exp.Column, exp.Literal)) for v in values.values()):
        return spark(text, **values)
    fields = ", ".join(f":{name} as {name}" for name in values)
    body = _NAMES.sub(lambda m: m[0] if m[1] is None else f"v.{m[1]}", text)
    return spark(f"get(transform(array(struct({fields})), v -> {body}), 0)", **values)


# ---- order ---------------------------------------------------------------------------

_BODY = (
    "concat(lpad(cast(length(split_part({x}, '.', 1)) as string), 6, '0'),"
    " split_part({x}, '.', 1), trim(trailing '0' from split_part({x}, '.', 2)))"
)
_KEY: Final = (
    "case when :v is null then null when :v = '-Infinity' then '0'"
    " when :v = 'Infinity' then '4' when :v = 'NaN' then '5'"
    " when translate(:v, '-0.', '') = '' then '2'"
    " when left(:v, 1) = '-' then concat('1', translate("
    + _BODY.format(x="substring(:v, 2)")
    + ", '0123456789', '9876543210'), '~')"
    " else concat('3', " + _BODY.format(x=":v") + ") end"
)


def order_key(operand: Operand) -> exp.Expression:
    """Text that has the order of the numbers: sign, number of digits before the point, digits.

    The digits of negative numbers are complemented, and followed by a character above all digits.
    """
    node = operand.node
    if operand.type.exact_text and any(
        not aggregate.find_ancestor(exp.Window)
        for aggregate in node.find_all(exp.AggFunc)
    ):
        # In HAVING and ORDER BY Spark does not find an aggregate next to a lambda.
        raise refuse(
            "comparing or ordering by an aggregate that is a numeric without precision",
            "Compute it in a subquery, and compare or order by the subquery's column.",
        )
    return let(_KEY, v=as_text(operand))


def as_text(operand: Operand) -> exp.Expression:
    """The canonical text of an exact number."""
    if operand.type.exact_text:
        return operand.node
    return cast(operand.node, "STRING")


def exact_constant(node: exp.Expression) -> str | None:
    """The digits of a numeric constant in the form that ``literals`` writes; otherwise None."""
    sign = ""
    while isinstance(node, (exp.Paren, exp.Neg)):
        if isinstance(node, exp.Neg):
            sign = "" if sign else "-"
        node = node.this
    if isinstance(node, exp.Cast) and node.to.this == exp.DataType.Type.DECIMAL:
        scale = int(node.to.expressions[1].name)
        text = node.this.name if isinstance(node.this, exp.Literal) else ""
        exact = bool(text) and len(text.partition(".")[2]) == scale
        return _signed(sign, text) if exact else None
    if not isinstance(node, exp.Literal):
        return None
    try:
        return _signed(sign, node.name)
    except InvalidOperation:
        return None


def _signed(sign: str, digits: str) -> str:
    """The number with its sign, which zero does not have."""
    return f"{sign}{digits}" if Decimal(digits) else digits


# ---- arithmetic -----------------------------------------------------------------------


def add(operator: type[exp.Binary], left: Operand, right: Operand) -> Operand:
    """Translate ``+`` and ``-``."""
    if left.type.exact_text or right.type.exact_text:
        sign = "+" if operator is exp.Add else "-"
        text = _printed(
            f"({_exact(':a')} {sign} {_exact(':b')})",
            f"greatest({_scale_of(':a')}, {_scale_of(':b')})",
        )
        node = let(text, a=as_text(left), b=as_text(right))
        return Operand(node, TEXT_NUMERIC)
    (p1, s1), (p2, s2) = digits_of(left.type), digits_of(right.type)
    scale = max(s1, s2)
    precision = max(p1 - s1, p2 - s2) + scale + 1
    a, b = left.node, right.node
    if precision > MAX_DIGITS:
        a, b = (cast(n, f"DECIMAL({MAX_DIGITS - 1},{scale})") for n in (a, b))
    else:
        a, b = as_decimal(left), as_decimal(right)
    kind = decimal(precision, scale)
    return Operand(exp.Paren(this=operator(this=a, expression=b)), kind)


def multiply(left: Operand, right: Operand) -> Operand:
    """Translate ``*``. The scale of the result is the sum of the scales."""
    _decimals_only("*", left, right)
    (p1, s1), (p2, s2) = digits_of(left.type), digits_of(right.type)
    if s1 + s2 > MAX_DIGITS - 1:
        raise refuse(
            f"a product with {s1 + s2} digits after the point",
            "Cast a factor to numeric(precision,scale) with a smaller scale.",
        )
    room = MAX_DIGITS - 1
    if p1 + p2 > room:
        whole = room - s1 - s2
        i1 = min(p1 - s1, max(whole // 2, whole - (p2 - s2)))
        p1, p2 = i1 + s1, whole - i1 + s2
    a = cast(left.node, f"DECIMAL({max(p1, 1)},{s1})")
    b = cast(right.node, f"DECIMAL({max(p2, 1)},{s2})")
    kind = decimal(max(p1, 1) + max(p2, 1) + 1, s1 + s2)
    return Operand(exp.Paren(this=exp.Mul(this=a, expression=b)), kind)


def remainder(left: Operand, right: Operand) -> Operand:
    """Translate ``%``. The result has the dividend's sign."""
    _decimals_only("%", left, right)
    (p1, s1), (p2, s2) = digits_of(left.type), digits_of(right.type)
    scale = max(s1, s2)
    whole = max(p1 - s1, p2 - s2)
    if whole + scale > MAX_DIGITS:
        raise refuse(
            f"% with {whole + scale} digits",
            "Cast both sides to numeric(precision,scale) with a smaller precision.",
        )
    ddl = f"DECIMAL({whole + scale},{scale})"
    node = exp.Mod(this=cast(left.node, ddl), expression=cast(right.node, ddl))
    return Operand(exp.Paren(this=node), decimal(whole + scale, scale))


def divide(left: Operand, right: Operand) -> Operand:
    """Translate ``/``. The result has at least 16 significant digits."""
    _decimals_only("/", left, right)
    text = _quotient(digits_of(left.type)[1], digits_of(right.type)[1])
    # As decimals, because the smallest integer has no absolute value of its type.
    quotient = let(text, a=as_decimal(left), b=as_decimal(right))
    return Operand(quotient, TEXT_NUMERIC)


def average(total: exp.Expression, count: exp.Expression, scale: int) -> Operand:
    """The average of exact numbers: their sum, of the given scale, divided by their count."""
    return Operand(let(_quotient(scale, 0), a=total, b=count), TEXT_NUMERIC)


def text_sum(total: exp.Expression, scale: exp.Expression) -> Operand:
    """The text of a sum of ``summand`` values; ``scale`` is their greatest ``scale_of``."""
    return Operand(let(_printed(":a", ":b"), a=total, b=scale), TEXT_NUMERIC)


def summand(node: exp.Expression) -> exp.Expression:
    """Convert a text numeric to the decimal type in which sums are computed."""
    return let(_exact(":v"), v=node)


def scale_of(node: exp.Expression) -> exp.Expression:
    """The scale of a text numeric."""
    return let(_scale_of(":v"), v=node)


def negate(operand: Operand) -> Operand:
    """Translate unary minus."""
    if not operand.type.exact_text:
        return Operand(exp.Neg(this=operand.node), operand.type.computed())
    node = let(
        "case when :v = 'NaN' or translate(:v, '0.', '') = '' then :v"
        " when left(:v, 1) = '-' then substring(:v, 2) else concat('-', :v) end",
        v=operand.node,
    )
    return Operand(node, TEXT_NUMERIC)


def absolute(operand: Operand) -> Operand:
    """Translate abs()."""
    if not operand.type.exact_text:
        return Operand(exp.Abs(this=operand.node), operand.type.computed())
    return Operand(let("trim(leading '-' from :v)", v=operand.node), TEXT_NUMERIC)


def as_decimal(operand: Operand) -> exp.Expression:
    """Convert an exact number to a decimal that keeps all digits."""
    precision, scale = digits_of(operand.type)
    if operand.type.oid == NUMERIC:
        return operand.node
    return cast(operand.node, f"DECIMAL({precision},{scale})")


def _decimals_only(name: str, *operands: Operand) -> None:
    if any(o.type.exact_text for o in operands):
        raise refuse(f'"{name}" on numeric without precision', ROUND_HINT)


def _scale_of(v: str) -> str:
    return f"length(split_part({v}, '.', 2))"


def _exact(v: str) -> str:
    """A cast to the decimal of sums that fails with 22003 instead of rounding."""
    digits = f"length(trim(trailing '0' from split_part({v}, '.', 2)))"
    return (
        f"cast(case when {digits} > {_WORK_SCALE} or {v} in ('NaN', 'Infinity',"
        f" '-Infinity') then repeat('9', 38) else {v} end as {_WORK})"
    )


def _printed(number: str, scale: str) -> str:
    """The text of a decimal, cut to ``scale`` digits after the point; the rest are zeros."""
    text = f"cast({number} as string)"
    return (
        f"concat(split_part({text}, '.', 1), if({scale} = 0, '', '.'),"
        f" rpad(split_part({text}, '.', 2), {scale}, '0'))"
    )


def _quotient(s1: int, s2: int) -> str:
    """Compute the scale by select_div_scale(), and divide with exactly that scale.

    Spark divides with 39 digits after the point and rounds that result. The second rounding, to the
    scale, is many digits away from the first.
    """
    a, b = ":a", ":b"
    branches = []
    for least_scale in range(0, 36, 4):
        scale = max(least_scale, s1, s2)
        # Spark's quotients have a scale of at least six.
        shift = 6 if scale < 6 else 0
        whole = MAX_DIGITS - scale - shift
        p1 = whole - s2 + s1 + shift
        if p1 < s1 + shift + 1 or p1 > MAX_DIGITS:
            continue
        dividend = f"cast({a} as DECIMAL({p1 - shift},{s1}))"
        if shift:
            dividend = f"cast({dividend} * 0.000001BD as DECIMAL({p1},{s1 + shift}))"
        number = f"{dividend} / cast({b} as DECIMAL(38,{s2}))"
        if shift:
            number = f"cast(({number}) * 1000000 as DECIMAL(38,{scale}))"
        branches.append(f"when {least_scale} then cast({number} as string)")
    # A smaller quotient needs more digits than fit: 22003.
    overflow = "cast(cast(repeat('9', 39) as DECIMAL(38,0)) as string)"
    digits = f"greatest(0, 16 - 4 * ({_weight(a, b)}))"
    null = f"{a} is null or {b} is null"
    return f"if({null}, null, case {digits} {' '.join(branches)} else {overflow} end)"


def _weight(a: str, b: str) -> str:
    """The estimated weight of the quotient's first base-10000 digit, as select_div_scale()."""
    return (
        f"{_first_place(a)} - {_first_place(b)}"
        f" - if({_first_digit(a)} <= {_first_digit(b)}, 1, 0)"
    )


def _parts(x: str) -> tuple[str, str, str]:
    text = f"cast(abs({x}) as string)"
    whole = f"trim(leading '0' from split_part({text}, '.', 1))"
    fraction = f"split_part({text}, '.', 2)"
    zeros = f"(length({fraction}) - length(trim(leading '0' from {fraction}))) div 4"
    return whole, fraction, zeros


def _first_place(x: str) -> str:
    whole, _, zeros = _parts(x)
    return (
        f"case when {x} = 0 then 0 when {whole} <> ''"
        f" then (length({whole}) - 1) div 4 else -1 - ({zeros}) end"
    )


def _first_digit(x: str) -> str:
    whole, fraction, zeros = _parts(x)
    return (
        f"case when {x} = 0 then 0 when {whole} <> '' then"
        f" cast(left({whole}, 1 + (length({whole}) - 1) % 4) as int)"
        f" else cast(rpad(substring({fraction}, cast(4 * ({zeros}) + 1 as int), 4), 4, '0')"
        f" as int) end"
    )
