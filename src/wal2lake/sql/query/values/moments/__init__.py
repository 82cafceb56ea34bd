"""Translates operations on dates, times of day and timestamps.

Takes: operands and texts of constants. Gives: operands; canonical texts and numbers of constants.
Owns: nothing. Never: reads Spark's session zone, which is UTC: an operation that PostgreSQL does
in the session's time zone, such as truncating a timestamptz to its day, shifts the value to local
time and back.

    constants  texts of constants
    zones      conversions between date, timestamp and timestamptz; infinities
    operators  + and - with dates and timestamps
    clock      times of day
    fields     date_trunc() and EXTRACT
    texts      dates and timestamps as text
"""

from wal2lake.sql.query.values.moments.constants import (
    constant,
    parse_moment,
    parse_time,
    parse_timestamp,
    parse_timetz,
    rounded_clock,
)
from wal2lake.sql.query.values.moments.fields import date_trunc, extract
from wal2lake.sql.query.values.moments.operators import add, rounded
from wal2lake.sql.query.values.moments.texts import text_of, zoned_text
from wal2lake.sql.query.values.moments.zones import (
    at_time_zone,
    converted,
    unless_infinite,
)

__all__ = [
    "add",
    "at_time_zone",
    "constant",
    "converted",
    "date_trunc",
    "extract",
    "parse_moment",
    "parse_time",
    "parse_timestamp",
    "parse_timetz",
    "rounded",
    "rounded_clock",
    "text_of",
    "unless_infinite",
    "zoned_text",
]
