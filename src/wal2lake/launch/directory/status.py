"""``run/status.json``: the supervisor's view of its children, for ``wal2lake status``.

Written to a temporary name and renamed at every change, so a reader sees a whole one. Not
fsynced: it describes processes, which do not survive what fsync protects from. It is true only
while the directory's lock is held.

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
    """One child."""

    role: str
    """engine or receiver."""
    pid: int
    started_at: float
    """Seconds since 1970."""
    starts: int
    """How often it has been started since the supervisor was."""
    subid: int = 0
    """OID of a receiver's subscription."""
    subscription: str = ""
    """The subscription's name."""


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """The whole tree."""

    supervisor_pid: int
    guardian_pid: int
    state: str
    """starting, ready or stopping."""
    version: str
    address: str
    port: int
    started_at: float
    workers: tuple[WorkerStatus, ...] = ()


def write_status(run_directory: Path, status: NodeStatus) -> None:
    """Replace the file; OSError if that cannot be done."""
    temporary = run_directory / f".{FILE_NAME}.tmp"
    temporary.write_text(json.dumps(asdict(status), indent=1) + "\n")
    temporary.replace(run_directory / FILE_NAME)


def read_status(run_directory: Path) -> NodeStatus | None:
    """The last one written; None if there is none."""
    try:
        found: dict[str, Any] = json.loads((run_directory / FILE_NAME).read_text())
        workers = tuple(WorkerStatus(**w) for w in found.pop("workers"))
        return NodeStatus(**found, workers=workers)
    except (OSError, ValueError, TypeError, KeyError):
        return None
