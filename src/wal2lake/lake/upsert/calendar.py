"""Converts dates and timestamps of files that Spark has written in its legacy calendar.

Spark before 3.0, and later versions if configured so, count days as Java's GregorianCalendar
does: before 15 October 1582 they are Julian. The footer of such a file says so. Its values become
those of the proleptic Gregorian calendar, which PostgreSQL, Delta and all other readers use, with
the same year, month and day.

Comes in: a file's footer, Arrow columns as they are stored. Goes out: the columns converted.
Called by ``stored``.

Source: DataSourceUtils.datetimeRebaseSpec() and RebaseDateTime.scala of Spark.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.pgtypes.moments import INFINITE_DAY, INFINITE_MICROSECOND

_VERSION: Final = b"org.apache.spark.version"
_ZONE: Final = b"org.apache.spark.timeZone"
_DAYS: Final = (b"org.apache.spark.legacyDateTime", b"3.0.0")
_INT96: Final = (b"org.apache.spark.legacyINT96", b"3.1.0")
"""Footer keys that mark the old calendar, with the version below which all files have it."""

_SWITCH: Final = -141_427
"""1582-10-15, in days since 1970-01-01: from here on both calendars are the same."""

_DAY_US: Final = 86_400_000_000

_ZONES_AGREE_US: Final = -2_208_988_800_000_000
"""1900-01-01: from here on Java's two calendars agree in all time zones, too."""

_UTC: Final = frozenset({b"UTC", b"Z", b"GMT", b"Etc/UTC", b"+00:00"})

_EPOCH_JDN: Final = 2_440_588
"""The Julian day number of 1970-01-01."""

Days = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Legacy:
    """The values of a file that are in the legacy calendar, and their time zone."""

    dates: bool
    """True for dates, and for timestamps that are not INT96."""
    int96: bool
    zone: bytes

    def meant(self, column: Any, *, is_int96: bool) -> Any:
        """Convert a column (Array or ChunkedArray) to the Gregorian calendar; return it unchanged
        if no value is that old. 0A000 for a timestamp before 1900 in another time zone than
        UTC."""
        kind = column.type
        if isinstance(column, pa.ChunkedArray):
            chunks = [self.meant(c, is_int96=is_int96) for c in column.chunks]
            return pa.chunked_array(chunks, kind)
        if pa.types.is_list(kind):
            if column.offset:
                # Copy the slice: ListArray.from_arrays needs offsets that begin at 0.
                column = column.take(pa.array(np.arange(len(column))))
            values = self.meant(column.values, is_int96=is_int96)
            return pa.ListArray.from_arrays(
                column.offsets, values, kind, mask=column.is_null()
            )
        if pa.types.is_date32(kind) and self.dates:
            return _convert_below(column, _SWITCH, _gregorian)
        zoned = pa.types.is_timestamp(kind) and kind.tz is not None
        if zoned and (self.int96 if is_int96 else self.dates):
            if self.zone in _UTC:
                return _convert_below(column, _SWITCH * _DAY_US, _gregorian_us)
            return _convert_below(column, _ZONES_AGREE_US, self._refuse)
        return column

    def _refuse(self, values: Days) -> Days:
        raise FeatureNotSupportedError(
            "a timestamp before 1900 is stored in Spark's legacy calendar of time zone"
            f' "{self.zone.decode("utf-8", "replace")}"',
            hint="Rewrite the table's rows with Spark 3 or later.",
        )


def legacy_of(metadata: Any) -> Legacy | None:
    """Read whether a footer (``FileMetaData``) marks the old calendar; None if it does not."""
    footer = metadata.metadata or {}
    version = footer.get(_VERSION)
    if version is None:
        return None
    dates, int96 = (key in footer or version < below for key, below in (_DAYS, _INT96))
    return Legacy(dates, int96, footer.get(_ZONE, b"UTC")) if dates or int96 else None


def _convert_below(column: Any, before: int, move: Any) -> Any:
    """Return the column with the values below ``before`` moved."""
    numbers = column.cast(pa.int32() if pa.types.is_date32(column.type) else pa.int64())
    least = pc.min(numbers).as_py()
    if least is None or least >= before:
        return column
    values = numbers.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    infinite = INFINITE_DAY if numbers.type == pa.int32() else INFINITE_MICROSECOND
    old = (values < before) & (values != -infinite)
    values[old] = move(values[old])
    mask = column.is_null().to_numpy(zero_copy_only=False)
    return pa.array(values, mask=mask).cast(numbers.type).cast(column.type)


def _gregorian_us(values: Days) -> Days:
    days = values // _DAY_US
    return values + (_gregorian(days) - days) * _DAY_US


def _gregorian(days: Days) -> Days:
    """Convert days whose date is Julian to the days of the same date in the Gregorian calendar. A
    29 February that the Gregorian calendar does not have becomes 1 March."""
    # Fliegel and Van Flandern's conversion there and back, as in the Calendar FAQ, 2.16.
    c = days + _EPOCH_JDN + 32_082
    d = (4 * c + 3) // 1461
    e = c - 1461 * d // 4
    m = (5 * e + 2) // 153
    day = e - (153 * m + 2) // 5
    # m counts months from March, d years from 4800 BC that begin in March.
    first = (153 * m + 2) // 5 + 365 * d + d // 4 - d // 100 + d // 400 - 32_044
    return first + day - _EPOCH_JDN
