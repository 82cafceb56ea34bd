"""Checks CHECK constraints of rows that are about to be written.

Comes in: a table's constraints, rows in its stored columns. Goes out: the rows that violate a
constraint, and PostgreSQL's error for the first one. NULL is not false: such a row is accepted.
Called by staging, by copies, for UPDATEs once their rows are known (``upsert.checking``), and by
local writes.

PostgreSQL evaluates constraints in the order of their names, and an error of an expression
(division by zero) is an error of the row, too.

Source: ExecRelCheck() and ExecConstraints() in execMain.c.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal2lake.errors import Wal2LakeError, sqlstate_of
from wal2lake.lake.port import FieldSpec
from wal2lake.lake.rowtexts import row_texts
from wal2lake.model import CheckConstraint
from wal2lake.pgtypes.expressions import (
    Expression,
    ExpressionNode,
    StoredFilter,
    decode,
)

CHECK_VIOLATION: Final = "23514"

_BOOL: Final = 16

_COMPILED: Final = 256
"""Number of compiled constraints that each process keeps."""


@dataclass(frozen=True, slots=True)
class Violation:
    """PostgreSQL's error about a row."""

    sqlstate: str
    message: str
    detail: str | None
    """Detail with the row's values."""
    constraint: str | None
    """Name of the constraint; None if an expression has failed."""


@lru_cache(maxsize=_COMPILED)
def _negated(check: CheckConstraint) -> StoredFilter:
    """Return a filter that is true for rows that violate the constraint."""
    tree = decode(check.expression)
    return StoredFilter(Expression(ExpressionNode.NOT, _BOOL, (tree,)), check.columns)


def violating(
    checks: Sequence[CheckConstraint], rows: pa.Table
) -> npt.NDArray[np.bool_]:
    """Mark the rows that violate one of the constraints, or make its expression fail."""
    violations = np.zeros(rows.num_rows, np.bool_)
    for check in checks:
        violations |= _violating(check, rows)
    return violations


def _violating(check: CheckConstraint, rows: pa.Table) -> npt.NDArray[np.bool_]:
    if not rows.num_rows:
        return np.zeros(0, np.bool_)
    try:
        return _evaluated(check, rows)
    except Wal2LakeError:
        if rows.num_rows == 1:
            return np.ones(1, np.bool_)
    half = rows.num_rows // 2
    parts = (rows.slice(0, half), rows.slice(half))
    return np.concatenate([_violating(check, part) for part in parts])


def _evaluated(check: CheckConstraint, rows: pa.Table) -> npt.NDArray[np.bool_]:
    if not check.columns:
        # The expression does not depend on the row.
        values = pa.array(np.zeros(rows.num_rows, np.int8))
        batch = pa.record_batch([values], names=[""])
    else:
        columns = [rows.column(name).combine_chunks() for name in check.columns]
        batch = pa.record_batch(columns, names=list(check.columns))
    answer = _negated(check).matches(batch)
    mask: npt.NDArray[np.bool_] = answer.to_numpy(zero_copy_only=False)
    return mask.astype(np.bool_)


def explained(
    checks: Sequence[CheckConstraint],
    relation: str,
    fields: Sequence[FieldSpec],
    row: pa.Table,
) -> Violation:
    """Build the error for a row that ``violating`` has marked; ``relation``: the bare name."""
    for check in sorted(checks, key=lambda constraint: constraint.name.encode()):
        try:
            if not _evaluated(check, row)[0]:
                continue
        except Wal2LakeError as error:
            return Violation(sqlstate_of(error), error.message, None, None)
        (text,) = row_texts(fields, row.select([field.name for field in fields]))
        return Violation(
            CHECK_VIOLATION,
            f'new row for relation "{relation}" violates check constraint'
            f' "{check.name}"',
            f"Failing row contains {text}.",
            check.name,
        )
    raise AssertionError("no constraint is violated")


def first_violation(
    checks: Sequence[CheckConstraint],
    relation: str,
    fields: Sequence[FieldSpec],
    rows: pa.Table,
    where: npt.NDArray[np.bool_] | None = None,
) -> tuple[int, Violation] | None:
    """Return the first row (among ``where``) that violates a constraint, by its position in
    ``rows``."""
    if not checks or not rows.num_rows:
        return None
    places = np.arange(rows.num_rows)
    if where is not None:
        places = places[where]
        rows = rows.filter(pa.array(where))
    positions = np.flatnonzero(violating(checks, rows))
    if not positions.size:
        return None
    first = int(positions[0])
    return int(places[first]), explained(checks, relation, fields, rows.slice(first, 1))
