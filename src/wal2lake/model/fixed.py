"""Names and numbers that are the same on every node."""

from __future__ import annotations

from typing import Final

from wal2lake.model.lsn import Oid

DATABASE: Final = "lake"
"""The name of a node's one database."""

DATABASE_OID: Final = Oid(5)
"""pg_database's only row; PostgreSQL's first database of users has this number."""

BOOTSTRAP_SUPERUSER: Final = Oid(10)
"""BOOTSTRAP_SUPERUSERID: the role that ``init`` makes."""
