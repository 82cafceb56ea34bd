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
    OUTPUT_SETTINGS,
    DescribedColumn,
    Session,
    check_no_program,
    check_password_given,
    connect,
    limit_connecting,
    parse_conninfo,
    redact,
)
from wal2lake.pg.nudge import nudged
from wal2lake.pg.publishedtables import RemoteColumn, RemoteTable
from wal2lake.pg.publisher import Identity, LockWaiter, Publisher, SlotCreated
from wal2lake.pg.replication import CopyBothStream, CopyDataPayloads
from wal2lake.pg.waiting import Check, readable

__all__ = [
    "OUTPUT_SETTINGS",
    "Check",
    "CopyBothStream",
    "CopyDataPayloads",
    "DescribedColumn",
    "Identity",
    "LockWaiter",
    "PublishedFormats",
    "Publisher",
    "RemoteColumn",
    "RemoteTable",
    "Session",
    "SlotCreated",
    "check_no_program",
    "check_password_given",
    "connect",
    "limit_connecting",
    "list_obstacles",
    "nudged",
    "obstacle",
    "parse_conninfo",
    "published_formats",
    "readable",
    "redact",
]
