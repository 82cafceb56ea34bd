"""The files of a batch are not synced when they are written, but before a commit names them."""

from __future__ import annotations

import os
from pathlib import Path
from unittest.mock import MagicMock

import pyarrow as pa
import pytest

from wal2lake.lake import Cursor, FieldSpec
from wal2lake.lake.delta import TableWriter
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.delta.jvm import DeltaJvm


def test_they_are_durable_before_the_commit_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(DeltaJvm, "defaults", lambda _: {})
    tables = DeltaTables(MagicMock())
    location = str(tmp_path / "public" / "t")
    tables.create(location, [FieldSpec("id", "bigint")])
    steps: list[str] = []
    link = os.link

    def fsync(descriptor: int) -> None:
        steps.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    def linked(source: Path, target: Path) -> None:
        steps.append(f"link {target.name}")
        link(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "link", linked)
    physical = tables.state(location).physical_fields
    with TableWriter(location, physical, durable=False) as writer:
        writer.write(pa.table({"id": pa.array([1, 2], pa.int64())}))
        (added,) = writer.finish()
    assert steps == []
    tables.commit_files(location, [added], Cursor("a", 1), read_version=0)
    commit = steps.index(f"link {1:020}.json")
    assert steps[:2] == [added.path, "t"]
    assert steps.index(added.path) < commit
    assert "_delta_log" in steps[commit:]
