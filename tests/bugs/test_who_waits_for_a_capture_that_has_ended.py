"""A worker that waited for capture while the node stopped did so for ten minutes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.fakes.publishing import FakeCaptureHost, PublishingNode, capture_of

from wal2lake.errors import StorageError


def test_it_is_told(
    tmp_path: Path, no_fsync: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = PublishingNode(tmp_path, monkeypatch)
    host = FakeCaptureHost(lambda: (), lambda wanted: {})
    capture = capture_of(node.catalog, tmp_path, host)
    capture.start()
    capture.stop(10)
    with pytest.raises(StorageError, match="the node is shutting down"):
        capture.catch_up(30)
