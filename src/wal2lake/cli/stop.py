"""``wal2lake stop``: signals the supervisor and waits until its directory is free.

The modes smart, fast and immediate, and the texts, are pg_ctl's. The node has ended when its lock
is released, which happens after the last process of the tree has ended.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from typing import Final

from wal2lake.errors import ConfigurationError
from wal2lake.launch import is_locked, read_lock
from wal2lake.launch.shutdown import SIGNAL_OF_MODE, Mode

_POLL_SECONDS: Final = 0.05
_DOT_SECONDS: Final = 1.0


def run(options: argparse.Namespace) -> int:
    """Stop the node; returns 1 if it does not end in time."""
    directory: Path = options.directory
    number = SIGNAL_OF_MODE[Mode(options.mode)]
    pid = running_pid(directory)
    signalled = signal_node(pid, number, "stop")
    print("waiting for server to shut down...", end="", flush=True)
    begin = dot = time.monotonic()
    while is_locked(directory):
        if not signalled:
            # Of a node that has just locked the directory, the PID may not be there yet.
            facts = read_lock(directory)
            if facts is not None and facts.pid != pid:
                pid = facts.pid
                signalled = signal_node(pid, number, "stop")
        now = time.monotonic()
        if now - begin > options.timeout:
            print(" failed")
            print("wal2lake: error: server does not shut down", file=sys.stderr)
            if options.mode != "immediate":
                print(
                    'wal2lake: hint: "--mode immediate" ends it now; nothing that was'
                    " confirmed is lost.",
                    file=sys.stderr,
                )
            return 1
        if now - dot >= _DOT_SECONDS:
            print(".", end="", flush=True)
            dot = now
        time.sleep(_POLL_SECONDS)
    print(" done\nserver stopped")
    return 0


def running_pid(directory: Path) -> int | None:
    """Return the pid of the supervisor; None if it was killed a moment ago, and its guardian is
    at work. ConfigurationError if no node runs."""
    if not is_locked(directory):
        raise not_running(directory)
    facts = read_lock(directory)
    return None if facts is None else facts.pid


def not_running(directory: Path) -> ConfigurationError:
    """Return the error of a command that needs a running node."""
    return ConfigurationError(
        f'no node is running in directory "{directory}"',
        hint=f'"wal2lake status -D {directory}" says more.',
    )


def signal_node(pid: int | None, number: signal.Signals, purpose: str) -> bool:
    """Send a signal to the supervisor; False if it is gone.

    ConfigurationError if it is another user's."""
    try:
        if pid is not None:
            os.kill(pid, number)
            return True
    except ProcessLookupError:
        pass
    except PermissionError:
        raise ConfigurationError(
            f"could not send {purpose} signal (PID: {pid}): Operation not permitted",
            hint="Use the OS user that started the node, or root.",
        ) from None
    return False
