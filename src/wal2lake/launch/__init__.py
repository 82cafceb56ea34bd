"""The supervisor of a node: what should run, what runs, and the difference.

Takes: settings, the catalog's subscriptions, signals. Gives: one engine, one receiver for
each enabled subscription, an exit code. Owns: the directory's lock, the listening
sockets, the life of every other process of the node. Never: imports Spark or NumPy, opens
a connection, reads a table.

    supervisor, wakeup, shutdown      the loop, its one wait, how it ends; start here
    plan                              what to start, stop and kill: pure
    children/                         the other processes; what each does first
    processes                         which processes belong to a node
    java                              the Java that Spark needs: is it there?
    listeners                         the sockets, which outlive the engine
    directory/                        what others read: lock file, passfile, status

Public names: ``listening_sockets``, ``notify`` and ``EXIT_CONFIGURATION`` for the engine;
``read_status`` and the lock file's facts for the command line. ``supervisor.run_node``, the
process of ``wal2lake start``, is imported from its module, for every child imports
this package and needs to be quick.
"""

from wal2lake.launch.children.child import EXIT_CONFIGURATION, listening_sockets
from wal2lake.launch.directory.lockfile import LockFacts, is_locked, read_lock
from wal2lake.launch.directory.status import NodeStatus, WorkerStatus, read_status
from wal2lake.launch.wakeup import notify

__all__ = [
    "EXIT_CONFIGURATION",
    "LockFacts",
    "NodeStatus",
    "WorkerStatus",
    "is_locked",
    "listening_sockets",
    "notify",
    "read_lock",
    "read_status",
]
