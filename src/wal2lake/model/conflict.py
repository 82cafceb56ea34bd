"""Conflicts: changes that find the table in another state than the publisher's.

Source: PostgreSQL manual, 29.8 (Conflicts); src/include/replication/conflict.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from wal2lake.model.lsn import Lsn, Oid


class ConflictType(StrEnum):
    """PostgreSQL 18's conflict types, in the order of pg_stat_subscription_stats."""

    INSERT_EXISTS = "insert_exists"
    UPDATE_ORIGIN_DIFFERS = "update_origin_differs"
    UPDATE_EXISTS = "update_exists"
    UPDATE_MISSING = "update_missing"
    DELETE_ORIGIN_DIFFERS = "delete_origin_differs"
    DELETE_MISSING = "delete_missing"
    MULTIPLE_UNIQUE_CONFLICTS = "multiple_unique_conflicts"


class Resolution(StrEnum):
    """Resolutions of a conflicting change. The last three are rules: they choose one of the other
    resolutions by the times of both rows, or by an expression over the rows."""

    ERROR = "error"
    """The transaction stops the subscription."""
    SKIP = "skip"
    """The change is skipped."""
    APPLY_REMOTE = "apply_remote"
    """The change is applied: an existing row is replaced, a missing row is inserted."""
    KEEP_LOCAL = "keep_local"
    """The change is skipped in favour of the existing row."""
    MERGE = "merge"
    """The existing row gets values that expressions compute from both rows."""
    LAST_UPDATE_WINS = "last_update_wins"
    FIRST_UPDATE_WINS = "first_update_wins"
    EXPRESSION = "expression"


@dataclass(frozen=True, slots=True)
class Modified:
    """The last writer of a row."""

    origin: int
    """OID of a subscription; 0: a local statement."""
    xid: int
    """The transaction's XID at the publisher; for a local statement, the table's version."""
    time_us: int
    """Commit time, microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """One conflicting change, or the sum of several equal ones whose rows are no longer named."""

    relid: Oid
    """OID of the lake table."""
    type: ConflictType
    resolution: Resolution
    commit_lsn: Lsn
    """Commit LSN of the transaction; for several changes, that of the first."""
    key: str | None
    """The row's key as PostgreSQL writes it: ``(a, b)=(1, 2)``; None: several rows."""
    xid: int | None
    """The transaction's XID at the publisher; None (like the next two) if it is not known."""
    origin: str | None
    """Replication origin from which the publisher has the change; None also if the change was
    made at the publisher."""
    committed_at: datetime | None
    count: int = 1
