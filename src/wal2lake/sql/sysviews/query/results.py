"""Gives the embedded engine's results PostgreSQL's types.

Comes in: the engine's columns and the types that ``scopes`` inferred. Goes out: field descriptions
(``fields_of``), and the same values in a form that the encoders take (``printable``): OID types by
name, WAL positions, vectors and intervals as text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import pyarrow as pa

from wal2lake.pgtypes.registry.pg_type import type_by_oid
from wal2lake.sql.sysviews.functions import regproc
from wal2lake.sql.sysviews.functions.call import Call
from wal2lake.sql.sysviews.query.inference import (
    INT2VECTOR,
    OIDVECTOR,
    PG_LSN,
    REG_TYPES,
    TEXT,
    UNKNOWN,
    element_type,
)
from wal2lake.sql.sysviews.query.names.scopes import Output
from wal2lake.wire.frontback import FieldDescription, Format

_ENGINE_OIDS: Final = {
    "BOOLEAN": 16,
    "BLOB": 17,
    "BIGINT": 20,
    "SMALLINT": 21,
    "TINYINT": 21,
    "UTINYINT": 21,
    "INTEGER": 23,
    "USMALLINT": 23,
    "UINTEGER": 26,
    "FLOAT": 700,
    "DOUBLE": 701,
    "DATE": 1082,
    "TIME": 1083,
    "TIMESTAMP": 1114,
    "TIMESTAMP WITH TIME ZONE": 1184,
    "INTERVAL": 1186,
    "HUGEINT": 1700,
    "UBIGINT": 1700,
    "UUID": 2950,
    "JSON": 114,
}


_INTEGERS: Final = {
    20: pa.int64(),
    21: pa.int16(),
    23: pa.int32(),
    26: pa.uint32(),
}
"""Arrow's types for PostgreSQL's integers. The engine's integers are sometimes wider."""


def fields_of(
    outputs: Sequence[Output] | None, names: Sequence[str], kinds: Sequence[Any]
) -> tuple[FieldDescription, ...]:
    """Return the columns of a result. Names and types that are not inferred are the engine's."""
    fields = []
    has_outputs = outputs is not None and len(outputs) == len(names)
    for i, (name, kind) in enumerate(zip(names, kinds, strict=True)):
        oid: int | None = None
        if has_outputs and outputs is not None:
            name, oid = outputs[i].name, outputs[i].type_oid
        if oid == UNKNOWN:
            oid = TEXT
        if oid is None:
            oid = _engine_oid(str(kind))
        pg_type = type_by_oid(oid)
        fields.append(
            FieldDescription(name, oid, -1 if pg_type is None else pg_type.length)
        )
    return tuple(fields)


def _engine_oid(kind: str) -> int:
    if kind.endswith("[]"):
        element = type_by_oid(_engine_oid(kind.removesuffix("[]")))
        return int(element.array_oid) if element is not None else TEXT
    if kind.startswith("DECIMAL"):
        return 1700
    return _ENGINE_OIDS.get(kind, TEXT)


def printable(
    table: pa.Table,
    fields: Sequence[FieldDescription],
    formats: Sequence[Format],
    call: Call,
) -> pa.Table:
    """Return the table with every column in a form that the encoders take.

    OID types are names in text format and numbers in binary format."""
    columns = []
    for i, (column, field) in enumerate(zip(table.columns, fields, strict=True)):
        binary = i < len(formats) and formats[i] == Format.BINARY
        array = column.combine_chunks()
        if not (binary and _is_oid(field.type_oid)):
            array = _column(array, field.type_oid, call)
        columns.append(array)
    return pa.Table.from_arrays(columns, names=[str(i) for i in range(len(columns))])


def _is_oid(oid: int) -> bool:
    return oid in REG_TYPES or element_type(oid) in REG_TYPES


def _column(array: pa.Array, oid: int, call: Call) -> pa.Array:
    types = pa.types
    if oid in REG_TYPES and types.is_integer(array.type):
        render = getattr(regproc, f"{REG_TYPES[oid]}_out")
        return _texts(array, lambda value: render(call, value))
    element = element_type(oid)
    if element in REG_TYPES and types.is_list(array.type):
        render = getattr(regproc, f"{REG_TYPES[element]}_out")
        return pa.array(
            [
                None if items is None else [render(call, item) for item in items]
                for items in array.to_pylist()
            ],
            pa.list_(pa.string()),
        )
    if oid == PG_LSN and types.is_integer(array.type):
        return _texts(array, lambda value: regproc.pg_lsn_out(call, value))
    if oid in (INT2VECTOR, OIDVECTOR) and types.is_list(array.type):
        return _texts(array, lambda value: " ".join(map(str, value)))
    if oid in _INTEGERS and array.type != _INTEGERS[oid]:
        return array.cast(_INTEGERS[oid])
    if types.is_interval(array.type):
        return _texts(array, _interval)
    return array


def _texts(array: pa.Array, render: Callable[[Any], str | None]) -> pa.Array:
    return pa.array(
        [None if v is None else render(v) for v in array.to_pylist()], pa.string()
    )


def _interval(value: Any) -> str:
    """IntervalStyle postgres."""
    months, days, nanoseconds = value.months, value.days, value.nanoseconds
    parts: list[str] = []
    years, months = abs(months) // 12 * _sign(months), abs(months) % 12 * _sign(months)
    for number, unit in ((years, "year"), (months, "mon"), (days, "day")):
        if number:
            plural = "" if number == 1 else "s"
            plus = "+" if number > 0 and parts and parts[-1].startswith("-") else ""
            parts.append(f"{plus}{number} {unit}{plural}")
    microseconds = abs(nanoseconds) // 1000
    if microseconds or not parts:
        sign = "-" if nanoseconds < 0 else "+" if parts and parts[-1][0] == "-" else ""
        seconds, fraction = divmod(microseconds, 1_000_000)
        clock = f"{seconds // 3600:02}:{seconds // 60 % 60:02}:{seconds % 60:02}"
        shown = f".{fraction:06}".rstrip("0") if fraction else ""
        parts.append(f"{sign}{clock}{shown}")
    return " ".join(parts)


def _sign(number: int) -> int:
    return -1 if number < 0 else 1
