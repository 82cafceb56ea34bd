"""Values that are equal by their type and yet not identical. Pure.

Comes in: the columns that name a row by its whole content. Goes out: the same columns with equal
values made identical. Called where an UPDATE or DELETE of a table without a key has found no
identical row: PostgreSQL looks for one with the type's ``=``, so of a table that has been written
here, too, 1.0 may be meant where 1.00 is.

Known are 0.0 and -0.0, the scale of a numeric that is kept as text, the case of citext, and spaces
behind a char without a length. Not known: jsonb and arrays that hold such numbers, collations.

Source: execReplication.c (tuples_equal).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from enum import Enum

import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.lake.port import FieldSpec


class Looseness(Enum):
    """Why equal values of a column may differ."""

    SIGNED_ZERO = "0.0, -0.0"
    SCALE = "1.0, 1.00"
    CASE = "a, A"
    SPACES = "char"


def loose_columns(
    fields: Sequence[FieldSpec], key: Sequence[int]
) -> Mapping[int, Looseness]:
    """Of the columns at ``key``, those in which equal values may differ, by their place in
    ``key``."""
    kinds = ((place, _looseness(fields[i])) for place, i in enumerate(key))
    return {place: kind for place, kind in kinds if kind is not None}


def _looseness(field: FieldSpec) -> Looseness | None:
    ddl = field.spark_ddl.lower()
    if ddl in ("float", "double"):
        return Looseness.SIGNED_ZERO
    if ddl != "string":
        return None
    if field.pg_type_oid == 1700:
        return Looseness.SCALE
    if field.pg_type_oid == 1042 and field.pg_typmod == -1:
        return Looseness.SPACES
    name = (field.pg_type_name or "").rpartition(".")[2].strip('"')
    return Looseness.CASE if name == "citext" else None


def alike(
    columns: Sequence[pa.ChunkedArray], loose: Mapping[int, Looseness]
) -> list[pa.ChunkedArray]:
    """The columns with one value for all that are equal."""
    return [
        column if place not in loose else _alike(column, loose[place])
        for place, column in enumerate(columns)
    ]


def alike_scans(
    scans: Iterable[pa.Table], loose: Mapping[int, Looseness]
) -> Iterator[pa.Table]:
    """The same of rows of the table: columns ``k<i>``, and others that stay."""
    for scan in scans:
        for place, kind in loose.items():
            at = scan.schema.get_field_index(f"k{place}")
            scan = scan.set_column(at, f"k{place}", _alike(scan.column(at), kind))
        yield scan


def _alike(column: pa.ChunkedArray, kind: Looseness) -> pa.ChunkedArray:
    match kind:
        case Looseness.SIGNED_ZERO:
            return pc.add(column, pa.scalar(0.0, column.type))
        case Looseness.SCALE:
            short = pc.replace_substring_regex(column, r"^(.*\..*?)0+$", r"\1")
            return pc.utf8_rtrim(short, characters=".")
        case Looseness.CASE:
            return pc.utf8_lower(column)
        case Looseness.SPACES:
            return pc.utf8_rtrim(column, characters=" ")
