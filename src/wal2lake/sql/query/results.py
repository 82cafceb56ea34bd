"""Turns Spark's results into PostgreSQL's: field descriptions and encoded values.

Comes in: Arrow batches, the schema of the result, the translated query. Goes out: RowDescription's
fields, and batches of values in text or binary format. The analysis of the query gives the types.
If it does not know the type of a column, then a column that comes straight from a table has its
type in its metadata, and any other column gets the type that corresponds to Spark's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wal2lake.catalog import TableDef
from wal2lake.errors import InternalError
from wal2lake.lake import FieldSpec
from wal2lake.model import INVALID_OID
from wal2lake.pgtypes.encode.binary import arrow_to_binary
from wal2lake.pgtypes.encode.text import arrow_to_text, plain_text
from wal2lake.pgtypes.mapping import result_type
from wal2lake.pgtypes.registry.pg_type import type_by_oid
from wal2lake.sql.backend import ResultBatch
from wal2lake.sql.parameters import Parameters
from wal2lake.sql.query.translate import ResultColumn, SparkQuery
from wal2lake.wire.frontback import FieldDescription, Format


@dataclass(frozen=True, slots=True)
class Rendering:
    """The session's parameters that decide on the text of values."""

    timezone: str
    datestyle: str
    extra_float_digits: int
    bytea_output: str

    @classmethod
    def of(cls, parameters: Parameters) -> Rendering:
        """Read the current values of the parameters."""
        return cls(
            parameters["TimeZone"],
            parameters["DateStyle"],
            parameters.number("extra_float_digits"),
            parameters["bytea_output"],
        )


def fields_of(
    specs: Sequence[FieldSpec], query: SparkQuery
) -> tuple[FieldDescription, ...]:
    """The fields of RowDescription for a query that Spark executes."""
    fields = []
    columns = query.columns
    if columns is not None and len(columns) != len(specs):
        raise InternalError(
            f"{len(specs)} result columns where {len(columns)} were expected"
        )
    for i, spec in enumerate(specs):
        name = spec.name
        oid, typmod = int(spec.pg_type_oid), spec.pg_typmod
        if columns is not None and columns[i].type.known:
            name = columns[i].name
            oid, typmod = columns[i].type.oid, columns[i].type.typmod
        elif oid == INVALID_OID:
            type_oid, typmod = result_type(spec.spark_ddl)
            oid = int(type_oid)
        tables = [ref.table for ref in query.tables]
        fields.append(_field(name, oid, typmod, tables))
    return tuple(fields)


def plain_fields(query: SparkQuery) -> tuple[FieldDescription, ...] | None:
    """The fields for a plain query; None unless the analysis knows the types of all columns."""
    columns = query.columns
    if query.plain is None or columns is None:
        return None
    if not all(column.type.known for column in columns):
        return None
    return known_fields(columns, [ref.table for ref in query.tables])


def known_fields(
    columns: Sequence[ResultColumn], tables: Sequence[TableDef]
) -> tuple[FieldDescription, ...]:
    """The fields for columns whose types are known, computed from rows of these tables."""
    return tuple(_field(c.name, c.type.oid, c.type.typmod, tables) for c in columns)


def _field(
    name: str, oid: int, typmod: int, tables: Sequence[TableDef]
) -> FieldDescription:
    pg_type = type_by_oid(oid)
    length = pg_type.length if pg_type is not None else -1
    table_oid, attnum = _source(name, tables)
    return FieldDescription(name, oid, length, typmod, table_oid, attnum)


def _source(name: str, tables: Sequence[TableDef]) -> tuple[int, int]:
    """The table OID and attribute number of a column; zeros unless the query has one table."""
    if len(tables) == 1:
        table = tables[0]
        for number, column in enumerate(table.columns, 1):
            if column.name == name:
                return int(table.oid), number
    return 0, 0


def _all_plain(
    batch: Any, fields: Sequence[FieldDescription], rendering: Rendering
) -> tuple[Any, ...] | None:
    if not rendering.datestyle.upper().startswith("ISO"):
        return None
    texts = []
    for array, field in zip(batch.columns, fields, strict=True):
        zone = rendering.timezone
        text = plain_text(array, field.type_oid, field.typmod, timezone=zone)
        if text is None:
            return None
        texts.append(text)
    return tuple(texts)


def columns_in(
    batch: Any,
    fields: Sequence[FieldDescription],
    formats: Sequence[Format],
    rendering: Rendering,
    *,
    arrow: bool = False,
) -> ResultBatch:
    """Encode an Arrow batch in the formats that the client requests.

    With ``arrow``, the texts stay Arrow arrays if all columns allow that.
    """
    if arrow and fields:
        texts = _all_plain(batch, fields, rendering)
        if texts is not None:
            return ResultBatch(batch.num_rows, (), texts)
    columns = []
    for i, field in enumerate(fields):
        format_ = formats[i] if i < len(formats) else Format.TEXT
        array = batch.column(i)
        if format_ == Format.BINARY:
            columns.append(arrow_to_binary(array, field.type_oid, field.typmod))
        else:
            columns.append(
                arrow_to_text(
                    array,
                    field.type_oid,
                    field.typmod,
                    timezone=rendering.timezone,
                    datestyle=rendering.datestyle,
                    extra_float_digits=rendering.extra_float_digits,
                    bytea_output=rendering.bytea_output,
                )
            )
    return ResultBatch(batch.num_rows, tuple(columns))
