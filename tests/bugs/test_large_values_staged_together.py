"""Rows of one relation in many files were joined whatever they weigh: above 2 GiB in a column Arrow
gives several batches, and the subscription stopped for ever."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from wal2lake.lake.staging import stage


def test_a_run_ends_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = [pa.record_batch({"v": ["x" * 400] * 2}) for _ in range(7)]
    batches.append(pa.record_batch({"v": ["x" * 5000]}))
    part: Any = SimpleNamespace(source=SimpleNamespace(relation="r"))
    unused: Any = None
    monkeypatch.setattr(stage, "_rows", lambda *_: iter(batches))
    monkeypatch.setattr(stage, "_RUN_BYTES", 2000)
    target: Any = SimpleNamespace(fills={})
    found = list(stage._runs([part], unused, target))
    assert [batch.num_rows for _, batch, _ in found] == [4, 4, 4, 2, 1]
    assert sum(batch.num_rows for _, batch, _ in found) == 15
