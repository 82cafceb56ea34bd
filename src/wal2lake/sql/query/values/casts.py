"""Translates casts and implicit conversions.

Comes in: operands and their target type. Goes out: operands. ``convert`` is ``CAST``; ``common``
finds the common type of CASE, COALESCE, VALUES and UNION. Called by the packages of the analysis.

Spark's casts differ from PostgreSQL's: they cut off fractions that PostgreSQL rounds, print floats
in another form, and read more texts as dates. Such casts are replaced or refused.

Sources: PostgreSQL manual 8, 10.5; pg_cast.dat; parse_coerce.c (select_common_type).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from sqlglot import exp

from wal2lake.errors import FeatureNotSupportedError, UsageError
from wal2lake.sql.query.values import intervals, moments, numeric, texts
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.literals import constant
from wal2lake.sql.query.values.moments import clock
from wal2lake.sql.query.values.numeric import let, spark
from wal2lake.sql.query.values.output import element_of, over_elements, text_of
from wal2lake.sql.query.values.types import Operand, Type, cast
from wal2lake.sql.query.values.undetermined import determine


def settled(operand: Operand, kind: Type, zone: str) -> Operand:
    """Give an untyped literal or NULL the type of its context."""
    if operand.type.oid != t.UNKNOWN:
        return operand
    if isinstance(operand.node, exp.Null):
        if kind.foreign is None:
            determine(operand.node, kind.oid)
        if kind.exact_text:
            # NULL stands for a parameter while a query is being described: any number will do.
            kind = t.decimal(1, 0)
        return Operand(cast(exp.Null(), t.spark_name(kind)), kind.computed())
    return constant(operand.node.name, kind, zone)


def as_known(operand: Operand, zone: str) -> Operand:
    """Give a literal without any context type text."""
    return settled(operand, t.plain(t.TEXT), zone)


def convert(operand: Operand, kind: Type, zone: str) -> Operand:
    """Translate ``CAST(operand AS kind)``."""
    is_literal = operand.type.oid == t.UNKNOWN
    if is_literal:
        literal_kind = t.plain(t.NUMERIC) if kind.oid == t.NUMERIC else kind
        if kind.oid in t.MOMENTS or kind.oid == t.TIME:
            literal_kind = t.plain(kind.oid)
        operand = settled(operand, literal_kind, zone)
    source = operand.type
    if not source.known:
        return Operand(cast(operand.node, t.spark_name(kind)), kind)
    if source.foreign is not None and kind.oid not in t.STRINGS:
        raise _cast_error(source, kind)
    if kind.oid in t.INTEGERS:
        return _to_integer(operand, kind)
    if kind.oid == t.NUMERIC:
        return _to_numeric(operand, kind)
    if kind.oid in t.FLOATS:
        return _to_float(operand, kind)
    if kind.oid in t.STRINGS:
        return _to_string(operand, kind, zone)
    if kind.oid in t.MOMENTS and source.oid in t.MOMENTS:
        moved = moments.converted(operand, kind.oid, zone)
        return moved if kind.typmod == -1 else moments.rounded(moved, kind)
    if kind.oid in t.BIT_STRINGS and kind.typmod != -1:
        raise t.refuse("a cast to a bit string with a length")
    if kind.oid in t.BIT_STRINGS and source.oid in t.BIT_STRINGS:
        return Operand(operand.node, kind)
    if kind.oid in (t.TIME, t.INTERVAL):
        return _to_clock(operand, kind, zone, is_literal)
    if kind.oid == t.OID and source.oid in t.INTEGERS:
        return _to_oid(operand, kind)
    if kind.oid == t.MONEY and (
        source.oid in (t.INT4, t.INT8) or (source.oid == t.NUMERIC and source.precision)
    ):
        return Operand(let(_TO_MONEY, v=operand.node), kind)
    if kind.oid == t.BOOL and source.oid == t.INT4:
        return Operand(cast(operand.node, "BOOLEAN"), kind)
    if kind.oid == t.TIMETZ and kind.typmod not in (-1, source.typmod):
        raise t.refuse("a cast to time with time zone with a precision")
    is_same_type = kind.oid == source.oid and kind.element == source.element
    if is_same_type or (kind.oid, source.oid) == (t.JSON, t.JSONB):
        return Operand(operand.node, kind)
    if kind.element is not None and source.element is not None:
        item = convert(element_of(source), kind.element, zone)
        return Operand(over_elements(operand, item.node), kind)
    if source.string:
        return texts.read(operand, kind)
    raise _cast_error(source, kind)


def _to_clock(operand: Operand, kind: Type, zone: str, is_literal: bool) -> Operand:
    """Translate a cast to time or interval. The fields of a constant interval are read already."""
    source = operand.type
    if source.oid == kind.oid:
        if is_literal and kind.oid == t.INTERVAL:
            return Operand(operand.node, kind)
    elif (source.oid, kind.oid) == (t.TIME, t.INTERVAL):
        operand = clock.to_interval(operand)
    elif (source.oid, kind.oid) == (t.INTERVAL, t.TIME):
        operand = clock.of_interval(operand)
    elif kind.oid == t.TIME and source.oid in (t.TIMESTAMP, t.TIMESTAMPTZ):
        local = moments.converted(operand, t.TIMESTAMP, zone)
        node = spark("split_part(cast(:x as string), ' ', 2)", x=local.node)
        node = moments.unless_infinite(local, "cast(null as string)", node)
        operand = Operand(node, t.plain(t.TIME))
    elif source.string:
        raise t.refuse(f"a cast from {source.name} to {kind.name}")
    else:
        raise _cast_error(source, kind)
    return limited(operand, kind)


def limited(operand: Operand, kind: Type) -> Operand:
    """Round a time or an interval to its declared precision, and cut an interval's fields."""
    if kind.oid == t.TIME:
        return clock.rounded(operand, kind)
    return intervals.adjusted(operand, kind)


def _to_integer(operand: Operand, kind: Type) -> Operand:
    source, node = operand.type, operand.node
    if source.exact_text:
        node = cast(node, "DECIMAL(38,0)")
    elif source.oid == t.NUMERIC and source.scale:
        node = spark("round(:x, 0)", x=node)
    elif source.oid in t.FLOATS:
        node = spark("rint(:x)", x=node)
    elif not (
        source.number
        or source.string
        or source.oid == t.OID
        or (source.oid == t.BOOL and kind.oid == t.INT4)
    ):
        raise _cast_error(source, kind)
    return Operand(cast(node, t.spark_name(kind)), kind)


def _to_numeric(operand: Operand, kind: Type) -> Operand:
    source, node = operand.type, operand.node
    if kind.precision is None:
        if kind.typmod != -1:
            raise t.refuse(f"numeric with more than {t.MAX_DIGITS} digits")
        if source.oid == t.NUMERIC:
            return Operand(node, source.computed())
        if source.oid in t.INTEGERS:
            return Operand(numeric.as_decimal(operand), t.decimal(*t.digits_of(source)))
        if source.string:
            return Operand(texts.numeric_of(operand.node), kind)
        if source.oid in t.FLOATS:
            raise t.refuse(
                f"a cast from {source.name} to numeric without precision",
                numeric.ROUND_HINT,
            )
        raise _cast_error(source, kind)
    if source.oid in t.FLOATS:
        digits = 14 if source.oid == t.FLOAT8 else 5
        node = let(
            f"case when isnan(:x) then {_NAN_DECIMAL}"
            f" when abs(:x) = double('Infinity') then {_INFINITE_DECIMAL}"
            f" else format_string('%.{digits}e', cast(:x as double)) end",
            x=node,
        )
    elif not (source.number or source.string):
        raise _cast_error(source, kind)
    return Operand(cast(node, t.spark_name(kind)), kind)


_NAN_DECIMAL: Final = t.failure(
    "0A000", "NaN as numeric(p,s) is not supported on lake tables"
)
_INFINITE_DECIMAL: Final = t.failure("22003", "numeric field overflow")


def _to_oid(operand: Operand, kind: Type) -> Operand:
    error = t.failure("22003", "OID out of range")
    limit = 1 << 32
    value = f"if(:v < 0, :v + {limit}L, :v)" if operand.type.oid != t.INT8 else ":v"
    node = let(
        f"if(:v not between {-limit // 2} and {limit - 1}, {error},"
        f" cast({value} as string))",
        v=operand.node,
    )
    return Operand(node, kind)


def _to_float(operand: Operand, kind: Type) -> Operand:
    source = operand.type
    if not (source.number or source.string):
        raise _cast_error(source, kind)
    number = numeric.exact_constant(operand.node) if source.number else None
    if number is not None:
        return constant(number, kind, "UTC")
    node = cast(operand.node, t.spark_name(kind))
    if source.oid == t.FLOAT8 and kind.oid == t.FLOAT4:
        return Operand(let(_TO_REAL, v=operand.node), kind)
    if source.string or source.exact_text:
        error = t.failure("22003", '"', ":v", f'" is out of range for type {kind.name}')
        text = (
            f"if(abs(cast(:v as {t.spark_name(kind)})) = double('Infinity')"
            f" and lower(:v) not like '%inf%', {error},"
            f" cast(:v as {t.spark_name(kind)}))"
        )
        node = let(text, v=operand.node)
    return Operand(node, kind)


_TO_REAL: Final = (
    "case when abs(:v) between 3.4028235677973366e38D and 1.7976931348623157e308D"
    f" then {t.failure('22003', 'value out of range: overflow')}"
    " when :v <> 0 and cast(:v as float) = 0"
    f" then {t.failure('22003', 'value out of range: underflow')}"
    " else cast(:v as float) end"
)
"""A cast to real that fails on overflow and underflow; Spark's gives infinity or zero."""


_TO_MONEY: Final = (
    "concat(if(:v < 0, '-', ''), '$',"
    " format_number(abs(cast(:v as decimal(38, 2))), 2))"
)
"""A cast to money, in the form of lc_monetary C."""


def _to_string(operand: Operand, kind: Type, zone: str) -> Operand:
    keeps_blanks = kind.oid == operand.type.oid == t.BPCHAR
    node = operand.node if keeps_blanks else text_of(operand, zone)
    length = kind.typmod - t.LENGTH_HEADER if kind.typmod >= t.LENGTH_HEADER else None
    if kind.oid == t.VARCHAR and length is not None:
        node = spark(f"left(:x, {length})", x=node)
    elif kind.oid == t.BPCHAR and length is not None:
        node = spark(f"rpad(:x, {length}, ' ')", x=node)
    return Operand(node, kind)


def _cast_error(source: Type, kind: Type) -> UsageError | FeatureNotSupportedError:
    if source.foreign is not None or source.element is not None:
        return t.refuse(f"a cast from {source.name} to {kind.name}")
    return UsageError(
        f"cannot cast type {source.name} to {kind.name}", sqlstate="42846"
    )


# ---- one type for several ---------------------------------------------------------------


def common(operands: Sequence[Operand], construct: str, zone: str) -> list[Operand]:
    """Convert all operands to their common type (manual, 10.5); raises 42804."""
    kind = common_type([o.type for o in operands], construct)
    return [as_common(o, kind, zone) for o in operands]


def as_common(operand: Operand, kind: Type, zone: str) -> Operand:
    """Convert an operand to the type that ``common_type`` has found."""
    if not kind.known:
        return operand
    operand = settled(operand, kind.computed(), zone)
    if kind.exact_text:
        return Operand(numeric.as_text(operand), kind)
    if operand.type.computed() == kind.computed():
        return Operand(operand.node, kind)
    if operand.type.oid == kind.oid == t.INTERVAL:
        return Operand(intervals.text(operand), kind)
    return convert(operand, kind, zone)


def common_type(kinds: Sequence[Type], construct: str) -> Type:
    """The common type of several types, by the rules of UNION and CASE; raises 42804."""
    typed = [k for k in kinds if k.oid != t.UNKNOWN]
    if not typed:
        return t.plain(t.TEXT)
    if any(not k.known for k in typed):
        return t.NOTHING
    widest = typed[0]
    for kind in typed[1:]:
        widest = _wider(widest, kind, construct)
    if widest.oid == t.NUMERIC and len(typed) < len(kinds):
        # An untyped literal may have any number of digits.
        return numeric.TEXT_NUMERIC
    return widest if all(k == widest for k in typed) else widest.computed()


_INTEGER_ORDER: Final = (t.INT2, t.INT4, t.INT8)
_MOMENT_ORDER: Final = (t.DATE, t.TIMESTAMP, t.TIMESTAMPTZ)


def _wider(a: Type, b: Type, construct: str) -> Type:
    if a == b:
        return a
    if a.number and b.number:
        return _wider_number(a, b)
    if a.string and b.string:
        # Each is converted to each other implicitly, so the first stays; name only from itself.
        return t.plain(b.oid if a.oid == t.NAME else a.oid)
    for order in (_INTEGER_ORDER, _MOMENT_ORDER):
        if a.oid in order and b.oid in order:
            return t.plain(order[max(order.index(a.oid), order.index(b.oid))])
    if a.computed() == b.computed():
        return a.computed()
    if a.oid == b.oid == t.INTERVAL:
        return t.plain(t.INTERVAL)
    raise UsageError(
        f"{construct} types {a.name} and {b.name} cannot be matched", sqlstate="42804"
    )


def _wider_number(a: Type, b: Type) -> Type:
    if a.oid in t.FLOATS or b.oid in t.FLOATS:
        double = t.FLOAT8 in (a.oid, b.oid)
        return t.plain(t.FLOAT8 if double else t.FLOAT4)
    if a.oid in t.INTEGERS and b.oid in t.INTEGERS:
        order = _INTEGER_ORDER
        return t.plain(order[max(order.index(a.oid), order.index(b.oid))])
    if a.exact_text or b.exact_text:
        return numeric.TEXT_NUMERIC
    (p1, s1), (p2, s2) = t.digits_of(a), t.digits_of(b)
    if s1 != s2:
        # Every value keeps its own scale.
        return numeric.TEXT_NUMERIC
    return t.decimal(max(p1, p2), s1)


# ---- comparison ----------------------------------------------------------------------------


def comparable(
    left: Operand, name: str, right: Operand, zone: str
) -> tuple[exp.Expression, exp.Expression]:
    """Prepare both sides of a comparison so that Spark compares as PostgreSQL does."""
    if left.type.oid == t.UNKNOWN and right.type.oid == t.UNKNOWN:
        left, right = as_known(left, zone), as_known(right, zone)
    if not left.type.known or not right.type.known:
        return left.node, right.node
    for side, opposite in ((left, right), (right, left)):
        if side.type.oid == t.UNKNOWN and opposite.type.oid == t.VARCHAR:
            # The operator is that of text.
            determine(side.node, t.TEXT)
    if left.type.oid == t.UNKNOWN:
        left = settled(left, _without_typmod(right.type), zone)
    elif right.type.oid == t.UNKNOWN:
        right = settled(right, _without_typmod(left.type), zone)
    a, b = left.type, right.type
    if a.number and b.number:
        return _comparable_numbers(left, right)
    if a.string and b.string:
        return _comparable_texts(left, right, zone)
    if a.oid in t.MOMENTS and b.oid in t.MOMENTS:
        wide = _MOMENT_ORDER[max(map(_MOMENT_ORDER.index, (a.oid, b.oid)))]
        nodes = [moments.converted(o, wide, zone).node for o in (left, right)]
        return nodes[0], nodes[1]
    if a.oid == b.oid == t.INTERVAL:
        return intervals.order_key(left), intervals.order_key(right)
    if a.element is not None and b.element is not None and a.oid == b.oid:
        _check_equality(a, name)
        return left.node, right.node
    if a.oid != b.oid or a.foreign != b.foreign:
        raise t.no_operator(a, name, b)
    _check_order(a, "comparison")
    return left.node, right.node


def _comparable_texts(
    left: Operand, right: Operand, zone: str
) -> tuple[exp.Expression, exp.Expression]:
    """Prepare two strings. The operator of char and varchar is that of char, to which trailing
    blanks mean nothing; that of char and text is that of text."""
    texts_ = text_of(left, zone), text_of(right, zone)
    if {left.type.oid, right.type.oid} != {t.BPCHAR, t.VARCHAR}:
        return texts_
    trimmed = [
        node if o.type.oid == t.BPCHAR else spark("rtrim(' ', :x)", x=node)
        for o, node in zip((left, right), texts_, strict=True)
    ]
    return trimmed[0], trimmed[1]


def _without_typmod(kind: Type) -> Type:
    return t.plain(kind.oid) if kind.foreign is None and kind.element is None else kind


_EQUAL_ITEMS: Final = (
    t.INTEGERS | t.MOMENTS | frozenset((t.BOOL, t.TEXT, t.VARCHAR, t.UUID))
)
"""Types whose values are equal inside arrays in Spark exactly if they are in PostgreSQL."""


def _check_equality(kind: Type, operation: str) -> None:
    element = kind.element
    if (
        element is None
        or element.foreign is not None
        or element.oid not in _EQUAL_ITEMS
        or operation in ("<", "<=", ">", ">=")
    ):
        raise t.refuse(f"{operation} of values of type {kind.name}")


def _check_order(kind: Type, operation: str) -> None:
    if kind.known and (kind.foreign is not None or kind.oid not in t.ORDERED):
        raise t.refuse(
            f"{operation} of values of type {kind.name}",
            "Cast them to text where that will do.",
        )


def _comparable_numbers(
    left: Operand, right: Operand
) -> tuple[exp.Expression, exp.Expression]:
    a, b = left.type, right.type
    if a.oid in t.FLOATS or b.oid in t.FLOATS:
        ddl = "FLOAT" if a.oid == b.oid == t.FLOAT4 else "DOUBLE"
        zero = "" if _nonzero(left) or _nonzero(right) else " + 0D"
        # -0 equals 0, but the statistics by which files are skipped distinguish them.
        return (
            spark(f"(cast(:x as {ddl}){zero})", x=left.node),
            spark(f"(cast(:x as {ddl}){zero})", x=right.node),
        )
    if a.oid in t.INTEGERS and b.oid in t.INTEGERS:
        return left.node, right.node
    if not (a.exact_text or b.exact_text):
        (p1, s1), (p2, s2) = t.digits_of(a), t.digits_of(b)
        if max(p1 - s1, p2 - s2) + max(s1, s2) <= t.MAX_DIGITS:
            return left.node, right.node
    return numeric.order_key(left), numeric.order_key(right)


def _nonzero(operand: Operand) -> bool:
    node = operand.node
    while isinstance(node, (exp.Cast, exp.Paren, exp.Neg)):
        node = node.this
    if not isinstance(node, exp.Literal):
        return False
    try:
        return float(node.name) != 0
    except ValueError:
        return False


def order_operand(operand: Operand, zone: str) -> exp.Expression:
    """The expression by which ORDER BY, min and max order an operand."""
    kind = operand.type
    if kind.oid == t.UNKNOWN or not kind.known:
        return operand.node
    if kind.oid == t.INTERVAL:
        return intervals.order_key(operand)
    _check_order(kind, "ordering")
    if kind.exact_text:
        return numeric.order_key(operand)
    if kind.oid == t.BPCHAR:
        return text_of(operand, zone)
    return operand.node


def group_operand(operand: Operand, operation: str) -> None:
    """Refuse to group by a type whose equal values may have different representations."""
    kind = operand.type
    if kind.exact_text:
        raise t.refuse(f"{operation} on numeric without precision", numeric.ROUND_HINT)
    if kind.oid == t.BPCHAR and kind.foreign is None and kind.typmod == -1:
        # Values of several lengths may differ in their blanks, which mean nothing.
        raise t.refuse(
            f"{operation} on character without a length", "Cast them to text."
        )
    _check_order(kind, operation)
