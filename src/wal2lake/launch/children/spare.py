"""A receiver process that is started in advance.

A Python process that can decode a stream needs half a CPU-second for its imports. A new
subscription, a changed one, and one whose receiver was killed would wait for them. The supervisor
therefore keeps one process that has done the imports. It waits on its standard input for its
command line: one line, a JSON array of the module and its arguments. The end of that input ends the
process.

Takes command lines; gives the process to its new owner. Called by children; the other side is
``child.main``.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

from wal2lake.launch.children.child import signals_held
from wal2lake.launch.processes import has_ended, kill_session

QUIET_SECONDS: Final = 5.0
"""A new spare is started this long after the last one was used, because a receiver that has just
started needs the processor more."""

RETRY_SECONDS: Final = 60.0
"""A spare that died unused would probably do so again, so the next one waits this long."""


class Spare:
    """At most one waiting process. Not thread-safe: the supervisor has one thread."""

    def __init__(
        self, command: Sequence[str], environ: Mapping[str, str], lifeline: int
    ) -> None:
        """``command`` starts a spare; empty for none."""
        self._command = tuple(command)
        self._environ = dict(environ)
        self._lifeline = lifeline
        self._process: subprocess.Popen[bytes] | None = None
        self._due = 0.0

    @property
    def pid(self) -> int | None:
        """Process ID of the waiting process; None if there is none."""
        return None if self._process is None else self._process.pid

    def reap(self, now: float) -> None:
        """Reap a spare that has ended unused."""
        if self._process is not None and has_ended(self._process.pid):
            self._bury(self._process)
            self._due = now + RETRY_SECONDS

    def prepare(self, now: float) -> None:
        """Start a spare if one is due; called after ``reap``. A failure does no harm."""
        if self._command and self._process is None and now >= self._due:
            with suppress(OSError), signals_held():
                self._process = subprocess.Popen(
                    self._command,
                    env=self._environ,
                    stdin=subprocess.PIPE,
                    pass_fds=[self._lifeline],
                    start_new_session=True,
                )
            self._due = now + RETRY_SECONDS

    def become(
        self, arguments: Sequence[str], now: float
    ) -> subprocess.Popen[bytes] | None:
        """Return the waiting process, now running ``arguments``; None if there is none."""
        process, self._process = self._process, None
        self._due = now + QUIET_SECONDS
        if process is None:
            return None
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps(list(arguments)).encode() + b"\n")
            process.stdin.close()
        except OSError:
            self._bury(process)
            return None
        return process

    def dismiss(self) -> None:
        """End the spare."""
        if self._process is not None:
            self._bury(self._process)

    def _bury(self, process: subprocess.Popen[bytes]) -> None:
        self._process = None
        kill_session(process.pid)
        process.wait()
        if process.stdin is not None:
            with suppress(OSError):
                process.stdin.close()
