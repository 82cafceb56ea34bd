"""Builds Delta's per-file statistics from a Parquet footer.

Comes in: the ``FileMetaData`` of a file that was just written (a ParquetWriter gives it without
reading anything back). Goes out: the JSON text of the ``add`` action's ``stats``. Called inside
Spark executors, so it needs PyArrow only; pure.

Why this way. ``numRecords`` is required in tables with deletion vectors, and min/max let Delta
skip files: a MERGE that touches a narrow range of keys reads a few files only. A missing
statistic costs a read, a wrong one loses rows, so every bound that is not certain is left out:

- real and double: Parquet's bounds ignore NaN, which Spark sorts above everything;
- a bound of dates or timestamps that is outside years 1-9999 or infinite: Delta's protocol does
  not say how such a value is written, and not every reader knows Spark's form
  (``+10000-01-01``). The other bound stays;
- nested columns: their footers count elements, not rows.

Source: Delta transaction log protocol, "Per-file Statistics".
"""

from __future__ import annotations

import datetime
import json
from decimal import Decimal

import pyarrow as pa
import pyarrow.parquet as pq

from wal2lake.lake.origins import COLUMNS
from wal2lake.lake.port import INDEXED_COLUMNS
from wal2lake.lake.tablefiles import AddedFile

STRING_PREFIX = 32
"""Characters that Delta keeps of a string bound, since statistics are read at every planning."""

_HIGHEST_CHARACTER = "\U0010ffff"
_EPOCH_DAY = datetime.date(1970, 1, 1).toordinal()
_MILLISECOND = datetime.timedelta(milliseconds=1)
_UNITS_PER_SECOND = {"s": 1, "ms": 10**3, "us": 10**6, "ns": 10**9}


def added_file(
    path: str, size: int, modified_ms: int, metadata: pq.FileMetaData
) -> AddedFile:
    """Describe a finished file for ``commit_files``; ``path`` relative to the table."""
    return AddedFile(path, size, modified_ms, stats_for(metadata))


def stats_for(metadata: pq.FileMetaData) -> str:
    """Return the statistics as JSON, under the column names of the file."""
    lows: dict[str, object] = {}
    highs: dict[str, object] = {}
    nulls: dict[str, int] = {}
    schema = metadata.schema.to_arrow_schema()
    leaf = 0
    named = [field for field in schema if field.name not in COLUMNS]
    for field in named[:INDEXED_COLUMNS]:
        if pa.types.is_nested(field.type):
            leaf += _leaves(field.type)
            continue
        column = [
            metadata.row_group(group).column(leaf).statistics
            for group in range(metadata.num_row_groups)
        ]
        leaf += 1
        null_count = _null_count(column)
        if null_count is None:
            continue
        nulls[field.name] = null_count
        low, high = _bounds(field.type, column) or (None, None)
        if low is not None:
            lows[field.name] = low
        if high is not None:
            highs[field.name] = high
    # Decimals are JSON numbers with all their digits, which json.dumps cannot write.
    return (
        f'{{"numRecords":{metadata.num_rows},"minValues":{_object(lows)},'
        f'"maxValues":{_object(highs)},"nullCount":{_object(nulls)},"tightBounds":true}}'
    )


def _leaves(kind: pa.DataType) -> int:
    """Return the number of Parquet columns that one Arrow column becomes."""
    if pa.types.is_map(kind):
        return _leaves(kind.key_type) + _leaves(kind.item_type)
    if (
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
    ):
        return _leaves(kind.value_type)
    if pa.types.is_struct(kind):
        return sum(_leaves(kind.field(i).type) for i in range(kind.num_fields))
    return 1


def _null_count(column: list[pq.Statistics | None]) -> int | None:
    total = 0
    for part in column:
        if part is None or not part.has_null_count:
            return None
        total += part.null_count
    return total


def _bounds(
    kind: pa.DataType, column: list[pq.Statistics | None]
) -> tuple[object, object] | None:
    """Return the smallest and the largest value over all row groups, in Delta's JSON form; None
    in place of a missing bound."""
    raw = _is_raw(kind)
    lows, highs = [], []
    for part in column:
        assert part is not None
        if not part.has_min_max:
            if part.num_values == 0:
                continue  # This row group holds only nulls.
            return None
        lows.append(part.min_raw if raw else part.min)
        highs.append(part.max_raw if raw else part.max)
    if not lows:
        return None
    return _as_json(kind, min(lows), max(highs))


def _is_raw(kind: pa.DataType) -> bool:
    # PyArrow cannot convert years beyond 9999 to Python values.
    return bool(pa.types.is_date32(kind) or pa.types.is_timestamp(kind))


def _as_json(
    kind: pa.DataType, low: object, high: object
) -> tuple[object, object] | None:
    if pa.types.is_signed_integer(kind):
        return low, high
    if pa.types.is_decimal(kind):
        both = isinstance(low, Decimal) and isinstance(high, Decimal)
        return (low, high) if both else None
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        assert isinstance(low, str) and isinstance(high, str)
        return _string_bounds(low, high)
    if pa.types.is_date32(kind):
        assert isinstance(low, int) and isinstance(high, int)
        return _date(low), _date(high)
    if pa.types.is_timestamp(kind):
        assert isinstance(low, int) and isinstance(high, int)
        return _instant(kind, low, up=False), _instant(kind, high, up=True)
    return None


def _string_bounds(low: str, high: str) -> tuple[str, str]:
    first = low[:STRING_PREFIX]
    if len(high) <= STRING_PREFIX:
        return first, high
    # Every string that starts with the prefix sorts below the prefix followed by the highest
    # character, unless its next character is the highest one itself.
    end = STRING_PREFIX
    while end < len(high) and high[end] == _HIGHEST_CHARACTER:
        end += 1
    return first, high[:end] + _HIGHEST_CHARACTER


def _date(days: int) -> str | None:
    try:
        return datetime.date.fromordinal(days + _EPOCH_DAY).isoformat()
    except (ValueError, OverflowError):
        return None


def _instant(kind: pa.TimestampType, value: int, *, up: bool) -> str | None:
    """Return an instant in milliseconds, the precision of the text form, rounded outwards."""
    units = _UNITS_PER_SECOND[kind.unit]
    milliseconds = value * 1000 // units
    if up and milliseconds * units != value * 1000:
        milliseconds += 1
    try:
        moment = datetime.datetime(1970, 1, 1) + milliseconds * _MILLISECOND
    except OverflowError:
        return None
    text = moment.isoformat(timespec="milliseconds")
    return text if kind.tz is None else text + "Z"


def _object(values: dict[str, object] | dict[str, int]) -> str:
    parts = (
        f"{json.dumps(name)}:"
        f"{format(value, 'f') if isinstance(value, Decimal) else json.dumps(value)}"
        for name, value in values.items()
    )
    return "{" + ",".join(parts) + "}"
