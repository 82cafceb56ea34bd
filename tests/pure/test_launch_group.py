"""The supervisor's children as processes, without a supervisor."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import pytest

from wal2lake.launch.children.group import Children, Commands
from wal2lake.launch.plan import ENGINE, ChildRole, Desired


@pytest.mark.parametrize("wanted", ["stop", "send"])
def test_a_child_that_ends_before_its_signal_is_reaped_like_any_other(
    tmp_path: Path, wanted: str
) -> None:
    """It may end at any moment, also between a look at it and the signal. The supervisor once
    ended with ChildProcessError, and the node with it."""
    lifeline, ours = os.pipe()
    children = Children(
        tmp_path,
        Commands(
            engine=(sys.executable, "-c", "raise SystemExit(3)"), receiver=lambda _: ()
        ),
        os.environ,
        lifeline=lifeline,
        listeners=[],
    )
    child = children.start(Desired(ENGINE), time.monotonic())
    os.waitid(os.P_PID, child.process.pid, os.WEXITED | os.WNOWAIT)
    if wanted == "stop":
        children.stop(ENGINE, signal.SIGTERM, time.monotonic())
    else:
        children.send(ChildRole.ENGINE, signal.SIGHUP)
    assert [ended.returncode for ended in children.reap()] == [3]
    assert len(children) == 0
    for descriptor in (lifeline, ours):
        os.close(descriptor)
