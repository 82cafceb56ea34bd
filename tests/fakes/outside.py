"""Rows of a table at the source and of its Delta table, each read by software of others.

psycopg reads the source and deltalake the files: neither Spark nor anything of ours is between.
"""

from __future__ import annotations

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import psycopg
import pyarrow as pa
from deltalake import DeltaTable, QueryBuilder

from wal2lake.testing.node import Node


def assert_equal_outside(node: Node, conninfo: str, tables: tuple[str, ...]) -> None:
    """The tables (``schema.name``) are equal row by row; the node must have caught up."""
    with psycopg.connect(conninfo) as source:
        for name in tables:
            theirs = Counter(map(_shown, source.execute(f"select * from {name}")))
            location = node.directory / "warehouse" / name.replace(".", "/")
            answer = (
                QueryBuilder()
                .register("t", DeltaTable(str(location)))
                .execute("select * from t")
            )
            rows = pa.table(answer.read_all()).to_pylist()
            ours = Counter(_shown(row.values()) for row in rows)
            assert ours == theirs, name


def _shown(row: Any) -> tuple[str, ...]:
    """Floats to their last bit, NaN equal to itself, decimals with their scale."""
    return tuple(
        repr(value.astimezone(UTC) if isinstance(value, datetime) else value)
        for value in row
    )
