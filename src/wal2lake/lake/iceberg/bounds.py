"""Converts Delta's statistics and partition values to Iceberg's. Pure.

Comes in: an ``add`` action, the table's columns. Goes out: what a manifest says of the file:
counts, bounds as Iceberg's binary form, the partition's values.

A missing bound costs a read, a wrong one loses rows, so a bound that is not certain is left out:

- real and double, whose bounds Delta's writers take with different views of NaN and -0.0;
- whatever does not parse, as Spark's years beyond 9999;
- binary, boolean and nested columns.

Delta's timestamps have milliseconds. Its own writer cuts the upper bound off, so here it is the
end of its millisecond.

Sources: Iceberg table specification, "Appendix D: Single-value serialization", "Data File Fields";
Delta transaction log protocol, "Per-file Statistics".
"""

from __future__ import annotations

import datetime
import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import pyarrow as pa

from wal2lake.lake.iceberg.columns import MirroredColumn, MirroredColumns
from wal2lake.lake.partitions import value_of
from wal2lake.lake.tablefiles import DataFile

_INT: Final = struct.Struct("<i")
_LONG: Final = struct.Struct("<q")
_EPOCH_DAY: Final = datetime.date(1970, 1, 1).toordinal()
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MICROSECOND: Final = datetime.timedelta(microseconds=1)
_LAST_IN_MILLISECOND: Final = 999


@dataclass(frozen=True, slots=True)
class FileFacts:
    """Statistics of one file, by field id."""

    rows: int
    """Rows in the file, deleted rows included."""
    values: Mapping[int, int]
    nulls: Mapping[int, int]
    lows: Mapping[int, bytes]
    highs: Mapping[int, bytes]


def facts_of(file: DataFile, columns: MirroredColumns) -> FileFacts | None:
    """Return the statistics of a file; None if its rows are not counted."""
    # Floats would lose digits of decimals.
    stats = json.loads(file.action.get("stats") or "{}", parse_float=Decimal)
    rows = stats.get("numRecords")
    if rows is None:
        return None
    values: dict[int, int] = {}
    nulls: dict[int, int] = {}
    lows: dict[int, bytes] = {}
    highs: dict[int, bytes] = {}
    for column in columns.columns:
        name = column.physical_name
        null_count = (stats.get("nullCount") or {}).get(name)
        if isinstance(null_count, int) and isinstance(column.kind, str):
            values[column.field_id] = int(rows)
            nulls[column.field_id] = null_count
        for bounds, named, up in (
            (lows, "minValues", False),
            (highs, "maxValues", True),
        ):
            value = (stats.get(named) or {}).get(name)
            bound = None if value is None else bound_of(column, value, up=up)
            if bound is not None:
                bounds[column.field_id] = bound
    return FileFacts(int(rows), values, nulls, lows, highs)


def bound_of(column: MirroredColumn, value: Any, *, up: bool) -> bytes | None:
    """Return a bound in Iceberg's form, from a value in Delta's statistics; None: not certain."""
    try:
        return _bound(column.arrow, value, up=up)
    except (ValueError, OverflowError, InvalidOperation, struct.error, TypeError):
        return None


def _bound(kind: pa.DataType, value: Any, *, up: bool) -> bytes | None:
    if pa.types.is_integer(kind):
        if not isinstance(value, int):
            return None
        return (_LONG if kind == pa.int64() else _INT).pack(value)
    if pa.types.is_decimal(kind):
        return _decimal_bytes(Decimal(value), kind.scale)
    if pa.types.is_string(kind):
        return value.encode() if isinstance(value, str) else None
    if pa.types.is_date32(kind):
        day = datetime.date.fromisoformat(value).toordinal() - _EPOCH_DAY
        return _INT.pack(day)
    if pa.types.is_timestamp(kind):
        moment = datetime.datetime.fromisoformat(value)
        if (moment.tzinfo is None) != (kind.tz is None):
            return None
        if moment.tzinfo is None:
            moment = moment.replace(tzinfo=datetime.UTC)
        microseconds = (moment - _EPOCH) // _MICROSECOND
        if up and microseconds % 1000 == 0:
            microseconds += _LAST_IN_MILLISECOND
        return _LONG.pack(microseconds)
    return None


def _decimal_bytes(value: Decimal, scale: int) -> bytes | None:
    """Return the unscaled value, big-endian, in as few bytes as hold it."""
    sign, digits, exponent = value.as_tuple()
    if not isinstance(exponent, int):
        return None
    unscaled = int("".join(map(str, digits)))
    shift = exponent + scale
    if shift >= 0:
        unscaled *= 10**shift
    else:
        unscaled, rest = divmod(unscaled, 10**-shift)
        if rest:
            return None
    return unscaled_bytes(-unscaled if sign else unscaled)


def unscaled_bytes(unscaled: int) -> bytes:
    """Return an integer in two's complement, big-endian, in as few bytes as hold it."""
    size = (unscaled if unscaled >= 0 else ~unscaled).bit_length() // 8 + 1
    return unscaled.to_bytes(size, "big", signed=True)


def partition_of(file: DataFile, columns: MirroredColumns) -> tuple[Any, ...]:
    """Return the file's value of each partition column, as a manifest has it: numbers for dates,
    timestamps and decimals. StorageError for an invalid text."""
    values = []
    for column in columns.partition:
        value = value_of(file.partition.get(column.physical_name), column.arrow)
        if isinstance(value, Decimal):
            value = int(value.scaleb(column.arrow.scale))
        values.append(value)
    return tuple(values)


def partition_bound(column: MirroredColumn, value: Any) -> bytes:
    """Return a partition's value in Iceberg's binary form."""
    if pa.types.is_decimal(column.arrow):
        return unscaled_bytes(value)
    if isinstance(value, bool):
        return b"\x01" if value else b"\x00"
    is_long = column.arrow == pa.int64() or pa.types.is_timestamp(column.arrow)
    return (_LONG if is_long else _INT).pack(value)
