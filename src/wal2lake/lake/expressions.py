"""The port that evaluates users' expressions that resolve conflicts, and its values.

Comes in: pairs of rows, ``local`` and ``remote``, with the facts of their commits. Goes out: for
each pair the row that the expression chooses, or the values that it computes, or its error.
``upsert`` calls the port while a batch is staged, and the commands that set
``conflict_resolution`` check an expression with it; ``spark.expressions`` implements it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

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
