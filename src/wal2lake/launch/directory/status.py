"""``run/status.json``: the supervisor's view of its children, for ``wal2lake status``.

At every change the file is written under a temporary name and renamed, so a reader sees a complete
file. It is not fsynced: it describes processes, which don't survive a power failure either. It is
valid only while the directory's lock is held.

Called by: supervisor (``write_status``), the command line and tests (``read_status``).
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

FILE_NAME: Final = "status.json"


@dataclass(frozen=True, slots=True)
class WorkerStatus:
    """The state of one child."""

    role: str
    """One of engine, receiver and web."""
    pid: int
    started_at: float
    """Seconds since 1970."""
    starts: int
    """Number of starts since the supervisor's start."""
    subid: int = 0
    """OID of a receiver's subscription."""
    subscription: str = ""
    """The subscription's name."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The state of the whole process tree."""

    supervisor_pid: int
    guardian_pid: int
    """0 while one could not be started."""
    state: str
    """starting, ready or stopping."""
    version: str
    address: str
    port: int
    started_at: float
    workers: tuple[WorkerStatus, ...] = ()


def write_status(run_directory: Path, status: NodeStatus) -> None:
    """Replace the file; OSError if that fails."""
    temporary = run_directory / f".{FILE_NAME}.tmp"
    temporary.write_text(json.dumps(asdict(status), indent=1) + "\n")
    temporary.replace(run_directory / FILE_NAME)


def status_written_at(run_directory: Path) -> float | None:
    """Return when the file was written last, seconds since 1970; None: there is none."""
    try:
        return (run_directory / FILE_NAME).stat().st_mtime
    except OSError:
        return None


def read_status(run_directory: Path) -> NodeStatus | None:
    """Read the last status; None without a valid one."""
    try:
        content: dict[str, Any] = json.loads((run_directory / FILE_NAME).read_text())
        workers = tuple(WorkerStatus(**w) for w in content.pop("workers"))
        return NodeStatus(**content, workers=workers)
    except (OSError, ValueError, TypeError, KeyError):
        return None
