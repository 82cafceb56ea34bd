"""The supervisor's report of the node in two files of the directory: lock file and status file.

Takes a ``NodeStatus`` in each round; writes it when it differs from the last one. The lock file is
written through the descriptor that is locked, so it is always the node's own. ``run/status.json``
has the name that the next node would use, too, so it is written only while the lock file is in its
place: after that, another node may have the directory, or another directory the name.

Called by: supervisor.
"""

from __future__ import annotations

from pathlib import Path

from wal2lake.errors import reason_of
from wal2lake.launch.directory.lockfile import LockFacts, LockFile
from wal2lake.launch.directory.status import NodeStatus, write_status
from wal2lake.observe import get_logger


class StatusReport:
    """The two files. Not thread-safe."""

    def __init__(self, lock: LockFile, directory: Path, run_directory: Path) -> None:
        """``lock`` is held, and stays the caller's."""
        self._lock = lock
        self._directory = directory
        self._run_directory = run_directory
        self._written: NodeStatus | None = None
        self._has_failed = False

    def write(self, status: NodeStatus) -> None:
        """Write a status that differs from the last one. A failure is logged once, and the next
        call tries again: a full disk must not stop the node."""
        if status == self._written:
            return
        facts = LockFacts(
            status.supervisor_pid,
            str(self._directory),
            status.started_at,
            status.port,
            status.address,
            status.state,
        )
        try:
            # First the file that is rewritten in place: it needs no room on a full disk.
            self._lock.write(facts)
            if self._lock.is_in_place():
                write_status(self._run_directory, status)
        except OSError as error:
            if not self._has_failed:
                get_logger().error(
                    f"could not write the status file: {reason_of(error)}"
                )
            self._has_failed, self._written = True, None
            return
        self._has_failed, self._written = False, status
