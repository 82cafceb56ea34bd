"""Columns of PostgreSQL text as the typed columns of a target table.

Comes in: columns by name, as PostgreSQL printed them (binary Arrow arrays, null is NULL),
and the target's fields. Goes out: a typed Arrow table with exactly those fields, and
the values that could not be stored, by row. Called inside Spark's Python workers by staging
and by the initial copy: both must store the same text as the same value.

The target's field decides, not the publisher's column: PostgreSQL's subscriber too gives the
text to the input function of its own column. What type that is stands in the field: its
PostgreSQL type, stored as its Spark type (which a user may have chosen).

Source: PostgreSQL worker.c, slot_store_data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal2lake.lake.port import FieldSpec
from wal2lake.model import INVALID_OID
from wal2lake.pgtypes import (
    TypeMapping,
    arrow_from_ddl,
    ddl_from_arrow,
    format_type,
    mapping_for,
    result_type,
    text_to_arrow,
    type_by_oid,
)

FAILURES_KEPT: Final = 5
"""Per column of one call: the first is what counts, the others help the operator."""


@dataclass(frozen=True, slots=True)
class BadValue:
    """A value that the target column cannot hold."""

    row: int
    """Position in the input."""
    column: str
    sqlstate: str
    message: str
    """PostgreSQL's, without the value."""


def mapping_of(field: FieldSpec) -> TypeMapping:
    """How text becomes a value of this field; UsageError if nothing can."""
    wanted = arrow_from_ddl(field.spark_ddl)
    if field.pg_type_oid == INVALID_OID:
        oid, typmod = result_type(field.spark_ddl)
        return mapping_for(oid, typmod)
    oid, typmod = field.pg_type_oid, field.pg_typmod
    default = mapping_for(oid, typmod, type_name=field.pg_type_name)
    if default.arrow_type == wanted:
        return default
    known = type_by_oid(oid)
    if known is None:
        chosen = {field.pg_type_name or "unknown": field.spark_ddl}
    elif known.is_array and pa.types.is_list(wanted):
        element = format_type(known.element_oid, typmod)
        chosen = {element: ddl_from_arrow(wanted.value_type)}
    else:
        chosen = {format_type(oid, typmod): field.spark_ddl}
    return mapping_for(oid, typmod, type_name=field.pg_type_name, overrides=chosen)


def convert_column(
    values: pa.Array, field: FieldSpec, mapping: TypeMapping
) -> tuple[pa.Array, tuple[BadValue, ...]]:
    """Convert one column; a value that cannot be stored is null, and listed."""
    converted = text_to_arrow(values, mapping)
    found = [
        BadValue(int(row), field.name, failure.sqlstate, failure.message)
        for failure in converted.failures
        for row in failure.rows[:FAILURES_KEPT]
    ]
    found.sort(key=lambda bad: bad.row)
    return converted.array, tuple(found[:FAILURES_KEPT])


def nulls_refused(
    array: pa.Array,
    field: FieldSpec,
    relation: str | None = None,
    rows: npt.NDArray[np.bool_] | None = None,
) -> tuple[BadValue, ...]:
    """The first null (among ``rows``) of a column that must not have one."""
    if array.null_count == 0:
        return ()
    null = array.is_null().to_numpy(zero_copy_only=False)
    if rows is not None:
        null = null & rows
    at = np.flatnonzero(null)
    if not at.size:
        return ()
    of_relation = "" if relation is None else f' of relation "{relation}"'
    return (
        BadValue(
            int(at[0]),
            field.name,
            "23502",
            f'null value in column "{field.name}"{of_relation} '
            "violates not-null constraint",
        ),
    )


def convert_columns(
    columns: Mapping[str, pa.Array],
    fields: Sequence[FieldSpec],
    *,
    relation: str | None = None,
    required: Sequence[str] = (),
) -> tuple[pa.Table, tuple[BadValue, ...]]:
    """Whole rows of text as the target's columns, in the target's order.

    A field without a column is null throughout. ``required``: the key's columns, which
    must not be null whatever the table declares. ``relation`` is the target's bare
    name, for messages. Bad values, in row order, are null in the table.
    """
    length = len(next(iter(columns.values()))) if columns else 0
    arrays = []
    bad: list[BadValue] = []
    for field in fields:
        mapping = mapping_of(field)
        text = columns.get(field.name)
        if text is None:
            array = pa.nulls(length, mapping.arrow_type)
        else:
            array, found = convert_column(text, field, mapping)
            bad += found
        if field.name in required or not field.nullable:
            refused = nulls_refused(array, field, relation)
            bad += [r for r in refused if all(r.row != b.row for b in bad)]
        arrays.append(array)
    table = pa.Table.from_arrays(arrays, names=[field.name for field in fields])
    return table, tuple(sorted(bad, key=lambda b: b.row))
