"""The process that outlives a killed supervisor, until it has killed the rest of the node.

The guardian is a fork of the supervisor that sleeps in a read of the lifeline. When the read ends,
the supervisor is gone. After an orderly stop, nothing is left and the guardian just ends. If the
supervisor was killed, the guardian kills every process with the supervisor's marker.

The children alone are not enough. They die with the supervisor by themselves (``child``), but a
grandchild does not, and Spark's JVM, which notices a closed pipe, runs shutdown hooks for seconds
in which it may still commit. The guardian inherits the directory's lock, so the next start waits
until the whole tree is gone.

Called by: supervisor.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Collection
from pathlib import Path
from typing import Final

from wal2lake.launch.processes import kill_marked

_IGNORED: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGPIPE,
)

_FEW: Final = 32
"""Number of descriptors that are closed without a listing of those that are open."""


def start_guardian(marker: str, lifeline: int, keep: Collection[int]) -> int:
    """Fork the guardian; returns its pid, a child to be reaped. OSError if that fails.

    ``lifeline`` is the reading end; of all other descriptors only ``keep`` stay open.
    """
    # A non-empty buffer would be written twice.
    with contextlib.suppress(OSError, ValueError):
        sys.stderr.flush()
    pid = os.fork()
    if pid != 0:
        return pid
    code = 1
    try:
        _guard(marker, lifeline, {lifeline, *keep})
        code = 0
    finally:
        # Never return into the supervisor's code.
        os._exit(code)


def _guard(marker: str, lifeline: int, keep: Collection[int]) -> None:
    signal.set_wakeup_fd(-1)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    close_all_but(keep)
    while os.read(lifeline, 1) != b"":
        pass
    kill_marked(marker)


def close_all_but(keep: Collection[int]) -> None:
    """Close all descriptors of this process except ``keep``."""
    for number in range(_FEW):
        # The listing needs one, and all may be in use.
        if number not in keep:
            with contextlib.suppress(OSError):
                os.close(number)
    for entry in list(Path("/dev/fd").iterdir()):
        if int(entry.name) not in keep:
            # One of the descriptors was the listing's own.
            with contextlib.suppress(OSError):
                os.close(int(entry.name))
