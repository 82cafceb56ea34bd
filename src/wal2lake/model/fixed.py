"""Names and numbers that are the same on every node."""

from __future__ import annotations

from typing import Final

from wal2lake.model.lsn import Oid

DATABASE: Final = "lake"
"""The name of a node's one database."""

DATABASE_OID: Final = Oid(5)
"""OID of pg_database's only row; in PostgreSQL database ``postgres`` has it."""

BOOTSTRAP_SUPERUSER: Final = Oid(10)
"""BOOTSTRAP_SUPERUSERID: the role that ``init`` makes."""
