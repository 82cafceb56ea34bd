"""The ports that evaluate expressions of Spark's SQL, and their values.

Comes in: pairs of rows, ``local`` and ``remote``, with the facts of their commits. Goes out: for
each pair the row that the expression chooses, or the values that it computes, or its error.
``upsert`` calls the port while a batch is staged, and the commands that set
``conflict_resolution`` check an expression with it; ``spark.expressions`` implements it.

``RowDemands`` are what Delta demands of the rows that a writer adds to one table: its CHECK
constraints and invariants hold, and its generated columns have their values. Comes in: rows.
Goes out: the same rows with these values, and the rows that must not be written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from wal2lake.lake.port import FieldSpec
from wal2lake.pgtypes import ConflictExpression

FACTS: Final = (
    "local_commit_time timestamp, remote_commit_time timestamp, local_origin string"
)
"""Columns of ``Pairs.facts`` as Spark's DDL."""


@dataclass(frozen=True, slots=True)
class Pairs:
    """Pairs of rows that meet; all columns have the same length."""

    local: pa.Table
    remote: pa.Table
    """Both tables have the fields of the lake table."""
    facts: pa.Table
    """Facts about the commits, as ``FACTS``."""

    def part(self, start: int, count: int) -> Pairs:
        """Return ``count`` pairs from ``start`` on."""
        return Pairs(
            self.local.slice(start, count),
            self.remote.slice(start, count),
            self.facts.slice(start, count),
        )


@dataclass(frozen=True, slots=True)
class EvaluatedPair:
    """Result for one pair of rows."""

    choice: str | None = None
    """One of ``CONFLICT_CHOICES``."""
    row: pa.Table | None = None
    """The merged row."""
    error: tuple[str, str] | None = None
    """SQLSTATE and message."""


def facts_table(
    local_us: Sequence[int | None],
    remote_us: Sequence[int | None],
    origins: Sequence[str | None],
) -> pa.Table:
    """Build ``Pairs.facts``; times are microseconds since 1970."""
    moment = pa.timestamp("us", "UTC")
    return pa.table(
        [
            pa.array(local_us, pa.int64()).cast(moment),
            pa.array(remote_us, pa.int64()).cast(moment),
            pa.array(origins, pa.string()),
        ],
        names=["local_commit_time", "remote_commit_time", "local_origin"],
    )


@dataclass(frozen=True, slots=True)
class RefusedValue:
    """A value of a generated column that cannot be computed, or not be stored."""

    row: int
    column: str
    sqlstate: str
    message: str


@dataclass(frozen=True, slots=True)
class RefusedRow:
    """Why a row must not be written."""

    sqlstate: str
    message: str
    shows_row: bool
    """Whether the row's values belong to the error's detail."""


class RowDemands(Protocol):
    """Delta's demands on the rows of one table. Safe for all threads."""

    @property
    def generated(self) -> frozenset[str]:
        """Columns that are computed: the generated columns that the publisher does not send."""

    @property
    def inputs(self) -> frozenset[str]:
        """Columns from which these are computed."""

    @property
    def checked(self) -> frozenset[str]:
        """Columns that conditions read."""

    def compute(self, rows: pa.Table) -> tuple[dict[str, pa.Array], list[RefusedValue]]:
        """Return the computed columns of rows, null where a value cannot be computed."""

    def violating(self, rows: pa.Table) -> npt.NDArray[np.bool_]:
        """Mark the rows that violate a condition, or make one fail."""

    def explain(self, relation: str, row: pa.Table) -> RefusedRow:
        """Return the error of a row that violates a condition."""


class Expressions(Protocol):
    """Checks and evaluates expressions. Safe for all threads."""

    def check_text(self, expression: ConflictExpression) -> None:
        """Check an expression as far as possible without the table. Raises as ``check``."""

    def check(
        self,
        fields: Sequence[FieldSpec],
        key: Sequence[str],
        expression: ConflictExpression,
    ) -> None:
        """Raise UsageError (42601, 42703, 42883, 42804) for an expression that the table's columns
        do not allow, and FeatureNotSupportedError for one whose result may differ when a batch
        is repeated."""

    def evaluate(
        self,
        fields: Sequence[FieldSpec],
        key: Sequence[str],
        required: frozenset[str],
        expression: ConflictExpression,
        pairs: Pairs,
    ) -> list[EvaluatedPair]:
        """Return a result for each pair up to the first that fails, which is the last.

        ``required``: columns that must not be null."""
        ...
