"""Computes the values of generated columns, for rows that are about to be written.

Comes in: a table's generated columns, rows in its stored columns. Goes out: the same rows with the
values that PostgreSQL would compute, and why some have no value. Earlier values of these columns
are ignored. Called by staging, by copies, for UPDATEs once their rows are known (``upsert``), by
local writes and by ALTER TABLE.

Generated columns are computed before NOT NULL and CHECK are checked, and read none of each other.

Source: ExecComputeStoredGenerated() in nodeModifyTable.c.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.errors import sqlstate_of
from wal2lake.lake.partitions import EMPTY_TEXT, EMPTY_TEXT_REMEDY
from wal2lake.lake.port import FieldSpec
from wal2lake.lake.staging.convert import SentColumn, convert_column, mapping_of
from wal2lake.model import Generated, Generation
from wal2lake.pgtypes import computed_here
from wal2lake.pgtypes.expressions import Computation, decode
from wal2lake.pgtypes.expressions.operators import TEXTS

_COMPILED: Final = 256
"""Number of compiled expressions that each process keeps."""

_NOT_NULL_VIOLATION: Final = "23502"

_COMPUTED_BY_DELTA: Final = (
    "Delta Lake's table computes this column by an expression of Spark's. Create the table anew"
    " without it, or skip the transaction: ALTER SUBSCRIPTION ... SKIP (lsn = ...)."
)

Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class NotComputed:
    """A row whose value cannot be computed, or not stored."""

    row: int
    column: str
    sqlstate: str
    message: str
    """PostgreSQL's message."""
    by_delta: bool = False
    """Whether Delta Lake generates the column, by an expression of Spark's."""

    @property
    def named_column(self) -> str | None:
        """The column that the error names: PostgreSQL names one only while it converts the
        column's value."""
        is_named = self.hint is None or self.message == EMPTY_TEXT
        return self.column if is_named else None

    @property
    def hint(self) -> str | None:
        """Remedy for an operator; None if the general hint for a column applies."""
        if self.message == EMPTY_TEXT:
            return EMPTY_TEXT_REMEDY
        if self.sqlstate == _NOT_NULL_VIOLATION:
            return None
        return _COMPUTED_BY_DELTA if self.by_delta else computed_here(self.column)


@lru_cache(maxsize=_COMPILED)
def _computation(generation: Generation, type_oid: int, typmod: int) -> Computation:
    tree = decode(generation.expression)
    return Computation(tree, generation.columns, type_oid, typmod)


def inputs_of(generated: Generated) -> set[str]:
    """Return the columns from which the values are computed."""
    return {column for _, generation in generated for column in generation.columns}


def computed(
    generated: Generated,
    fields: Sequence[FieldSpec],
    rows: pa.Table,
    where: Mask | None = None,
) -> tuple[pa.Table, list[NotComputed]]:
    """Compute the generated columns of the rows (``where`` only). Return the rows, and the
    failures in row order; a value that cannot be computed is null.

    ``fields``: the table's. ``rows`` has the generated columns and the columns that they read.
    """
    if not generated or not rows.num_rows or (where is not None and not where.any()):
        return rows, []
    by_name = {field.name: field for field in fields}
    failed: list[NotComputed] = []
    part = rows if where is None else rows.filter(pa.array(where))
    positions = np.arange(rows.num_rows) if where is None else np.flatnonzero(where)
    for name, generation in generated:
        array, failures = _column(by_name[name], generation, part)
        failed += [
            replace(failure, row=int(positions[failure.row])) for failure in failures
        ]
        place = rows.schema.get_field_index(name)
        if where is not None:
            array = in_place(rows.column(place), array, where)
        rows = rows.set_column(place, rows.schema.field(place), array)
    return rows, sorted(failed, key=lambda failure: failure.row)


def _column(
    field: FieldSpec, generation: Generation, rows: pa.Table
) -> tuple[pa.Array, list[NotComputed]]:
    computation = _computation(generation, int(field.pg_type_oid), field.pg_typmod)
    arrays = [rows.column(name).combine_chunks() for name in computation.columns]
    texts, failures = computation.texts(arrays, rows.num_rows)
    # The expression's texts may have any length; the column's length is applied now.
    typmod = -1 if field.pg_type_oid in TEXTS else field.pg_typmod
    sent = SentColumn(texts, None, field.pg_type_oid, typmod)
    converted = convert_column(sent, field, mapping_of(field))
    failed = [
        NotComputed(row, field.name, sqlstate_of(error), error.message)
        for row, error in failures
    ]
    failed += [
        NotComputed(bad.row, field.name, bad.sqlstate, bad.message)
        for bad in converted.bad
    ]
    return converted.array, failed


def empty_texts(
    rows: pa.Table, names: Collection[str], where: Mask | None = None
) -> list[NotComputed]:
    """Return the rows (``where`` only) with an empty text in a column by which the table is
    partitioned, where Delta reads it as NULL."""
    failed: list[NotComputed] = []
    for name in sorted(names):
        empty = pc.fill_null(pc.equal(rows.column(name), ""), False).to_numpy()
        positions = np.flatnonzero(empty if where is None else empty & where)
        failed += [
            NotComputed(int(row), name, "0A000", EMPTY_TEXT) for row in positions
        ]
    return failed


def in_place(column: pa.ChunkedArray, values: pa.Array, where: Mask) -> pa.Array:
    """Return the column with other values ``where``."""
    place = np.cumsum(where) - 1 + len(column)
    taken = np.where(where, place, np.arange(len(column)))
    both = pa.chunked_array([*column.chunks, values.cast(column.type)], column.type)
    return both.take(pa.array(taken))


def missing_value(
    generated: Generated,
    required: Collection[str],
    relation: str,
    rows: pa.Table,
    where: Mask | None = None,
) -> NotComputed | None:
    """Return the first row (among ``where``) in which a generated column is null and must not
    be."""
    failures: list[NotComputed] = []
    for name, _ in generated:
        if name not in required:
            continue
        null = pc.is_null(rows.column(name)).to_numpy().astype(np.bool_)
        positions = np.flatnonzero(null if where is None else null & where)
        if positions.size:
            failures.append(
                NotComputed(
                    int(positions[0]),
                    name,
                    _NOT_NULL_VIOLATION,
                    f'null value in column "{name}" of relation "{relation}" violates'
                    " not-null constraint",
                )
            )
    return min(failures, key=lambda failure: failure.row, default=None)
