"""Tools for tests of a node, shipped with the package.

Takes: directories, versions, faults to inject. Gives: real PostgreSQL servers, a proxy that
injects network faults, whole nodes that can be killed, waits that name their condition. Owns: the
processes that it starts, until their ``close``. Never: is imported by another room (the
demo excepted).
"""

from wal2lake.testing.node import Node, run_cli
from wal2lake.testing.postgres import PostgresServer, StopMode
from wal2lake.testing.proxy import TcpProxy
from wal2lake.testing.waits import WaitTimeout, wait_until

__all__ = [
    "Node",
    "PostgresServer",
    "StopMode",
    "TcpProxy",
    "WaitTimeout",
    "run_cli",
    "wait_until",
]
