"""Every setting: name, type, default, range and meaning, in one place.

A section of ``wal2lake.toml`` is a frozen dataclass, a setting one of its fields. The
field's metadata carries what the loader checks (range, choices) and what the default file
prints, so the three cannot disagree. A name that PostgreSQL has keeps its meaning; ours add
the unit (``_ms``, ``_bytes``) that PostgreSQL leaves to the value's suffix.

Called by: ``loading`` (checks), ``rendering`` (the default file), every room (reads).

Source: PostgreSQL manual, chapter 19 (server configuration).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, TypeVar
from urllib.parse import unquote, urlsplit

T = TypeVar("T")

_INT_MAX: Final = 2**31 - 1
"""PostgreSQL's upper bound of an integer parameter."""

_BYTES_MAX: Final = 2**62

_MIB: Final = 1 << 20


def setting(
    default: T,
    doc: str,
    *,
    minimum: int | None = None,
    maximum: int | None = None,
    choices: tuple[str, ...] = (),
    pattern: str | None = None,
    allowed: str | None = None,
    restart: bool = False,
    receivers: bool = True,
) -> T:
    """Declare one field. ``pattern`` is a regular expression for the whole value and
    ``allowed`` says in words what it takes; ``restart``: SIGHUP does not change it;
    ``receivers``: whether a change of it concerns them."""
    metadata = {
        "doc": doc,
        "minimum": minimum,
        "maximum": maximum,
        "choices": choices,
        "pattern": pattern,
        "allowed": allowed,
        "restart": restart,
        "receivers": receivers,
    }
    if isinstance(default, Mapping):
        made: Any = field(
            default_factory=lambda: MappingProxyType({}), metadata=metadata
        )
    else:
        made = field(default=default, metadata=metadata)
    # The type checker sees the field's value, the dataclass decorator sees the field.
    result: T = made
    return result


PUBLISHER_LOG: Final = "publish"
"""Directory of the log of what the node publishes, beside those of the subscriptions."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Where the node listens and whom it lets in."""

    listen_addresses: str = setting(
        "127.0.0.1",
        "Host names or IP addresses to listen on, comma-separated; '*' for all.",
        restart=True,
    )
    port: int = setting(
        5480,
        "TCP port to listen on; 0 lets the system choose (see wal2lake status).",
        minimum=0,
        maximum=65535,
        restart=True,
    )
    max_connections: int = setting(
        100,
        "Clients that may be connected at once.",
        minimum=1,
        maximum=262143,
        restart=True,
    )
    max_prepared_transactions: int = setting(
        16,
        "Transactions that PREPARE TRANSACTION may leave to be finished; 0: none, as is"
        " PostgreSQL's default.",
        minimum=0,
        maximum=262143,
        restart=True,
    )
    authentication: str = setting(
        "scram-sha-256",
        "How clients prove who they are, without an hba_file; trust lets anybody in as"
        " anybody.",
        choices=("scram-sha-256", "trust"),
        restart=True,
    )
    hba_file: str = setting(
        "",
        "Who may connect from where, and how clients prove who they are: a file with records"
        " as in pg_hba.conf; a relative path is in the node's directory.",
        receivers=False,
    )
    ssl: bool = setting(False, "Offer TLS to clients.", receivers=False)
    ssl_cert_file: str = setting(
        "server.crt", "The node's certificate, and its chain; PEM.", receivers=False
    )
    ssl_key_file: str = setting(
        "server.key", "The certificate's private key; PEM.", receivers=False
    )
    ssl_ca_file: str = setting(
        "",
        "Authorities that sign certificates of clients; empty: none are asked for.",
        receivers=False,
    )
    ssl_min_protocol_version: str = setting(
        "TLSv1.2",
        "The oldest version of TLS.",
        choices=("TLSv1.2", "TLSv1.3"),
        receivers=False,
    )
    authentication_timeout_ms: int = setting(
        60_000,
        "A client that has not authenticated by then is disconnected.",
        minimum=1_000,
        maximum=600_000,
        restart=True,
    )
    shutdown_timeout_ms: int = setting(
        20_000,
        "A fast shutdown that takes longer ends with SIGKILL, which loses nothing.",
        minimum=0,
        maximum=_INT_MAX,
        restart=True,
    )


@dataclass(frozen=True, slots=True)
class LogSettings:
    """The durable change log between the publisher and the tables."""

    directory: str = setting(
        "",
        "Where the change log lives, a path or file: URL; empty: log/ in the node's"
        " directory.",
        restart=True,
    )
    journal_file_bytes: int = setting(
        64 * _MIB,
        "The journal starts a new file at this size.",
        minimum=_MIB,
        maximum=_INT_MAX,
    )
    segment_bytes: int = setting(
        32 * _MIB,
        "A segment is sealed when this much has been received for it.",
        minimum=64 * 1024,
        maximum=_INT_MAX,
    )
    segment_interval_ms: int = setting(
        250,
        "A segment that holds a commit is sealed after this time at the latest; while apply"
        " is behind after a quarter of the time it takes, at most a second.",
        minimum=1,
        maximum=_INT_MAX,
    )
    size_limit_bytes: int = setting(
        0,
        "At this size of a subscription's log receiving stops, so that the publisher"
        " keeps the WAL instead; transactions that are open or prepared do not count."
        " 0: no limit but the disk.",
        minimum=0,
        maximum=_BYTES_MAX,
    )
    size_warning_percent: int = setting(
        80,
        "A log that fills this much of size_limit_bytes is reported.",
        minimum=1,
        maximum=100,
    )
    history_bytes: int = setting(
        256 * _MIB,
        "Sealed segments that all tables have applied are kept up to this size, and the"
        " logical messages in them.",
        minimum=0,
        maximum=_BYTES_MAX,
    )
    messages: bool = setting(
        True,
        "Ask publishers for logical messages (pg_logical_emit_message) and keep them; a"
        " change counts from a receiver's next start.",
    )
    messages_view_bytes: int = setting(
        64 * _MIB,
        "wal2lake.messages shows a subscription's logical messages up to this size of"
        " all contents together; above it, it is an error.",
        minimum=0,
        maximum=_INT_MAX,
        receivers=False,
    )


@dataclass(frozen=True, slots=True)
class SubscriptionSettings:
    """How subscriptions reach their publishers. Names and meanings are PostgreSQL's."""

    wal_retrieve_retry_interval_ms: int = setting(
        5_000,
        "Time between two starts of a worker that keeps failing.",
        minimum=1,
        maximum=_INT_MAX,
    )
    wal_receiver_timeout_ms: int = setting(
        60_000,
        "A publisher that sends nothing for so long counts as gone; 0: never.",
        minimum=0,
        maximum=_INT_MAX,
    )
    wal_receiver_status_interval_ms: int = setting(
        10_000,
        "Longest time between two position reports to the publisher; 0: only when"
        " asked.",
        minimum=0,
        maximum=_INT_MAX,
    )
    max_logical_replication_workers: int = setting(
        64,
        "Receivers that may run at once, one for each enabled subscription.",
        minimum=0,
        maximum=262143,
        receivers=False,
    )
    max_sync_workers_per_subscription: int = setting(
        2,
        "Tables of one subscription that are copied at the same time.",
        minimum=1,
        maximum=262143,
        receivers=False,
    )
    copy_range_bytes: int = setting(
        256 * _MIB,
        "A table is copied in ranges of about this size, in parallel.",
        minimum=_MIB,
        maximum=_BYTES_MAX,
        restart=True,
    )
    max_lock_wait_ms: int = setting(
        1_000,
        "Longest time that a session of the publisher waits for a lock of an initial copy"
        " before the copy gives way, and longest time that a copy waits for a lock; 0: a"
        " copy never gives way.",
        minimum=0,
        maximum=_INT_MAX,
    )
    connect_timeout_ms: int = setting(
        30_000,
        "Longest wait for a connection to a publisher, if neither its connection string"
        " nor PGCONNECT_TIMEOUT says.",
        minimum=1_000,
        maximum=_INT_MAX,
        restart=True,
    )


@dataclass(frozen=True, slots=True)
class ApplySettings:
    """How much of the change log becomes one commit of a table."""

    batch_bytes: int = setting(
        256 * _MIB,
        "Segments of this size together are applied as one batch at most.",
        minimum=64 * 1024,
        maximum=_BYTES_MAX,
        restart=True,
    )
    batch_rows: int = setting(
        2_000_000,
        "Row changes in one batch at most; a larger transaction is a batch by itself.",
        minimum=1,
        maximum=_INT_MAX,
        restart=True,
    )
    upsert_bytes: int = setting(
        256 * _MIB,
        "Updates and deletes, of all tables together, that are applied in the engine's"
        " memory at a time (which needs about three times as much); what does not fit is"
        " a MERGE by Spark.",
        minimum=0,
        maximum=768 * _MIB,
        restart=True,
    )
    key_index_bytes: int = setting(
        4 * 1024 * _MIB,
        "Disk for where the integer keys of large tables are (8 to 16 bytes a row), so that"
        " a few updates need not read all keys of their table. It is a cache: what was not"
        " used for longest goes first, and a start begins with none. 0: no such thing.",
        minimum=0,
        maximum=_BYTES_MAX,
        restart=True,
    )
    log_conflict_values: bool = setting(
        True,
        "Reports of conflicts quote the rows' values, as PostgreSQL's do, if the role that"
        " applies them may SELECT from the table. Off: wal2lake.conflicts alone has the"
        " rows' keys.",
        restart=True,
    )
    track_commit_timestamp: bool = setting(
        False,
        "Keep of each row who has written it, and when, in the tables' files: the conflicts"
        " update_origin_differs and delete_origin_differs are found then, and reports of"
        " others say whose the row is.",
        restart=True,
    )
    max_value_bytes: int = setting(
        256 * _MIB,
        "A longer value, in the form in which it is sent, is not stored: an error, unless"
        " the subscription's value_policies say null. Readers of the tables need several"
        " times as much memory as their largest value.",
        minimum=1024,
        maximum=1024 * _MIB,
        restart=True,
    )


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Spark's own settings. What is under [spark.conf] is passed through as it is."""

    master: str = setting(
        "local[*]", "Spark master URL; local[*] uses all cores here.", restart=True
    )
    driver_memory: str = setting(
        "2g",
        "Heap of the driver's JVM, with Spark's suffix (512m, 4g).",
        pattern=r"[1-9][0-9]*[kmgtKMGT]",
        allowed="a number followed by k, m, g or t, for example 512m or 4g",
        restart=True,
    )
    warehouse: str = setting(
        "",
        "URL or path under which tables are kept; empty: warehouse/ in the node's"
        " directory.",
        restart=True,
    )
    jars_dir: str = setting(
        "",
        "Folder that holds Spark's extra jars, for sites without a network; empty:"
        " they are downloaded once and cached.",
        restart=True,
    )
    conf: Mapping[str, str] = setting(
        MappingProxyType({}),
        'Any Spark property, one a line: "spark.sql.shuffle.partitions" = "4".',
        restart=True,
    )

    @property
    def is_local(self) -> bool:
        """Driver and executors are one process on this machine, not a cluster's."""
        return self.master == "local" or self.master.startswith("local[")


@dataclass(frozen=True, slots=True)
class PublishSettings:
    """Serving tables to subscribers."""

    max_replication_slots: int = setting(
        10, "Replication slots at a time.", minimum=0, maximum=262143
    )
    max_slot_wal_keep_size: int = setting(
        -1,
        "MB of the publisher's log that a replication slot may hold back; one that needs more is"
        " invalidated. -1: no limit.",
        minimum=-1,
        maximum=_INT_MAX,
        receivers=False,
    )
    idle_replication_slot_timeout: int = setting(
        0,
        "Seconds after which a replication slot that nobody uses is invalidated; 0: never.",
        minimum=0,
        maximum=_INT_MAX,
        receivers=False,
    )
    max_wal_senders: int = setting(
        10, "Connections for replication at a time.", minimum=0, maximum=262143
    )
    synchronous_standby_names: str = setting(
        "",
        "Subscribers that a COMMIT waits for: application names, or as FIRST 2 (a, b, c) or"
        " ANY 1 (a, b).",
        receivers=False,
    )
    wal_sender_timeout_ms: int = setting(
        60_000,
        "A client that says nothing for so long is cut off; 0: never.",
        minimum=0,
        maximum=_INT_MAX,
    )
    output_plugin_libraries: str = setting(
        "",
        "Output plugins that may be used beside those that are built in: names of entry"
        " points of installed packages, commas between them.",
    )
    capture_bytes: int = setting(
        256 * _MIB,
        "Memory for the comparison of a commit's old and new rows; what is more goes to"
        " disk.",
        minimum=64 * _MIB,
        maximum=_BYTES_MAX,
    )
    logical_decoding_work_mem: int = setting(
        64 * _MIB,
        "Bytes of a transaction that one decoding holds: what has more is streamed in blocks"
        " to clients that want it so.",
        minimum=64 * 1024,
        maximum=_INT_MAX,
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of the node in ``directory``."""

    directory: Path
    """Absolute path of the node's directory."""
    node: NodeSettings = NodeSettings()
    log: LogSettings = LogSettings()
    subscription: SubscriptionSettings = SubscriptionSettings()
    apply: ApplySettings = ApplySettings()
    publish: PublishSettings = PublishSettings()
    spark: SparkSettings = SparkSettings()

    @property
    def log_directory(self) -> Path:
        """Where the change log lives."""
        chosen = self.log.directory
        return self.directory / (file_url_path(chosen) or chosen or "log")

    @property
    def publish_log_directory(self) -> Path:
        """The log of what this node publishes."""
        return self.log_directory / PUBLISHER_LOG

    @property
    def warehouse(self) -> str:
        """URL or absolute path of the warehouse; no slash at the end."""
        chosen = self.spark.warehouse
        # Hadoop takes a location's percent signs as they are, a URL's are an encoding.
        chosen = file_url_path(chosen) or chosen
        if "://" in chosen:
            return chosen.rstrip("/")
        return str(self.directory / (chosen or "warehouse"))

    @property
    def exchange_directory(self) -> Path:
        """Directory in which this process and Spark's executors exchange files that nobody needs
        after a restart. In a cluster it is where the log is, which all machines mount."""
        if self.spark.is_local:
            return self.run_directory
        return self.log_directory / "spark"

    @property
    def run_directory(self) -> Path:
        """Sockets, positions and other facts of running processes."""
        return self.directory / "run"

    @property
    def catalog_file(self) -> Path:
        """The catalog's SQLite file."""
        return self.directory / "catalog.sqlite"


def file_url_path(text: str) -> str | None:
    """The path of a ``file:`` URL, percent-decoded; None: it is none, or another host's, or has
    more than a path (``#`` and ``?`` are %23 and %3F in one)."""
    parts = urlsplit(text)
    if parts.scheme != "file" or parts.netloc not in ("", "localhost"):
        return None
    if "#" in text or "?" in text:
        return None
    return unquote(parts.path) if parts.path.startswith("/") else None


SECTIONS: Final[Mapping[str, type[Any]]] = MappingProxyType(
    {
        "node": NodeSettings,
        "log": LogSettings,
        "publish": PublishSettings,
        "subscription": SubscriptionSettings,
        "apply": ApplySettings,
        "spark": SparkSettings,
    }
)
"""Section name in the file to its class; the order of the file."""
