"""Answers of simple queries on small tables, from the tables' files.

Comes in: a ``PlainQuery`` and the version of its table. Goes out: fields and record batches, as
Spark would give them; or nothing: the table is large, or only Spark can read it.

A plan and its jobs take Spark some hundred milliseconds whatever the table has; some small files
are read in some. What is read here is held in memory until it is sent, so it is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.lake import FieldSpec, TablePort
from wal2lake.lake.plain.read import PlainRead
from wal2lake.pg import Check
from wal2lake.pgtypes import arrow_from_ddl
from wal2lake.sql.query.matching import bounds, can_compare, matches
from wal2lake.sql.query.plain import Aggregate, AggregateFunction, PlainQuery
from wal2lake.sql.query.translate import SparkQuery

_MOST_FILE_BYTES: Final = 16 << 20
"""Bytes of the files that are read at most; a guess at where Spark's two cores catch up with one
thread."""

_MOST_FILES: Final = 64
"""Each takes a millisecond to open."""

_MOST_BYTES: Final = 32 << 20
"""Bytes of rows that are held at most."""

_ROWS: Final = Aggregate(AggregateFunction.COUNT, None)

_SPARKS: Final = {
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.string(): "string",
    pa.date32(): "date",
}
"""Spark's names of what aggregates are; others are decimals."""

Rows = tuple[Sequence[FieldSpec], Iterable[pa.RecordBatch]]


def plain_answer(
    tables: TablePort, query: SparkQuery, asked: PlainQuery, check: Check
) -> Rows | None:
    """``check`` raises once the statement is to end."""
    names = list(asked.columns)
    condition = asked.condition
    needed = set() if condition is None else condition.columns()
    needed.update(key.column for key in asked.order)
    needed.update(one.column for one in asked.aggregates if one.column is not None)
    names += sorted(needed.difference(names))
    ref = query.tables[0]
    # A count reads a column, too.
    read = PlainRead.of(
        tables,
        ref.table.location,
        ref.version,
        names or [ref.table.columns[0].name],
    )
    if read is None or not _are_named(query, read.fields[: len(asked.columns)]):
        return None
    if asked.aggregates == (_ROWS,) and condition is None and read.rows is not None:
        return _answered(asked, [pa.scalar(read.rows, pa.int64())])
    if condition is not None:
        read = read.within(bounds(condition))
    if read.files > _MOST_FILES or read.size > _MOST_FILE_BYTES:
        return None
    found = _rows(read, asked, check)
    if found is None:
        return None
    if asked.aggregates:
        values = [_aggregate(found, one) for one in asked.aggregates]
        return _answered(asked, values)
    fields = read.fields[: len(asked.columns)]
    return fields, found.select(list(asked.columns)).to_batches()


def _are_named(query: SparkQuery, fields: Sequence[FieldSpec]) -> bool:
    """Whether what goes out has its names by the query's analysis, or as it is stored."""
    columns = query.columns
    return columns is not None and all(
        column.type.known or column.name == field.name
        for column, field in zip(columns, fields, strict=False)
    )


def _aggregate(found: pa.Table, one: Aggregate) -> Any:
    """Aggregate all rows, in PostgreSQL's type of the aggregate."""
    if one.column is None:
        return pa.scalar(found.num_rows, pa.int64())
    column = found.column(one.column)
    match one.function:
        case AggregateFunction.COUNT:
            return pa.scalar(len(column) - column.null_count, pa.int64())
        case AggregateFunction.SUM:
            if pa.types.is_int64(column.type):
                column = column.cast(pa.decimal128(19, 0))
            return pc.sum(column)
        case AggregateFunction.MIN:
            return pc.min(column)
        case AggregateFunction.MAX:
            return pc.max(column)


def _answered(asked: PlainQuery, values: Sequence[Any]) -> Rows:
    """One row."""
    names = [f"{one.function.value}{i}" for i, one in enumerate(asked.aggregates)]
    row = pa.table(
        {
            name: pa.array([value.as_py()], value.type)
            for name, value in zip(names, values, strict=True)
        }
    )
    fields = [
        FieldSpec(name, _SPARKS.get(value.type) or f"decimal(38,{value.type.scale})")
        for name, value in zip(names, values, strict=True)
    ]
    return fields, _cut(row, asked).to_batches()


def _cut(found: pa.Table, asked: PlainQuery) -> pa.Table:
    return found.slice(asked.offset, asked.limit)


def _rows(read: PlainRead, asked: PlainQuery, check: Check) -> pa.Table | None:
    """All columns that were asked for, and those that conditions and orders need; None: it is too
    much, or of types that are not compared here."""
    batches = []
    size = 0
    for batch in read.read():
        check()
        if not _can_compare(batch.schema, asked):
            return None
        if asked.condition is not None:
            batch = batch.filter(matches(batch, asked.condition))
        size += batch.nbytes
        if size > _MOST_BYTES:
            return None
        batches.append(batch)
        if not asked.order and asked.limit is not None and not asked.aggregates:
            rows = sum(one.num_rows for one in batches)
            if rows >= asked.offset + asked.limit:
                break
    if not batches:
        kinds = [
            (
                field.name,
                arrow_from_ddl(field.spark_ddl) if asked.aggregates else pa.null(),
            )
            for field in read.fields
        ]
        return pa.schema(kinds).empty_table()
    found = pa.Table.from_batches(batches)
    if asked.order and found.num_rows > 1:
        found = found.take(_sorted(found, asked))
    return found if asked.aggregates else _cut(found, asked)


def _can_compare(schema: pa.Schema, asked: PlainQuery) -> bool:
    ordered = [key.column for key in asked.order]
    for one in asked.aggregates:
        if one.function is AggregateFunction.SUM:
            kind = schema.field(one.column).type
            if not pa.types.is_signed_integer(kind) and not pa.types.is_decimal128(
                kind
            ):
                return False
        elif one.function is not AggregateFunction.COUNT and one.column is not None:
            ordered.append(one.column)
    return can_compare(schema, asked.condition) and all(
        pa.types.is_string(kind)
        or pa.types.is_signed_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        for kind in (schema.field(column).type for column in ordered)
    )


def _sorted(found: pa.Table, asked: PlainQuery) -> Any:
    """The order of the rows; each key has a place of its own for NULLs."""
    columns, keys = {}, []
    for number, key in enumerate(asked.order):
        column = found.column(key.column)
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        columns[f"n{number}"] = pc.is_null(column).cast(pa.int8())
        columns[f"v{number}"] = column
        nulls = "descending" if key.nulls_first else "ascending"
        keys.append((f"n{number}", nulls))
        keys.append((f"v{number}", "descending" if key.descending else "ascending"))
    return pc.sort_indices(pa.table(columns), sort_keys=keys)
