"""Lists parameters of PostgreSQL that have no effect on a node: ``UNUSED_PARAMETERS``.

They control PostgreSQL's log, statistics, vacuum, disk files and sockets. Scripts set them
(``SET log_statement = 'none'``, ``vacuum_cost_delay``), so the node checks their values, keeps
them, shows them, and ignores them. ``values`` refuses a value that would change a result.

Source: pg_settings of PostgreSQL 18, contexts ``user`` and ``superuser``, without the developer
options and the names of libraries to load.
"""

from __future__ import annotations

from typing import Final

from wal2lake.sql.parameters.definition import (
    BOOLEANS,
    ParameterContext,
    ParameterDefinition,
    ParameterKind,
    Unit,
)

_USER: Final = ParameterContext.USER
_SUPERUSER: Final = ParameterContext.SUPERUSER

_SWITCHES: Final = (
    ("debug_pretty_print", "on", _USER,
     "Indents parse and plan tree displays."),
    ("debug_print_parse", "off", _USER,
     "Logs each query's parse tree."),
    ("debug_print_plan", "off", _USER,
     "Logs each query's execution plan."),
    ("debug_print_rewritten", "off", _USER,
     "Logs each query's rewritten parse tree."),
    ("event_triggers", "on", _SUPERUSER,
     "Enables event triggers."),
    ("jit_expressions", "on", _USER,
     "Allow JIT compilation of expressions."),
    ("jit_tuple_deforming", "on", _USER,
     "Allow JIT compilation of tuple deforming."),
    ("lo_compat_privileges", "off", _SUPERUSER,
     "Enables backward compatibility mode for privilege checks on large objects."),
    ("log_duration", "off", _SUPERUSER,
     "Logs the duration of each completed SQL statement."),
    ("log_executor_stats", "off", _SUPERUSER,
     "Writes executor performance statistics to the server log."),
    ("log_lock_failures", "off", _SUPERUSER,
     "Logs lock failures."),
    ("log_lock_waits", "off", _SUPERUSER,
     "Logs long lock waits."),
    ("log_parser_stats", "off", _SUPERUSER,
     "Writes parser performance statistics to the server log."),
    ("log_planner_stats", "off", _SUPERUSER,
     "Writes planner performance statistics to the server log."),
    ("log_statement_stats", "off", _SUPERUSER,
     "Writes cumulative performance statistics to the server log."),
    ("md5_password_warnings", "on", _USER,
     "Enables deprecation warnings for MD5 passwords."),
    ("track_activities", "on", _SUPERUSER,
     "Collects information about executing commands."),
    ("track_cost_delay_timing", "off", _SUPERUSER,
     "Collects timing statistics for cost-based vacuum delay."),
    ("track_counts", "on", _SUPERUSER,
     "Collects statistics on database activity."),
    ("track_io_timing", "off", _SUPERUSER,
     "Collects timing statistics for database I/O activity."),
    ("track_wal_io_timing", "off", _SUPERUSER,
     "Collects timing statistics for WAL I/O activity."),
    ("transform_null_equals", "off", _USER,
     'Treats "expr=NULL" as "expr IS NULL".'),
    ("update_process_title", "on", _SUPERUSER,
     "Updates the process title to show the active SQL command."),
    ("vacuum_truncate", "on", _USER,
     "Enables vacuum to truncate empty pages at the end of the table."),
    ("wal_init_zero", "on", _SUPERUSER,
     "Writes zeroes to new WAL files before first use."),
    ("wal_recycle", "on", _SUPERUSER,
     "Recycles WAL files by renaming them."),
)  # fmt: skip
"""Boolean parameters: name, default, context, description."""

_NUMBERS: Final = (
    ("backend_flush_after", "0", Unit.BLOCKS, 0, 256, _USER,
     "Number of pages after which previously performed writes are flushed to disk."),
    ("client_connection_check_interval", "0", Unit.MILLISECONDS, 0, 2_147_483_647, _USER,
     "Sets the time interval between checks for disconnection while running queries."),
    ("commit_delay", "0", Unit.NONE, 0, 100_000, _SUPERUSER,
     "Sets the delay in microseconds between transaction commit and flushing WAL to "
     "disk."),
    ("commit_siblings", "5", Unit.NONE, 0, 1_000, _USER,
     "Sets the minimum number of concurrent open transactions required before performing "
     '"commit_delay".'),
    ("deadlock_timeout", "1000", Unit.MILLISECONDS, 1, 2_147_483_647, _SUPERUSER,
     "Sets the time to wait on a lock before checking for deadlock."),
    ("gin_fuzzy_search_limit", "0", Unit.NONE, 0, 2_147_483_647, _USER,
     "Sets the maximum allowed result for exact search by GIN."),
    ("gin_pending_list_limit", "4096", Unit.KILOBYTES, 64, 2_147_483_647, _USER,
     "Sets the maximum size of the pending list for GIN index."),
    ("io_combine_limit", "16", Unit.BLOCKS, 1, 128, _USER,
     "Limit on the size of data reads and writes."),
    ("log_min_duration_sample", "-1", Unit.MILLISECONDS, -1, 2_147_483_647, _SUPERUSER,
     "Sets the minimum execution time above which a sample of statements will be logged. "
     'Sampling is determined by "log_statement_sample_rate".'),
    ("log_min_duration_statement", "-1", Unit.MILLISECONDS, -1, 2_147_483_647, _SUPERUSER,
     "Sets the minimum execution time above which all statements will be logged."),
    ("log_parameter_max_length", "-1", Unit.BYTES, -1, 1_073_741_823, _SUPERUSER,
     "Sets the maximum length in bytes of data logged for bind parameter values when "
     "logging statements."),
    ("log_parameter_max_length_on_error", "0", Unit.BYTES, -1, 1_073_741_823, _USER,
     "Sets the maximum length in bytes of data logged for bind parameter values when "
     "logging statements, on error."),
    ("log_temp_files", "-1", Unit.KILOBYTES, -1, 2_147_483_647, _SUPERUSER,
     "Log the use of temporary files larger than this number of kilobytes."),
    ("max_stack_depth", "2048", Unit.KILOBYTES, 100, 2_147_483_647, _SUPERUSER,
     "Sets the maximum stack depth, in kilobytes."),
    ("tcp_keepalives_count", "0", Unit.NONE, 0, 2_147_483_647, _USER,
     "Maximum number of TCP keepalive retransmits."),
    ("tcp_keepalives_idle", "0", Unit.SECONDS, 0, 2_147_483_647, _USER,
     "Time between issuing TCP keepalives."),
    ("tcp_keepalives_interval", "0", Unit.SECONDS, 0, 2_147_483_647, _USER,
     "Time between TCP keepalive retransmits."),
    ("tcp_user_timeout", "0", Unit.MILLISECONDS, 0, 2_147_483_647, _USER,
     "TCP user timeout."),
    ("temp_file_limit", "-1", Unit.KILOBYTES, -1, 2_147_483_647, _SUPERUSER,
     "Limits the total size of all temporary files used by each process."),
    ("vacuum_buffer_usage_limit", "2048", Unit.KILOBYTES, 0, 16_777_216, _USER,
     "Sets the buffer pool size for VACUUM, ANALYZE, and autovacuum."),
    ("vacuum_cost_limit", "200", Unit.NONE, 1, 10_000, _USER,
     "Vacuum cost amount available before napping."),
    ("vacuum_cost_page_dirty", "20", Unit.NONE, 0, 10_000, _USER,
     "Vacuum cost for a page dirtied by vacuum."),
    ("vacuum_cost_page_hit", "1", Unit.NONE, 0, 10_000, _USER,
     "Vacuum cost for a page found in the buffer cache."),
    ("vacuum_cost_page_miss", "2", Unit.NONE, 0, 10_000, _USER,
     "Vacuum cost for a page not found in the buffer cache."),
    ("vacuum_failsafe_age", "1600000000", Unit.NONE, 0, 2_100_000_000, _USER,
     "Age at which VACUUM should trigger failsafe to avoid a wraparound outage."),
    ("vacuum_freeze_min_age", "50000000", Unit.NONE, 0, 1_000_000_000, _USER,
     "Minimum age at which VACUUM should freeze a table row."),
    ("vacuum_freeze_table_age", "150000000", Unit.NONE, 0, 2_000_000_000, _USER,
     "Age at which VACUUM should scan whole table to freeze tuples."),
    ("vacuum_multixact_failsafe_age", "1600000000", Unit.NONE, 0, 2_100_000_000, _USER,
     "Multixact age at which VACUUM should trigger failsafe to avoid a wraparound "
     "outage."),
    ("vacuum_multixact_freeze_min_age", "5000000", Unit.NONE, 0, 1_000_000_000, _USER,
     "Minimum age at which VACUUM should freeze a MultiXactId in a table row."),
    ("vacuum_multixact_freeze_table_age", "150000000", Unit.NONE, 0, 2_000_000_000, _USER,
     "Multixact age at which VACUUM should scan whole table to freeze tuples."),
    ("wal_skip_threshold", "2048", Unit.KILOBYTES, 0, 2_147_483_647, _USER,
     "Minimum size of new file to fsync instead of writing WAL."),
)  # fmt: skip
"""Integer parameters: name, default, unit, minimum, maximum, context, description."""

_FRACTIONS: Final = (
    ("log_statement_sample_rate", "1", Unit.NONE, 0.0, 1.0, _SUPERUSER,
     'Fraction of statements exceeding "log_min_duration_sample" to be logged.'),
    ("log_transaction_sample_rate", "0", Unit.NONE, 0.0, 1.0, _SUPERUSER,
     "Sets the fraction of transactions from which to log all statements."),
    ("vacuum_cost_delay", "0", Unit.MILLISECONDS, 0.0, 100.0, _USER,
     "Vacuum cost delay in milliseconds."),
    ("vacuum_max_eager_freeze_failure_rate", "0.03", Unit.NONE, 0.0, 1.0, _USER,
     "Fraction of pages in a relation vacuum can scan and fail to freeze before "
     "disabling eager scanning."),
)  # fmt: skip
"""Parameters with fractions: name, default, unit, minimum, maximum, context, description."""

_CHOICES: Final = (
    ("backslash_quote", "safe_encoding", (
        "safe_encoding", "on", "off",
     ), _USER,
     "Sets whether \"\\'\" is allowed in string literals."),
    ("compute_query_id", "auto", (
        "auto", "regress", "on", "off",
     ), _SUPERUSER,
     "Enables in-core computation of query identifiers."),
    ("file_copy_method", "copy", (
        "copy", "clone",
     ), _USER,
     "Selects the file copy method."),
    ("icu_validation_level", "warning", (
        "disabled", "debug5", "debug4", "debug3", "debug2", "debug1", "log", "notice",
        "warning", "error",
     ), _USER,
     "Log level for reporting invalid ICU locale strings."),
    ("log_error_verbosity", "default", (
        "terse", "default", "verbose",
     ), _SUPERUSER,
     "Sets the verbosity of logged messages."),
    ("log_min_error_statement", "error", (
        "debug5", "debug4", "debug3", "debug2", "debug1", "info", "notice", "warning", "error",
        "log", "fatal", "panic",
     ), _SUPERUSER,
     "Causes all statements generating error at or above this level to be logged."),
    ("log_min_messages", "warning", (
        "debug5", "debug4", "debug3", "debug2", "debug1", "info", "notice", "warning", "error",
        "log", "fatal", "panic",
     ), _SUPERUSER,
     "Sets the message levels that are logged."),
    ("log_statement", "none", (
        "none", "ddl", "mod", "all",
     ), _SUPERUSER,
     "Sets the type of statements logged."),
    ("stats_fetch_consistency", "cache", (
        "none", "cache", "snapshot",
     ), _USER,
     "Sets the consistency of accesses to statistics data."),
    ("track_functions", "none", (
        "none", "pl", "all",
     ), _SUPERUSER,
     "Collects function-level statistics on database activity."),
    ("wal_compression", "off", (
        "pglz", "on", "off",
     ), _SUPERUSER,
     "Compresses full-page writes written in WAL file with specified method."),
)  # fmt: skip
"""Enum parameters: name, default, choices, context, description."""

_TEXTS: Final = (
    ("createrole_self_grant", "", _USER,
     "Sets whether a CREATEROLE user automatically grants the role to themselves, and "
     "with which options."),
    ("default_text_search_config", "pg_catalog.simple", _USER,
     "Sets default text search configuration."),
    ("temp_tablespaces", "", _USER,
     "Sets the tablespace(s) to use for temporary tables and sort files."),
    ("timezone_abbreviations", "Default", _USER,
     "Selects a file of time zone abbreviations."),
)  # fmt: skip
"""Text parameters: name, default, context, description."""

UNUSED_PARAMETERS: Final = (
    *(
        ParameterDefinition(name, ParameterKind.BOOL, default, description, context)
        for name, default, context, description in _SWITCHES
    ),
    *(
        ParameterDefinition(
            name,
            ParameterKind.INTEGER,
            default,
            description,
            context,
            unit=unit,
            minimum=minimum,
            maximum=maximum,
        )
        for name, default, unit, minimum, maximum, context, description in _NUMBERS
    ),
    *(
        ParameterDefinition(
            name,
            ParameterKind.REAL,
            default,
            description,
            context,
            unit=unit,
            least=least,
            greatest=greatest,
        )
        for name, default, unit, least, greatest, context, description in _FRACTIONS
    ),
    *(
        ParameterDefinition(
            name,
            ParameterKind.ENUM,
            default,
            description,
            context,
            choices=choices,
            synonyms=(
                *(BOOLEANS if "on" in choices else ()),
                *((("debug", "debug2"),) if "debug2" in choices else ()),
            ),
        )
        for name, default, choices, context, description in _CHOICES
    ),
    *(
        ParameterDefinition(name, ParameterKind.STRING, default, description, context)
        for name, default, context, description in _TEXTS
    ),
)
