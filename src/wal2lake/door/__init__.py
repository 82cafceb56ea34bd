"""Admits connections, up to a session or a refusal.

Takes: listening sockets, facts about the node (``Door``). Gives: a running ``Session`` for each
admitted client; the list of connections. Owns: the threads of connections, cancel keys. Never:
reads a statement.

    listener      accepts; one thread per connection; start, drain, stop
    reception     one connection, up to its session or a refusal
    entrance      the settings for TLS and access
    encryption    the certificate, the handshake
    hba           records of pg_hba.conf
    greeting      startup packets, up to a session that may begin
    auth          authentication
    connections   the connected clients, for cancel requests and pg_stat_activity
    client/       bytes and messages of one client
    session/      the session of one client
    replication/  replication commands
"""

from wal2lake.door.auth import AuthMethod, RoleSource
from wal2lake.door.connections import SessionInfo
from wal2lake.door.entrance import Entrance
from wal2lake.door.greeting import Door, Greeting
from wal2lake.door.hba import everybody
from wal2lake.door.listener import Listener
from wal2lake.door.reception import (
    ListenerSettings,
    ListenerState,
    ReplicationFactory,
)

__all__ = [
    "AuthMethod",
    "Door",
    "Entrance",
    "Greeting",
    "Listener",
    "ListenerSettings",
    "ListenerState",
    "ReplicationFactory",
    "RoleSource",
    "SessionInfo",
    "everybody",
]
