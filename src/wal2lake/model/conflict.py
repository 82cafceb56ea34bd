"""Conflicts: changes that meet another state of the table than the publisher's.

Source: PostgreSQL manual, 29.8 (Conflicts); src/include/replication/conflict.h.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from wal2lake.model.lsn import Lsn, Oid


class ConflictType(StrEnum):
    """PostgreSQL 18's, in the order of pg_stat_subscription_stats."""

    INSERT_EXISTS = "insert_exists"
    UPDATE_ORIGIN_DIFFERS = "update_origin_differs"
    UPDATE_EXISTS = "update_exists"
    UPDATE_MISSING = "update_missing"
    DELETE_ORIGIN_DIFFERS = "delete_origin_differs"
    DELETE_MISSING = "delete_missing"
    MULTIPLE_UNIQUE_CONFLICTS = "multiple_unique_conflicts"


class Resolution(StrEnum):
    """Resolutions of a conflicting change. The last three are rules only: they choose one of the
    others by the times of both rows, or by an expression over the rows."""

    ERROR = "error"
    """The transaction stops the subscription."""
    SKIP = "skip"
    """It is left out."""
    APPLY_REMOTE = "apply_remote"
    """It is applied: a row that is in its way is replaced, one that is not there inserted."""
    KEEP_LOCAL = "keep_local"
    """It is left out, for the row that is here."""
    MERGE = "merge"
    """The row here gets values that expressions make of both."""
    LAST_UPDATE_WINS = "last_update_wins"
    FIRST_UPDATE_WINS = "first_update_wins"
    EXPRESSION = "expression"


@dataclass(frozen=True, slots=True)
class Modified:
    """The writer that made a row of a table what it is."""

    origin: int
    """OID of a subscription; 0: a local statement."""
    xid: int
    """The transaction's at the publisher; of a local statement: the table's version."""
    time_us: int
    """Time of the commit, microseconds since 1970."""


@dataclass(frozen=True, slots=True)
class Conflict:
    """One change, or several alike whose rows are not named any more."""

    relid: Oid
    """Our table."""
    type: ConflictType
    resolution: Resolution
    commit_lsn: Lsn
    """LSN of the transaction; of several changes, that of the first."""
    key: str | None
    """The row's, as PostgreSQL writes it: ``(a, b)=(1, 2)``; None: of several."""
    xid: int | None
    """The transaction's at the publisher; like the next two None if it is not known."""
    origin: str | None
    """Where the publisher has it from; None also: made there."""
    committed_at: datetime | None
    count: int = 1
