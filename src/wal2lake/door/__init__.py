"""Admits connections, up to a session or a refusal.

Takes: listening sockets, what the node allows (``Door``). Gives: a running ``Session`` for each
client that is let in; the list of who is there. Owns: the threads of connections, cancel
keys. Never: reads a statement.

    listener      accepts; one thread per connection; start, drain, stop
    reception     one connection, up to its session or a refusal
    entrance      what the settings say of TLS and of who may come in
    encryption    the certificate, the handshake
    hba           records of pg_hba.conf
    greeting      startup packets, up to a session that may begin
    auth          who is it
    connections   who is connected, for cancel requests and pg_stat_activity
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
