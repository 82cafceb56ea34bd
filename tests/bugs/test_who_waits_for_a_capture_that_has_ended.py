"""A worker that waited for capture while the node stopped did so for ten minutes."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fakes.publishing import FakeCaptureHost, PublishingNode

from wal2lake.errors import StorageError
from wal2lake.lake.capture.comparison import ComparisonMemory
from wal2lake.publish.capture.cascading.handing import HandingOn
from wal2lake.publish.capture.worker import Capture


def test_it_is_told(
    tmp_path: Path, no_fsync: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = PublishingNode(tmp_path, monkeypatch)
    capture = Capture(
        node.catalog,
        cast(Any, None),
        FakeCaptureHost(lambda: (), lambda wanted: {}),
        tmp_path / "log",
        ComparisonMemory(64 << 20, tmp_path / "memory"),
        cast(Any, SimpleNamespace(drop=lambda names: None, drop_left=lambda: None)),
        cast(Any, SimpleNamespace(read=lambda *of: None)),
        HandingOn(
            node.catalog,
            cast(Any, None),
            tmp_path / "logs",
            ComparisonMemory(64 << 20, tmp_path / "memory"),
        ),
        1 << 20,
    )
    capture.start()
    capture.stop(10)
    with pytest.raises(StorageError, match="the node is shutting down"):
        capture.catch_up(30)
