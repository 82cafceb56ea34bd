"""``wal2lake start``: what comes before the supervisor's loop, in the order in which it must.

    the settings      read, with the command line's
    the lock          before the log and the catalog, which may be those of a node that runs
    the log           every further error is in the file, too
    Java, catalog     checked and migrated, so that no engine fails at each start
    the supervisor    runs until the node is stopped

Called by: the command line, and ``detached`` in a process of its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from wal2lake.catalog import Catalog
from wal2lake.errors import ConfigurationError, reason_of
from wal2lake.launch.children.group import node_commands
from wal2lake.launch.children.nodelog import node_log
from wal2lake.launch.directory.lockfile import LockFile
from wal2lake.launch.requests import (
    StopRequested,
    check_request,
    held,
    promptly,
)
from wal2lake.launch.start.java import check_java
from wal2lake.launch.supervisor import Supervisor
from wal2lake.observe import configure, get_logger
from wal2lake.settings import Settings, fixed_at_start, load

_CATALOG_SECONDS: Final = 1.0
"""How long a read of the catalog waits for a lock. It is repeated, and signals wait for it, so it
must be short."""


def run_node(
    directory: Path,
    overrides: Mapping[str, str],
    environ: Mapping[str, str],
    *,
    foreground: bool = True,
) -> int:
    """Run the supervisor of the node in ``directory``; returns the exit code.

    ``overrides`` (``section.name`` to text) come from the command line and apply to the children,
    too. With ``foreground``, a log file leaves stderr as it is. ConfigurationError if the node
    cannot start.
    """
    configure("supervisor")
    settings = load(directory, environ, overrides)

    def reload() -> Settings:
        return load(directory, environ, overrides)

    # Before the log file and the catalog are touched, which are those of the node that runs.
    with (
        held(),
        starting(),
        LockFile.acquire(settings.directory, check_request) as lock,
        node_log(settings, reload, echo=foreground) as log,
        # Once more, so that the log has the same words.
        starting(),
    ):
        promptly(lambda: check_java(environ))
        inherited = {
            **environ,
            **fixed_at_start(settings),
            **{
                "WAL2LAKE_" + name.replace(".", "_", 1).upper(): text
                for name, text in overrides.items()
            },
        }
        if os.geteuid() == 0:
            get_logger().warning("running as root; any other user would do")
        node = promptly(lambda: _migrate(settings))
        supervisor = Supervisor(
            settings,
            catalog=Catalog(
                settings.catalog_file,
                settings.warehouse,
                busy_timeout_seconds=_CATALOG_SECONDS,
            ),
            commands=node_commands(settings.directory),
            reload=reload,
            environ=inherited,
            lock=lock,
            log=log,
            node=node,
        )
        return supervisor.run()
    # It was asked to stop while it started.
    return 0


def _migrate(settings: Settings) -> int:
    """Migrate the catalog; return the node's system identifier."""
    catalog = Catalog(settings.catalog_file, settings.warehouse, migrate=True)
    try:
        return catalog.system_identifier
    finally:
        catalog.close()


@contextlib.contextmanager
def starting() -> Iterator[None]:
    """Report an error of the system as one that ends the start. A request to stop ends it, too, and
    is no error."""
    try:
        yield
    except StopRequested as request:
        get_logger().info(f"received {request.mode.value} shutdown request")
        get_logger().info("database system is shut down")
    except OSError as error:
        where = f' "{error.filename}"' if error.filename else ""
        raise ConfigurationError(
            f"could not start server{where}: {reason_of(error)}"
        ) from error


def open_standard_streams() -> None:
    """Open those of stdin, stdout and stderr that are closed, as with ``2>&-``. The next file, the
    lock perhaps, would take the number, and a child would print into it."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
            mode = "w" if number else "r"
            setattr(sys, name, os.fdopen(number, mode, closefd=False))
