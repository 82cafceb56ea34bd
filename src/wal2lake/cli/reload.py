"""``wal2lake reload``: has a running node read its settings again.

The words are pg_ctl's. A file with an error is reported here and the node is not signalled, as it
would only write the error to its log and keep its settings. The file is read with the environment
of the node's first process, which overrides it.
"""

from __future__ import annotations

import argparse
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from wal2lake.cli.stop import not_running, running_pid, signal_node
from wal2lake.settings import load


def run(options: argparse.Namespace) -> int:
    """Signal the supervisor; returns 0."""
    directory: Path = options.directory
    pid = running_pid(directory)
    load(directory, environment_of(pid))
    if not signal_node(pid, signal.SIGHUP, "reload"):
        raise not_running(directory)
    print("server signaled")
    return 0


def environment_of(pid: int | None) -> Mapping[str, str]:
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        # There is no such file on this system, or it is another user's.
        return os.environ
    pairs = (os.fsdecode(entry).partition("=") for entry in content.split(b"\0"))
    return {name: value for name, equals, value in pairs if equals}
