"""Converts rows of a system relation to an Arrow table for the embedded engine.

Comes in: a relation's declaration and its rows as dicts. Goes out: a table with every declared
column, in order. A missing value is null, or the zero of its type if the column is NOT NULL.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import pyarrow as pa

from wal2lake.sql.sysviews.declarations.relations import (
    ANYARRAY,
    SystemColumn,
    SystemRelation,
)
from wal2lake.sql.sysviews.query.casts import engine_type
from wal2lake.sql.sysviews.rows.relations import Row

_ARROW: Final[dict[str, pa.DataType]] = {
    "BOOLEAN": pa.bool_(),
    "BLOB": pa.binary(),
    "SMALLINT": pa.int16(),
    "INTEGER": pa.int32(),
    "BIGINT": pa.int64(),
    "UINTEGER": pa.uint32(),
    "UBIGINT": pa.uint64(),
    "REAL": pa.float32(),
    "DOUBLE": pa.float64(),
    "INTERVAL": pa.duration("us"),
    "TIMESTAMP WITH TIME ZONE": pa.timestamp("us", tz="UTC"),
    "VARCHAR": pa.string(),
}

_ZEROS: Final[dict[str, Any]] = {
    "BOOLEAN": False,
    "VARCHAR": "",
    "REAL": 0.0,
    "DOUBLE": 0.0,
}


class ArrowForm:
    """The form of a relation's rows as a table: its columns, and the values of missing ones."""

    __slots__ = ("_zeros", "schema")

    def __init__(self, relation: SystemRelation) -> None:
        columns = relation.columns
        self.schema = pa.schema([pa.field(c.name, _arrow_type(c)) for c in columns])
        self._zeros = [_zero(column) for column in columns]

    def table(self, rows: Iterable[Row]) -> pa.Table:
        """Return the table of the rows."""
        kept = list(rows)
        arrays = [
            pa.array([row.get(field.name, zero) for row in kept], field.type)
            for field, zero in zip(self.schema, self._zeros, strict=True)
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema)


def _arrow_type(column: SystemColumn) -> pa.DataType:
    kind = "VARCHAR" if column.type_oid == ANYARRAY else engine_type(column.type_oid)
    if kind.endswith("[]"):
        return pa.list_(_ARROW[kind.removesuffix("[]")])
    return _ARROW[kind]


def _zero(column: SystemColumn) -> Any:
    if not column.not_null:
        return None
    kind = engine_type(column.type_oid)
    return [] if kind.endswith("[]") else _ZEROS.get(kind, 0)
