"""Translates dates and times to text.

Comes in: an operand, and the session's zone. Goes out: a Spark expression. Called by ``output``.

Sources: PostgreSQL manual 8.5.2; EncodeDateTime in datetime.c.
"""

from __future__ import annotations

from typing import Final

from sqlglot import exp

from wal2lake.pgtypes.timezone import zone_for
from wal2lake.sql.query.values.moments.zones import (
    at_time_zone,
    is_finite_constant,
    number_of,
    unless_infinite,
)
from wal2lake.sql.query.values.numeric import let, spark
from wal2lake.sql.query.values.types import Operand, cast

_ERAS: Final = (
    "case when :s like '+%' then concat(substring(:s, 2), :z)"
    " when :s like '-%' or :s like '0000-%' then concat(format_string('%04d', 1 +"
    " cast(split_part(trim(leading '-' from :s), '-', 1) as int)), '-',"
    " substring_index(split_part(:s, ' ', 1), '-', -2),"
    " if(:s like '% %', concat(' ', split_part(:s, ' ', 2)), ''), :z, ' BC')"
    " else concat(:s, :z) end"
)
"""PostgreSQL's text from Spark's text, which has a sign before years of more than four digits."""


def text_of(operand: Operand) -> exp.Expression:
    """The text of a date or timestamp."""
    return _text(operand, cast(operand.node, "STRING"), exp.Literal.string(""))


def _text(
    operand: Operand, text: exp.Expression, suffix: exp.Expression
) -> exp.Expression:
    if is_finite_constant(operand.node):
        return spark("concat(:s, :z)", s=text, z=suffix)
    word = spark(
        f"if({number_of(operand.type.oid)} > 0, 'infinity', '-infinity')",
        x=operand.node,
    )
    return unless_infinite(operand, word, let(_ERAS, s=text, z=suffix))


def zoned_text(operand: Operand, zone: str) -> exp.Expression:
    """The text of a timestamptz in the session's zone, with the offset."""
    if zone == "UTC":
        local_text = cast(cast(operand.node, "TIMESTAMP_NTZ"), "STRING")
        return _text(operand, local_text, exp.Literal.string("+00"))
    local = at_time_zone(operand, *zone_for(zone)).node
    offset = let(
        "concat(if(:o < 0, '-', '+'), date_format("
        "timestamp_seconds(abs(:o)), case when :o % 60 <> 0 then 'HH:mm:ss'"
        " when :o % 3600 <> 0 then 'HH:mm' else 'HH' end))",
        o=spark(
            "((unix_micros(cast(:l as timestamp)) - unix_micros(:x)) div 1000000)",
            l=local,
            x=operand.node,
        ),
    )
    return _text(operand, cast(local, "STRING"), offset)
