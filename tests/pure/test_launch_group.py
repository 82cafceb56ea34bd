"""The supervisor's children as processes, without a supervisor."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wal2lake.launch import processes as processes_module
from wal2lake.launch.children import group
from wal2lake.launch.children.group import Children, Commands
from wal2lake.launch.plan import ENGINE, ChildRole, Desired, WorkerKey
from wal2lake.launch.processes import new_marker
from wal2lake.model import Oid
from wal2lake.testing.waits import wait_until


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Children]]:
    """Starts an engine from a command line."""
    lifeline, ours = os.pipe()

    def started(*command: str) -> Children:
        children = Children(
            new_marker(tmp_path),
            Commands(
                engine=(sys.executable, *command),
                receiver=lambda _: (sys.executable, *command),
            ),
            os.environ,
            lifeline=lifeline,
            listeners=[],
        )
        children.start(Desired(ENGINE), time.monotonic())
        return children

    yield started
    for descriptor in (lifeline, ours):
        os.close(descriptor)


def pid_of(children: Children) -> int:
    child = children.get(ENGINE)
    assert child is not None
    return child.process.pid


@pytest.mark.parametrize("wanted", ["stop", "send"])
def test_a_child_that_ends_before_its_signal_is_reaped_like_any_other(
    start: Callable[..., Children], wanted: str
) -> None:
    """It may end at any moment, also between a look at it and the signal. The supervisor once
    ended with ChildProcessError, and the node with it."""
    children = start("-c", "raise SystemExit(3)")
    os.waitid(os.P_PID, pid_of(children), os.WEXITED | os.WNOWAIT)
    if wanted == "stop":
        children.stop(ENGINE, signal.SIGTERM, time.monotonic())
    else:
        children.send(ChildRole.ENGINE, signal.SIGHUP)
    assert [ended.returncode for ended in children.reap()] == [3]
    assert len(children) == 0


def test_a_child_that_something_else_has_reaped_is_gone(
    start: Callable[..., Children],
) -> None:
    children = start("-c", "raise SystemExit(3)")
    os.waitpid(pid_of(children), 0)
    assert len(list(children.reap())) == 1
    assert len(children) == 0


def test_a_child_that_was_never_noted_is_killed(
    start: Callable[..., Children], monkeypatch: pytest.MonkeyPatch
) -> None:
    children = start("-c", "import time; time.sleep(600)")
    assert children.kill_lost() == 0
    child = children.get(ENGINE)
    assert child is not None
    monkeypatch.setattr(children, "_children", {})
    # It has the marker once it runs its program.
    wait_until(lambda: children.kill_lost() == 1)
    assert child.process.wait() == -signal.SIGKILL


def test_processes_that_do_not_die_are_waited_for_together(
    start: Callable[..., Children], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten seconds for each of them outlasted the service manager's watchdog."""
    children = start("-c", "import time; time.sleep(600)")
    for number in range(3):
        key = WorkerKey(ChildRole.RECEIVER, Oid(number + 1))
        children.start(Desired(key), time.monotonic())
    # Something that is there for good, as in an uninterruptible call.
    monkeypatch.setattr(processes_module, "session_members", lambda _: [2**22 + 1])
    monkeypatch.setattr(group, "_REST_SECONDS", 0.3)
    begin = time.monotonic()
    for key in children.workers():
        children.kill(key)
    wait_until(lambda: [*children.reap()] and not len(children))
    assert time.monotonic() - begin < 4 * 0.3


def test_a_hangup_does_not_kill_a_child_that_is_being_born(
    start: Callable[..., Children],
) -> None:
    """It had its default meaning, until the child's first line of Python."""
    children = start("-m", "wal2lake.launch", "platform")
    children.send(ChildRole.ENGINE, signal.SIGHUP)
    os.waitid(os.P_PID, pid_of(children), os.WEXITED | os.WNOWAIT)
    assert [ended.returncode for ended in children.reap()] == [0]
