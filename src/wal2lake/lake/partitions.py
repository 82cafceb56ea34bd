"""Divides rows among the partitions of a Delta table, and converts partition values to text. Pure.

Comes in: typed rows, or the ``partitionValues`` of a file. Goes out: the rows of each partition
without the columns that they all have in common, or those columns again.

Delta stores a partition's values as text beside each file, where an empty text means NULL for
every type. So the node makes no table that is partitioned by text, whose '' would come back as NULL
(``port.can_partition``), and refuses '' in a table that another engine has made so. The remaining
types have one text for each value and are read back exactly, years before 1 and after 9999
included.

Delta's writer in Spark writes timestamps with time zone without an era, so it would turn 44 BC
into 44 AD. Our sessions make it write them as texts in the session's zone, UTC, which have a sign.
In another session a text without zone would be read in that session's zone. So the zone is added
to the actions of such a commit before they become the table's (``zoned``).

Sources: Delta transaction log protocol, "Partition Value Serialization"; Spark SQL's datetime
patterns for casts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal2lake.errors import FeatureNotSupportedError, InternalError, StorageError
from wal2lake.lake.port import FieldSpec, PhysicalField
from wal2lake.pgtypes.moments import spark_number, spark_text

EMPTY_TEXT: Final = (
    "an empty text cannot be stored in a column by which a table is partitioned"
)

EMPTY_TEXT_REMEDY: Final = (
    "Create the table anew without partitions by this column, or skip the transaction: ALTER"
    " SUBSCRIPTION ... SKIP (lsn = ...)."
)

Values = tuple[str | None, ...]
"""Values of one partition, in the order of the table's columns."""


def text_partitions(
    fields: Sequence[FieldSpec], physical: Sequence[PhysicalField]
) -> frozenset[str]:
    """Return the text columns by which a table is partitioned."""
    return frozenset(
        field.name
        for field, stored in zip(fields, physical, strict=True)
        if stored.is_partition and field.spark_ddl.lower() == "string"
    )


def instants(fields: Sequence[PhysicalField]) -> frozenset[str]:
    """Return the physical names of partition columns that are timestamps with time zone."""
    return frozenset(
        field.physical_name
        for field in fields
        if field.is_partition and field.spark_ddl.lower() == "timestamp"
    )


def zoned(add: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    """Add the zone, UTC, to the timestamps of the columns ``names`` in an ``add`` of our Spark
    session."""
    values = dict(add.get("partitionValues") or {})
    for name in names.intersection(values):
        number = value_of(values[name], _INSTANT)
        if number is not None:
            values[name] = spark_text(number, _INSTANT)
    return {**add, "partitionValues": values}


_INSTANT: Final = pa.timestamp("us", "UTC")


def by_partition(
    table: pa.Table, columns: Sequence[int]
) -> Iterator[tuple[Values, pa.Table]]:
    """Yield the rows of each partition, in their order, without ``columns``."""
    if not columns:
        yield (), table
        return
    if not table.num_rows:
        return
    codes = np.zeros(table.num_rows, np.int64)
    for i in columns:
        column = pa.concat_arrays(table.column(i).chunks).dictionary_encode("encode")
        indices = column.indices.to_numpy(zero_copy_only=False)
        wide = codes * len(column.dictionary) + indices
        # Renumber without gaps, because products of many columns would overflow.
        codes = np.unique(wide, return_inverse=True)[1].astype(np.int64)
    firsts, lasts, order = _runs(codes)
    rest = [i for i in range(table.num_columns) if i not in set(columns)]
    kept = table.select(rest)
    if len(firsts) > 1:
        kept = kept.take(pa.array(order))
    for first, last in zip(firsts, lasts, strict=True):
        row = order[first]
        values = tuple(
            _text(table.column(i)[row], table.schema.field(i).type) for i in columns
        )
        yield values, kept.slice(first, last - first)


def _runs(
    codes: npt.NDArray[np.int64],
) -> tuple[list[int], list[int], npt.NDArray[np.int64]]:
    """Return where the rows of each code begin and end, and a stable order of the rows by code."""
    order = np.argsort(codes, kind="stable")
    ordered = codes[order]
    changes = np.flatnonzero(ordered[1:] != ordered[:-1]) + 1
    firsts = [0, *changes.tolist()]
    return firsts, [*firsts[1:], len(codes)], order


def column_of(text: str | None, kind: pa.DataType, rows: int) -> pa.Array:
    """Return a partition's column, which its files do not have."""
    value = value_of(text, kind)
    if value is None:
        return pa.nulls(rows, kind)
    return pa.repeat(pa.scalar(value, kind), rows)


def value_of(text: str | None, kind: pa.DataType) -> Any:
    """Return a value that Arrow accepts for the type, the same for all texts of the value; for
    dates and timestamps it is the stored number. StorageError for an invalid text."""
    if text is None or text == "":
        return None
    try:
        if pa.types.is_string(kind):
            return text
        if pa.types.is_integer(kind):
            return int(text)
        if pa.types.is_boolean(kind):
            return {"true": True, "false": False}[text.lower()]
        if pa.types.is_decimal(kind):
            return Decimal(text)
        if pa.types.is_date32(kind) or pa.types.is_timestamp(kind):
            number = spark_number(text, kind)
            if number is None:
                raise ValueError(text)
            return number
    except (ValueError, KeyError, InvalidOperation) as error:
        raise StorageError(
            f'invalid partition value "{text}" for type {kind}', sqlstate="XX001"
        ) from error
    raise InternalError(f"type {kind} does not partition a table")


def values_in(column: pa.ChunkedArray) -> set[Any]:
    """Return the distinct values in the form of ``value_of``; no nulls."""
    kind = column.type
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    elif pa.types.is_timestamp(kind):
        column = column.cast(pa.int64())
    return set(column.unique().drop_null().to_pylist())


def _text(value: pa.Scalar, kind: pa.DataType) -> str | None:
    if not value.is_valid:
        return None
    if pa.types.is_string(kind):
        if not value.as_py():
            raise FeatureNotSupportedError(EMPTY_TEXT)
        return str(value.as_py())
    if pa.types.is_integer(kind):
        return str(value.as_py())
    if pa.types.is_boolean(kind):
        return "true" if value.as_py() else "false"
    if pa.types.is_decimal(kind):
        return format(value.as_py(), "f")
    if pa.types.is_date32(kind):
        return spark_text(value.cast(pa.int32()).as_py(), kind)
    if pa.types.is_timestamp(kind) and kind.unit == "us":
        return spark_text(value.cast(pa.int64()).as_py(), kind)
    raise InternalError(f"type {kind} does not partition a table")
