"""What a batch's rows hold is remembered within a bound, of Python's memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pytest

from wal2lake.lake.capture.comparison import ComparisonMemory
from wal2lake.lake.capture.replay import NotAsSent, SentTable, _Filler
from wal2lake.model import Column, Oid, Relation, ReplicaIdentity

ROWS = 5_000


def filler(columns: int, most: int) -> _Filler:
    relation = Relation(
        Oid(16384),
        "s",
        "t",
        ReplicaIdentity.DEFAULT,
        tuple(Column(f"c{i}", Oid(25), -1, i == 0) for i in range(columns)),
    )
    nothing: Any = None
    return _Filler(
        SentTable(
            cast(Any, nothing),
            cast(Any, nothing),
            relation,
            [0],
            True,
            {},
            ComparisonMemory(most, Path()),
        )
    )


def inserts(columns: int, width: int) -> pa.RecordBatch:
    values = {
        f"c{i}": pa.array([b"%0*d" % (width, n) for n in range(ROWS)], pa.binary())
        for i in range(columns)
    }
    return pa.RecordBatch.from_pydict(
        {
            "op": pa.array(np.full(ROWS, ord("I"), np.uint8)),
            "old": pa.array(np.zeros(ROWS, np.uint8)),
            **values,
        }
    )


@pytest.mark.parametrize(("columns", "width"), [(2, 4), (3, 6), (20, 10), (3, 900)])
def test_the_bound_is_of_what_is_held(columns: int, width: int) -> None:
    batch = inserts(columns, width)
    tracemalloc.start()
    try:
        kept = filler(columns, 1 << 40)
        kept.filled(batch, {})
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    with pytest.raises(NotAsSent, match="too large"):
        filler(columns, held).filled(batch, {})
    filler(columns, 2 * held).filled(batch, {})
