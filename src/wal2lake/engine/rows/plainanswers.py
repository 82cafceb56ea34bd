"""Answers simple queries on small tables from the tables' files.

Takes a ``PlainQuery`` and the version of its table; returns fields and record batches as Spark
would, or None if the table is large or only Spark can read it.

Spark needs some hundred milliseconds for a plan and its jobs, whatever the table's size. A few
small files are read in a few milliseconds. The rows are held in memory until they are sent, so
their size is limited.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.lake import FieldSpec, TablePort
from wal2lake.lake.plain import PlainRead
from wal2lake.pg import Check
from wal2lake.pgtypes import arrow_from_ddl
from wal2lake.sql.query.matching import bounds, can_compare, matches
from wal2lake.sql.query.plain import Aggregate, AggregateFunction, PlainQuery
from wal2lake.sql.query.translate import SparkQuery

_MOST_FILE_BYTES: Final = 16 << 20
"""Limit of the files' size: a guess at where Spark's two cores catch up with one thread."""

_MOST_FILES: Final = 64
"""Limit of the number of files. Each takes a millisecond to open."""

_MOST_BYTES: Final = 32 << 20
"""Limit of the rows held in memory."""

_ROWS: Final = Aggregate(AggregateFunction.COUNT, None)

_SPARKS: Final = {
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.string(): "string",
    pa.date32(): "date",
}
"""Spark's names of aggregates' types; other types are decimals."""

Rows = tuple[Sequence[FieldSpec], Iterable[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class PlainWay:
    """The files from which a query is answered."""

    read: PlainRead
    """The files that may have rows."""
    listed: int
    """Number of files of the version."""
    counts: bool
    """True if the table's log has the number of rows, which is the answer: no file is read."""


def plain_way(
    tables: TablePort, query: SparkQuery, plain: PlainQuery
) -> PlainWay | None:
    """Return the files that answer the query; None: Spark answers it."""
    names = list(plain.columns)
    condition = plain.condition
    needed = set() if condition is None else condition.columns()
    needed.update(key.column for key in plain.order)
    needed.update(
        aggregate.column
        for aggregate in plain.aggregates
        if aggregate.column is not None
    )
    names += sorted(needed.difference(names))
    ref = query.tables[0]
    # A count needs a column, too.
    read = PlainRead.of(
        tables,
        ref.table.location,
        ref.version,
        names or [ref.table.columns[0].name],
    )
    if read is None or not _are_named(query, read.fields[: len(plain.columns)]):
        return None
    listed = read.files
    if plain.aggregates == (_ROWS,) and condition is None and read.rows is not None:
        return PlainWay(read, listed, True)
    if condition is not None:
        read = read.within(bounds(condition))
    if read.files > _MOST_FILES or read.size > _MOST_FILE_BYTES:
        return None
    return PlainWay(read, listed, False)


def plain_answer(
    tables: TablePort, query: SparkQuery, plain: PlainQuery, check: Check
) -> Rows | None:
    """Answer the query, or return None. ``check`` raises if the statement shall end."""
    way = plain_way(tables, query, plain)
    if way is None:
        return None
    if way.counts:
        return _answered(plain, [pa.scalar(way.read.rows, pa.int64())])
    rows = _rows(way.read, plain, check)
    if rows is None:
        return None
    if plain.aggregates:
        values = [_aggregate(rows, aggregate) for aggregate in plain.aggregates]
        return _answered(plain, values)
    fields = way.read.fields[: len(plain.columns)]
    return fields, rows.select(list(plain.columns)).to_batches()


def _are_named(query: SparkQuery, fields: Sequence[FieldSpec]) -> bool:
    """True if the result columns have names, by the query's analysis or as stored."""
    columns = query.columns
    return columns is not None and all(
        column.type.known or column.name == field.name
        for column, field in zip(columns, fields, strict=False)
    )


def _aggregate(rows: pa.Table, aggregate: Aggregate) -> Any:
    """Aggregate all rows, in PostgreSQL's result type."""
    if aggregate.column is None:
        return pa.scalar(rows.num_rows, pa.int64())
    column = rows.column(aggregate.column)
    match aggregate.function:
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


def _answered(plain: PlainQuery, values: Sequence[Any]) -> Rows:
    """Return the one row of aggregates."""
    names = [
        f"{aggregate.function.value}{i}" for i, aggregate in enumerate(plain.aggregates)
    ]
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
    return fields, _cut(row, plain).to_batches()


def _cut(rows: pa.Table, plain: PlainQuery) -> pa.Table:
    return rows.slice(plain.offset, plain.limit)


def _rows(read: PlainRead, plain: PlainQuery, check: Check) -> pa.Table | None:
    """Read the requested columns, and those for conditions and orders.

    None if there are too many bytes, or types that are not compared here."""
    batches = []
    size = 0
    for batch in read.read():
        check()
        if not _can_compare(batch.schema, plain):
            return None
        if plain.condition is not None:
            batch = batch.filter(matches(batch, plain.condition))
        size += batch.nbytes
        if size > _MOST_BYTES:
            return None
        batches.append(batch)
        if not plain.order and plain.limit is not None and not plain.aggregates:
            count = sum(kept.num_rows for kept in batches)
            if count >= plain.offset + plain.limit:
                break
    if not batches:
        kinds = [
            (
                field.name,
                arrow_from_ddl(field.spark_ddl) if plain.aggregates else pa.null(),
            )
            for field in read.fields
        ]
        return pa.schema(kinds).empty_table()
    table = pa.Table.from_batches(batches)
    if plain.order and table.num_rows > 1:
        table = table.take(_sorted(table, plain))
    return table if plain.aggregates else _cut(table, plain)


def _can_compare(schema: pa.Schema, plain: PlainQuery) -> bool:
    ordered = [key.column for key in plain.order]
    for aggregate in plain.aggregates:
        if aggregate.function is AggregateFunction.SUM:
            kind = schema.field(aggregate.column).type
            if not pa.types.is_signed_integer(kind) and not pa.types.is_decimal128(
                kind
            ):
                return False
        elif (
            aggregate.function is not AggregateFunction.COUNT
            and aggregate.column is not None
        ):
            ordered.append(aggregate.column)
    return can_compare(schema, plain.condition) and all(
        pa.types.is_string(kind)
        or pa.types.is_signed_integer(kind)
        or pa.types.is_boolean(kind)
        or pa.types.is_date32(kind)
        for kind in (schema.field(column).type for column in ordered)
    )


def _sorted(rows: pa.Table, plain: PlainQuery) -> Any:
    """Return the rows' order; each key is preceded by a key for its NULLs."""
    columns, keys = {}, []
    for number, key in enumerate(plain.order):
        column = rows.column(key.column)
        if pa.types.is_boolean(column.type):
            column = column.cast(pa.int8())
        columns[f"n{number}"] = pc.is_null(column).cast(pa.int8())
        columns[f"v{number}"] = column
        nulls = "descending" if key.nulls_first else "ascending"
        keys.append((f"n{number}", nulls))
        keys.append((f"v{number}", "descending" if key.descending else "ascending"))
    return pc.sort_indices(pa.table(columns), sort_keys=keys)
