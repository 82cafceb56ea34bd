"""The process that outlives a killed supervisor, just long enough to bury the rest.

A fork of the supervisor that sleeps in a read of the lifeline. When that ends, the
supervisor is gone: if it had stopped in order, nothing is left and the guardian just
ends; if it was killed, the guardian kills every process that carries the node's marker.

Why not leave it to the children: they die with the supervisor by themselves (``child``), but
a grandchild does not, and Spark's JVM, told by a closed pipe, takes seconds of shutdown
hooks in which it may still commit. The guardian inherits the directory's lock, so the
next start waits until the tree is really gone.

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


def start_guardian(directory: Path, lifeline: int, keep: Collection[int]) -> int:
    """Fork it; returns its pid, a child to be reaped.

    ``lifeline`` is the reading end; of all other descriptors only ``keep`` stay open.
    """
    # A buffer that is not empty now would be written twice.
    sys.stderr.flush()
    pid = os.fork()
    if pid != 0:
        return pid
    try:
        _guard(directory, lifeline, {lifeline, *keep})
    finally:
        # Never back into the supervisor's code.
        os._exit(0)


def _guard(directory: Path, lifeline: int, keep: Collection[int]) -> None:
    signal.set_wakeup_fd(-1)
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    os.setsid()
    _close_all_but(keep)
    while os.read(lifeline, 1) != b"":
        pass
    kill_marked(directory)


def _close_all_but(keep: Collection[int]) -> None:
    for entry in list(Path("/dev/fd").iterdir()):
        if int(entry.name) not in keep:
            # One of them was the listing's own.
            with contextlib.suppress(OSError):
                os.close(int(entry.name))
