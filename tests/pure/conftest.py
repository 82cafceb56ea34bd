"""Fixtures of the layer that needs nothing."""

from __future__ import annotations

import os

import pytest

from wal2lake.changelog import files


@pytest.fixture
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests that cannot cut the power: there, fsync would only cost time."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    monkeypatch.setattr(files, "sync_data", lambda descriptor: None)
