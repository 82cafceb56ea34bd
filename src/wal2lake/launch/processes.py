"""The processes that belong to a node, according to the kernel.

Takes pids, session numbers, markers; returns pids, and kills. Processes of a node are found in two
ways. A child of the supervisor leads its own *session*, so everything below it (the JVM, Spark's
Python workers, which leave the process group but not the session) is found by session number. And
every process inherits the *marker*, an environment variable, so a guardian or the next start finds
what has outlived a supervisor:

    64769:131082:9f86d081884c7d65    device and inode of the node's directory, and a token

The token is the supervisor's own. A guardian kills the processes of its supervisor, and never those
of a node that was started at the same path after the directory was moved away, or in the same
directory after its lock file was removed. The next start in a directory kills every process whose
marker begins with the directory, under whatever name it was known.

This is necessary because a JVM that survives its engine can still commit to a table while the next
engine writes the same table.

Called by: children, guardian, supervisor, and tests. Source: proc(5). On a system without /proc,
only the process group is found.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MARKER: Final = "WAL2LAKE_SUPERVISED"
"""Environment variable with the marker of the supervisor that a process belongs to."""

_PROC: Final = Path("/proc")

_ZOMBIE: Final = "ZX"

_SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""Errors that say nothing about the process that was to be read."""


@dataclass(frozen=True, slots=True)
class Process:
    """One row of the process table."""

    pid: int
    parent: int
    session: int
    state: str
    """R, S, D, T ... as ps prints it; Z and X mean dead."""


def processes() -> Iterator[Process]:
    """Yield all visible processes; none without /proc. OSError if the system lacks descriptors or
    memory: then it is not known which there are."""
    try:
        names = [entry.name for entry in _PROC.iterdir() if entry.name.isdigit()]
    except OSError as error:
        _check_shortage(error)
        return
    for name in names:
        process = _read(int(name))
        if process is not None:
            yield process


def _read(pid: int) -> Process | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError as error:
        _check_shortage(error)
        return None
    # The command's name is in parentheses and may itself contain parentheses.
    state, parent, _group, session, *_ = text.rpartition(")")[2].split()
    return Process(pid, int(parent), int(session), state)


def _check_shortage(error: OSError) -> None:
    """Raise the error again unless the process, or /proc, is gone or hidden."""
    if error.errno in _SHORTAGES:
        raise error


def is_alive(pid: int) -> bool:
    """Return whether the process lives; a zombie has released everything but its number."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    try:
        process = _read(pid)
    except OSError:
        return True
    return process is None or process.state not in _ZOMBIE


def has_ended(pid: int) -> bool:
    """Return whether a child of this process has ended. It is not reaped, so that its number
    stays its own until the rest of its session is killed."""
    try:
        exit_status = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        # It has been reaped; to wait for it longer would be to wait forever.
        return True
    return exit_status is not None


def session_members(session: int) -> list[int]:
    """Return the living processes of a session."""
    return [
        p.pid for p in processes() if p.session == session and p.state not in _ZOMBIE
    ]


def descendants(pid: int) -> list[int]:
    """Return the living processes below ``pid``, parents first, without ``pid`` itself."""
    table = [p for p in processes() if p.state not in _ZOMBIE]
    pids: list[int] = []
    level = [pid]
    while level:
        level = [p.pid for p in table if p.parent in level]
        pids.extend(level)
    return pids


def directory_marker(directory: Path) -> str:
    """Return what the markers of all nodes in the directory begin with. OSError if it is gone."""
    status = directory.stat()
    return f"{status.st_dev}:{status.st_ino}"


def new_marker(directory: Path) -> str:
    """Return a marker that no other supervisor has. OSError if the directory is gone."""
    return f"{directory_marker(directory)}:{secrets.token_hex(8)}"


def marked(marker: str) -> list[int]:
    """Return the living processes with the marker, or with one that begins with it
    (``directory_marker``), except our ancestors.

    Only processes of the same user can be read; a node has no others.
    """
    whole = os.fsencode(f"{MARKER}={marker}")
    beginning = whole + b":"
    spared = _ancestry()
    pids = []
    for p in processes():
        if p.pid in spared or p.state in _ZOMBIE:
            continue
        try:
            environment = (_PROC / str(p.pid) / "environ").read_bytes()
        except OSError as error:
            _check_shortage(error)
            continue
        variables = environment.split(b"\0")
        if any(v == whole or v.startswith(beginning) for v in variables):
            pids.append(p.pid)
    return pids


def _ancestry() -> set[int]:
    # A node may be started by a process of another node, or of the same node earlier.
    line: set[int] = set()
    pid = os.getpid()
    while pid > 0 and pid not in line:
        line.add(pid)
        process = _read(pid)
        pid = process.parent if process is not None else 0
    return line


def kill_session(session: int, *, timeout_seconds: float = 10.0) -> int:
    """SIGKILL every member and wait until they are gone; returns their number.

    ``session`` must be a child that has not been reaped, so that its number cannot belong to
    another process.
    """
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(session, signal.SIGKILL)
    return _kill_all(lambda: session_members(session), timeout_seconds)


def kill_marked(
    marker: str,
    *,
    timeout_seconds: float = 10.0,
    on_wait: Callable[[], None] = lambda: None,
) -> int:
    """SIGKILL every process that ``marked`` finds and wait until they are gone. ``on_wait`` is
    called before each look; what it raises ends the search."""
    return _kill_all(lambda: marked(marker), timeout_seconds, on_wait)


def _kill_all(
    find: Callable[[], list[int]],
    timeout_seconds: float,
    on_wait: Callable[[], None] = lambda: None,
) -> int:
    # Repeated, because a process may fork during the search, and because a search that lacks a
    # descriptor says nothing. Limited, because a process in uninterruptible disk sleep dies only
    # when its disk answers.
    deadline = time.monotonic() + timeout_seconds
    seen: set[int] = set()
    while True:
        on_wait()
        pids: list[int] = []
        with contextlib.suppress(OSError):
            pids = find()
            if not pids:
                break
        seen.update(pids)
        for pid in pids:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if time.monotonic() >= deadline:
            break
        time.sleep(0.005)
    return len(seen)


def describe_exit(returncode: int) -> str:
    """Describe the end of a child, as PostgreSQL's LogChildExit does."""
    if returncode >= 0:
        return f"exited with exit code {returncode}"
    number = -returncode
    name = signal.strsignal(number) or "unrecognized signal"
    return f"was terminated by signal {number}: {name}"
