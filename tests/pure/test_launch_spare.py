"""The process that waits to become a receiver."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from wal2lake.launch.children.spare import QUIET_SECONDS, RETRY_SECONDS, Spare
from wal2lake.launch.processes import is_alive
from wal2lake.testing.waits import wait_until

ECHO = (sys.executable, "-c", "import sys; sys.exit(len(sys.stdin.readline()))")
LAUNCH = (sys.executable, "-m", "wal2lake.launch", "--spare", "wal2lake.receive")

Make = Callable[..., Spare]


@pytest.fixture
def make() -> Iterator[Make]:
    lifeline, ours = os.pipe()
    made: list[Spare] = []

    def spare(command: tuple[str, ...]) -> Spare:
        environ = {
            **os.environ,
            "WAL2LAKE_SUPERVISOR_PID": str(os.getpid()),
            "WAL2LAKE_LIFELINE_FD": str(lifeline),
        }
        made.append(Spare(command, environ, lifeline))
        return made[-1]

    yield spare
    for one in made:
        one.dismiss()
    os.close(ours)
    os.close(lifeline)


def _wait_for_end(pid: int) -> None:
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    wait_until(
        lambda: os.waitid(os.P_PID, pid, flags) is not None, describe="it has ended"
    )


def test_it_becomes_what_it_is_told_and_only_once(make: Make) -> None:
    spare = make(ECHO)
    spare.prepare(0.0)
    pid = spare.pid
    process = spare.become(["a", "b"], 1.0)
    assert process is not None and process.pid == pid
    assert process.wait(10) == len('["a", "b"]\n')
    assert spare.pid is None
    assert spare.become(["a"], 1.0) is None


def test_the_next_one_waits_until_nobody_asks_any_more(make: Make) -> None:
    spare = make(ECHO)
    spare.prepare(0.0)
    first = spare.become([], 1.0)
    assert first is not None
    first.wait(10)
    assert spare.become([], 3.0) is None
    spare.prepare(1.0 + QUIET_SECONDS)
    assert spare.pid is None
    spare.prepare(3.0 + QUIET_SECONDS)
    assert spare.pid is not None


def test_one_that_died_is_not_used_and_not_made_again_at_once(make: Make) -> None:
    spare = make((sys.executable, "-c", ""))
    spare.prepare(0.0)
    pid = spare.pid
    assert pid is not None
    _wait_for_end(pid)
    assert spare.become(["a", "b"], 1.0) is None
    again = make((sys.executable, "-c", ""))
    again.prepare(0.0)
    pid = again.pid
    assert pid is not None
    _wait_for_end(pid)
    again.reap(1.0)
    assert again.pid is None
    again.prepare(RETRY_SECONDS)
    assert again.pid is None
    again.prepare(1.0 + RETRY_SECONDS)
    assert again.pid not in (None, pid)


def test_a_dismissed_one_is_gone(make: Make) -> None:
    spare = make(ECHO)
    spare.prepare(0.0)
    pid = spare.pid
    assert pid is not None and is_alive(pid)
    spare.dismiss()
    assert spare.pid is None and not is_alive(pid)


def test_without_a_command_there_is_never_one(make: Make) -> None:
    spare = make(())
    spare.prepare(0.0)
    assert spare.pid is None and spare.become([], 0.0) is None


def test_the_real_one_has_imported_what_a_receiver_needs_and_runs_the_module(
    make: Make, tmp_path: Path
) -> None:
    (tmp_path / "told.py").write_text(
        "import sys\n"
        "heavy = {'pyarrow', 'numpy', 'psycopg', 'wal2lake.receive.walreceiver'}\n"
        "ready = heavy <= set(sys.modules) and sys.stdin.read() == ''\n"
        "sys.exit(7 if ready and sys.argv[1:] == ['x', 'y'] else 1)\n"
    )
    spare = make(
        (
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(tmp_path)!r});"
            f" from wal2lake.launch.children.child import main; main({list(LAUNCH[3:])!r})",
        )
    )
    spare.prepare(0.0)
    process = spare.become(["told", "x", "y"], 0.0)
    assert process is not None
    assert process.wait(60) == 7


def test_the_real_one_ends_with_its_input(make: Make) -> None:
    spare = make(LAUNCH)
    spare.prepare(0.0)
    process = spare._process
    assert isinstance(process, subprocess.Popen) and process.stdin is not None
    process.stdin.close()
    assert process.wait(60) == 0
