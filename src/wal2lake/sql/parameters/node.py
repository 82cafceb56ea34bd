"""Lists the node's settings as parameters, for SHOW and pg_settings.

The settings are those that PostgreSQL has, too, with its names and descriptions, and
``output_plugin_libraries``. They are set in ``wal2lake.toml`` or on the command line. As in
PostgreSQL, a session may set only those of ``_SESSION_NUMBERS``. SHOW gives the current value, also
in a session that began before a SIGHUP.
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
     "Sets the host name or IP address(es) to listen to."),
    ("ssl_cert_file", lambda s: s.node.ssl_cert_file,
     "Location of the SSL server certificate file."),
    ("ssl_key_file", lambda s: s.node.ssl_key_file,
     "Location of the SSL server private key file."),
    ("ssl_ca_file", lambda s: s.node.ssl_ca_file,
     "Location of the SSL certificate authority file."),
    ("ssl_min_protocol_version", lambda s: s.node.ssl_min_protocol_version,
     "Sets the minimum SSL/TLS protocol version to use."),
    ("hba_file", lambda s: s.node.hba_file,
     'Sets the server\'s "hba" configuration file.'),
    ("data_directory", lambda s: str(s.directory),
     "Sets the server's data directory."),
    ("data_directory_mode", lambda s: "0700",
     "Shows the mode of the data directory."),
    # Clients compute file names with this value. The publisher's log has no segments.
    ("wal_segment_size", lambda s: "16MB",
     "Shows the size of write ahead log segments."),
    ("synchronous_standby_names", lambda s: s.publish.synchronous_standby_names,
     "Number of synchronous standbys and list of names of potential synchronous ones."),
    ("output_plugin_libraries", _plugins,
     "Lists the output plugins that a replication slot may use."),
    ("wal_level", lambda s: "logical",
     "Sets the level of information written to the WAL."),
    ("synchronized_standby_slots", lambda s: "",
     "Lists streaming replication standby server replication slot names that logical WAL "
     "sender processes will wait for."),
)  # fmt: skip
"""Text parameters: name, value, description."""

_SWITCHES: Final[tuple[tuple[str, Callable[[Settings], bool], str], ...]] = (
    ("ssl", lambda s: s.node.ssl,
     "Enables SSL connections."),
    ("track_commit_timestamp", lambda s: s.apply.track_commit_timestamp,
     "Collects transaction commit time."),
    ("sync_replication_slots", lambda s: False,
     "Enables a physical standby to synchronize logical failover replication slots from the "
     "primary server."),
)  # fmt: skip
"""Boolean parameters: name, value, description."""

_NUMBERS: Final[tuple[tuple[str, Callable[[Settings], int], Unit, str], ...]] = (
    ("port", lambda s: s.node.port, Unit.NONE,
     "Sets the TCP port the server listens on."),
    ("max_connections", lambda s: s.node.max_connections, Unit.NONE,
     "Sets the maximum number of concurrent connections."),
    ("max_prepared_transactions", lambda s: s.node.max_prepared_transactions, Unit.NONE,
     "Sets the maximum number of simultaneously prepared transactions."),
    ("max_replication_slots", lambda s: s.publish.max_replication_slots, Unit.NONE,
     "Sets the maximum number of simultaneously defined replication slots."),
    ("max_slot_wal_keep_size", lambda s: s.publish.max_slot_wal_keep_size, Unit.MEGABYTES,
     "Sets the maximum WAL size that can be reserved by replication slots."),
    ("idle_replication_slot_timeout",
     lambda s: s.publish.idle_replication_slot_timeout, Unit.SECONDS,
     "Sets the duration a replication slot can remain idle before it is invalidated."),
    ("max_wal_senders", lambda s: s.publish.max_wal_senders, Unit.NONE,
     "Sets the maximum number of simultaneously running WAL sender processes."),
    ("wal_retrieve_retry_interval",
     lambda s: s.subscription.wal_retrieve_retry_interval_ms, Unit.MILLISECONDS,
     "Sets the time to wait before retrying to retrieve WAL after a failed attempt."),
    ("wal_receiver_timeout",
     lambda s: s.subscription.wal_receiver_timeout_ms, Unit.MILLISECONDS,
     "Sets the maximum wait time to receive data from the sending server."),
    ("wal_receiver_status_interval",
     lambda s: s.subscription.wal_receiver_status_interval_ms, Unit.MILLISECONDS,
     "Sets the maximum interval between WAL receiver status reports to the sending "
     "server."),
    ("max_logical_replication_workers",
     lambda s: s.subscription.max_logical_replication_workers, Unit.NONE,
     "Maximum number of logical replication worker processes."),
    ("max_sync_workers_per_subscription",
     lambda s: s.subscription.max_sync_workers_per_subscription, Unit.NONE,
     "Maximum number of table synchronization workers per subscription."),
    # Receivers are a node's only worker processes. A subscription is applied in one thread.
    ("max_worker_processes",
     lambda s: s.subscription.max_logical_replication_workers, Unit.NONE,
     "Maximum number of concurrent worker processes."),
    ("max_parallel_apply_workers_per_subscription", lambda s: 0, Unit.NONE,
     "Maximum number of parallel apply workers per subscription."),
    ("max_active_replication_origins", lambda s: _MAX_ORIGINS, Unit.NONE,
     "Sets the maximum number of active replication origins."),
)  # fmt: skip
"""Integer parameters: name, value, unit, description."""

_SESSION_NUMBERS: Final[
    tuple[tuple[str, Callable[[Settings], int], Unit, int, str], ...]
] = (
    ("wal_sender_timeout", lambda s: s.publish.wal_sender_timeout_ms, Unit.MILLISECONDS, 0,
     "Sets the maximum time to wait for WAL replication."),
    ("logical_decoding_work_mem",
     lambda s: s.publish.logical_decoding_work_mem // 1024, Unit.KILOBYTES, 64,
     "Sets the maximum memory to be used for logical decoding."),
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
