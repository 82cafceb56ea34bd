"""The facts of a node at one moment, as values.

``reading`` collects them, ``problems`` judges them; the views, metrics, page, terminal and alerts
show them. Positions are LSNs of the source, sizes are bytes, times are aware datetimes in UTC,
durations are seconds. None is a fact that is not known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from wal2lake.catalog import NOTHING_REGISTERED, RegisteredTables, Verification
from wal2lake.model import INVALID_LSN, Lsn, Oid, SyncState


@dataclass(frozen=True, slots=True)
class StageLag:
    """Lag at one stage of a subscription's pipeline."""

    lsn: Lsn
    """Position that the stage has reached."""
    behind_bytes: int
    """Distance to the last known position of the source."""
    behind_seconds: float | None
    """Age of the oldest transaction that the stage has not passed, by its commit time at the
    source; 0 if there is none. While the source cannot be reached: the time since its last
    message, if that is longer, because later transactions are not known."""


_MOST_SHARE: Final = 0.99
"""Shown until the copy has been committed."""


@dataclass(frozen=True, slots=True)
class CopyFacts:
    """A table's running initial copy."""

    rows: int
    rows_expected: int | None
    """The source's estimate (pg_class.reltuples); None if unknown."""
    bytes_done: int
    """Bytes of the files that were written."""
    bytes_expected: int | None
    """Bytes of the table at the source."""
    ranges_done: int
    ranges: int | None
    started_at: datetime | None
    ends_at: datetime | None
    """Expected end; None while too little is known."""
    progressed_at: datetime | None = None
    """Time of the last progress, as far as the reader of the facts has seen it."""

    @property
    def share(self) -> float | None:
        """Share that is done, below 1 while the copy runs; None if it is not known.

        Ranges have about as many pages each. The number of rows is an estimate of the source, which
        may be old. Bytes cannot be compared: those of the files are compressed."""
        if self.ranges is not None and self.ranges > 1:
            return min(self.ranges_done / self.ranges, _MOST_SHARE)
        if self.rows_expected:
            return min(self.rows / self.rows_expected, _MOST_SHARE)
        return None


@dataclass(frozen=True, slots=True)
class TableFacts:
    """One table of one subscription."""

    oid: Oid
    namespace: str
    name: str
    state: SyncState
    paused_since: datetime | None = None
    error: str | None = None
    """Text of the error that stops the table alone."""
    freshness: float | None = None
    """Most seconds that the table may be behind, as ALTER TABLE ... SET (freshness) says."""
    behind_seconds: float | None = None
    """Seconds that the visible version of the table is behind the source."""
    applied_lsn: Lsn = INVALID_LSN
    version: int | None = None
    """Delta version that readers see."""
    files: int | None = None
    size_bytes: int | None = None
    deletion_vectors: int | None = None
    rows: Mapping[str, int] = field(default_factory=dict)
    """Row changes applied since the engine's start, by kind: inserted, updated, deleted,
    truncated, copied."""
    batches: Mapping[str, int] = field(default_factory=dict)
    """Commits since the engine's start, by method."""
    conflicts: int = 0
    coercions: int = 0
    verification: Verification | None = None
    """Result of the last VERIFY; None: the table has not been compared."""
    copy: CopyFacts | None = None
    sqlstate: str | None = None
    """SQLSTATE of ``error``."""
    remote_namespace: str = ""
    remote_name: str = ""
    """Name of the table at the publisher."""
    rows_copied: int = 0
    """Rows that the initial copy has brought, whether it has ended or not."""

    @property
    def qualified(self) -> str:
        """``schema.table``, unquoted."""
        return f"{self.namespace}.{self.name}"


@dataclass(frozen=True, slots=True)
class SourceFacts:
    """Facts about our slot, as the publisher has last reported them."""

    asked_at: datetime | None = None
    wal_lsn: Lsn = INVALID_LSN
    """Last known position of the publisher's WAL."""
    slot_name: str | None = None
    slot_active: bool | None = None
    wal_status: str | None = None
    """reserved, extended, unreserved or lost (pg_replication_slots)."""
    retained_bytes: int | None = None
    """WAL that our slot holds at the source."""
    safe_wal_bytes: int | None = None
    """pg_replication_slots.safe_wal_size; None without a limit."""
    limit_bytes: int | None = None
    """max_slot_wal_keep_size; None without a limit."""


@dataclass(frozen=True, slots=True)
class SubscriptionFacts:
    """One subscription."""

    oid: Oid
    name: str
    enabled: bool
    state: str
    """streaming, retrying, disabled, down or no slot: the words of wal2lake status."""
    receiver_pid: int | None
    publications: tuple[str, ...]
    received: StageLag
    durable: StageLag
    applied: StageLag
    visible: StageLag
    source: SourceFacts
    last_message_at: datetime | None
    log_bytes: int
    log_limit_bytes: int | None
    errors: Mapping[str, tuple[str, str | None, datetime | None]]
    """Text, SQLSTATE and first time of the error that stops a worker, by worker."""
    error_counts: Mapping[str, int]
    """Failed attempts by worker since the statistics were reset."""
    conflicts: Mapping[str, int]
    """Conflicts by type."""
    tables: tuple[TableFacts, ...]
    disable_on_error: bool = False
    value_policies: str = ""
    """The option, as text."""
    connected: bool = False
    """Whether a receiver runs and streams, as far as is known."""
    log_warning_bytes: int | None = None
    """Size of the log from which it is near its limit; None without a limit."""


@dataclass(frozen=True, slots=True)
class SlotFacts:
    """A replication slot of the publisher half."""

    name: str
    plugin: str
    active_pid: int | None
    confirmed_lsn: Lsn
    retained_bytes: int
    """Distance from its restart_lsn to the end of the log."""
    wal_status: str
    """reserved, unreserved or lost."""
    limit_bytes: int | None
    temporary: bool = False
    invalidation: str | None = None
    """Why the slot is lost, in PostgreSQL's words."""


@dataclass(frozen=True, slots=True)
class WalsenderFacts:
    """A subscriber that is connected to the publisher half."""

    pid: int
    application_name: str
    client: str
    slot_name: str | None
    state: str
    sent_lsn: Lsn
    flushed_lsn: Lsn
    replayed_lsn: Lsn


@dataclass(frozen=True, slots=True)
class PreparedTransactionFacts:
    """A prepared transaction of the node's own sessions."""

    gid: str
    prepared_at: datetime


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """One process of the node."""

    role: str
    pid: int
    started_at: datetime | None
    restarts: int
    subscription: str | None = None
    rss_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class DiskFacts:
    """A file system that the node writes."""

    purpose: str
    """catalog, log or warehouse."""
    path: str
    free_bytes: int
    size_bytes: int
    device: int = 0
    """Number of the file system: purposes with the same one share it."""


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """The whole node."""

    taken_at: datetime
    directory: str
    state: str
    """stopped, starting, ready or stopping."""
    version: str | None
    pid: int | None
    address: str | None
    port: int | None
    started_at: datetime | None
    processes: tuple[ProcessFacts, ...]
    disks: tuple[DiskFacts, ...]
    certificate_ends: datetime | None
    """End of the validity of the TLS certificate; None without TLS."""
    heap_bytes: int | None
    heap_limit_bytes: int | None
    engine_told_at: datetime | None
    """Time of the engine's last report; old if the engine is down or stuck."""
    subscriptions: tuple[SubscriptionFacts, ...]
    slots: tuple[SlotFacts, ...]
    walsenders: tuple[WalsenderFacts, ...]
    published_lsn: Lsn = INVALID_LSN
    """End of the publisher's log."""
    prepared: tuple[PreparedTransactionFacts, ...] = ()
    stopped_at: datetime | None = None
    """Last sign of life of a node that does not run; None: there is none, or the node runs."""
    unfinished_commits: int = 0
    """Commits to several tables that have begun and not ended."""
    unfinished_since: datetime | None = None
    """Time since which the oldest of them has been seen."""
    web_urls: tuple[str, ...] = ()
    """Where the web process listens, as a client on this machine reaches it."""
    web_error: str | None = None
    """Why the web process does not listen on an address of the settings; it tries again."""
    settings_error: str | None = None
    """Why wal2lake.toml cannot be read: the facts that depend on settings are those of the
    defaults, and the next start would fail."""
    registered: RegisteredTables = NOTHING_REGISTERED
    """Tables and their entries in the catalog of [catalog]."""
    mirrored: RegisteredTables = NOTHING_REGISTERED
    """Mirrored tables and their entries in the catalog of [iceberg.catalog]."""
