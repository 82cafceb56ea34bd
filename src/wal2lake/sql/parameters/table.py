"""Lists the session parameters: ``PARAMETERS``, the counterpart of guc_tables.c.

The definitions have PostgreSQL 18's names, defaults, descriptions and limits. There are three
sorts: parameters that the node obeys, parameters that it reports because drivers read them, and
parameters that clients usually set when they connect and that have no effect here (``jit``,
``row_security`` ...). ``planner`` has those of the planner, ``unused`` those of PostgreSQL's log,
statistics and files. Any other parameter is unrecognized, also one that only the server's
configuration may set, so that a client cannot rely on a setting without effect.

Source: src/backend/utils/misc/guc_tables.c, PostgreSQL 18; manual, chapter 19.
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
from wal2lake.sql.parameters.planner import PLANNER_PARAMETERS
from wal2lake.sql.parameters.unused import UNUSED_PARAMETERS

SERVER_VERSION: Final = "18.0"
"""The version that a node reports; drivers compare the number before the point."""

SERVER_VERSION_NUM: Final = "180000"

AS_OF_LSN: Final = "wal2lake.as_of_lsn"

AS_OF_TIME: Final = "wal2lake.as_of_time"


def _bool(
    name: str,
    default: str,
    description: str,
    *,
    report: bool = False,
    follows: str | None = None,
) -> ParameterDefinition:
    return ParameterDefinition(
        name, ParameterKind.BOOL, default, description, report=report, follows=follows
    )


def _fact(
    name: str,
    kind: ParameterKind,
    value: str,
    description: str,
    *,
    report: bool = False,
) -> ParameterDefinition:
    return ParameterDefinition(
        name, kind, value, description, ParameterContext.INTERNAL, report
    )


def _string(
    name: str, default: str, description: str, *, report: bool = False
) -> ParameterDefinition:
    return ParameterDefinition(
        name, ParameterKind.STRING, default, description, report=report
    )


def _enum(
    name: str,
    default: str,
    description: str,
    *choices: str,
    synonyms: tuple[tuple[str, str], ...] = (),
    report: bool = False,
    follows: str | None = None,
) -> ParameterDefinition:
    return ParameterDefinition(
        name,
        ParameterKind.ENUM,
        default,
        description,
        report=report,
        choices=choices,
        synonyms=synonyms,
        follows=follows,
    )


def _timeout(name: str, description: str) -> ParameterDefinition:
    return ParameterDefinition(
        name, ParameterKind.INTEGER, "0", description, unit=Unit.MILLISECONDS
    )


_ISOLATION: Final = (
    "serializable",
    "repeatable read",
    "read committed",
    "read uncommitted",
)
_MESSAGES: Final = (
    "debug5",
    "debug4",
    "debug3",
    "debug2",
    "debug1",
    "log",
    "notice",
    "warning",
    "error",
)

PARAMETERS: Final = (
    *PLANNER_PARAMETERS,
    *UNUSED_PARAMETERS,
    _string(
        "application_name",
        "",
        "Sets the application name to be reported in statistics and logs.",
        report=True,
    ),
    _bool("array_nulls", "on", "Enables input of NULL elements in arrays."),
    _fact(
        "block_size", ParameterKind.INTEGER, "8192", "Shows the size of a disk block."
    ),
    _enum(
        "bytea_output",
        "hex",
        "Sets the output format for bytea.",
        "escape",
        "hex",
    ),
    _bool("check_function_bodies", "on", "Check routine bodies during creation."),
    _string(
        "client_encoding",
        "UTF8",
        "Sets the client's character set encoding.",
        report=True,
    ),
    _enum(
        "client_min_messages",
        "notice",
        "Sets the message levels that are sent to the client.",
        *_MESSAGES,
        synonyms=(("debug", "debug2"), ("info", "notice"), ("fatal", "error")),
    ),
    ParameterDefinition(
        "DateStyle",
        ParameterKind.STRING,
        "ISO, MDY",
        "Sets the display format for date and time values.",
        report=True,
        is_list=True,
    ),
    _string(
        "default_table_access_method",
        "heap",
        "Sets the default table access method for new tables.",
    ),
    _enum(
        "default_toast_compression",
        "pglz",
        "Sets the default compression method for compressible values.",
        "pglz",
        "lz4",
    ),
    _string(
        "default_tablespace", "", "Sets the default tablespace to create tables in."
    ),
    _bool(
        "default_transaction_deferrable",
        "off",
        "Sets the default deferrable status of new transactions.",
    ),
    _enum(
        "default_transaction_isolation",
        "read committed",
        "Sets the transaction isolation level of each new transaction.",
        *_ISOLATION,
    ),
    _bool(
        "default_transaction_read_only",
        "off",
        "Sets the default read-only status of new transactions.",
        report=True,
    ),
    _bool(
        "escape_string_warning",
        "on",
        "Warn about backslash escapes in ordinary string literals.",
    ),
    ParameterDefinition(
        "extra_float_digits",
        ParameterKind.INTEGER,
        "1",
        "Sets the number of digits displayed for floating-point values.",
        minimum=-15,
        maximum=3,
    ),
    _timeout(
        "idle_in_transaction_session_timeout",
        "Sets the maximum allowed idle time between queries, when in a transaction.",
    ),
    _timeout(
        "idle_session_timeout",
        "Sets the maximum allowed idle time between queries, when not in a "
        "transaction.",
    ),
    _fact(
        "in_hot_standby",
        ParameterKind.BOOL,
        "off",
        "Shows whether hot standby is currently active.",
        report=True,
    ),
    _fact(
        "integer_datetimes",
        ParameterKind.BOOL,
        "on",
        "Shows whether datetimes are integer based.",
        report=True,
    ),
    _enum(
        "IntervalStyle",
        "postgres",
        "Sets the display format for interval values.",
        "postgres",
        "postgres_verbose",
        "sql_standard",
        "iso_8601",
        report=True,
    ),
    _fact(
        "is_superuser",
        ParameterKind.BOOL,
        "off",
        "Shows whether the current user is a superuser.",
        report=True,
    ),
    _bool("jit", "on", "Allow JIT compilation."),
    _string("lc_messages", "C", "Sets the language in which messages are displayed."),
    _string("lc_monetary", "C", "Sets the locale for formatting monetary amounts."),
    _string("lc_numeric", "C", "Sets the locale for formatting numbers."),
    _string("lc_time", "C", "Sets the locale for formatting date and time values."),
    _timeout(
        "lock_timeout", "Sets the maximum allowed duration of any wait for a lock."
    ),
    ParameterDefinition(
        "log_replication_commands",
        ParameterKind.BOOL,
        "off",
        "Logs each replication command.",
        ParameterContext.SUPERUSER,
    ),
    _fact(
        "max_identifier_length",
        ParameterKind.INTEGER,
        "63",
        "Shows the maximum identifier length.",
    ),
    _fact(
        "max_index_keys",
        ParameterKind.INTEGER,
        "32",
        "Shows the maximum number of index keys.",
    ),
    _enum(
        "password_encryption",
        "scram-sha-256",
        "Chooses the algorithm for encrypting passwords.",
        "scram-sha-256",
    ),
    _bool(
        "quote_all_identifiers",
        "off",
        "When generating SQL fragments, quote all identifiers.",
    ),
    _fact("role", ParameterKind.STRING, "none", "Sets the current role."),
    ParameterDefinition(
        "restrict_nonsystem_relation_kind",
        ParameterKind.STRING,
        "",
        "Prohibits access to non-system relations of specified kinds.",
        is_list=True,
    ),
    _bool("row_security", "on", "Enables row security."),
    ParameterDefinition(
        "scram_iterations",
        ParameterKind.INTEGER,
        "4096",
        "Sets the iteration count for SCRAM secret generation.",
        report=True,
        minimum=1,
    ),
    ParameterDefinition(
        "search_path",
        ParameterKind.STRING,
        '"$user", public',
        "Sets the schema search order for names that are not schema-qualified.",
        report=True,
        is_list=True,
        quotes_items=True,
    ),
    _fact(
        "server_encoding",
        ParameterKind.STRING,
        "UTF8",
        "Shows the server (database) character set encoding.",
        report=True,
    ),
    _fact(
        "server_version",
        ParameterKind.STRING,
        SERVER_VERSION,
        "Shows the server version.",
        report=True,
    ),
    _fact(
        "server_version_num",
        ParameterKind.INTEGER,
        SERVER_VERSION_NUM,
        "Shows the server version as an integer.",
    ),
    _fact(
        "session_authorization",
        ParameterKind.STRING,
        "",
        "Sets the session user name.",
        report=True,
    ),
    _enum(
        "session_replication_role",
        "origin",
        "Sets the session's behavior for triggers and rewrite rules.",
        "origin",
        "replica",
        "local",
    ),
    _bool(
        "standard_conforming_strings",
        "on",
        "Causes '...' strings to treat backslashes literally.",
        report=True,
    ),
    _timeout(
        "statement_timeout", "Sets the maximum allowed duration of any statement."
    ),
    _enum(
        "synchronous_commit",
        "on",
        "Sets the current transaction's synchronization level.",
        "local",
        "remote_write",
        "remote_apply",
        "on",
        "off",
        synonyms=BOOLEANS,
    ),
    _bool("synchronize_seqscans", "on", "Enables synchronized sequential scans."),
    _string(
        "TimeZone",
        "UTC",
        "Sets the time zone for displaying and interpreting time stamps.",
        report=True,
    ),
    _bool(
        "transaction_deferrable",
        "off",
        "Whether to defer a read-only serializable transaction until it can be "
        "executed with no possible serialization failures.",
        follows="default_transaction_deferrable",
    ),
    _enum(
        "transaction_isolation",
        "read committed",
        "Sets the current transaction's isolation level.",
        *_ISOLATION,
        follows="default_transaction_isolation",
    ),
    _bool(
        "transaction_read_only",
        "off",
        "Sets the current transaction's read-only status.",
        follows="default_transaction_read_only",
    ),
    _timeout(
        "transaction_timeout",
        "Sets the maximum allowed duration of any transaction within a session (not a "
        "prepared transaction).",
    ),
    ParameterDefinition(
        "work_mem",
        ParameterKind.INTEGER,
        "4096",
        "Sets the maximum memory to be used for query workspaces.",
        unit=Unit.KILOBYTES,
        minimum=64,
    ),
    _enum(
        "xmlbinary",
        "base64",
        "Sets how binary values are to be encoded in XML.",
        "base64",
        "hex",
    ),
    _enum(
        "xmloption",
        "content",
        "Sets whether XML data in implicit parsing and serialization operations is to "
        "be considered as documents or content fragments.",
        "content",
        "document",
    ),
    _string(
        AS_OF_LSN,
        "",
        "Reads all tables as they were published at this position of the publisher's WAL.",
    ),
    _string(
        AS_OF_TIME, "", "Reads all tables as the node had published them at this time."
    ),
)
