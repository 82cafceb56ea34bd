"""Casts, constants and operators between types that the embedded engine has not.

Comes in: nodes of a typed tree. Goes out: nodes for the engine. OID types are numbers there,
WAL positions 64-bit numbers, name and "char" text; a constant beside one of those is read
by its type's input function, and arrays given as text become lists.

Sources: the manual's sections 8.15 (arrays), 8.19 (OID types), 8.20 (pg_lsn).
"""

from __future__ import annotations

from typing import Final

import sqlglot
from sqlglot import exp

from wal2lake.errors import UndefinedObjectError, UsageError
from wal2lake.pgtypes.registry.pg_type import type_by_oid
from wal2lake.sql.sysviews.functions.pg_proc import internal_name
from wal2lake.sql.sysviews.query.inference import (
    INT2VECTOR,
    OID,
    OIDVECTOR,
    PG_LSN,
    REG_TYPES,
    REGPROC,
    UNKNOWN,
    element_type,
    get_type,
    is_array,
)

BYTEA: Final = 17
TIME: Final = 1083
TIMESTAMP: Final = 1114

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
"""The engine's type for each of PostgreSQL's; what is not here is text."""


_POSTGRES_EPOCH_US: Final = 946_684_800_000_000
"""2000-01-01 UTC, in microseconds since 1970."""


def engine_type(oid: int) -> str:
    """The same for arrays too."""
    known = ENGINE_TYPES.get(oid)
    if known is not None:
        return known
    pg_type = type_by_oid(oid)
    if pg_type is not None and pg_type.is_array:
        return engine_type(int(pg_type.element_oid)) + "[]"
    return "VARCHAR"


def call(name: str, *arguments: exp.Expression) -> exp.Anonymous:
    """A call of one of the catalog's functions."""
    return exp.Anonymous(
        this=internal_name(name, len(arguments)), expressions=list(arguments)
    )


def cast(node: exp.Cast) -> exp.Expression:
    """A cast to one of PostgreSQL's types."""
    target, source = get_type(node), get_type(node.this)
    if target is None:
        name = node.to.sql(dialect="postgres").lower()
        raise UndefinedObjectError(f'type "{name}" does not exist')
    if target == PG_LSN:
        return as_lsn(node.this)
    if target in REG_TYPES:
        if source is not None and source not in (UNKNOWN, 25, 1043, 19, 18):
            return as_type(node.this, "UINTEGER")
        return call(f"{REG_TYPES[target]}_in", node.this)
    kind = engine_type(target)
    if target == BYTEA and source in (UNKNOWN, 25, 1043):
        return call("bytea_in", node.this)
    if target == OID and source == REGPROC:
        return call("regproc_oid", node.this)
    if kind == "VARCHAR":
        return as_type(as_text(node.this), kind)
    if is_array(target) and isinstance(node.this, exp.Literal) and node.this.is_string:
        return as_type(_array(node.this, target), kind)
    if isinstance(node, exp.TryCast):
        return exp.TryCast(
            this=node.this, to=exp.DataType.build(kind, dialect="duckdb")
        )
    made = as_type(node.this, kind)
    digits = node.to.expressions[0].name if node.to.expressions else ""
    if target in (TIME, TIMESTAMP) and digits.isdigit() and int(digits) < 6:
        return _rounded(made, int(digits))
    return made


def _rounded(value: exp.Expression, digits: int) -> exp.Expression:
    """A time or timestamp with so many digits of its seconds; infinity stays. Halves round away
    from PostgreSQL's epoch (AdjustTimestampForTypmod() in timestamp.c)."""
    is_time = value.is_type("time")
    step, epoch = 10 ** (6 - digits), 0 if is_time else _POSTGRES_EPOCH_US
    since = f"(epoch_us(v) - {epoch})"
    rounded = f"sign({since})::BIGINT * ((abs({since}) + {step // 2}) // {step}) * {step} + {epoch}"
    if is_time:
        # A day's last second may round up, and the end of a day is no timestamp's time.
        text = (
            f"CASE WHEN {rounded} = 86400000000 THEN '24:00:00'::TIME"
            f" ELSE make_timestamp({rounded})::TIME END"
        )
    else:
        text = f"CASE WHEN isfinite(v) THEN make_timestamp({rounded}) ELSE v END"
    made = sqlglot.parse_one(text, dialect="duckdb")
    return made.transform(
        lambda node: (
            value.copy() if isinstance(node, exp.Column) and node.name == "v" else node
        )
    )


def as_type(value: exp.Expression, kind: str) -> exp.Cast:
    """A cast to one of the engine's types."""
    return exp.Cast(this=value, to=exp.DataType.build(kind, dialect="duckdb"))


def as_text(value: exp.Expression) -> exp.Expression:
    """A value as PostgreSQL's text, where the engine would write something else."""
    source = get_type(value)
    if source in REG_TYPES:
        return call(f"{REG_TYPES[source]}_out", value)
    if source == PG_LSN:
        return call("pg_lsn_out", value)
    return value


def as_lsn(value: exp.Expression) -> exp.Expression:
    """A WAL position, read from text if it is not one."""
    return value if get_type(value) == PG_LSN else call("pg_lsn_in", value)


def _array(literal: exp.Literal, oid: int) -> exp.Expression:
    element = element_type(oid) or 25
    items = array_items(literal.name, vector=oid in (INT2VECTOR, OIDVECTOR))
    kind = engine_type(element)
    return exp.Array(
        expressions=[
            exp.Null() if i is None else as_type(exp.Literal.string(i), kind)
            for i in items
        ]
    )


def array_items(text: str, *, vector: bool = False) -> list[str | None]:
    """The elements of a one-dimensional array literal, or of a vector."""
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
    item, quoted, seen, at = "", False, False, 1
    while at < len(body):
        char = body[at]
        if char == "\\":
            at += 1
            item += body[at : at + 1]
            seen = True
        elif char == '"':
            quoted = not quoted
            seen = True
            if quoted:
                item = item.strip() + "\0" if not item.strip() else item
        elif not quoted and char in ",}":
            items.extend(_array_item(item, seen or bool(items) or char == ","))
            item, seen = "", False
        else:
            item += char
            seen = seen or not char.isspace()
        at += 1
    return items


def _array_item(item: str, present: bool) -> list[str | None]:
    if not present and not item.strip():
        return []
    if item.startswith("\0"):
        return [item[1:]]
    item = item.strip()
    return [None if item.upper() == "NULL" else item]


def coerce(node: exp.Expression) -> None:
    """A string constant beside an OID type or an LSN is one of those."""
    left, right = node.this, node.expression
    _coerce_operand(node, "expression", right, get_type(left))
    _coerce_operand(node, "this", left, get_type(right))
    if isinstance(right, exp.Any):
        _array_operand(right, get_type(left))


def _coerce_operand(
    parent: exp.Expression, key: str, operand: exp.Expression, other: int | None
) -> None:
    if not (isinstance(operand, exp.Literal) and operand.is_string):
        return
    if other in REG_TYPES:
        parent.set(key, call(f"{REG_TYPES[other]}_in", operand.copy()))
    elif other == PG_LSN:
        parent.set(key, call("pg_lsn_in", operand.copy()))


def coerce_list(node: exp.In | exp.Between) -> None:
    """The same for IN and BETWEEN."""
    kind = get_type(node.this)
    if kind not in REG_TYPES and kind != PG_LSN:
        return
    name = f"{REG_TYPES[kind]}_in" if kind in REG_TYPES else "pg_lsn_in"
    for operand in [*node.expressions, node.args.get("low"), node.args.get("high")]:
        if isinstance(operand, exp.Literal) and operand.is_string:
            operand.replace(call(name, operand.copy()))


def _array_operand(operand: exp.Any, element: int | None) -> None:
    """``= ANY ('{a,b}')``: the constant is an array of what it is compared with."""
    inner = operand.this
    while isinstance(inner, exp.Paren):
        inner = inner.this
    if isinstance(inner, exp.Literal) and inner.is_string:
        kind = engine_type(element) if element is not None else "VARCHAR"
        items = [
            exp.Null() if i is None else as_type(exp.Literal.string(i), kind)
            for i in array_items(inner.name)
        ]
        inner.replace(exp.Array(expressions=items))


def concatenation(node: exp.DPipe) -> exp.Expression:
    """``||`` of texts or of arrays."""
    left, right = get_type(node.this), get_type(node.expression)
    if any(t is not None and is_array(t) for t in (left, right)):
        # PostgreSQL treats a null array as an empty one, the engine does not.
        parts = [_list_operand(node.this, left), _list_operand(node.expression, right)]
        return exp.Anonymous(this="list_concat", expressions=parts)
    node.set("this", as_text(node.this))
    node.set("expression", as_text(node.expression))
    return node


def _list_operand(node: exp.Expression, kind: int | None) -> exp.Expression:
    if kind is None or is_array(kind):
        return node
    return exp.Array(expressions=[node])
