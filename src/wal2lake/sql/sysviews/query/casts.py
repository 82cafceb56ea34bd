"""Casts, constants and operators of types that the embedded engine does not have.

Comes in: nodes of a typed tree. Goes out: nodes for the engine. In the engine, OID types are
numbers, WAL positions are 64-bit numbers, and name and "char" are text. A constant beside such a
value is read by the type's input function. An array given as text becomes a list.

Sources: the manual's sections 8.15 (arrays), 8.19 (OID types), 8.20 (pg_lsn).
"""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from functools import reduce
from typing import Final

from sqlglot import exp

from wal2lake.errors import (
    UndefinedObjectError,
    UsageError,
)
from wal2lake.pgtypes.registry.pg_type import (
    format_type,
    numeric_precision_scale,
    type_by_oid,
)
from wal2lake.sql.sysviews.functions.pg_proc import internal_name
from wal2lake.sql.sysviews.functions.texts import typed
from wal2lake.sql.sysviews.query.inference import (
    BOOL,
    INT2VECTOR,
    OID,
    OIDVECTOR,
    PG_LSN,
    REG_TYPES,
    REGPROC,
    TEXT,
    UNKNOWN,
    cast_type,
    element_type,
    get_type,
    is_array,
    set_type,
)

BYTEA: Final = 17
DATE, TIMESTAMP, TIMESTAMPTZ, INTERVAL = 1082, 1114, 1184, 1186
NUMERIC, VARCHAR = 1700, 1043

_TEXTS: Final = frozenset((UNKNOWN, TEXT, VARCHAR))
"""Types of texts that a cast reads by the input function of its target."""

_NAMES: Final = frozenset((REGPROC, 2202, 4191))
"""regproc, regprocedure and regcollation, which are texts inside a query."""

_ZONED: Final = frozenset((TIMESTAMPTZ, 1266))

_CLOCKS: Final = frozenset((1083, TIMESTAMP, DATE, *_ZONED))

_ENGINE_DIGITS: Final = 38
"""Precision of the engine's greatest DECIMAL. Other numbers of a declared precision stay text."""

ENGINE_TYPES: Final[dict[int, str]] = {
    16: "BOOLEAN",
    BYTEA: "BLOB",
    20: "BIGINT",
    21: "SMALLINT",
    22: "SMALLINT[]",
    23: "INTEGER",
    26: "UINTEGER",
    28: "UINTEGER",
    29: "UINTEGER",
    30: "UINTEGER[]",
    700: "REAL",
    701: "DOUBLE",
    1082: "DATE",
    1083: "TIME",
    1114: "TIMESTAMP",
    1184: "TIMESTAMP WITH TIME ZONE",
    1186: "INTERVAL",
    2950: "UUID",
    3220: "UBIGINT",
    5069: "UBIGINT",
    **dict.fromkeys(REG_TYPES, "UINTEGER"),
}
"""The engine's type for each of PostgreSQL's types. All other types are text."""


def engine_type(oid: int) -> str:
    """Return the engine's type for a type or an array type."""
    engine_name = ENGINE_TYPES.get(oid)
    if engine_name is not None:
        return engine_name
    pg_type = type_by_oid(oid)
    if pg_type is not None and pg_type.is_array:
        return engine_type(int(pg_type.element_oid)) + "[]"
    return "VARCHAR"


def call(name: str, *arguments: exp.Expression) -> exp.Anonymous:
    """Build a call of a catalog function."""
    return exp.Anonymous(
        this=internal_name(name, len(arguments)), expressions=list(arguments)
    )


def cast(node: exp.Cast) -> exp.Expression:
    """Translate a cast to one of PostgreSQL's types."""
    target, source = get_type(node), get_type(node.this)
    if target is None:
        name = node.to.sql(dialect="postgres").lower()
        raise UndefinedObjectError(f'type "{name}" does not exist')
    if target == PG_LSN:
        return as_lsn(node.this)
    if target in REG_TYPES:
        if source in REG_TYPES and source != target:
            raise UsageError(
                f"cannot cast type {format_type(source)} to {format_type(target)}",
                sqlstate="42846",
            )
        if source is not None and source not in (UNKNOWN, 25, 1043, 19, 18):
            return as_type(node.this, "UINTEGER")
        return call(f"{REG_TYPES[target]}_in", node.this)
    if target in _NAMES and source in _TEXTS:
        return call("regproc_in", node.this)
    if target == NUMERIC and source in (OID, BOOL):
        raise UsageError(
            f"cannot cast type {format_type(source)} to numeric", sqlstate="42846"
        )
    if target == OID and source == REGPROC:
        return call("regproc_oid", node.this)
    typmod = cast_type(node.to)[1]
    if is_array(target):
        return _array_cast(node.this, target, typmod)
    is_number = target == NUMERIC and isinstance(node.this, exp.Literal)
    if is_number or _is_typed(source, target, typmod):
        return _typed(node.this, target, typmod)
    kind = engine_type(target)
    if target == BYTEA and source in _TEXTS:
        return call("bytea_in", node.this)
    if kind == "VARCHAR":
        return as_type(as_text(node.this), kind)
    if isinstance(node, exp.TryCast):
        return exp.TryCast(
            this=node.this, to=exp.DataType.build(kind, dialect="duckdb")
        )
    return as_type(node.this, kind)


def _is_typed(source: int | None, target: int, typmod: int) -> bool:
    """Whether a cast goes through the texts of ``functions.texts.typed``."""
    if target not in typed.TYPED:
        return False
    if typmod >= 0:
        return True
    if source in _TEXTS:
        return target not in (VARCHAR, 1042)
    return (
        source != target and {source, target} <= _CLOCKS and _has_zone(source, target)
    )


def _has_zone(*oids: int | None) -> bool:
    return not _ZONED.isdisjoint(oids)


def _typed(value: exp.Expression, oid: int, typmod: int) -> exp.Expression:
    """A value as one of a type with a modifier, by the type's input function."""
    if isinstance(value, exp.Null):
        return as_type(value, engine_type(oid))
    text = call(
        "typed_in",
        as_type(as_text(value), "VARCHAR"),
        exp.Literal.number(oid),
        exp.Literal.number(typmod),
    )
    kind = engine_type(oid) if oid != NUMERIC else _number_type(value, typmod)
    return text if kind == "VARCHAR" else as_type(text, kind)


def _number_type(value: exp.Expression, typmod: int) -> str:
    """The engine's type for a numeric: of the declared digits, or of those that a constant has."""
    limits = numeric_precision_scale(typmod)
    if isinstance(value, exp.Literal):
        try:
            number = Decimal(value.name)
        except InvalidOperation:
            return "VARCHAR"
        if not number.is_finite():
            return "VARCHAR"
        scale = max(0, -int(number.as_tuple().exponent))
        limits = limits or (max(number.adjusted() + 1, 1) + scale, scale)
    if limits is None or not 0 <= limits[1] <= limits[0] <= _ENGINE_DIGITS:
        return "VARCHAR"
    return f"DECIMAL({limits[0]},{limits[1]})"


def _array_cast(value: exp.Expression, target: int, typmod: int) -> exp.Expression:
    element = element_type(target) or TEXT
    kind = engine_type(target)
    if isinstance(value, exp.Literal) and value.is_string:
        vector = target in (INT2VECTOR, OIDVECTOR)
        items = array_items(value.name, vector=vector)
        array = exp.Array(expressions=_constants(items, element, typmod))
        return array if typmod >= 0 else as_type(array, kind)
    source = element_type(get_type(value))
    if isinstance(value, exp.Array) and _is_typed(source, element, typmod):
        elements = [_typed(item, element, typmod) for item in value.expressions]
        return exp.Array(expressions=elements)
    if source in REG_TYPES and element == TEXT:
        item = exp.to_identifier("item")
        text = call(f"{REG_TYPES[source]}_out", exp.Column(this=item))
        transform = exp.Lambda(this=text, expressions=[item.copy()])
        return exp.Anonymous(this="list_transform", expressions=[value, transform])
    return as_type(value, kind)


def _constants(
    items: Sequence[str | None], oid: int, typmod: int = -1
) -> list[exp.Expression]:
    """Elements of an array given as text."""
    return [
        exp.Null() if item is None else _constant(exp.Literal.string(item), oid, typmod)
        for item in items
    ]


def _constant(literal: exp.Literal, oid: int, typmod: int = -1) -> exp.Expression:
    """A string constant as a value of a type."""
    set_type(literal, UNKNOWN)
    if oid in REG_TYPES:
        return call(f"{REG_TYPES[oid]}_in", literal)
    if oid == PG_LSN:
        return call("pg_lsn_in", literal)
    if oid == BYTEA:
        return call("bytea_in", literal)
    if _is_typed(UNKNOWN, oid, typmod):
        return _typed(literal, oid, typmod)
    return as_type(literal, engine_type(oid))


def as_type(value: exp.Expression, kind: str) -> exp.Cast:
    """Build a cast to one of the engine's types."""
    return exp.Cast(this=value, to=exp.DataType.build(kind, dialect="duckdb"))


def as_text(value: exp.Expression) -> exp.Expression:
    """Convert a value to PostgreSQL's text if the engine would write another text."""
    source = get_type(value)
    if source in REG_TYPES:
        return call(f"{REG_TYPES[source]}_out", value)
    if source == PG_LSN:
        return call("pg_lsn_out", value)
    if source in (DATE, TIMESTAMP, TIMESTAMPTZ):
        return _moment_text(value, source)
    if source == INTERVAL:
        return _interval_text(value)
    return value


def _moment_text(value: exp.Expression, oid: int) -> exp.Expression:
    number: exp.Expression = exp.Anonymous(this="epoch_us", expressions=[value])
    if oid == DATE:
        epoch = as_type(exp.Literal.string("1970-01-01"), "DATE")
        number = exp.Paren(this=exp.Sub(this=as_type(value, "DATE"), expression=epoch))
    text = call("moment_out", as_type(number, "BIGINT"), exp.Literal.number(oid))
    # The engine writes infinities as PostgreSQL does.
    finite = exp.Anonymous(this="isfinite", expressions=[value.copy()])
    return exp.Case(
        ifs=[exp.If(this=finite, true=text)], default=as_type(value.copy(), "VARCHAR")
    )


def _interval_text(value: exp.Expression) -> exp.Expression:
    def part(field: str) -> exp.Expression:
        arguments = [exp.Literal.string(field), value.copy()]
        return exp.Anonymous(this="datepart", expressions=arguments)

    def total(*fields: tuple[str, int]) -> exp.Expression:
        terms: list[exp.Expression] = [
            exp.Mul(this=part(field), expression=exp.Literal.number(count))
            for field, count in fields
        ]
        return reduce(lambda a, b: exp.Add(this=a, expression=b), terms)

    months = total(("year", 12), ("month", 1))
    clock = total(("hour", 3_600_000_000), ("minute", 60_000_000), ("microsecond", 1))
    return call("interval_out", months, part("day"), clock)


def as_lsn(value: exp.Expression) -> exp.Expression:
    """Convert a value to a WAL position; text is read."""
    return value if get_type(value) == PG_LSN else call("pg_lsn_in", value)


def array_items(text: str, *, vector: bool = False) -> list[str | None]:
    """Return the elements of a one-dimensional array literal, or of a vector."""
    body = text.strip()
    if vector:
        return list(body.split())
    if not (body.startswith("{") and body.endswith("}")):
        raise UsageError(
            f'malformed array literal: "{text}"',
            sqlstate="22P02",
            detail='Array value must start with "{" or dimension information.',
        )
    items: list[str | None] = []
    item, quoted, has_item, position = "", False, False, 1
    while position < len(body):
        char = body[position]
        if char == "\\":
            position += 1
            item += body[position : position + 1]
            has_item = True
        elif char == '"':
            quoted = not quoted
            has_item = True
            if quoted:
                item = item.strip() + "\0" if not item.strip() else item
        elif not quoted and char in ",}":
            items.extend(_array_item(item, has_item or bool(items) or char == ","))
            item, has_item = "", False
        else:
            item += char
            has_item = has_item or not char.isspace()
        position += 1
    return items


def _array_item(item: str, present: bool) -> list[str | None]:
    if not present and not item.strip():
        return []
    if item.startswith("\0"):
        return [item[1:]]
    item = item.strip()
    return [None if item.upper() == "NULL" else item]


def coerce(node: exp.Expression) -> None:
    """Read a string constant as the type of the other operand, in place."""
    left, right = node.this, node.expression
    _coerce_operand(node, "expression", right, get_type(left))
    _coerce_operand(node, "this", left, get_type(right))
    if isinstance(right, exp.Any):
        _array_operand(right, get_type(left))


def _coerce_operand(
    parent: exp.Expression, key: str, operand: exp.Expression, target: int | None
) -> None:
    if isinstance(operand, exp.Literal) and operand.is_string and target in _COERCED:
        parent.set(key, _constant(operand.copy(), target))


_COERCED: Final = frozenset((*REG_TYPES, PG_LSN, DATE, TIMESTAMP, TIMESTAMPTZ))
"""Types whose constants the engine would not read as PostgreSQL does."""


def coerce_list(node: exp.In | exp.Between) -> None:
    """Do the same for IN and BETWEEN."""
    kind = get_type(node.this)
    if kind not in _COERCED:
        return
    for operand in [*node.expressions, node.args.get("low"), node.args.get("high")]:
        if isinstance(operand, exp.Literal) and operand.is_string:
            operand.replace(_constant(operand.copy(), kind))


def _array_operand(operand: exp.Any, element: int | None) -> None:
    """``= ANY ('{a,b}')``: read the constant as an array of the left operand's type."""
    inner = operand.this
    while isinstance(inner, exp.Paren):
        inner = inner.this
    if isinstance(inner, exp.Literal) and inner.is_string:
        items = array_items(inner.name)
        inner.replace(exp.Array(expressions=_constants(items, element or TEXT)))


def concatenation(node: exp.DPipe) -> exp.Expression:
    """Translate ``||`` of texts or of arrays."""
    left, right = get_type(node.this), get_type(node.expression)
    if any(t is not None and is_array(t) for t in (left, right)):
        # PostgreSQL treats a null array as an empty one. The engine does not.
        parts = [_list_operand(node.this, left), _list_operand(node.expression, right)]
        return exp.Anonymous(this="list_concat", expressions=parts)
    node.set("this", as_text(node.this))
    node.set("expression", as_text(node.expression))
    return node


def _list_operand(node: exp.Expression, kind: int | None) -> exp.Expression:
    if kind is None or is_array(kind):
        return node
    return exp.Array(expressions=[node])
