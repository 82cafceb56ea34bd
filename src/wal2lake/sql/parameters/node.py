"""Lists the node's settings as parameters, for SHOW and pg_settings.

Only settings that PostgreSQL has, too, are here, under its names. They are set in
``wal2lake.toml`` or on the command line. A session may set only those of ``_SESSION_NUMBERS``, as
in PostgreSQL. SHOW gives the current value, also in a session that began before a SIGHUP.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
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

_OWN_PLUGINS: Final = ("pgoutput", "test_decoding", "wal2json")
"""The output plugins that every node has."""


def _plugins(settings: Settings) -> str:
    libraries = settings.publish.output_plugin_libraries
    return ", ".join([*_OWN_PLUGINS, libraries] if libraries else _OWN_PLUGINS)


_TEXTS: Final[tuple[tuple[str, Callable[[Settings], str], str], ...]] = (
    ("listen_addresses", lambda s: s.node.listen_addresses,
     "Addresses to listen on."),
    ("ssl_cert_file", lambda s: s.node.ssl_cert_file,
     "The node's certificate."),
    ("ssl_key_file", lambda s: s.node.ssl_key_file,
     "Its private key."),
    ("ssl_ca_file", lambda s: s.node.ssl_ca_file,
     "Authorities of clients' certificates."),
    ("ssl_min_protocol_version", lambda s: s.node.ssl_min_protocol_version,
     "The oldest version of TLS."),
    ("hba_file", lambda s: s.node.hba_file,
     "Who may connect from where."),
    ("data_directory", lambda s: str(s.directory),
     "The node's directory."),
    ("data_directory_mode", lambda s: "0700",
     "The permissions of that."),
    # Clients compute file names with it. The publisher's log has no segments.
    ("wal_segment_size", lambda s: "16MB",
     "What a file of the log would have."),
    ("synchronous_standby_names", lambda s: s.publish.synchronous_standby_names,
     "Subscribers that a COMMIT waits for."),
    ("output_plugin_libraries", _plugins,
     "Output plugins that may be used."),
    ("wal_level", lambda s: "logical",
     "What the change log is good for."),
    ("synchronized_standby_slots", lambda s: "",
     "Slots that logical ones follow."),
)  # fmt: skip
"""Text parameters: name, value, description."""

_SWITCHES: Final[tuple[tuple[str, Callable[[Settings], bool], str], ...]] = (
    ("ssl", lambda s: s.node.ssl,
     "Whether TLS is offered."),
    ("track_commit_timestamp", lambda s: s.apply.track_commit_timestamp,
     "Who has written a row, and when, is kept."),
    ("sync_replication_slots", lambda s: False,
     "Whether slots are copied from a primary."),
)  # fmt: skip
"""Boolean parameters: name, value, description."""

_NUMBERS: Final[tuple[tuple[str, Callable[[Settings], int], Unit, str], ...]] = (
    ("port", lambda s: s.node.port, Unit.NONE,
     "TCP port to listen on."),
    ("max_connections", lambda s: s.node.max_connections, Unit.NONE,
     "Clients that may be connected at once."),
    ("max_prepared_transactions", lambda s: s.node.max_prepared_transactions, Unit.NONE,
     "Transactions that may be prepared at a time."),
    ("max_replication_slots", lambda s: s.publish.max_replication_slots, Unit.NONE,
     "Replication slots at a time."),
    ("max_slot_wal_keep_size", lambda s: s.publish.max_slot_wal_keep_size, Unit.MEGABYTES,
     "What a replication slot may hold back of the publisher's log."),
    ("idle_replication_slot_timeout",
     lambda s: s.publish.idle_replication_slot_timeout, Unit.SECONDS,
     "A replication slot that nobody uses for so long is invalidated."),
    ("max_wal_senders", lambda s: s.publish.max_wal_senders, Unit.NONE,
     "Connections for replication at a time."),
    ("wal_retrieve_retry_interval",
     lambda s: s.subscription.wal_retrieve_retry_interval_ms, Unit.MILLISECONDS,
     "Time between two starts of a worker that keeps failing."),
    ("wal_receiver_timeout",
     lambda s: s.subscription.wal_receiver_timeout_ms, Unit.MILLISECONDS,
     "A publisher that sends nothing for so long counts as gone."),
    ("wal_receiver_status_interval",
     lambda s: s.subscription.wal_receiver_status_interval_ms, Unit.MILLISECONDS,
     "Longest time between two position reports to the publisher."),
    ("max_logical_replication_workers",
     lambda s: s.subscription.max_logical_replication_workers, Unit.NONE,
     "Receivers that may run at once."),
    ("max_sync_workers_per_subscription",
     lambda s: s.subscription.max_sync_workers_per_subscription, Unit.NONE,
     "Tables of one subscription that are copied at the same time."),
    # Receivers are a node's only worker processes. A subscription is applied in one thread.
    ("max_worker_processes",
     lambda s: s.subscription.max_logical_replication_workers, Unit.NONE,
     "Worker processes that may run at once."),
    ("max_parallel_apply_workers_per_subscription", lambda s: 0, Unit.NONE,
     "Parallel apply workers of one subscription."),
    ("max_active_replication_origins", lambda s: _MAX_ORIGINS, Unit.NONE,
     "Replication origins that may be in use at once."),
)  # fmt: skip
"""Integer parameters: name, value, unit, description."""

_SESSION_NUMBERS: Final[
    tuple[tuple[str, Callable[[Settings], int], Unit, int, str], ...]
] = (
    ("wal_sender_timeout", lambda s: s.publish.wal_sender_timeout_ms, Unit.MILLISECONDS, 0,
     "A client that says nothing for so long is cut off."),
    ("logical_decoding_work_mem",
     lambda s: s.publish.logical_decoding_work_mem // 1024, Unit.KILOBYTES, 64,
     "What a decoding holds of a transaction before it streams it."),
)  # fmt: skip
"""Integer parameters that a session may set: name, value, unit, minimum, description."""


def node_parameters(
    settings: Settings, port: int | None = None
) -> tuple[ParameterDefinition, ...]:
    """One definition for each setting; the default is the setting's value.

    ``port`` is the port that the node listens on. The system has chosen it if the setting is 0.
    """
    if port is not None:
        settings = replace(settings, node=replace(settings.node, port=port))
    internal = ParameterContext.INTERNAL
    return (
        *(
            ParameterDefinition(
                name, ParameterKind.STRING, value(settings), description, internal
            )
            for name, value, description in _TEXTS
        ),
        *(
            ParameterDefinition(
                name,
                ParameterKind.BOOL,
                "on" if value(settings) else "off",
                description,
                internal,
            )
            for name, value, description in _SWITCHES
        ),
        *(
            ParameterDefinition(
                name,
                ParameterKind.INTEGER,
                str(value(settings)),
                description,
                internal,
                unit=unit,
            )
            for name, value, unit, description in _NUMBERS
        ),
        *(
            ParameterDefinition(
                name,
                ParameterKind.INTEGER,
                str(value(settings)),
                description,
                unit=unit,
                minimum=minimum,
            )
            for name, value, unit, minimum, description in _SESSION_NUMBERS
        ),
    )
