"""A batch whose rows are in many files had all of these open at once, and failed at the limit of
the process (`ulimit -n`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from tests.fakes.histories import FIELDS
from tests.fakes.stored_table import StoredTable

from wal2lake.lake.upsert.memory import UpsertMemory
from wal2lake.lake.upsert.stored import _HELD_FILES, StoredRows

ARROW = pa.schema(
    [
        ("grp", pa.int32()),
        ("number", pa.int32()),
        ("a", pa.string()),
        ("b", pa.string()),
    ]
)


def open_files() -> int:
    return len(list(Path("/dev/fd").iterdir()))


def test_not_all_files_are_open_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    count = 2 * _HELD_FILES
    rows = [(i, 0, f"a{i}", None) for i in range(count)]
    table = StoredTable(tmp_path / "t", FIELDS, ARROW, rows, count)
    stored = StoredRows(table.state, table.files)
    most = 0
    typed = StoredRows._read_groups

    def counted(self: StoredRows, *arguments: Any) -> Iterator[pa.Table]:
        nonlocal most
        most = max(most, open_files())
        return typed(self, *arguments)

    monkeypatch.setattr(StoredRows, "_read_groups", counted)
    before = open_files()
    wanted = np.arange(count)[::-1].copy()
    with UpsertMemory(1 << 20).share(0) as share:
        found = stored.fetch(wanted, np.zeros(count, np.int64), [2], share)
    assert found.column("a").to_pylist() == [f"a{i}" for i in wanted]
    assert _HELD_FILES - 8 <= most - before <= _HELD_FILES + 8
    assert open_files() <= before + 1
