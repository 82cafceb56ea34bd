"""The table of catalog functions: names, arguments, results.

Comes in: the implementations, from the other modules of this room. Goes out: ``FUNCTIONS``, by
PostgreSQL's name and the number of arguments, with the embedded engine's types and PostgreSQL's
type of the result; and ``EMPTY_TABLE_FUNCTIONS``, set-returning functions that never give a row
here.

Functions about things that a node does not have (rules, triggers, statistics objects ...)
answer null, as PostgreSQL does for an object that is not there.

Source: the manual's chapters 9.26 to 9.30; pg_proc.dat.
"""

from __future__ import annotations

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
    rows,
    session,
    text,
)
from wal2lake.sql.sysviews.functions.call import Call, FunctionRequest

_BOOL, _NAME, _INT8, _INT4, _TEXT, _OID = 16, 19, 20, 23, 25, 26
_CHAR, _INT2 = 18, 21
_FLOAT8_TZ, _NAMES, _LSN, _INET, _XID8, _VOID = 1184, 1003, 3220, 869, 5069, 2278
_INT2VECTOR, _NODE_TREE, _RECORDS, _XID, _BYTEA = 22, 194, 2287, 28, 17
_REGCLASS, _REGTYPE, _REGNAMESPACE, _REGROLE = 2205, 2206, 4089, 4096


EXPANDARRAY: Final = "_pg_expandarray"
"""Function of information_schema that drivers use for the columns of an index, in a select list."""

OWN_SCHEMA: Final = "wal2lake."
"""Begins the names of functions that are not in pg_catalog."""


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
    """It changes something: to be run once a row, never ahead of the query."""


def _null(call: Call, *arguments: object) -> None:
    return None


def _always(value: object) -> Callable[..., object]:
    def constant(call: Call, *arguments: object) -> object:
        return value

    return constant


def _asked(request: FunctionRequest) -> Callable[..., object]:
    def answer(call: Call) -> object:
        return call.ask(request)

    return answer


def _functions() -> dict[tuple[str, int], Function]:
    table: dict[tuple[str, int], Function] = {}

    def add(
        names: str,
        implementation: Callable[..., Any],
        parameters: str,
        returns: str,
        type_oid: int,
        *,
        changes: bool = False,
    ) -> None:
        for name in names.split():
            types = tuple(parameters.split())
            table[name, len(types)] = Function(
                implementation, types, returns, type_oid, changes
            )

    for kind, oid in (
        ("regclass", _REGCLASS),
        ("regtype", _REGTYPE),
        ("regnamespace", _REGNAMESPACE),
        ("regrole", _REGROLE),
    ):
        add(f"{kind}_in", getattr(regproc, f"{kind}_in"), "ANY", "UINTEGER", oid)
        add(f"{kind}_out", getattr(regproc, f"{kind}_out"), "BIGINT", "VARCHAR", _TEXT)
        add(f"to_{kind}", getattr(regproc, f"to_{kind}"), "ANY", "UINTEGER", oid)
    add("regproc_oid", regproc.regproc_oid, "VARCHAR", "UINTEGER", _OID)
    add("pg_lsn_in", regproc.pg_lsn_in, "ANY", "UBIGINT", _LSN)
    add("pg_lsn_out", regproc.pg_lsn_out, "UBIGINT", "VARCHAR", _TEXT)
    add("pg_lsn_pli", regproc.pg_lsn_pli, "ANY ANY", "UBIGINT", _LSN)
    add("pg_lsn_mii", regproc.pg_lsn_mii, "ANY ANY", "UBIGINT", _LSN)

    add("format_type", objects.format_type, "BIGINT BIGINT", "VARCHAR", _TEXT)
    add("pg_get_userbyid", objects.pg_get_userbyid, "BIGINT", "VARCHAR", _NAME)
    add("pg_table_is_visible", objects.pg_table_is_visible, "BIGINT", "BOOLEAN", _BOOL)
    add(
        "pg_type_is_visible pg_function_is_visible pg_operator_is_visible"
        " pg_opclass_is_visible pg_opfamily_is_visible pg_conversion_is_visible"
        " pg_collation_is_visible pg_statistics_obj_is_visible pg_ts_config_is_visible"
        " pg_ts_dict_is_visible pg_ts_parser_is_visible pg_ts_template_is_visible",
        objects.is_visible,
        "BIGINT",
        "BOOLEAN",
        _BOOL,
    )
    add("pg_get_expr", objects.pg_get_expr, "VARCHAR BIGINT", "VARCHAR", _TEXT)
    add(
        "pg_get_expr",
        objects.pg_get_expr,
        "VARCHAR BIGINT BOOLEAN",
        "VARCHAR",
        _TEXT,
    )
    add("pg_get_indexdef", objects.pg_get_indexdef, "BIGINT", "VARCHAR", _TEXT)
    add(
        "pg_get_indexdef",
        objects.pg_get_indexdef,
        "BIGINT BIGINT BOOLEAN",
        "VARCHAR",
        _TEXT,
    )
    add(
        "pg_get_constraintdef",
        objects.pg_get_constraintdef,
        "BIGINT",
        "VARCHAR",
        _TEXT,
    )
    add(
        "pg_get_constraintdef",
        objects.pg_get_constraintdef,
        "BIGINT BOOLEAN",
        "VARCHAR",
        _TEXT,
    )
    add(
        "pg_get_replica_identity_index",
        objects.pg_get_replica_identity_index,
        "BIGINT",
        "UINTEGER",
        _REGCLASS,
    )
    add(
        "pg_relation_is_publishable",
        objects.pg_relation_is_publishable,
        "ANY",
        "BOOLEAN",
        _BOOL,
    )
    add(
        "pg_relation_filenode",
        objects.pg_relation_filenode,
        "ANY",
        "UINTEGER",
        _OID,
    )
    published = "STRUCT(pubid UINTEGER,relid UINTEGER,attrs SMALLINT[],qual VARCHAR)[]"
    add(
        "pg_get_publication_tables",
        rows.pg_get_publication_tables,
        "VARCHAR[]",
        published,
        _RECORDS,
    )
    add(
        "pg_partition_ancestors",
        rows.pg_partition_ancestors,
        "ANY",
        "STRUCT(relid UINTEGER)[]",
        _RECORDS,
    )
    add(
        "pg_partition_tree",
        rows.pg_partition_tree,
        "ANY",
        "STRUCT(relid UINTEGER,parentrelid UINTEGER,isleaf BOOLEAN,level INTEGER)[]",
        _RECORDS,
    )
    for name, taken in (
        ("pg_get_replication_slots", ""),
        ("pg_stat_get_replication_slot", "VARCHAR"),
        ("pg_stat_get_subscription", "BIGINT"),
        ("pg_stat_get_subscription_stats", "BIGINT"),
    ):
        struct = rows.struct_of(name)
        add(name, getattr(rows, name), taken, struct, _RECORDS)
    keyword = "word VARCHAR,catcode VARCHAR,barelabel BOOLEAN,catdesc VARCHAR"
    keyword = f"STRUCT({keyword},baredesc VARCHAR)[]"
    add("pg_get_keywords", rows.pg_get_keywords, "", keyword, _RECORDS)
    element = "STRUCT(x SMALLINT,n INTEGER)[]"
    add(EXPANDARRAY, rows.pg_expandarray, "SMALLINT[]", element, _RECORDS)
    nothing = (
        "pg_get_viewdef pg_get_ruledef pg_get_triggerdef pg_get_functiondef"
        " pg_get_function_sqlbody"
        " pg_get_partition_constraintdef pg_get_statisticsobjdef"
        " pg_get_statisticsobjdef_columns pg_tablespace_location"
    )
    add(nothing, _null, "ANY", "VARCHAR", _TEXT)
    for name in ("result", "arguments", "identity_arguments"):
        name = f"pg_get_function_{name}"
        add(name, getattr(objects, name), "BIGINT", "VARCHAR", _TEXT)
    add("pg_get_partkeydef", objects.pg_get_partkeydef, "BIGINT", "VARCHAR", _TEXT)
    add(
        "pg_get_viewdef pg_get_ruledef pg_get_triggerdef",
        _null,
        "ANY ANY",
        "VARCHAR",
        _TEXT,
    )
    add("pg_tablespace_location", _always(""), "BIGINT", "VARCHAR", _TEXT)
    add(
        "pg_get_serial_sequence",
        objects.pg_get_serial_sequence,
        "VARCHAR VARCHAR",
        "VARCHAR",
        _TEXT,
    )
    for name, taken in (
        ("nextval", "ANY"),
        ("currval", "ANY"),
        ("lastval", ""),
        ("setval", "ANY BIGINT"),
        ("setval", "ANY BIGINT BOOLEAN"),
    ):
        ask = session.sequence_function(name)
        add(name, ask, taken, "BIGINT", _INT8, changes=True)
    add("obj_description", objects.obj_description, "ANY VARCHAR", "VARCHAR", _TEXT)
    add("obj_description", objects.any_description, "BIGINT", "VARCHAR", _TEXT)
    add("col_description shobj_description", _null, "BIGINT ANY", "VARCHAR", _TEXT)
    add("pg_encoding_to_char", objects.pg_encoding_to_char, "BIGINT", "VARCHAR", _NAME)
    add(
        "pg_char_to_encoding",
        objects.pg_char_to_encoding,
        "VARCHAR",
        "INTEGER",
        _INT4,
    )
    add("getdatabaseencoding", _always("UTF8"), "", "VARCHAR", _NAME)

    for count in (2, 3):
        any_ = " ".join(["ANY"] * count)
        add("has_table_privilege", acl.has_table_privilege, any_, "BOOLEAN", _BOOL)
        add(
            "has_schema_privilege",
            acl.has_schema_privilege,
            any_,
            "BOOLEAN",
            _BOOL,
        )
        add("pg_has_role", acl.pg_has_role, any_, "BOOLEAN", _BOOL)
        add(
            "has_database_privilege",
            acl.has_database_privilege,
            any_,
            "BOOLEAN",
            _BOOL,
        )
        add(
            "has_any_column_privilege",
            acl.has_any_column_privilege,
            any_,
            "BOOLEAN",
            _BOOL,
        )
        add(
            "has_function_privilege has_type_privilege"
            " has_language_privilege has_tablespace_privilege has_sequence_privilege"
            " has_foreign_data_wrapper_privilege"
            " has_server_privilege has_parameter_privilege",
            acl.has_privilege,
            any_,
            "BOOLEAN",
            _BOOL,
        )
    for count in (3, 4):
        add(
            "has_column_privilege",
            acl.has_column_privilege,
            " ".join(["ANY"] * count),
            "BOOLEAN",
            _BOOL,
        )

    sizes = "pg_table_size pg_total_relation_size pg_relation_size"
    add(sizes, dbsize.pg_table_size, "ANY", "BIGINT", _INT8)
    add(
        "pg_relation_size",
        lambda call, target, fork: dbsize.pg_table_size(call, target),
        "ANY ANY",
        "BIGINT",
        _INT8,
    )
    add("pg_indexes_size pg_tablespace_size", _always(0), "ANY", "BIGINT", _INT8)
    add("pg_database_size", dbsize.pg_database_size, "ANY", "BIGINT", _INT8)
    add("pg_size_pretty", dbsize.pg_size_pretty, "HUGEINT", "VARCHAR", _TEXT)

    add("current_setting", session.current_setting, "VARCHAR", "VARCHAR", _TEXT)
    add(
        "current_setting",
        session.current_setting,
        "VARCHAR BOOLEAN",
        "VARCHAR",
        _TEXT,
    )
    add(
        "set_config",
        session.set_config,
        "VARCHAR VARCHAR BOOLEAN",
        "VARCHAR",
        _TEXT,
        changes=True,
    )
    add(
        "pg_cancel_backend",
        session.pg_cancel_backend,
        "INTEGER",
        "BOOLEAN",
        _BOOL,
        changes=True,
    )
    for types in ("INTEGER", "INTEGER BIGINT"):
        add(
            "pg_terminate_backend",
            session.pg_terminate_backend,
            types,
            "BOOLEAN",
            _BOOL,
            changes=True,
        )
    add(
        "pg_stat_reset_replication_slot",
        session.pg_stat_reset_replication_slot,
        "VARCHAR",
        "VARCHAR",
        _VOID,
        changes=True,
    )
    add(
        "pg_stat_reset_subscription_stats",
        session.pg_stat_reset_subscription_stats,
        "BIGINT",
        "VARCHAR",
        _VOID,
        changes=True,
    )
    add(
        "pg_reload_conf",
        session.pg_reload_conf,
        "",
        "BOOLEAN",
        _BOOL,
        changes=True,
    )
    add(
        "pg_replication_origin_oid",
        replication.pg_replication_origin_oid,
        "VARCHAR",
        "UINTEGER",
        _OID,
    )
    add(
        "pg_replication_origin_progress",
        replication.pg_replication_origin_progress,
        "VARCHAR BOOLEAN",
        "UBIGINT",
        _LSN,
    )
    add(
        "pg_replication_origin_advance",
        replication.pg_replication_origin_advance,
        "ANY ANY",
        "VARCHAR",
        _VOID,
        changes=True,
    )
    for name, taken, given, oid in (
        ("create", "VARCHAR", "UINTEGER", _OID),
        ("drop", "VARCHAR", "VARCHAR", _VOID),
        ("session_setup", "VARCHAR", "VARCHAR", _VOID),
        ("session_reset", "", "VARCHAR", _VOID),
        ("session_is_setup", "", "BOOLEAN", _BOOL),
        ("session_progress", "BOOLEAN", "UBIGINT", _LSN),
        ("xact_setup", "ANY ANY", "VARCHAR", _VOID),
        ("xact_reset", "", "VARCHAR", _VOID),
    ):
        add(
            f"pg_replication_origin_{name}",
            replication.origin_function(f"pg_replication_origin_{name}"),
            taken,
            given,
            oid,
            changes=True,
        )
    for name, several in {
        "pg_create_logical_replication_slot": (2, 3, 4, 5),
        "pg_copy_logical_replication_slot": (2, 3, 4),
        "pg_replication_slot_advance": (2,),
        "pg_logical_slot_get_changes": (4,),
        "pg_logical_slot_peek_changes": (4,),
        "pg_logical_slot_get_binary_changes": (4,),
        "pg_logical_slot_peek_binary_changes": (4,),
    }.items():
        for count in several:
            add(
                name,
                replication.rows_of(name),
                " ".join(["ANY"] * count),
                replication.STRUCTS[name],
                _RECORDS,
            )
    add(
        "pg_drop_replication_slot",
        replication.pg_drop_replication_slot,
        "VARCHAR",
        "VARCHAR",
        _VOID,
    )
    for name, several in {
        "pg_create_physical_replication_slot": (1, 2, 3),
        "pg_copy_physical_replication_slot": (2, 3),
    }.items():
        for count in several:
            add(
                name,
                replication.physical_slot_function(name),
                " ".join(["ANY"] * count),
                replication.STRUCTS[name],
                _RECORDS,
            )
    add(
        "pg_sync_replication_slots",
        replication.pg_sync_replication_slots,
        "",
        "VARCHAR",
        _VOID,
        changes=True,
    )
    add(
        "pg_current_wal_lsn pg_current_wal_flush_lsn pg_current_wal_insert_lsn",
        replication.pg_current_wal_lsn,
        "",
        "UBIGINT",
        _LSN,
    )
    for count in (3, 4):
        add(
            "pg_logical_emit_message",
            replication.pg_logical_emit_message,
            " ".join(["ANY"] * count),
            "UBIGINT",
            _LSN,
            changes=True,
        )
    # What runs is part of each snapshot: there is nothing to log.
    add(
        "pg_log_standby_snapshot",
        replication.pg_log_standby_snapshot,
        "",
        "UBIGINT",
        _LSN,
    )
    add(
        "pg_last_wal_receive_lsn pg_last_wal_replay_lsn",
        _null,
        "",
        "UBIGINT",
        _LSN,
    )
    add("pg_walfile_name", replication.pg_walfile_name, "ANY", "VARCHAR", _TEXT)
    add(
        "pg_export_snapshot",
        replication.pg_export_snapshot,
        "",
        "VARCHAR",
        _TEXT,
    )
    for name in ("pause_table", "resume_table", "recopy_table"):
        own = OWN_SCHEMA + name
        for arguments in ("ANY", "ANY ANY"):
            ask = replication.table_function(own)
            add(own, ask, arguments, "VARCHAR", _VOID, changes=True)
    add("current_schema", session.current_schema, "", "VARCHAR", _NAME)
    add("current_schemas", session.current_schemas, "BOOLEAN", "VARCHAR[]", _NAMES)
    add("pg_client_encoding", session.pg_client_encoding, "", "VARCHAR", _NAME)
    add("version", _always(session.VERSION), "", "VARCHAR", _TEXT)
    add("current_database current_catalog", _always(DATABASE), "", "VARCHAR", _NAME)
    add(
        "current_user user current_role",
        lambda call: call.context.current_user,
        "",
        "VARCHAR",
        _NAME,
    )
    add(
        "session_user",
        lambda call: call.context.session_user,
        "",
        "VARCHAR",
        _NAME,
    )
    add("pg_backend_pid", lambda call: call.context.pid, "", "INTEGER", _INT4)
    add("row_security_active", _always(False), "ANY", "BOOLEAN", _BOOL)
    # Pools call it; there are no advisory locks to hold.
    add("pg_advisory_unlock_all", _always(""), "", "VARCHAR", _VOID)
    add("pg_is_in_recovery", _always(False), "", "BOOLEAN", _BOOL)
    add("pg_is_other_temp_schema", _always(False), "BIGINT", "BOOLEAN", _BOOL)
    add("pg_my_temp_schema", _always(0), "", "UINTEGER", _OID)
    for suffix in ("", "_if_assigned"):
        request = FunctionRequest(f"pg_current_xact_id{suffix}", ())
        add(f"txid_current{suffix}", _asked(request), "", "BIGINT", _INT8)
        add(f"pg_current_xact_id{suffix}", _asked(request), "", "BIGINT", _XID8)
    add(
        "inet_client_addr",
        lambda call: call.context.client_host or None,
        "",
        "VARCHAR",
        _INET,
    )
    add(
        "inet_client_port",
        lambda call: call.context.client_port or None,
        "",
        "INTEGER",
        _INT4,
    )
    add("inet_server_addr", _null, "", "VARCHAR", _INET)
    add("inet_server_port", _null, "", "INTEGER", _INT4)
    moment = "TIMESTAMP WITH TIME ZONE"
    add(
        "now transaction_timestamp statement_timestamp current_timestamp",
        lambda call: call.now,
        "",
        moment,
        _FLOAT8_TZ,
    )
    add("clock_timestamp", lambda call: datetime.now(UTC), "", moment, _FLOAT8_TZ)
    add(
        "pg_postmaster_start_time pg_conf_load_time",
        lambda call: call.source.started_at,
        "",
        moment,
        _FLOAT8_TZ,
    )

    add(
        "array_to_string",
        lambda call, items, separator: text.array_to_string(
            call, items, separator, None
        ),
        "VARCHAR[] VARCHAR",
        "VARCHAR",
        _TEXT,
    )
    add(
        "array_to_string",
        text.array_to_string,
        "VARCHAR[] VARCHAR VARCHAR",
        "VARCHAR",
        _TEXT,
    )
    add("record_out", text.record_out, "VARCHAR[]", "VARCHAR", _TEXT)
    add("bytea_in", text.bytea, "VARCHAR", "BLOB", _BYTEA)
    add("convert_from", text.convert_from, "BLOB VARCHAR", "VARCHAR", _TEXT)
    add("encode", text.encode, "BLOB VARCHAR", "VARCHAR", _TEXT)
    add("decode", text.decode, "VARCHAR VARCHAR", "BLOB", _BYTEA)
    add("get_byte", text.get_byte, "BLOB BIGINT", "INTEGER", _INT4)
    for given in ("BLOB BIGINT", "BLOB BIGINT BIGINT"):
        add("bytea_substr", text.bytea_substr, given, "BLOB", _BYTEA)
    add("quote_ident", text.quote_ident, "VARCHAR", "VARCHAR", _TEXT)
    add("quote_literal", text.quote_literal_function, "ANY", "VARCHAR", _TEXT)
    add("quote_nullable", text.quote_nullable, "ANY", "VARCHAR", _TEXT)
    for count in range(1, 10):
        add(
            "format",
            text.format_function,
            " ".join(["ANY"] * count),
            "VARCHAR",
            _TEXT,
        )
    return table


FUNCTIONS: Final[Mapping[tuple[str, int], Function]] = _functions()
"""By PostgreSQL's name and the number of arguments."""


def internal_name(name: str, arguments: int) -> str:
    """Return the engine's name for a function: its own functions have some of these names, too."""
    return f"w_{name.replace('.', '_')}_{arguments}"


# Functions that give rows, in FROM, and never any here: their columns, with types.
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
    **rows.STATE,
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
