"""A problem as a value, and the closed list of kinds.

A problem is one thing that is wrong, in words that every surface shows alike: the view
``wal2lake.problems``, the page, ``wal2lake status``, ``wal2lake top``, the metrics and the alerts.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

ProblemKey = tuple[str, str, str, str]
"""Identity of a problem: kind, subscription, table, subject; empty where there is none."""


class Severity(StrEnum):
    """How bad a problem is."""

    WARNING = "warning"
    """Something will fail, or is late."""
    ERROR = "error"
    """Something has stopped."""


class Concern(StrEnum):
    """Person who can end a problem."""

    OPERATOR = "operator"
    """The operator of this node."""
    SOURCE = "source"
    """The administrator of the source."""
    NOBODY = "nobody"
    """It passes by itself."""


class ProblemKind(StrEnum):
    """All kinds of problems (docs/reference/problems.md)."""

    STOPPED = "stopped"
    """No node runs in the directory."""
    ENGINE = "engine"
    """The engine does not run, or has just been restarted."""
    ENGINE_SILENT = "engine_silent"
    """The engine runs, but has not reported for long."""
    SETTINGS = "settings"
    """wal2lake.toml is invalid: the node goes on with what it has read before."""
    DISK = "disk"
    """A file system that the node writes is nearly full."""
    CERTIFICATE = "certificate"
    """The node's TLS certificate expires soon, or has expired."""
    CATALOG = "catalog"
    """The catalog of [catalog] does not show the tables as they are."""
    CATALOG_ENTRY = "catalog_entry"
    """One table has no entry in the catalog: the name is in use, or the entry is refused."""
    ICEBERG_CATALOG = "iceberg_catalog"
    """The catalog of [iceberg.catalog] does not show the mirrors as they are."""
    ICEBERG_CATALOG_ENTRY = "iceberg_catalog_entry"
    """One mirror is not in that catalog as it is: the name is in use, another program has committed
    to it, or the entry is refused."""
    PREPARED = "prepared"
    """A transaction has been prepared for long."""
    LOCAL_COMMIT = "local_commit"
    """A commit to several tables does not come to its end."""
    ERRORED = "errored"
    """An error stops a worker of a subscription."""
    RECEIVER = "receiver"
    """A subscription does not receive: its source cannot be reached, or its receiver is down."""
    DISABLED = "disabled"
    """A subscription is disabled, by hand or by disable_on_error."""
    NO_SLOT = "no_slot"
    """A subscription has no replication slot."""
    LATE = "late"
    """A table is behind more than its freshness allows, or a subscription is far behind."""
    LOG_NEAR_LIMIT = "log_near_limit"
    """A subscription's log nears log.size_limit_bytes."""
    LOG_LIMIT = "log_limit"
    """A subscription's log has reached log.size_limit_bytes: receiving is paused."""
    WAL_HELD = "wal_held"
    """Our slot holds WAL near the source's limit, or beyond it."""
    SLOT_LOST = "slot_lost"
    """The source has invalidated or lost our slot: changes are missing."""
    TABLE_ERRORED = "table_errored"
    """An error stops a table's copy."""
    PAUSED = "paused"
    """A table is paused."""
    PAUSED_LONG = "paused_long"
    """A table has been paused for more than a day, and the log keeps what it misses."""
    DIFFERENT = "different"
    """VERIFY has found rows of a table that differ from the source."""
    COPY_STUCK = "copy_stuck"
    """A table's copy makes no progress."""
    PUBLISHER_SLOT_LOST = "publisher_slot_lost"
    """A slot of this node was invalidated: its subscriber must begin anew."""
    PUBLISHER_WAL_HELD = "publisher_wal_held"
    """A slot of this node nears publish.max_slot_wal_keep_size."""
    PUBLISHER_SLOT_INACTIVE = "publisher_slot_inactive"
    """A slot of this node that nobody uses holds much of the publisher's log."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem. Problems with the same ``key`` are the same problem at different times."""

    kind: str
    """A ``ProblemKind``."""
    severity: Severity
    message: str
    """One sentence, in PostgreSQL's style: no capital letter, no full stop."""
    concern: Concern
    since: datetime | None = None
    subscription: str | None = None
    table: str | None = None
    """``schema.table``; None if the problem is not a table's."""
    subject: str | None = None
    """Worker, slot, disk or process, if the kind can occur more than once."""
    stage: str | None = None
    """Stage of the pipeline that is late: received, durable, applied or visible."""
    sqlstate: str | None = None
    detail: str | None = None
    remedy: str | None = None
    """SQL that repairs it, to be run by whom it concerns: at this node, or at the source. None if
    there is none."""
    hint: str | None = None
    """Advice."""

    @property
    def key(self) -> ProblemKey:
        """Identity of the problem."""
        return (
            str(self.kind),
            self.subscription or "",
            self.table or "",
            self.subject or "",
        )
