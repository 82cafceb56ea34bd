"""The partition key of a partitioned table, in PostgreSQL's words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class PartitionStrategy(Enum):
    """pg_partitioned_table.partstrat, without hash: it has no default partition."""

    LIST = "l"
    """By single values."""
    RANGE = "r"
    """By ranges of values."""


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """PARTITION BY; columns only, no expressions."""

    strategy: PartitionStrategy
    columns: tuple[str, ...]
    """At least one column. A column may be listed twice."""
