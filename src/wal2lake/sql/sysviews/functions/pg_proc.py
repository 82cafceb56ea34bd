"""The table of catalog functions: names, arguments, results.

Comes in: the implementations, from the other modules of this room. Goes out: ``FUNCTIONS``, by
PostgreSQL's name and the number of arguments, with the embedded engine's types and PostgreSQL's
type of the result; ``ROW_FUNCTIONS``, which return rows; and ``EMPTY_TABLE_FUNCTIONS``, which
return no row in a node.

Functions about objects that a node does not have (rules, triggers, statistics objects ...) return
null, as PostgreSQL's do for an object that does not exist.

Source: the manual's chapters 9.26 to 9.30; pg_proc.dat.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from wal2lake.model import DATABASE
from wal2lake.sql.sysviews.declarations.relations import SYSTEM_SCHEMAS
from wal2lake.sql.sysviews.functions import (
    acl,
    dbsize,
    objects,
    regproc,
    replication,
    session,
    setreturning,
)
from wal2lake.sql.sysviews.functions.call import FunctionRequest
from wal2lake.sql.sysviews.functions.texts import text, typed

_BOOL, _NAME, _INT8, _INT4, _TEXT, _OID = 16, 19, 20, 23, 25, 26
_CHAR, _INT2 = 18, 21
_FLOAT8_TZ, _NAMES, _LSN, _INET, _XID8, _VOID = 1184, 1003, 3220, 869, 5069, 2278
_INT2VECTOR, _NODE_TREE, _RECORDS, _XID, _BYTEA = 22, 194, 2287, 28, 17
_REGCLASS, _REGTYPE, _REGNAMESPACE, _REGROLE = 2205, 2206, 4089, 4096


EXPANDARRAY: Final = "_pg_expandarray"
"""Function of information_schema that drivers call in a select list, for columns of an index."""

OWN_SCHEMA: Final = "wal2lake."
"""Prefix of the names of wal2lake's own functions."""


@dataclass(frozen=True, slots=True)
class Function:
    """One function for one number of arguments."""

    implementation: Callable[..., Any]
    """Called with the ``Call`` and the arguments."""
    parameters: tuple[str, ...]
    """The engine's types; ANY passes the value as it comes."""
    returns: str
    """The engine's type."""
    type_oid: int
    """PostgreSQL's type of the result."""
    changes: bool = False
    """Whether the function has side effects: the engine runs it once for each row."""


_SIGNATURES: Final = """
[regproc]
regclass_in(ANY) -> regclass UINTEGER
regclass_out(BIGINT) -> text VARCHAR
to_regclass(ANY) -> regclass UINTEGER
regtype_in(ANY) -> regtype UINTEGER
regtype_out(BIGINT) -> text VARCHAR
to_regtype(ANY) -> regtype UINTEGER
regnamespace_in(ANY) -> regnamespace UINTEGER
regnamespace_out(BIGINT) -> text VARCHAR
to_regnamespace(ANY) -> regnamespace UINTEGER
regrole_in(ANY) -> regrole UINTEGER
regrole_out(BIGINT) -> text VARCHAR
to_regrole(ANY) -> regrole UINTEGER
regproc_in(VARCHAR) -> text VARCHAR
regproc_oid(VARCHAR) -> oid UINTEGER
pg_lsn_in(ANY) -> pg_lsn UBIGINT
pg_lsn_out(UBIGINT) -> text VARCHAR
pg_lsn_pli(ANY ANY) -> pg_lsn UBIGINT
pg_lsn_mii(ANY ANY) -> pg_lsn UBIGINT
[objects]
format_type(BIGINT BIGINT) -> text VARCHAR
pg_get_userbyid(BIGINT) -> name VARCHAR
pg_table_is_visible(BIGINT) -> bool BOOLEAN
pg_type_is_visible pg_function_is_visible pg_operator_is_visible pg_opclass_is_visible
    pg_opfamily_is_visible pg_conversion_is_visible pg_collation_is_visible
    pg_statistics_obj_is_visible pg_ts_config_is_visible pg_ts_dict_is_visible
    pg_ts_parser_is_visible pg_ts_template_is_visible(BIGINT) -> bool BOOLEAN = is_visible
pg_get_expr(VARCHAR BIGINT) -> text VARCHAR
pg_get_expr(VARCHAR BIGINT BOOLEAN) -> text VARCHAR
pg_get_indexdef(BIGINT) -> text VARCHAR
pg_get_indexdef(BIGINT BIGINT BOOLEAN) -> text VARCHAR
pg_get_constraintdef(BIGINT) -> text VARCHAR
pg_get_constraintdef(BIGINT BOOLEAN) -> text VARCHAR
pg_get_replica_identity_index(BIGINT) -> regclass UINTEGER
pg_relation_is_publishable(ANY) -> bool BOOLEAN
pg_relation_filenode(ANY) -> oid UINTEGER
pg_get_function_result(BIGINT) -> text VARCHAR
pg_get_function_arguments(BIGINT) -> text VARCHAR
pg_get_function_identity_arguments(BIGINT) -> text VARCHAR
pg_get_partkeydef(BIGINT) -> text VARCHAR
pg_get_serial_sequence(VARCHAR VARCHAR) -> text VARCHAR
obj_description(ANY VARCHAR) -> text VARCHAR
obj_description(BIGINT) -> text VARCHAR = any_description
pg_encoding_to_char(BIGINT) -> name VARCHAR
pg_char_to_encoding(VARCHAR) -> int INTEGER
[rows]
pg_get_publication_tables(VARCHAR[]) -> record[] STRUCT(pubid UINTEGER,relid UINTEGER,attrs
    SMALLINT[],qual VARCHAR)[]
pg_partition_ancestors(ANY) -> record[] STRUCT(relid UINTEGER)[]
pg_partition_tree(ANY) -> record[] STRUCT(relid UINTEGER,parentrelid UINTEGER,isleaf BOOLEAN,level
    INTEGER)[]
pg_get_replication_slots() -> record[] STRUCT
pg_stat_get_replication_slot(VARCHAR) -> record[] STRUCT
pg_stat_get_subscription(BIGINT) -> record[] STRUCT
pg_stat_get_subscription_stats(BIGINT) -> record[] STRUCT
pg_get_keywords() -> record[] STRUCT(word VARCHAR,catcode VARCHAR,barelabel BOOLEAN,catdesc
    VARCHAR,baredesc VARCHAR)[]
_pg_expandarray(SMALLINT[]) -> record[] STRUCT(x SMALLINT,n INTEGER)[] = pg_expandarray
[acl]
has_table_privilege(ANY ANY) -> bool BOOLEAN
has_schema_privilege(ANY ANY) -> bool BOOLEAN
pg_has_role(ANY ANY) -> bool BOOLEAN
has_database_privilege(ANY ANY) -> bool BOOLEAN
has_any_column_privilege(ANY ANY) -> bool BOOLEAN
has_function_privilege has_type_privilege has_language_privilege has_tablespace_privilege
    has_sequence_privilege has_foreign_data_wrapper_privilege has_server_privilege
    has_parameter_privilege(ANY ANY) -> bool BOOLEAN = has_privilege
has_table_privilege(ANY ANY ANY) -> bool BOOLEAN
has_schema_privilege(ANY ANY ANY) -> bool BOOLEAN
pg_has_role(ANY ANY ANY) -> bool BOOLEAN
has_database_privilege(ANY ANY ANY) -> bool BOOLEAN
has_any_column_privilege(ANY ANY ANY) -> bool BOOLEAN
has_function_privilege has_type_privilege has_language_privilege has_tablespace_privilege
    has_sequence_privilege has_foreign_data_wrapper_privilege has_server_privilege
    has_parameter_privilege(ANY ANY ANY) -> bool BOOLEAN = has_privilege
has_column_privilege(ANY ANY ANY) -> bool BOOLEAN
has_column_privilege(ANY ANY ANY ANY) -> bool BOOLEAN
[dbsize]
pg_table_size pg_total_relation_size pg_relation_size(ANY) -> bigint BIGINT = pg_table_size
pg_database_size(ANY) -> bigint BIGINT
pg_size_pretty(HUGEINT) -> text VARCHAR
[session]
nextval(ANY) ! bigint BIGINT = sequence_function()
currval(ANY) ! bigint BIGINT = sequence_function()
lastval() ! bigint BIGINT = sequence_function()
setval(ANY BIGINT) ! bigint BIGINT = sequence_function()
setval(ANY BIGINT BOOLEAN) ! bigint BIGINT = sequence_function()
current_setting(VARCHAR) -> text VARCHAR
current_setting(VARCHAR BOOLEAN) -> text VARCHAR
set_config(VARCHAR VARCHAR BOOLEAN) ! text VARCHAR
pg_cancel_backend(INTEGER) ! bool BOOLEAN
pg_terminate_backend(INTEGER) ! bool BOOLEAN
pg_terminate_backend(INTEGER BIGINT) ! bool BOOLEAN
pg_stat_reset_replication_slot(VARCHAR) ! void VARCHAR
pg_stat_reset_subscription_stats(BIGINT) ! void VARCHAR
pg_reload_conf() ! bool BOOLEAN
current_schema() -> name VARCHAR
current_schemas(BOOLEAN) -> name[] VARCHAR[]
pg_client_encoding() -> name VARCHAR
[replication]
pg_replication_origin_oid(VARCHAR) -> oid UINTEGER
pg_replication_origin_progress(VARCHAR BOOLEAN) -> pg_lsn UBIGINT
pg_replication_origin_advance(ANY ANY) ! void VARCHAR
pg_replication_origin_create(VARCHAR) ! oid UINTEGER = origin_function()
pg_replication_origin_drop(VARCHAR) ! void VARCHAR = origin_function()
pg_replication_origin_session_setup(VARCHAR) ! void VARCHAR = origin_function()
pg_replication_origin_session_reset() ! void VARCHAR = origin_function()
pg_replication_origin_session_is_setup() ! bool BOOLEAN = origin_function()
pg_replication_origin_session_progress(BOOLEAN) ! pg_lsn UBIGINT = origin_function()
pg_replication_origin_xact_setup(ANY ANY) ! void VARCHAR = origin_function()
pg_replication_origin_xact_reset() ! void VARCHAR = origin_function()
pg_create_logical_replication_slot(ANY ANY) -> record[] STRUCT = rows_of()
pg_create_logical_replication_slot(ANY ANY ANY) -> record[] STRUCT = rows_of()
pg_create_logical_replication_slot(ANY ANY ANY ANY) -> record[] STRUCT = rows_of()
pg_create_logical_replication_slot(ANY ANY ANY ANY ANY) -> record[] STRUCT = rows_of()
pg_copy_logical_replication_slot(ANY ANY) -> record[] STRUCT = rows_of()
pg_copy_logical_replication_slot(ANY ANY ANY) -> record[] STRUCT = rows_of()
pg_copy_logical_replication_slot(ANY ANY ANY ANY) -> record[] STRUCT = rows_of()
pg_replication_slot_advance(ANY ANY) -> record[] STRUCT = rows_of()
pg_logical_slot_get_changes(ANY ANY ANY ANY) -> record[] STRUCT = rows_of()
pg_logical_slot_peek_changes(ANY ANY ANY ANY) -> record[] STRUCT = rows_of()
pg_logical_slot_get_binary_changes(ANY ANY ANY ANY) -> record[] STRUCT = rows_of()
pg_logical_slot_peek_binary_changes(ANY ANY ANY ANY) -> record[] STRUCT = rows_of()
pg_drop_replication_slot(VARCHAR) -> void VARCHAR
pg_create_physical_replication_slot(ANY) -> record[] STRUCT = physical_slot_function()
pg_create_physical_replication_slot(ANY ANY) -> record[] STRUCT = physical_slot_function()
pg_create_physical_replication_slot(ANY ANY ANY) -> record[] STRUCT = physical_slot_function()
pg_copy_physical_replication_slot(ANY ANY) -> record[] STRUCT = physical_slot_function()
pg_copy_physical_replication_slot(ANY ANY ANY) -> record[] STRUCT = physical_slot_function()
pg_sync_replication_slots() ! void VARCHAR
pg_current_wal_lsn pg_current_wal_flush_lsn pg_current_wal_insert_lsn() -> pg_lsn UBIGINT =
    pg_current_wal_lsn
pg_logical_emit_message(ANY ANY ANY) ! pg_lsn UBIGINT
pg_logical_emit_message(ANY ANY ANY ANY) ! pg_lsn UBIGINT
pg_log_standby_snapshot() -> pg_lsn UBIGINT
pg_walfile_name(ANY) -> text VARCHAR
pg_export_snapshot() -> text VARCHAR
wal2lake.pause_table(ANY) ! void VARCHAR = table_function()
wal2lake.pause_table(ANY ANY) ! void VARCHAR = table_function()
wal2lake.resume_table(ANY) ! void VARCHAR = table_function()
wal2lake.resume_table(ANY ANY) ! void VARCHAR = table_function()
wal2lake.recopy_table(ANY) ! void VARCHAR = table_function()
wal2lake.recopy_table(ANY ANY) ! void VARCHAR = table_function()
wal2lake.visible_lsn() -> pg_lsn UBIGINT = visible_lsn
wal2lake.visible_lsn(VARCHAR) -> pg_lsn UBIGINT = visible_lsn
[text]
array_to_string(VARCHAR[] VARCHAR VARCHAR) -> text VARCHAR
record_out(VARCHAR[]) -> text VARCHAR
bytea_in(VARCHAR) -> bytea BLOB = bytea
convert_from(BLOB VARCHAR) -> text VARCHAR
encode(BLOB VARCHAR) -> text VARCHAR
decode(VARCHAR VARCHAR) -> bytea BLOB
get_byte(BLOB BIGINT) -> int INTEGER
bytea_substr(BLOB BIGINT) -> bytea BLOB
bytea_substr(BLOB BIGINT BIGINT) -> bytea BLOB
quote_ident(VARCHAR) -> text VARCHAR
quote_literal(ANY) -> text VARCHAR = quote_literal_function
quote_nullable(ANY) -> text VARCHAR
format(ANY) -> text VARCHAR = format_function
format(ANY ANY) -> text VARCHAR = format_function
format(ANY ANY ANY) -> text VARCHAR = format_function
format(ANY ANY ANY ANY) -> text VARCHAR = format_function
format(ANY ANY ANY ANY ANY) -> text VARCHAR = format_function
format(ANY ANY ANY ANY ANY ANY) -> text VARCHAR = format_function
format(ANY ANY ANY ANY ANY ANY ANY) -> text VARCHAR = format_function
format(ANY ANY ANY ANY ANY ANY ANY ANY) -> text VARCHAR = format_function
format(ANY ANY ANY ANY ANY ANY ANY ANY ANY) -> text VARCHAR = format_function
[typed]
typed_in(VARCHAR INTEGER INTEGER) -> text VARCHAR
moment_out(BIGINT INTEGER) -> text VARCHAR
interval_out(BIGINT BIGINT BIGINT) -> text VARCHAR
[others]
pg_get_viewdef pg_get_ruledef pg_get_triggerdef pg_get_functiondef pg_get_function_sqlbody
    pg_get_partition_constraintdef pg_get_statisticsobjdef pg_get_statisticsobjdef_columns
    pg_tablespace_location(ANY) -> text VARCHAR = null
pg_get_viewdef pg_get_ruledef pg_get_triggerdef(ANY ANY) -> text VARCHAR = null
pg_tablespace_location(BIGINT) -> text VARCHAR = empty_text
col_description shobj_description(BIGINT ANY) -> text VARCHAR = null
getdatabaseencoding() -> name VARCHAR = utf8
pg_relation_size(ANY ANY) -> bigint BIGINT = fork_size
pg_indexes_size pg_tablespace_size(ANY) -> bigint BIGINT = zero
pg_last_wal_receive_lsn pg_last_wal_replay_lsn() -> pg_lsn UBIGINT = null
version() -> text VARCHAR
current_database current_catalog() -> name VARCHAR = database
current_user user current_role() -> name VARCHAR = current_user
session_user() -> name VARCHAR
pg_backend_pid() -> int INTEGER = pid
row_security_active(ANY) -> bool BOOLEAN = false
pg_advisory_unlock_all() -> void VARCHAR = empty_text
pg_is_in_recovery() -> bool BOOLEAN = false
pg_is_other_temp_schema(BIGINT) -> bool BOOLEAN = false
pg_my_temp_schema() -> oid UINTEGER = zero
txid_current() -> bigint BIGINT = xid
pg_current_xact_id() -> xid8 BIGINT = xid
txid_current_if_assigned() -> bigint BIGINT = xid_if_assigned
pg_current_xact_id_if_assigned() -> xid8 BIGINT = xid_if_assigned
inet_client_addr() -> inet VARCHAR = client_host
inet_client_port() -> int INTEGER = client_port
inet_server_addr() -> inet VARCHAR = null
inet_server_port() -> int INTEGER = null
now transaction_timestamp statement_timestamp current_timestamp() -> timestamptz TIMESTAMP WITH
    TIME ZONE = now
clock_timestamp() -> timestamptz TIMESTAMP WITH TIME ZONE = clock
pg_postmaster_start_time pg_conf_load_time() -> timestamptz TIMESTAMP WITH TIME ZONE = started_at
array_to_string(VARCHAR[] VARCHAR) -> text VARCHAR = joined
"""
"""Functions by the module of their implementation. An entry has the names, the engine's types of
the arguments, PostgreSQL's type of the result, the engine's type, and the implementation if its
name differs (with parentheses: a factory that is called with the function's name). ``->``: the
function answers; ``!``: it changes something. STRUCT: the module declares the columns."""

_ENTRY: Final = re.compile(r"([^(]+)\((.*?)\) (->|!) (\S+) (.+?)(?: = (\w+)(\(\))?)?")

_OIDS: Final[Mapping[str, int]] = {
    "bigint": 20,
    "bool": 16,
    "bytea": 17,
    "inet": 869,
    "int": 23,
    "name": 19,
    "name[]": 1003,
    "oid": 26,
    "pg_lsn": 3220,
    "record[]": 2287,
    "regclass": 2205,
    "regnamespace": 4089,
    "regrole": 4096,
    "regtype": 2206,
    "text": 25,
    "timestamptz": 1184,
    "void": 2278,
    "xid8": 5069,
}
"""PostgreSQL's types of results, by their names in the table."""


def _constant(value: object) -> Callable[..., object]:
    return lambda call, *arguments: value


def _number(suffix: str) -> Callable[..., object]:
    request = FunctionRequest(f"pg_current_xact_id{suffix}", ())
    return lambda call: call.ask(request)


# Connection pools call pg_advisory_unlock_all(). A node has no advisory locks.
_OTHERS: Final[Mapping[str, Callable[..., Any]]] = {
    "null": _constant(None),
    "empty_text": _constant(""),
    "utf8": _constant("UTF8"),
    "zero": _constant(0),
    "false": _constant(False),
    "version": _constant(session.VERSION),
    "database": _constant(DATABASE),
    "current_user": lambda call: call.context.current_user,
    "session_user": lambda call: call.context.session_user,
    "pid": lambda call: call.context.pid,
    "client_host": lambda call: call.context.client_host or None,
    "client_port": lambda call: call.context.client_port or None,
    "now": lambda call: call.now,
    "clock": lambda call: datetime.now(UTC),
    "started_at": lambda call: call.source.started_at,
    "xid": _number(""),
    "xid_if_assigned": _number("_if_assigned"),
    "fork_size": lambda call, target, fork: dbsize.pg_table_size(call, target),
    "joined": lambda call, items, separator: text.array_to_string(
        call, items, separator, None
    ),
}
"""Implementations that are a value or one expression."""

_MODULES: Final[Mapping[str, Mapping[str, Any]]] = {
    "acl": vars(acl),
    "dbsize": vars(dbsize),
    "objects": vars(objects),
    "others": _OTHERS,
    "regproc": vars(regproc),
    "replication": vars(replication),
    "rows": vars(setreturning),
    "session": vars(session),
    "text": vars(text),
    "typed": vars(typed),
}


def _functions() -> dict[tuple[str, int], Function]:
    table: dict[tuple[str, int], Function] = {}
    for section in _SIGNATURES.strip().removeprefix("[").split("\n["):
        module, _, entries = section.partition("]\n")
        for entry in re.split(r"\n(?! )", entries.strip()):
            match = _ENTRY.fullmatch(" ".join(entry.split()))
            assert match is not None, entry
            names, parameters, effect, result, returns, named_otherwise, factory = (
                match.groups()
            )
            types = tuple(parameters.split())
            for name in names.split():
                implementation = _MODULES[module][named_otherwise or name]
                table[name, len(types)] = Function(
                    implementation(name) if factory else implementation,
                    types,
                    _struct(name) if returns == "STRUCT" else returns,
                    _OIDS[result],
                    effect == "!",
                )
    return table


def _struct(name: str) -> str:
    return replication.STRUCTS.get(name) or setreturning.struct_of(name)


FUNCTIONS: Final[Mapping[tuple[str, int], Function]] = _functions()
"""By PostgreSQL's name and the number of arguments."""


CATALOG_FUNCTION: Final = "w_"
"""Prefix of the engine's names of catalog functions."""


def internal_name(name: str, arguments: int) -> str:
    """Return the engine's name for a function: its own functions have some of these names, too."""
    return f"{CATALOG_FUNCTION}{name.replace('.', '_')}_{arguments}"


# Set-returning functions that return no row in a node: their columns, with the engine's types.
EMPTY_TABLE_FUNCTIONS: Final[Mapping[str, tuple[tuple[str, str], ...]]] = {
    "pg_options_to_table": (("option_name", "VARCHAR"), ("option_value", "VARCHAR")),
    "pg_available_extensions": (
        ("name", "VARCHAR"),
        ("default_version", "VARCHAR"),
        ("comment", "VARCHAR"),
    ),
    "pg_available_extension_versions": (("name", "VARCHAR"), ("version", "VARCHAR")),
    "pg_listening_channels": (("pg_listening_channels", "VARCHAR"),),
    "aclexplode": (
        ("grantor", "UINTEGER"),
        ("grantee", "UINTEGER"),
        ("privilege_type", "VARCHAR"),
        ("is_grantable", "BOOLEAN"),
    ),
}

ROW_FUNCTIONS: Final[Mapping[str, tuple[tuple[str, int], ...]]] = {
    "pg_get_publication_tables": (
        ("pubid", _OID),
        ("relid", _OID),
        ("attrs", _INT2VECTOR),
        ("qual", _NODE_TREE),
    ),
    "pg_get_keywords": (
        *(("word", _TEXT), ("catcode", _CHAR), ("barelabel", _BOOL)),
        *(("catdesc", _TEXT), ("baredesc", _TEXT)),
    ),
    EXPANDARRAY: (("x", _INT2), ("n", _INT4)),
    **setreturning.STATE,
    "pg_create_logical_replication_slot": (("slot_name", _NAME), ("lsn", _LSN)),
    "pg_copy_logical_replication_slot": (("slot_name", _NAME), ("lsn", _LSN)),
    "pg_create_physical_replication_slot": (("slot_name", _NAME), ("lsn", _LSN)),
    "pg_copy_physical_replication_slot": (("slot_name", _NAME), ("lsn", _LSN)),
    "pg_replication_slot_advance": (("slot_name", _NAME), ("end_lsn", _LSN)),
    **{
        f"pg_logical_slot_{verb}_changes": (
            ("lsn", _LSN),
            ("xid", _XID),
            ("data", _BYTEA if "binary" in verb else _TEXT),
        )
        for verb in ("get", "peek", "get_binary", "peek_binary")
    },
    "pg_partition_ancestors": (("relid", _REGCLASS),),
    "pg_partition_tree": (
        ("relid", _REGCLASS),
        ("parentrelid", _REGCLASS),
        ("isleaf", _BOOL),
        ("level", _INT4),
    ),
}
"""Functions that give rows of several columns, with PostgreSQL's types of them."""

SYSTEM_SCHEMA_NAMES: Final = frozenset(SYSTEM_SCHEMAS)
