"""How a partitioned table divides its rows; PostgreSQL's words."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class PartitionStrategy(Enum):
    """pg_partitioned_table.partstrat. Hash is not here: it has no default partition."""

    LIST = "l"
    """By single values."""
    RANGE = "r"
    """By ranges of values."""


@dataclass(frozen=True, slots=True)
class PartitionKey:
    """PARTITION BY; columns only, no expressions."""

    strategy: PartitionStrategy
    columns: tuple[str, ...]
    """At least one. A column may be there twice."""
