"""The supervisor of a node: starts and stops processes until those that run are those that should.

Takes: settings, the catalog's subscriptions, signals. Gives: one engine, one receiver for each
enabled subscription, the web process, an exit code. Owns: the directory's lock, the listening
sockets, the life of every other process of the node. Never: imports Spark or NumPy, opens a
connection, reads a table.

    supervisor, wakeup, shutdown      the loop, its only wait, its end; start here
    start/                            what comes before the supervisor; wal2lake start --daemon
    requests                          a stop while the node starts
    plan                              what to start, stop and kill: pure
    children/                         the other processes, and what each does first
    processes                         the processes that belong to a node
    listeners                         the sockets, which outlive the engine
    servicemanager                    reports to systemd
    directory/                        files for other programs: lock file, passfile, status, web

Public names: ``listening_sockets``, ``notify`` and the exit codes for the engine;
``read_status`` and the lock file's facts for the command line. ``start.node.run_node``, the process
of ``wal2lake start``, is imported from its module, because every child imports this package and
must start quickly.
"""

from wal2lake.launch.children.child import (
    EXIT_CONFIGURATION,
    EXIT_WAREHOUSE_TAKEN,
    listening_sockets,
)
from wal2lake.launch.directory.lockfile import LockFacts, is_locked, read_lock
from wal2lake.launch.directory.status import (
    NodeStatus,
    WorkerStatus,
    read_status,
    status_written_at,
)
from wal2lake.launch.directory.webstatus import WebStatus, read_web_status
from wal2lake.launch.wakeup import notify

__all__ = [
    "EXIT_CONFIGURATION",
    "EXIT_WAREHOUSE_TAKEN",
    "LockFacts",
    "NodeStatus",
    "WebStatus",
    "WorkerStatus",
    "is_locked",
    "listening_sockets",
    "notify",
    "read_lock",
    "read_status",
    "read_web_status",
    "status_written_at",
]
