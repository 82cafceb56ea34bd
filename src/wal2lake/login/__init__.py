"""Checks of clients that log in, shared by the front door and the web process.

Takes: settings, the certificate's files, roles, passwords, failed attempts. Gives: a TLS context,
whether a password is a role's, how long a client must wait. Never: opens a connection, reads the
catalog by itself.

    certificate   the node's certificate as a context for TLS servers
    passwords     a role's password: whether it fits, and until when it is valid
    throttle      pauses for clients that try passwords
"""

from wal2lake.login.certificate import load_certificate, server_context
from wal2lake.login.passwords import has_expired, is_password
from wal2lake.login.throttle import Throttle

__all__ = [
    "Throttle",
    "has_expired",
    "is_password",
    "load_certificate",
    "server_context",
]
