"""Spark's answers as PostgreSQL's: column descriptions and encoded values.

Types are those that the analysis of the query found. Where it knows nothing, a column
that comes straight from a table carries its type in its metadata, and another one gets the
type that fits Spark's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from wal2lake.errors import InternalError
from wal2lake.frontend.backend import Batch
from wal2lake.frontend.parameters import Parameters
from wal2lake.frontend.query.translate import SparkQuery, TableRef
from wal2lake.lake import FieldSpec
from wal2lake.model import INVALID_OID
from wal2lake.pgtypes.encode.binary import arrow_to_binary
from wal2lake.pgtypes.encode.text import arrow_to_text, plain_text
from wal2lake.pgtypes.mapping import result_type
from wal2lake.pgtypes.registry.pg_type import type_by_oid
from wal2lake.wire.frontback import FieldDescription, Format


@dataclass(frozen=True, slots=True)
class Rendering:
    """The session's settings that decide how values look."""

    timezone: str
    datestyle: str
    extra_float_digits: int
    bytea_output: str

    @classmethod
    def of(cls, parameters: Parameters) -> Rendering:
        """As they are now."""
        return cls(
            parameters["TimeZone"],
            parameters["DateStyle"],
            parameters.number("extra_float_digits"),
            parameters["bytea_output"],
        )


def fields_of(
    specs: Sequence[FieldSpec], query: SparkQuery
) -> tuple[FieldDescription, ...]:
    """RowDescription's content."""
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
            found, typmod = result_type(spec.spark_ddl)
            oid = int(found)
        fields.append(_field(name, oid, typmod, query))
    return tuple(fields)


def plain_fields(query: SparkQuery) -> tuple[FieldDescription, ...] | None:
    """The same of a plain query, of which the analysis has said everything; None: it has not."""
    columns = query.columns
    if query.plain is None or columns is None:
        return None
    if not all(column.type.known for column in columns):
        return None
    return tuple(_field(c.name, c.type.oid, c.type.typmod, query) for c in columns)


def _field(name: str, oid: int, typmod: int, query: SparkQuery) -> FieldDescription:
    known = type_by_oid(oid)
    length = known.length if known is not None else -1
    table_oid, attnum = _source(name, query.tables)
    return FieldDescription(name, oid, length, typmod, table_oid, attnum)


def _source(name: str, tables: Sequence[TableRef]) -> tuple[int, int]:
    """Table OID and attribute number, where there is only one table to come from."""
    if len(tables) == 1:
        table = tables[0].table
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
) -> Batch:
    """An Arrow batch's values in the formats that the client asked for. ``arrow``: text stays
    Arrow where all columns can."""
    if arrow and fields:
        texts = _all_plain(batch, fields, rendering)
        if texts is not None:
            return Batch(batch.num_rows, (), texts)
    columns = []
    for i, field in enumerate(fields):
        asked = formats[i] if i < len(formats) else Format.TEXT
        array = batch.column(i)
        if asked == Format.BINARY:
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
    return Batch(batch.num_rows, tuple(columns))
