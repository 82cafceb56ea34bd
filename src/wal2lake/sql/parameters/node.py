"""Lists the node's settings as parameters, for SHOW and pg_settings.

Only settings that PostgreSQL has, too, are here, under its names. They are set in
``wal2lake.toml`` or on the command line. A session may set those that it may set in PostgreSQL
(Context.USER). SHOW gives the current value, also in a session that began before a SIGHUP.
"""

from __future__ import annotations

from typing import Final

from wal2lake.settings import Settings
from wal2lake.sql.parameters.definition import (
    ParameterContext,
    ParameterDefinition,
    ParameterKind,
    Unit,
)

_MAX_ORIGINS: Final = 65_534
"""The only limit: an origin's number has 16 bits, and PostgreSQL reserves two values."""


def node_parameters(
    settings: Settings, port: int | None = None
) -> tuple[ParameterDefinition, ...]:
    """One definition for each setting; the default is the setting's value. ``port``: the port
    that the node listens on, which the system has chosen if the setting is 0."""
    node, limits = settings.node, settings.subscription

    def number(name: str, value: int, doc: str, unit: Unit) -> ParameterDefinition:
        return ParameterDefinition(
            name,
            ParameterKind.INTEGER,
            str(value),
            doc,
            ParameterContext.INTERNAL,
            unit=unit,
        )

    def text(name: str, value: str, doc: str) -> ParameterDefinition:
        return ParameterDefinition(
            name, ParameterKind.STRING, value, doc, ParameterContext.INTERNAL
        )

    def off(name: str, doc: str) -> ParameterDefinition:
        return ParameterDefinition(
            name, ParameterKind.BOOL, "off", doc, ParameterContext.INTERNAL
        )

    return (
        text("listen_addresses", node.listen_addresses, "Addresses to listen on."),
        number(
            "port",
            node.port if port is None else port,
            "TCP port to listen on.",
            Unit.NONE,
        ),
        number(
            "max_connections",
            node.max_connections,
            "Clients that may be connected at once.",
            Unit.NONE,
        ),
        ParameterDefinition(
            "ssl",
            ParameterKind.BOOL,
            "on" if node.ssl else "off",
            "Whether TLS is offered.",
            ParameterContext.INTERNAL,
        ),
        text("ssl_cert_file", node.ssl_cert_file, "The node's certificate."),
        text("ssl_key_file", node.ssl_key_file, "Its private key."),
        text("ssl_ca_file", node.ssl_ca_file, "Authorities of clients' certificates."),
        text(
            "ssl_min_protocol_version",
            node.ssl_min_protocol_version,
            "The oldest version of TLS.",
        ),
        text("hba_file", node.hba_file, "Who may connect from where."),
        text("data_directory", str(settings.directory), "The node's directory."),
        text("data_directory_mode", "0700", "The permissions of that."),
        # Clients compute file names with it. The publisher's log has no segments.
        text("wal_segment_size", "16MB", "What a file of the log would have."),
        number(
            "max_replication_slots",
            settings.publish.max_replication_slots,
            "Replication slots at a time.",
            Unit.NONE,
        ),
        number(
            "max_prepared_transactions",
            settings.node.max_prepared_transactions,
            "Transactions that may be prepared at a time.",
            Unit.NONE,
        ),
        number(
            "max_slot_wal_keep_size",
            settings.publish.max_slot_wal_keep_size,
            "What a replication slot may hold back of the publisher's log.",
            Unit.MEGABYTES,
        ),
        number(
            "idle_replication_slot_timeout",
            settings.publish.idle_replication_slot_timeout,
            "A replication slot that nobody uses for so long is invalidated.",
            Unit.SECONDS,
        ),
        number(
            "max_wal_senders",
            settings.publish.max_wal_senders,
            "Connections for replication at a time.",
            Unit.NONE,
        ),
        text(
            "synchronous_standby_names",
            settings.publish.synchronous_standby_names,
            "Subscribers that a COMMIT waits for.",
        ),
        ParameterDefinition(
            "wal_sender_timeout",
            ParameterKind.INTEGER,
            str(settings.publish.wal_sender_timeout_ms),
            "A client that says nothing for so long is cut off.",
            unit=Unit.MILLISECONDS,
        ),
        ParameterDefinition(
            "logical_decoding_work_mem",
            ParameterKind.INTEGER,
            str(settings.publish.logical_decoding_work_mem // 1024),
            "What a decoding holds of a transaction before it streams it.",
            unit=Unit.KILOBYTES,
            minimum=64,
        ),
        text(
            "output_plugin_libraries",
            ", ".join(
                filter(
                    None,
                    [
                        "pgoutput",
                        "test_decoding",
                        "wal2json",
                        settings.publish.output_plugin_libraries,
                    ],
                )
            ),
            "Output plugins that may be used.",
        ),
        text("wal_level", "logical", "What the change log is good for."),
        ParameterDefinition(
            "track_commit_timestamp",
            ParameterKind.BOOL,
            "on" if settings.apply.track_commit_timestamp else "off",
            "Who has written a row, and when, is kept.",
            ParameterContext.INTERNAL,
        ),
        number(
            "wal_retrieve_retry_interval",
            limits.wal_retrieve_retry_interval_ms,
            "Time between two starts of a worker that keeps failing.",
            Unit.MILLISECONDS,
        ),
        number(
            "wal_receiver_timeout",
            limits.wal_receiver_timeout_ms,
            "A publisher that sends nothing for so long counts as gone.",
            Unit.MILLISECONDS,
        ),
        number(
            "wal_receiver_status_interval",
            limits.wal_receiver_status_interval_ms,
            "Longest time between two position reports to the publisher.",
            Unit.MILLISECONDS,
        ),
        number(
            "max_logical_replication_workers",
            limits.max_logical_replication_workers,
            "Receivers that may run at once.",
            Unit.NONE,
        ),
        number(
            "max_sync_workers_per_subscription",
            limits.max_sync_workers_per_subscription,
            "Tables of one subscription that are copied at the same time.",
            Unit.NONE,
        ),
        # Receivers are a node's only worker processes. A subscription is applied in one thread.
        number(
            "max_worker_processes",
            limits.max_logical_replication_workers,
            "Worker processes that may run at once.",
            Unit.NONE,
        ),
        number(
            "max_parallel_apply_workers_per_subscription",
            0,
            "Parallel apply workers of one subscription.",
            Unit.NONE,
        ),
        number(
            "max_active_replication_origins",
            _MAX_ORIGINS,
            "Replication origins that may be in use at once.",
            Unit.NONE,
        ),
        off("sync_replication_slots", "Whether slots are copied from a primary."),
        text("synchronized_standby_slots", "", "Slots that logical ones follow."),
    )
