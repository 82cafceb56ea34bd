"""Every setting: name, type, default, range and meaning, in one place.

A section of ``wal2lake.toml`` is a frozen dataclass; a setting is one of its fields. The field's
metadata has the range and choices that the loader checks and the text that the default file
prints, so the three cannot disagree. A PostgreSQL name keeps its meaning; our own names end with
the unit (``_ms``, ``_bytes``), for which PostgreSQL uses a suffix of the value.

Called by: ``loading`` (checks), ``rendering`` (the default file), every room (reads).

Source: PostgreSQL manual, chapter 19 (server configuration).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from wal2lake.settings.catalogs import CatalogSettings, IcebergCatalogSettings
from wal2lake.settings.changelog import LogSettings
from wal2lake.settings.declaration import setting
from wal2lake.settings.objectstore import StoreSettings, azure_url
from wal2lake.settings.places import file_url_path, store_of_log

_INT_MAX: Final = 2**31 - 1
"""PostgreSQL's upper bound of an integer parameter."""

_BYTES_MAX: Final = 2**62

_MIB: Final = 1 << 20

PUBLISHER_LOG: Final = "publish"
"""Directory of the publisher's log, beside the logs of the subscriptions."""


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """Listening, client authentication, and the server log."""

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
        "Transactions that may be in the prepared state at once; 0 disables PREPARE"
        " TRANSACTION, which is PostgreSQL's default.",
        minimum=0,
        maximum=262143,
        restart=True,
    )
    authentication: str = setting(
        "scram-sha-256",
        "Authentication method of clients if there is no hba_file; trust accepts every"
        " client as the user that it names.",
        choices=("scram-sha-256", "trust"),
        restart=True,
    )
    hba_file: str = setting(
        "",
        "File with records as in pg_hba.conf: which users may connect from which addresses,"
        " and how they authenticate. A relative path is in the node's directory.",
        receivers=False,
    )
    ssl: bool = setting(False, "Offer TLS to clients.", receivers=False)
    ssl_cert_file: str = setting(
        "server.crt", "The node's certificate with its chain, in PEM.", receivers=False
    )
    ssl_key_file: str = setting(
        "server.key", "The certificate's private key, in PEM.", receivers=False
    )
    ssl_ca_file: str = setting(
        "",
        "Certificate authorities for client certificates, in PEM; empty: clients are not"
        " asked for a certificate.",
        receivers=False,
    )
    ssl_min_protocol_version: str = setting(
        "TLSv1.2",
        "The oldest TLS version that clients may use.",
        choices=("TLSv1.2", "TLSv1.3"),
        receivers=False,
    )
    authentication_timeout_ms: int = setting(
        60_000,
        "A client that has not authenticated after this time is disconnected.",
        minimum=1_000,
        maximum=600_000,
        restart=True,
    )
    shutdown_timeout_ms: int = setting(
        20_000,
        "A fast shutdown that takes longer is ended with SIGKILL, which loses nothing.",
        minimum=0,
        maximum=_INT_MAX,
        restart=True,
    )
    log_file: str = setting(
        "",
        "File that the server log is written to; empty: standard error alone. A relative path"
        " is in the node's directory. A node in the foreground writes to standard error, too.",
        restart=True,
        receivers=False,
    )
    log_rotation_size: int = setting(
        10_240,
        "Size of log_file in kB at which a new file begins; 0: at any size.",
        minimum=0,
        maximum=_INT_MAX // 1024,
        receivers=False,
    )
    log_rotation_age: int = setting(
        1_440,
        "Minutes after which a new log_file begins, counted in whole periods (1440: at midnight"
        " UTC); 0: at any age.",
        minimum=0,
        maximum=_INT_MAX // 60,
        receivers=False,
    )
    log_keep_files: int = setting(
        10,
        "Ended log files that are kept, as log_file with .1 (the newest), .2 and so on.",
        minimum=0,
        maximum=10_000,
        receivers=False,
    )


@dataclass(frozen=True, slots=True)
class SubscriptionSettings:
    """How subscriptions reach their publishers. Names and meanings are PostgreSQL's."""

    wal_retrieve_retry_interval_ms: int = setting(
        5_000,
        "Time between two starts of a worker that keeps failing; also the longest pause before an"
        " engine that keeps dying is started again, which is never more than 5 seconds.",
        minimum=1,
        maximum=_INT_MAX,
    )
    wal_receiver_timeout_ms: int = setting(
        60_000,
        "A connection on which the publisher sends nothing for this long is closed; 0: never.",
        minimum=0,
        maximum=_INT_MAX,
    )
    wal_receiver_status_interval_ms: int = setting(
        10_000,
        "Longest time between two position reports to the publisher; 0: only when the"
        " publisher requests one.",
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
        "Tables of one subscription that may be copied at the same time.",
        minimum=1,
        maximum=262143,
        receivers=False,
    )
    auto_refresh_interval_ms: int = setting(
        5_000,
        "Time between two questions to the publisher of a subscription with auto_refresh whether"
        " tables have joined or left its publications.",
        minimum=100,
        maximum=_INT_MAX,
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
        "Longest time that a session at the publisher waits for a lock that an initial copy"
        " holds, before the copy is interrupted; also the longest time that a copy waits for a"
        " lock. 0: a copy is never interrupted.",
        minimum=0,
        maximum=_INT_MAX,
    )
    connect_timeout_ms: int = setting(
        30_000,
        "Longest wait for a connection to a publisher, unless its connection string or"
        " PGCONNECT_TIMEOUT sets one.",
        minimum=1_000,
        maximum=_INT_MAX,
        restart=True,
    )


@dataclass(frozen=True, slots=True)
class ApplySettings:
    """Applying of the change log to the tables."""

    batch_bytes: int = setting(
        256 * _MIB,
        "Largest total size of the segments that are applied as one batch.",
        minimum=64 * 1024,
        maximum=_BYTES_MAX,
        restart=True,
    )
    batch_rows: int = setting(
        2_000_000,
        "Most row changes in one batch; a larger transaction is a batch by itself.",
        minimum=1,
        maximum=_INT_MAX,
        restart=True,
    )
    upsert_bytes: int = setting(
        256 * _MIB,
        "Size of the updates and deletes, of all tables together, that are in the engine's"
        " memory at a time, which needs about three times as much. Larger batches are applied in"
        " parts, with one commit. At least 1 MiB is used. With a cluster's master each task that"
        " applies a share of a large batch has as much.",
        minimum=0,
        maximum=768 * _MIB,
        restart=True,
    )
    key_index_bytes: int = setting(
        4 * 1024 * _MIB,
        "Disk space for an index of the integer keys of large tables (8 to 16 bytes a row), so"
        " that a few updates need not read all keys of their table. It is a cache: the least"
        " recently used entries are removed first, and it is empty at start. 0: no index.",
        minimum=0,
        maximum=_BYTES_MAX,
        restart=True,
    )
    log_conflict_values: bool = setting(
        True,
        "Log the rows' values with each conflict, as PostgreSQL does, if the role that applies"
        " the changes may SELECT from the table. Off: only wal2lake.conflicts has the rows'"
        " keys.",
        restart=True,
    )
    track_commit_timestamp: bool = setting(
        False,
        "Store the origin and commit time of each row in the tables' files. This detects the"
        " conflicts update_origin_differs and delete_origin_differs, and adds the origin of"
        " the existing row to reports of other conflicts.",
        restart=True,
    )
    max_value_bytes: int = setting(
        256 * _MIB,
        "A longer value, in the form in which it is sent, is an error, unless the"
        " subscription's value_policies replace it by null. Readers of the tables need several"
        " times as much memory as the largest value.",
        minimum=1024,
        maximum=1024 * _MIB,
        restart=True,
    )


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """Spark's own settings. Properties under [spark.conf] are passed to Spark unchanged."""

    master: str = setting(
        "local[*]",
        "Spark master URL; local[*] uses all cores of this machine.",
        restart=True,
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
        "URL or path of the folder of the tables, for example s3://bucket/lake; empty:"
        " warehouse/ in the node's directory.",
        restart=True,
    )
    jars_dir: str = setting(
        "",
        "Folder of Spark's additional jars, for machines without a network; empty: the jars"
        " are downloaded once and cached.",
        restart=True,
    )
    conf: Mapping[str, str] = setting(
        MappingProxyType({}),
        'Any Spark property, one a line: "spark.sql.shuffle.partitions" = "4".',
        restart=True,
        secret=True,
    )

    @property
    def is_local(self) -> bool:
        """True if driver and executors are one process on this machine."""
        return self.master == "local" or self.master.startswith("local[")


_DAY_MS: Final = 24 * 3_600_000


@dataclass(frozen=True, slots=True)
class LakeSettings:
    """How long the tables' past is kept."""

    retention_ms: int = setting(
        7 * _DAY_MS,
        "Versions of tables, and states in wal2lake.snapshots, stay readable for this long after"
        " the next one. Then VACUUM and the background worker remove them with their files. A"
        " longer delta.deletedFileRetentionDuration of a table counts for its files.",
        minimum=0,
        maximum=_BYTES_MAX,
        receivers=False,
    )
    orphan_age_ms: int = setting(
        _DAY_MS,
        "A file in a table's directory that no version ever had is removed when it is older:"
        " a writer that has crashed has left it. It must be more than the longest time between"
        " a file's writing and its commit, by any writer of the tables. The engine"
        " writes files of a batch larger than apply.upsert_bytes while it evaluates the rest, and"
        " commits them at the end.",
        minimum=60_000,
        maximum=_BYTES_MAX,
        receivers=False,
    )
    vacuum_interval_ms: int = setting(
        3_600_000,
        "Time between two rounds of the background worker, which vacuums every table; 0: only"
        " the statement VACUUM removes anything.",
        minimum=0,
        maximum=_INT_MAX,
        receivers=False,
    )


@dataclass(frozen=True, slots=True)
class IcebergSettings:
    """Mirrors of tables for readers of Iceberg."""

    interval_ms: int = setting(
        10_000,
        "Longest time between the publication of a version and its Iceberg snapshot, which shows"
        " all versions since the one before. Each snapshot costs a few small files.",
        minimum=1_000,
        maximum=_INT_MAX,
        receivers=False,
    )
    format_version: int = setting(
        3,
        "Version of Iceberg's format. 3 has deletion vectors; 2 has position delete files, for"
        " readers that do not know version 3. Another version begins a mirror anew.",
        minimum=2,
        maximum=3,
        receivers=False,
    )
    history_ms: int = setting(
        3_600_000,
        "Iceberg snapshots go so long after the next one has replaced them, and so does a mirror"
        " that does not follow. Data files of the others stay. Readers' queries must be shorter.",
        minimum=60_000,
        maximum=_BYTES_MAX,
        receivers=False,
    )
    reader_properties: Mapping[str, str] = setting(
        MappingProxyType({}),
        "Properties that clients of the node's Iceberg catalog get with each table, to open its"
        ' files: "s3.access-key-id" = "...", for example. Give a key that may only read.',
        receivers=False,
        secret=True,
    )


@dataclass(frozen=True, slots=True)
class VerifySettings:
    """Comparison of tables with their sources (VERIFY)."""

    repair: str = setting(
        "manual",
        "Whether VERIFY has the differing rows that it lists written anew from the source: manual"
        " (REPAIR does it) or automatic, for tables that nobody writes but their subscription.",
        choices=("manual", "automatic"),
        receivers=False,
    )


@dataclass(frozen=True, slots=True)
class PublishSettings:
    """Serving tables to subscribers."""

    max_replication_slots: int = setting(
        10, "Most replication slots.", minimum=0, maximum=262143
    )
    max_slot_wal_keep_size: int = setting(
        -1,
        "MB of the publisher's log that a replication slot may hold back; a slot that needs more"
        " is invalidated. -1: no limit.",
        minimum=-1,
        maximum=_INT_MAX,
        receivers=False,
    )
    idle_replication_slot_timeout: int = setting(
        0,
        "Seconds after which an unused replication slot is invalidated; 0: never.",
        minimum=0,
        maximum=_INT_MAX,
        receivers=False,
    )
    max_wal_senders: int = setting(
        10, "Most replication connections.", minimum=0, maximum=262143
    )
    synchronous_standby_names: str = setting(
        "",
        "Subscribers that a COMMIT waits for: application names, FIRST 2 (a, b, c) or"
        " ANY 1 (a, b).",
        receivers=False,
    )
    wal_sender_timeout_ms: int = setting(
        60_000,
        "A replication connection on which the client sends nothing for this long is closed;"
        " 0: never.",
        minimum=0,
        maximum=_INT_MAX,
    )
    output_plugin_libraries: str = setting(
        "",
        "Output plugins that may be used in addition to the built-in ones: names of entry"
        " points of installed packages, comma-separated.",
    )
    capture_bytes: int = setting(
        256 * _MIB,
        "Memory for the comparison of a commit's old and new rows; larger commits use disk.",
        minimum=64 * _MIB,
        maximum=_BYTES_MAX,
    )
    logical_decoding_work_mem: int = setting(
        64 * _MIB,
        "Bytes of a transaction that decoding may hold in memory; a larger transaction is"
        " streamed in blocks to clients that request streaming.",
        minimum=64 * 1024,
        maximum=_INT_MAX,
    )


@dataclass(frozen=True, slots=True)
class WebSettings:
    """Metrics, health checks, the page and the Iceberg catalog, over HTTP, by an own process."""

    listen: str = setting(
        "127.0.0.1:5481",
        "Addresses to listen on, each as HOST:PORT, comma-separated; '*' for all hosts, port 0"
        " lets the system choose (see wal2lake status). Empty: none. Beyond this machine TLS is"
        " needed (ssl of [node]), and clients log in as a superuser or a member of pg_monitor;"
        " those of the Iceberg catalog as any role, everywhere.",
        receivers=False,
    )


@dataclass(frozen=True, slots=True)
class AlertSettings:
    """Messages when a problem (wal2lake.problems) begins and when it ends."""

    webhook_url: str = setting(
        "",
        "URL that each alert is sent to with POST, as JSON; empty: none.",
        pattern=r"(https?://\S+)?",
        allowed="an http:// or https:// URL",
        receivers=False,
        secret=True,
    )
    command: str = setting(
        "",
        "Shell command that is run for each alert, with the JSON on its standard input; empty:"
        " none.",
        receivers=False,
        secret=True,
    )
    delay_ms: int = setting(
        5_000,
        "An alert begins when its problem has lasted for this time, and ends when it has been"
        " gone for as long.",
        minimum=0,
        maximum=_INT_MAX,
        receivers=False,
    )


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of the node in ``directory``."""

    directory: Path
    """Absolute path of the node's directory."""
    node: NodeSettings = NodeSettings()
    log: LogSettings = field(default_factory=LogSettings)
    subscription: SubscriptionSettings = SubscriptionSettings()
    apply: ApplySettings = ApplySettings()
    publish: PublishSettings = PublishSettings()
    spark: SparkSettings = SparkSettings()
    web: WebSettings = WebSettings()
    lake: LakeSettings = LakeSettings()
    store: StoreSettings = field(default_factory=StoreSettings)
    iceberg: IcebergSettings = field(default_factory=IcebergSettings)
    iceberg_catalog: IcebergCatalogSettings = field(
        default_factory=IcebergCatalogSettings
    )
    catalog: CatalogSettings = field(default_factory=CatalogSettings)
    verify: VerifySettings = VerifySettings()
    alerts: AlertSettings = AlertSettings()

    @property
    def log_directory(self) -> Path:
        """Directory of the change log."""
        chosen = self.log.directory
        return self.directory / (file_url_path(chosen) or chosen or "log")

    @property
    def log_store(self) -> str | None:
        """URL or absolute path of the store of segments and catalog, no slash at the end; None:
        there is none."""
        return store_of_log(
            azure_url(self.log.store, self.store.account),
            self.warehouse
            if self.log.confirm == "store" or not self.spark.is_local
            else "",
        )

    @property
    def executors_store(self) -> str | None:
        """URL of the store in which a cluster's executors find the log and staged changes, no
        slash at the end; None: they find them in directories of the node."""
        store = self.log_store
        if self.spark.is_local or store is None or "://" not in store:
            return None
        return store

    @property
    def publish_log_directory(self) -> Path:
        """Directory of the publisher's log."""
        return self.log_directory / PUBLISHER_LOG

    @property
    def warehouse(self) -> str:
        """URL or absolute path of the warehouse; no slash at the end."""
        chosen = self.spark.warehouse
        # Hadoop takes percent signs literally; in a URL they are an encoding.
        chosen = file_url_path(chosen) or chosen
        if "://" in chosen:
            return azure_url(chosen.rstrip("/"), self.store.account)
        return str(self.directory / (chosen or "warehouse"))

    @property
    def exchange_directory(self) -> Path:
        """Directory in which this process and Spark's executors exchange files that are not needed
        after a restart. If executors do not use a store, it is below the log's directory, which all
        machines mount."""
        if self.spark.is_local or self.executors_store is not None:
            return self.run_directory
        return self.log_directory / "spark"

    @property
    def run_directory(self) -> Path:
        """Directory of sockets, positions and other facts of running processes."""
        return self.directory / "run"

    @property
    def iceberg_directory(self) -> Path:
        """Directory of what the Iceberg catalog shows."""
        return self.run_directory / "iceberg"

    @property
    def log_file(self) -> Path | None:
        """File of the server log; None: there is none."""
        chosen = self.node.log_file
        return self.directory / chosen if chosen else None

    @property
    def catalog_file(self) -> Path:
        """The catalog's SQLite file."""
        return self.directory / "catalog.sqlite"

    @property
    def registered_file(self) -> Path:
        """File with what is registered in the catalog of others."""
        return self.directory / "registered.json"

    @property
    def iceberg_registered_file(self) -> Path:
        """File with what is registered in the Iceberg catalog of others."""
        return self.directory / "iceberg-registered.json"

    def section(self, name: str) -> Any:
        """Return a section by its name in the file."""
        return getattr(self, attribute_of(name))


def attribute_of(section: str) -> str:
    """Return the attribute that has a section."""
    return section.replace(".", "_")


SECTIONS: Final[Mapping[str, type[Any]]] = MappingProxyType(
    {
        "node": NodeSettings,
        "log": LogSettings,
        "publish": PublishSettings,
        "subscription": SubscriptionSettings,
        "apply": ApplySettings,
        "lake": LakeSettings,
        "iceberg": IcebergSettings,
        "iceberg.catalog": IcebergCatalogSettings,
        "catalog": CatalogSettings,
        "verify": VerifySettings,
        "spark": SparkSettings,
        "store": StoreSettings,
        "web": WebSettings,
        "alerts": AlertSettings,
    }
)
"""Class of each section, in the order of the file."""
