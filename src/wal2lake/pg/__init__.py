"""Connections to PostgreSQL servers: mechanism, no policy. The only room with psycopg.

Takes: conninfo strings and statements. Gives: rows as text, CopyData payloads, COPY
output; every failure as PublisherError with the server's SQLSTATE and text. Owns:
sockets. Never: decides when to connect, retry or what a row means.
"""

from wal2lake.pg.binaryformat import (
    PublishedFormats,
    list_obstacles,
    obstacle,
    published_formats,
)
from wal2lake.pg.connection import (
    Session,
    check_password_given,
    connect,
    limit_connecting,
    parse_conninfo,
    redact,
)
from wal2lake.pg.nudge import nudged
from wal2lake.pg.publisher import (
    Identity,
    Publisher,
    RemoteColumn,
    RemoteTable,
    SlotCreated,
)
from wal2lake.pg.replication import CopyBothStream, Payloads

__all__ = [
    "CopyBothStream",
    "Identity",
    "Payloads",
    "PublishedFormats",
    "Publisher",
    "RemoteColumn",
    "RemoteTable",
    "Session",
    "SlotCreated",
    "check_password_given",
    "connect",
    "limit_connecting",
    "list_obstacles",
    "nudged",
    "obstacle",
    "parse_conninfo",
    "published_formats",
    "redact",
]
