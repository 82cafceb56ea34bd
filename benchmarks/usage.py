"""CPU seconds and memory of process trees, sampled while something else happens.

Comes in: names for root processes. Goes out: per tree and role the CPU seconds used between
entering and leaving, and the largest resident set. A process that comes and goes in between
counts up to the last time it was seen. Linux's own high-water mark is taken where there is
one, so a short peak is not missed; it is put back at the beginning, so that it is not an earlier
one's (where the system does not let us, a peak is of the process's whole life).
"""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

import psutil

_INTERVAL_SECONDS: Final = 0.25

_ROLES: Final = (
    ("receiver", re.compile(r"wal2lake\.receive\b")),
    ("engine", re.compile(r"wal2lake\.engine\b")),
    ("web", re.compile(r"wal2lake\.web\b")),
    ("supervisor", re.compile(r"wal2lake\.cli start\b")),
    ("python worker", re.compile(r"pyspark[./](daemon|worker)|-m wal2lake\.executor")),
    ("jvm", re.compile(r"^\S*java\b")),
    ("walsender", re.compile(r"^postgres: walsender\b|wal2lake\.publish\.walsender\b")),
    ("tablesync", re.compile(r"^postgres: logical replication tablesync\b")),
    ("apply", re.compile(r"^postgres: logical replication apply\b")),
    ("postgres", re.compile(r"^postgres: |/postgres\b")),
)


def role_of(command: str) -> str:
    """What a process is, told from its command line."""
    for role, pattern in _ROLES:
        if pattern.search(command):
            return role
    return "other"


@dataclass(slots=True)
class Process:
    """One process, as last seen."""

    tree: str
    role: str
    pid: int
    cpu_before: float
    cpu_seconds: float
    rss_bytes: int
    peak_bytes: int


class Usage:
    """A context manager that watches from entry to exit. Sums are for after it, or at
    any time after ``sample``."""

    def __init__(
        self,
        roots: Mapping[str, int],
        *,
        interval_seconds: float = _INTERVAL_SECONDS,
    ) -> None:
        """``roots`` maps a tree's name to its root's pid."""
        self._roots = dict(roots)
        self._interval = interval_seconds
        self._seen: dict[tuple[str, int, float], Process] = {}
        self._stop = threading.Event()
        self._guard = threading.Lock()
        self._thread = threading.Thread(target=self._watch, name="usage", daemon=True)

    def __enter__(self) -> Usage:
        for root in self._roots.values():
            for process in _tree(root):
                forget_high_water(process.pid)
        self.sample(first=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stop.set()
        self._thread.join()
        self.sample()

    @property
    def processes(self) -> list[Process]:
        """All that were seen."""
        with self._guard:
            return list(self._seen.values())

    def cpu_seconds(self, tree: str | None = None, role: str | None = None) -> float:
        """User and system time of a tree, or of one role in it; None: of any."""
        return sum(p.cpu_seconds - p.cpu_before for p in self._of(tree, role))

    def peak_bytes(
        self, tree: str | None = None, role: str | None = None
    ) -> int | None:
        """The largest resident set of any one process; None if there was none."""
        return max((p.peak_bytes for p in self._of(tree, role)), default=None)

    def pid(self, role: str) -> int | None:
        """Of a process of that role; None if there was none."""
        return next((p.pid for p in self._of(None, role)), None)

    def survived(self, role: str) -> bool:
        """No process of that role has ended since it was first seen."""
        return all(psutil.pid_exists(p.pid) for p in self._of(None, role))

    def _of(self, tree: str | None, role: str | None) -> list[Process]:
        return [
            p
            for p in self.processes
            if tree in (None, p.tree) and role in (None, p.role)
        ]

    def _watch(self) -> None:
        while not self._stop.wait(self._interval):
            self.sample()

    def sample(self, *, first: bool = False) -> None:
        """Look once."""
        for tree, root in self._roots.items():
            for process in _tree(root):
                with contextlib.suppress(psutil.Error, OSError):
                    self._note(tree, process, first)

    def _note(self, tree: str, process: psutil.Process, first: bool) -> None:
        key = (tree, process.pid, process.create_time())
        with process.oneshot():
            times = process.cpu_times()
            cpu = times.user + times.system
            rss = process.memory_info().rss
            recorded = self._seen.get(key)
            if recorded is None or recorded.role == "other":
                # Just forked, a process still has its parent's command line.
                role = role_of(" ".join(process.cmdline()))
            else:
                role = recorded.role
        peak = max(rss, high_water(process.pid))
        with self._guard:
            if recorded is None:
                self._seen[key] = Process(
                    tree, role, process.pid, cpu if first else 0.0, cpu, rss, peak
                )
            else:
                recorded.role, recorded.cpu_seconds, recorded.rss_bytes = role, cpu, rss
                recorded.peak_bytes = max(recorded.peak_bytes, peak)


def _tree(root: int) -> list[psutil.Process]:
    try:
        top = psutil.Process(root)
        return [top, *top.children(recursive=True)]
    except psutil.Error:
        return []


def high_water(pid: int) -> int:
    """The largest resident set that a process has had, in bytes; 0 where the system does
    not say. (ru_maxrss will not do: it begins with the parent's.)"""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    match = re.search(r"^VmHWM:\s+(\d+) kB", status, re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def waited_seconds(pid: int) -> float:
    """How long the threads of a process were ready to run and had no CPU, added up; 0 where the
    system does not say. Source: Linux, Documentation/scheduler/sched-stats.rst."""
    waited = 0
    for file in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        with contextlib.suppress(OSError):
            waited += int(file.read_text().split()[1])
    return waited / 1e9


def forget_high_water(pid: int) -> None:
    """Let the mark begin anew, at what the process has now. proc(5), clear_refs."""
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/clear_refs").write_text("5")
