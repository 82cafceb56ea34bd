"""The engine's word to the supervisor that it accepts clients."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from wal2lake.engine import __main__ as engine_main
from wal2lake.launch.wakeup import Wakeup
from wal2lake.settings import Settings


def test_the_word_has_the_pid_and_is_repeated_until_the_engine_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was said once, and an engine whose word was lost was never ready."""
    (tmp_path / "run").mkdir()
    monkeypatch.setattr(engine_main, "_WATCH_SECONDS", 0.001)
    monkeypatch.setattr(engine_main, "_TELL_SECONDS", 0.0)
    engine = object.__new__(engine_main._Engine)
    engine._settings = Settings(tmp_path)
    engine._stopping = engine._draining = engine._reloading = False
    engine._wake_read, engine._wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    looks = iter([True, True, False])
    heard = []
    with Wakeup(tmp_path / "run") as wakeup:

        def alive() -> bool:
            heard.append(wakeup.wait(10).words)
            return next(looks)

        engine._tell_ready()
        assert wakeup.wait(10).words == (f"ready {os.getpid()}",)
        assert not engine._wait(alive, ())
    assert heard == [(f"ready {os.getpid()}",)] * 3
    for descriptor in (engine._wake_read, engine._wake_write):
        os.close(descriptor)
