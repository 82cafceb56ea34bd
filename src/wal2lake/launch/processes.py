"""Which processes belong to a node, as the kernel tells it.

Comes in: pids, session numbers, a node's directory. Goes out: pids, and SIGKILL. Two
nets hold what a node has started. A child of the supervisor leads its own *session*,
so everything below it (the JVM, Spark's Python workers, which leave the process group
but not the session) is found by session number. And every process inherits the *marker*, an
environment variable with the node's directory, so even what outlived a supervisor is found
later, by a guardian or by the next start.

Why so strict: a JVM that survives its engine can still commit to a table while the
next engine writes the same one.

Called by: children, guardian, supervisor, and tests. Source: proc(5). On a system without
/proc the process group is all that is found.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MARKER: Final = "WAL2LAKE_SUPERVISED"
"""Environment variable: the directory of the node that a process belongs to."""

_PROC: Final = Path("/proc")

_ZOMBIE: Final = "ZX"


@dataclass(frozen=True, slots=True)
class Process:
    """One row of the process table."""

    pid: int
    parent: int
    session: int
    state: str
    """R, S, D, T ... as ps prints it; Z and X are dead."""


def processes() -> Iterator[Process]:
    """All processes that are visible now; empty without /proc."""
    try:
        names = [entry.name for entry in _PROC.iterdir() if entry.name.isdigit()]
    except OSError:
        return
    for name in names:
        found = _read(int(name))
        if found is not None:
            yield found


def _read(pid: int) -> Process | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    # The command's name is in parentheses and may contain some itself.
    state, parent, _group, session, *_ = text.rpartition(")")[2].split()
    return Process(pid, int(parent), int(session), state)


def is_alive(pid: int) -> bool:
    """False for a zombie: it has let go of everything but its number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    found = _read(pid)
    return found is None or found.state not in _ZOMBIE


def session_members(session: int) -> list[int]:
    """Living processes of a session."""
    return [
        p.pid for p in processes() if p.session == session and p.state not in _ZOMBIE
    ]


def descendants(pid: int) -> list[int]:
    """Living processes below ``pid``, parents first, without itself."""
    table = [p for p in processes() if p.state not in _ZOMBIE]
    found: list[int] = []
    edge = [pid]
    while edge:
        edge = [p.pid for p in table if p.parent in edge]
        found.extend(edge)
    return found


def marked(directory: Path) -> list[int]:
    """Living processes of the node in ``directory``, but not its supervisor's line.

    Only processes of the same user can be read, which are all that this node has.
    """
    wanted = f"{MARKER}={directory}".encode()
    spared = _ancestry()
    found = []
    for p in processes():
        if p.pid in spared or p.state in _ZOMBIE:
            continue
        try:
            environment = (_PROC / str(p.pid) / "environ").read_bytes()
        except OSError:
            continue
        if wanted in environment.split(b"\0"):
            found.append(p.pid)
    return found


def _ancestry() -> set[int]:
    # A node may be started by a process of another node, or of an earlier self.
    line: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in line:
        line.add(pid)
        found = _read(pid)
        pid = found.parent if found is not None else 0
    return line


def kill_session(session: int, *, timeout_seconds: float = 10.0) -> int:
    """SIGKILL every member and wait until they are gone; returns how many there were.

    ``session`` must be a child that has not been reaped, so that its number cannot
    have been given to a stranger.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)
    return _kill_all(lambda: session_members(session), timeout_seconds)


def kill_marked(directory: Path, *, timeout_seconds: float = 10.0) -> int:
    """SIGKILL every process of the node and wait until they are gone."""
    return _kill_all(lambda: marked(directory), timeout_seconds)


def _kill_all(find: Callable[[], list[int]], timeout_seconds: float) -> int:
    # Again and again, for a process may fork while it is being looked for. Bounded, for
    # one in uninterruptible disk sleep dies only when its disk answers.
    deadline = time.monotonic() + timeout_seconds
    seen: set[int] = set()
    while found := find():
        seen.update(found)
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() >= deadline:
            break
        time.sleep(0.005)
    return len(seen)


def describe_exit(returncode: int) -> str:
    """How a child ended, in the words of PostgreSQL's LogChildExit."""
    if returncode >= 0:
        return f"exited with exit code {returncode}"
    number = -returncode
    name = signal.strsignal(number) or "unrecognized signal"
    return f"was terminated by signal {number}: {name}"
