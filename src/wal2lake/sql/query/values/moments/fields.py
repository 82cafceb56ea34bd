"""Translates date_trunc() and EXTRACT.

Comes in: the name of a field and an operand. Goes out: an operand. Called by ``rules`` and
``dates``.

Sources: PostgreSQL manual 9.9.1, 9.9.2; timestamp_trunc, timestamp_part_common in timestamp.c.
"""

from __future__ import annotations

from typing import Final

from wal2lake.errors import UsageError
from wal2lake.sql.query.values import intervals
from wal2lake.sql.query.values import types as t
from wal2lake.sql.query.values.moments.zones import (
    DAYS,
    carried,
    converted,
    unless_infinite,
)
from wal2lake.sql.query.values.numeric import let, spark
from wal2lake.sql.query.values.types import Operand, cast, plain

_TRUNCATIONS: Final = frozenset(
    (
        "YEAR",
        "QUARTER",
        "MONTH",
        "WEEK",
        "DAY",
        "HOUR",
        "MINUTE",
        "SECOND",
        "MILLISECOND",
        "MICROSECOND",
    )
)
_WITHIN_HOURS: Final = frozenset(
    ("HOUR", "MINUTE", "SECOND", "MILLISECOND", "MICROSECOND")
)
_FIELDS: Final = {
    # Spark's year 0 is 1 BC.
    "YEAR": "(year(:x) - if(year(:x) <= 0, 1, 0))",
    "ISOYEAR": "(extract(yearofweek from :x)"
    " - if(extract(yearofweek from :x) <= 0, 1, 0))",
    "DECADE": "if(year(:x) >= 0, year(:x) div 10, -((9 - year(:x)) div 10))",
    "CENTURY": "if(year(:x) > 0, (year(:x) + 99) div 100, -((100 - year(:x)) div 100))",
    "QUARTER": "quarter(:x)",
    "MONTH": "month(:x)",
    "WEEK": "weekofyear(:x)",
    "DAY": "day(:x)",
    "DOY": "dayofyear(:x)",
    "DOW": "(dayofweek(:x) - 1)",
    "ISODOW": "(weekday(:x) + 1)",
    "HOUR": "hour(:x)",
    "MINUTE": "minute(:x)",
}


def date_trunc(unit: str, operand: Operand, zone: str) -> Operand:
    """Translate date_trunc(). The result has the operand's type; a date gives timestamptz."""
    unit = unit.upper().rstrip("S")
    if unit not in _TRUNCATIONS:
        raise t.refuse(f"date_trunc('{unit.lower()}', ...)")
    kind = t.TIMESTAMPTZ if operand.type.oid == t.DATE else operand.type.oid
    if kind not in (t.TIMESTAMP, t.TIMESTAMPTZ):
        raise t.refuse(f"date_trunc() of {operand.type.name}")
    # Within an hour the offset does not change, even if the local time belongs to two instants.
    keeps_offset = kind == t.TIMESTAMPTZ and zone != "UTC" and unit in _WITHIN_HOURS
    if keeps_offset:
        operand = converted(operand, kind, zone)
    local = converted(operand, t.TIMESTAMP, zone)
    whole = f"cast(date_trunc('{unit}', cast(:x as timestamp)) as timestamp_ntz)"
    if keeps_offset:
        remainder = let(f"(:x - {whole})", x=local.node)
        node = spark("(:i - :p)", i=operand.node, p=remainder)
        return Operand(carried(operand, node, kind), plain(kind))
    node = spark(whole, x=local.node)
    truncated = converted(Operand(node, plain(t.TIMESTAMP)), kind, zone)
    return Operand(carried(operand, truncated.node, kind), truncated.type)


def extract(field: str, operand: Operand, zone: str) -> Operand:
    """Translate EXTRACT. The result is numeric, with scale 6 for fields with fractions."""
    field = field.upper()
    if operand.type.oid == t.INTERVAL:
        return intervals.extract(field, operand)
    if operand.type.oid not in t.MOMENTS:
        raise t.refuse(f"EXTRACT from {operand.type.name}")
    extracted = _extracted(field, operand, zone)
    ddl = t.spark_name(extracted.type)
    instead = f"cast(null as {ddl})"
    if field in _GROWING:
        error = t.failure(
            "0A000",
            f"EXTRACT({field.lower()} from infinity) is not supported on lake tables",
        )
        instead = f"cast({error} as {ddl})"
    return Operand(unless_infinite(operand, instead, extracted.node), extracted.type)


_GROWING: Final = frozenset(("EPOCH", "YEAR", "ISOYEAR", "DECADE", "CENTURY"))
"""Fields that are infinite for an infinity. Other fields are NULL (NonFiniteTimestampTzPart)."""


def _extracted(field: str, operand: Operand, zone: str) -> Operand:
    if field == "EPOCH":
        instant = operand
        if operand.type.oid == t.TIMESTAMP:
            instant = Operand(cast(operand.node, "TIMESTAMP"), plain(t.TIMESTAMPTZ))
        if operand.type.oid == t.DATE:
            node = spark(f"cast({DAYS} * 86400L as decimal(20,0))", x=operand.node)
            return Operand(node, t.decimal(20, 0))
        node = spark(
            "cast(cast(unix_micros(:x) as decimal(20,0)) * 0.000001BD as decimal(26,6))",
            x=instant.node,
        )
        return Operand(node, t.decimal(26, 6))
    # A date may be out of the range of timestamps.
    has_day_only = operand.type.oid == t.DATE and field not in _WITHIN_HOURS
    local = operand if has_day_only else converted(operand, t.TIMESTAMP, zone)
    if field == "SECOND":
        if operand.type.oid == t.DATE:
            raise UsageError(
                'unit "second" not supported for type date', sqlstate="0A000"
            )
        node = spark("cast(extract(second from :x) as decimal(8,6))", x=local.node)
        return Operand(node, t.decimal(8, 6))
    if field in ("MILLISECONDS", "MICROSECONDS") and operand.type.oid != t.DATE:
        micros = "pmod(unix_micros(cast(:x as timestamp)), 60000000)"
        if field == "MICROSECONDS":
            node = spark(f"cast({micros} as decimal(10,0))", x=local.node)
            return Operand(node, t.decimal(10, 0))
        node = spark(f"cast({micros} * 0.001BD as decimal(10,3))", x=local.node)
        return Operand(node, t.decimal(10, 3))
    template = _FIELDS.get(field)
    if template is None:
        raise t.refuse(f"EXTRACT({field.lower()} ...)")
    node = spark(f"cast({template} as decimal(10,0))", x=local.node)
    return Operand(node, t.decimal(10, 0))
