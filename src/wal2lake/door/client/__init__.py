"""Carries the bytes and messages of one client's connection.

Takes: a connected socket. Gives: frames from the client and messages to the client, with deadlines
and back-pressure. Owns: the socket. Never: knows what a message means, or who the client is.

    transport      the socket
    relay          TLS between the socket and the transport
    conversation   messages over the transport
    diagnostics    errors and notices as fields
"""

from wal2lake.door.client.conversation import ClientConversation
from wal2lake.door.client.diagnostics import SessionEnd, is_wanted
from wal2lake.door.client.transport import ReadTimeout, Transport, TransportClosed

__all__ = [
    "ClientConversation",
    "ReadTimeout",
    "SessionEnd",
    "Transport",
    "TransportClosed",
    "is_wanted",
]
