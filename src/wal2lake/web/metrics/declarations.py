"""Every metric: name, kind, labels and help text, in the order in which they are shown.

Names follow Prometheus's rules: base units, ``_total`` for counters, ``_timestamp_seconds`` for
times. A metric with a label ``table`` has one series for each mirrored table (two labels are
enough to find it: the subscription's name and ``schema.table``), the others have few. Names of
counters and histograms that processes of the node keep (``observe.telemetry``) are the same here,
with the prefix.

Source: https://prometheus.io/docs/practices/naming/ and .../instrumenting/writing_exporters/.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

PREFIX: Final = "wal2lake_"


class MetricKind(StrEnum):
    """Types of metrics, as the formats name them."""

    GAUGE = "gauge"
    """A value that goes up and down."""
    COUNTER = "counter"
    """A value that goes up, and begins at 0 again when a process is replaced."""
    HISTOGRAM = "histogram"
    """Observations by bucket."""


@dataclass(frozen=True, slots=True)
class MetricDeclaration:
    """One metric."""

    name: str
    """Name with the prefix; a counter's ends with ``_total``."""
    kind: MetricKind
    help: str
    labels: tuple[str, ...]
    group: str
    """Heading in the reference."""
    measured: bool = False
    """True if the value is one of ``observe.telemetry``, under the name without the prefix."""


METRICS: Final[list[MetricDeclaration]] = []
"""All metrics. Filled while this module is imported, and never later."""


def _declare(
    group: str,
    kind: MetricKind,
    name: str,
    text: str,
    labels: str,
    *,
    measured: bool = False,
) -> MetricDeclaration:
    made = MetricDeclaration(
        PREFIX + name, kind, text, tuple(labels.split()), group, measured
    )
    METRICS.append(made)
    return made


# ---- the node ---------------------------------------------------------------------------

_NODE: Final = "Node"


def _node(name: str, text: str, labels: str = "") -> MetricDeclaration:
    return _declare(_NODE, MetricKind.GAUGE, name, text, labels)


BUILD_INFO: Final = _node(
    "build_info", "Version of the running node; always 1.", "version"
)
NODE_READY: Final = _node("node_ready", "1 if the node accepts clients, 0 if not.")
NODE_STATE: Final = _node(
    "node_state",
    "1 for the node's present state (stopped, starting, ready, stopping), 0 for the others.",
    "state",
)
NODE_START: Final = _node(
    "node_start_timestamp_seconds", "Time of the node's start, since 1970."
)
READING_TIME: Final = _node(
    "reading_timestamp_seconds", "Time at which these facts were read, since 1970."
)
READING_DURATION: Final = _node(
    "reading_duration_seconds", "Time that reading these facts took."
)
ENGINE_TOLD: Final = _node(
    "engine_report_timestamp_seconds",
    "Time of the engine's last report, since 1970; old if the engine is down or stuck.",
)
PROBLEMS: Final = _node(
    "problems",
    "Present problems, as in the view wal2lake.problems, by kind and severity.",
    "kind severity subscription",
)
PROCESS_START: Final = _node(
    "process_start_timestamp_seconds",
    "Time of the start of each process of the node, since 1970.",
    "role subscription",
)
PROCESS_MEMORY: Final = _node(
    "process_resident_memory_bytes",
    "Resident memory of each process of the node.",
    "role subscription",
)
PROCESS_RESTARTS: Final = _declare(
    _NODE,
    MetricKind.COUNTER,
    "process_restarts_total",
    "Times that the process was started again by the running supervisor.",
    "role subscription",
)
HEAP_USED: Final = _node("jvm_heap_used_bytes", "Used heap of Spark's driver.")
HEAP_LIMIT: Final = _node("jvm_heap_limit_bytes", "Largest heap of Spark's driver.")
DISK_FREE: Final = _node(
    "disk_free_bytes",
    "Free space of the file system of the catalog, the log and the warehouse.",
    "purpose",
)
DISK_SIZE: Final = _node(
    "disk_size_bytes",
    "Size of the file system of the catalog, the log and the warehouse.",
    "purpose",
)
RETENTION_FILES: Final = _declare(
    _NODE,
    MetricKind.COUNTER,
    "retention_removed_files_total",
    "Files of old versions and of crashed writers that were removed, by kind.",
    "kind",
    measured=True,
)
RETENTION_BYTES: Final = _declare(
    _NODE,
    MetricKind.COUNTER,
    "retention_removed_bytes_total",
    "Size of the files that retention has removed, by kind.",
    "kind",
    measured=True,
)
PREPARED: Final = _node(
    "prepared_transactions",
    "Prepared transactions of the node's own sessions (pg_prepared_xacts).",
)
CERTIFICATE_END: Final = _node(
    "certificate_expiry_timestamp_seconds",
    "End of the TLS certificate's validity, since 1970. Missing without TLS.",
)

# ---- subscriptions ------------------------------------------------------------------------

_SUBSCRIPTION: Final = "Subscriptions"


def _subscription(name: str, text: str, labels: str = "") -> MetricDeclaration:
    full = f"subscription {labels}".strip()
    return _declare(_SUBSCRIPTION, MetricKind.GAUGE, name, text, full)


def _subscription_count(
    name: str, text: str, labels: str = "", *, measured: bool = False
) -> MetricDeclaration:
    return _declare(
        _SUBSCRIPTION,
        MetricKind.COUNTER,
        name,
        text,
        f"subscription {labels}".strip(),
        measured=measured,
    )


def _subscription_times(name: str, text: str) -> MetricDeclaration:
    return _declare(
        _SUBSCRIPTION,
        MetricKind.HISTOGRAM,
        name,
        text,
        "subscription",
        measured=True,
    )


ENABLED: Final = _subscription(
    "subscription_enabled", "1 if the subscription is enabled, 0 if not."
)
STATE: Final = _subscription(
    "subscription_state",
    "1 for the subscription's present state (streaming, retrying, disabled, down, no slot), 0 for"
    " the others.",
    "state",
)
POSITION: Final = _subscription(
    "subscription_lsn_bytes",
    "Position of a stage (source, received, durable, applied, visible) in the source's WAL: the"
    " LSN as a number.",
    "stage",
)
LAG_BYTES: Final = _subscription(
    "subscription_lag_bytes",
    "Distance of a stage (received, durable, applied, visible) to the last known position of the"
    " source.",
    "stage",
)
LAG_SECONDS: Final = _subscription(
    "subscription_lag_seconds",
    "Age of the oldest transaction that a stage (received, durable, applied, visible) has not"
    " passed, by its commit time at the source; 0 if there is none.",
    "stage",
)
LAST_MESSAGE: Final = _subscription(
    "subscription_last_message_timestamp_seconds",
    "Time of the publisher's last message, since 1970.",
)
TABLES: Final = _subscription(
    "subscription_tables",
    "Tables by state: init, copying, copied, syncing, ready; paused and failed tables are"
    " counted as such instead.",
    "state",
)
LOG_BYTES: Final = _subscription(
    "subscription_log_bytes", "Size of the subscription's change log."
)
LOG_LIMIT: Final = _subscription(
    "subscription_log_limit_bytes",
    "Size at which receiving stops (log.size_limit_bytes). Missing without a limit.",
)
WORKER_FAILING: Final = _subscription(
    "subscription_worker_failing",
    "1 if the last attempt of the worker (receiver, apply, copy ...) has failed.",
    "worker",
)
ERRORS: Final = _subscription_count(
    "subscription_failures_total",
    "Failed attempts to apply and to copy since the statistics were reset.",
    "worker",
)
CONFLICTS: Final = _subscription_count(
    "subscription_conflicts_total",
    "Conflicts by type, as in pg_stat_subscription_stats.",
    "type",
)
COMMIT_TO_DURABLE: Final = _subscription_times(
    "commit_to_durable_seconds",
    "Time from a transaction's commit at the source until it is durable in the change log.",
)
COMMIT_TO_VISIBLE: Final = _subscription_times(
    "commit_to_visible_seconds",
    "Time from a transaction's commit at the source until readers of the tables see it.",
)
BATCH_SECONDS: Final = _subscription_times(
    "batch_seconds",
    "Time from the begin of a batch until readers of the tables see it.",
)
ATTEMPTS_FAILED: Final = _subscription_count(
    "errors_total",
    "Failed attempts since the process's start, by worker (receiver, apply, copy) and SQLSTATE.",
    "worker sqlstate",
    measured=True,
)
RECEIVED_BYTES: Final = _subscription_count(
    "received_bytes_total", "Bytes received from the source.", measured=True
)
RECEIVED_MESSAGES: Final = _subscription_count(
    "received_messages_total", "Messages received from the source.", measured=True
)
DURABLE_BYTES: Final = _subscription_count(
    "durable_bytes_total", "Bytes of messages made durable in the log.", measured=True
)
DURABLE_MESSAGES: Final = _subscription_count(
    "durable_messages_total", "Messages made durable in the log.", measured=True
)
DURABLE_TRANSACTIONS: Final = _subscription_count(
    "durable_transactions_total",
    "Transactions made durable in the log.",
    measured=True,
)
RECONNECTS: Final = _subscription_count(
    "reconnects_total",
    "Times that a lost connection to the source was made again.",
    measured=True,
)

# ---- the source ---------------------------------------------------------------------------

_SOURCE: Final = "The source's slot"


def _source(name: str, text: str, labels: str = "") -> MetricDeclaration:
    full = f"subscription {labels}".strip()
    return _declare(_SOURCE, MetricKind.GAUGE, name, text, full)


SOURCE_ASKED: Final = _source(
    "source_asked_timestamp_seconds",
    "Time at which the source last told about our slot, since 1970.",
)
SOURCE_ACTIVE: Final = _source(
    "source_slot_active", "1 if the slot at the source is in use, 0 if not."
)
SOURCE_STATUS: Final = _source(
    "source_slot_wal_status",
    "1 for the slot's present wal_status (reserved, extended, unreserved, lost), 0 for the"
    " others.",
    "status",
)
SOURCE_RETAINED: Final = _source(
    "source_slot_retained_bytes", "WAL that our slot holds back at the source."
)
SOURCE_SAFE: Final = _source(
    "source_slot_safe_wal_bytes",
    "WAL that the source may write before our slot is in danger. Missing without a limit.",
)
SOURCE_LIMIT: Final = _source(
    "source_slot_limit_bytes",
    "WAL that a slot may hold back at the source (max_slot_wal_keep_size). Missing without a"
    " limit.",
)

# ---- tables --------------------------------------------------------------------------------

_TABLE: Final = "Tables"


def _table(name: str, text: str, labels: str = "") -> MetricDeclaration:
    full = f"subscription table {labels}".strip()
    return _declare(_TABLE, MetricKind.GAUGE, name, text, full)


def _table_count(name: str, text: str, labels: str = "") -> MetricDeclaration:
    full = f"subscription table {labels}".strip()
    return _declare(_TABLE, MetricKind.COUNTER, name, text, full, measured=True)


TABLE_READY: Final = _table(
    "table_ready", "1 if the table is replicated, 0 if its copy has not ended."
)
TABLE_PAUSED: Final = _table("table_paused", "1 if the table is paused, 0 if not.")
TABLE_FAILED: Final = _table(
    "table_failed", "1 if an error stops the table alone, 0 if not."
)
TABLE_LAG_SECONDS: Final = _table(
    "table_lag_seconds", "Seconds that the visible version is behind the source."
)
TABLE_LAG_BYTES: Final = _table(
    "table_lag_bytes",
    "Distance of the table's position to the last known position of the source.",
)
TABLE_FRESHNESS: Final = _table(
    "table_freshness_seconds",
    "Most seconds that the table may be behind (storage parameter freshness). Missing without"
    " one.",
)
TABLE_VERSION: Final = _table("table_version", "Delta version that readers see.")
TABLE_FILES: Final = _table("table_files", "Data files of the visible version.")
TABLE_BYTES: Final = _table(
    "table_size_bytes", "Size of the data files of the visible version."
)
TABLE_VECTORS: Final = _table(
    "table_deletion_vectors", "Deletion vectors of the visible version."
)
TABLE_VERIFIED: Final = _table(
    "table_verified_timestamp_seconds",
    "Time at which VERIFY has last found the table equal to its source.",
)
TABLE_DIFFERING_ROWS: Final = _table(
    "table_differing_rows",
    "Rows that differ from the source, as VERIFY has last found.",
)
TABLE_REPAIRED_ROWS: Final = _table(
    "table_repaired_rows", "Rows that REPAIR has written or removed since the copy."
)
ROWS: Final = _table_count(
    "rows_total",
    "Row changes applied, by kind: inserted, updated, deleted, truncated, copied.",
    "kind",
)
APPLIED_BYTES: Final = _table_count(
    "applied_bytes_total", "Size of the applied changes, as the change log has them."
)
COPIED_BYTES: Final = _table_count(
    "copied_bytes_total", "Size of the files that initial copies have written."
)
BATCHES: Final = _table_count(
    "batches_total", "Commits by method (wal2lake.apply_methods).", "method"
)
TABLE_CONFLICTS: Final = _table_count(
    "conflicts_total", "Conflicts by type, as in wal2lake.conflicts.", "kind"
)
COERCIONS: Final = _table_count(
    "coercions_total", "Values that a value policy has changed, by policy.", "kind"
)
TABLES_LEFT_OUT: Final = _declare(
    _TABLE,
    MetricKind.GAUGE,
    "tables_left_out",
    "Tables without series of their own, because there are more than 5,000.",
    "",
)

# ---- copies ---------------------------------------------------------------------------------

_COPY: Final = "Initial copies"


def _copy(name: str, text: str) -> MetricDeclaration:
    return _declare(_COPY, MetricKind.GAUGE, name, text, "subscription table")


COPY_ROWS: Final = _copy("copy_rows", "Rows copied so far.")
COPY_ROWS_EXPECTED: Final = _copy(
    "copy_expected_rows", "Rows of the table, as the source estimates them."
)
COPY_BYTES: Final = _copy("copy_bytes", "Bytes copied so far.")
COPY_BYTES_EXPECTED: Final = _copy(
    "copy_expected_bytes", "Bytes of the table, as the source estimates them."
)
COPY_RANGES: Final = _copy("copy_ranges", "Ranges copied so far.")
COPY_RANGES_EXPECTED: Final = _copy("copy_expected_ranges", "Ranges of the copy.")
COPY_END: Final = _copy(
    "copy_expected_end_timestamp_seconds",
    "Expected end of the copy, since 1970. Missing while too little is known.",
)

# ---- the publisher half ------------------------------------------------------------------------

_PUBLISHER: Final = "Publisher"


def _publisher(name: str, text: str, labels: str = "") -> MetricDeclaration:
    return _declare(_PUBLISHER, MetricKind.GAUGE, name, text, labels)


PUBLISHED: Final = _publisher(
    "publisher_lsn_bytes", "End of the publisher's log: the LSN as a number."
)
SLOT_ACTIVE: Final = _publisher(
    "slot_active", "1 if the replication slot is in use, 0 if not.", "slot"
)
SLOT_LOST: Final = _publisher(
    "slot_lost", "1 if the replication slot is invalidated, 0 if not.", "slot"
)
SLOT_CONFIRMED: Final = _publisher(
    "slot_confirmed_lsn_bytes",
    "Position that the slot's client has confirmed: the LSN as a number.",
    "slot",
)
SLOT_RETAINED: Final = _publisher(
    "slot_retained_bytes", "Log that the replication slot holds back.", "slot"
)
SLOT_LIMIT: Final = _publisher(
    "slot_limit_bytes",
    "Log that a slot may hold back (publish.max_slot_wal_keep_size). Missing without a limit.",
    "slot",
)
WALSENDERS: Final = _publisher("walsenders", "Connected subscribers of this node.")
WALSENDER_SECONDS: Final = _publisher(
    "walsender_lag_seconds",
    "Time until a subscriber has last confirmed a position (flushed, replayed), as in"
    " pg_stat_replication; the largest one, if subscribers have one name and slot.",
    "application slot position",
)
WALSENDER_LAG: Final = _publisher(
    "walsender_lag_bytes",
    "Distance of a subscriber's position (sent, flushed, replayed) to the end of the log; the"
    " largest one, if subscribers have one name and slot.",
    "application slot position",
)
