"""A node's catalog functions, as pg_proc of PostgreSQL 18 declares them.

Comes in: nothing. Goes out: ``FUNCTION_ROWS``, by OID, from a text in which a line ``oid name
kind result`` is followed by the arguments as pg_get_function_arguments() shows them. The kind is
provolatile and proparallel, and ``+`` for STRICT. Functions about replication, sessions and objects
are included; functions that compute values are not.

Generated from pg_proc of a server; a test compares it with one.
Source: src/include/catalog/pg_proc.dat, system_functions.sql.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from wal2lake.model import Oid
from wal2lake.pgtypes.registry.type_names import parse_type_name

_TEXT: Final = """
2892 pg_advisory_unlock_all vr+ void
2026 pg_backend_pid sr+ integer
2171 pg_cancel_backend vs+ boolean
    integer
1264 pg_char_to_encoding ss+ integer
    name
810 pg_client_encoding ss+ name
3815 pg_collation_is_visible ss+ boolean
    oid
2034 pg_conf_load_time sr+ timestamp with time zone
2093 pg_conversion_is_visible ss+ boolean
    oid
4222 pg_copy_logical_replication_slot vu+ record
    src_slot_name name, dst_slot_name name, temporary boolean, plugin name, OUT slot_name name,
    OUT lsn pg_lsn
4223 pg_copy_logical_replication_slot vu+ record
    src_slot_name name, dst_slot_name name, temporary boolean, OUT slot_name name, OUT lsn
    pg_lsn
4224 pg_copy_logical_replication_slot vu+ record
    src_slot_name name, dst_slot_name name, OUT slot_name name, OUT lsn pg_lsn
4220 pg_copy_physical_replication_slot vu+ record
    src_slot_name name, dst_slot_name name, temporary boolean, OUT slot_name name, OUT lsn
    pg_lsn
4221 pg_copy_physical_replication_slot vu+ record
    src_slot_name name, dst_slot_name name, OUT slot_name name, OUT lsn pg_lsn
3786 pg_create_logical_replication_slot vu+ record
    slot_name name, plugin name, temporary boolean DEFAULT false, twophase boolean DEFAULT
    false, failover boolean DEFAULT false, OUT slot_name name, OUT lsn pg_lsn
3779 pg_create_physical_replication_slot vu+ record
    slot_name name, immediately_reserve boolean DEFAULT false, temporary boolean DEFAULT false,
    OUT slot_name name, OUT lsn pg_lsn
3330 pg_current_wal_flush_lsn vs+ pg_lsn
2852 pg_current_wal_insert_lsn vs+ pg_lsn
2849 pg_current_wal_lsn vs+ pg_lsn
5059 pg_current_xact_id su+ xid8
5060 pg_current_xact_id_if_assigned su+ xid8
2168 pg_database_size vs+ bigint
    name
2324 pg_database_size vs+ bigint
    oid
3780 pg_drop_replication_slot vu+ void
    name
1597 pg_encoding_to_char ss+ name
    integer
3809 pg_export_snapshot vu+ text
2081 pg_function_is_visible ss+ boolean
    oid
1387 pg_get_constraintdef ss+ text
    oid
2508 pg_get_constraintdef ss+ text
    oid, boolean
1716 pg_get_expr ss+ text
    pg_node_tree, oid
2509 pg_get_expr ss+ text
    pg_node_tree, oid, boolean
2162 pg_get_function_arguments ss+ text
    oid
2232 pg_get_function_identity_arguments ss+ text
    oid
2165 pg_get_function_result ss+ text
    oid
6197 pg_get_function_sqlbody ss+ text
    oid
2098 pg_get_functiondef ss+ text
    oid
1643 pg_get_indexdef ss+ text
    oid
2507 pg_get_indexdef ss+ text
    oid, integer, boolean
1686 pg_get_keywords ss+ SETOF record
    OUT word text, OUT catcode "char", OUT barelabel boolean, OUT catdesc text, OUT baredesc
    text
3408 pg_get_partition_constraintdef ss+ text
    oid
3352 pg_get_partkeydef ss+ text
    oid
6119 pg_get_publication_tables ss+ SETOF record
    VARIADIC pubname text[], OUT pubid oid, OUT relid oid, OUT attrs int2vector, OUT qual
    pg_node_tree
6120 pg_get_replica_identity_index ss+ regclass
    regclass
3781 pg_get_replication_slots ss SETOF record
    OUT slot_name name, OUT plugin name, OUT slot_type text, OUT datoid oid, OUT temporary
    boolean, OUT active boolean, OUT active_pid integer, OUT xmin xid, OUT catalog_xmin xid, OUT
    restart_lsn pg_lsn, OUT confirmed_flush_lsn pg_lsn, OUT wal_status text, OUT safe_wal_size
    bigint, OUT two_phase boolean, OUT two_phase_at pg_lsn, OUT inactive_since timestamp with
    time zone, OUT conflicting boolean, OUT invalidation_reason text, OUT failover boolean, OUT
    synced boolean
1573 pg_get_ruledef ss+ text
    oid
2504 pg_get_ruledef ss+ text
    oid, boolean
1665 pg_get_serial_sequence ss+ text
    text, text
3415 pg_get_statisticsobjdef ss+ text
    oid
6174 pg_get_statisticsobjdef_columns ss+ text
    oid
1662 pg_get_triggerdef ss+ text
    oid
2730 pg_get_triggerdef ss+ text
    oid, boolean
1642 pg_get_userbyid ss+ name
    oid
1640 pg_get_viewdef sr+ text
    text
1641 pg_get_viewdef sr+ text
    oid
2505 pg_get_viewdef sr+ text
    text, boolean
2506 pg_get_viewdef sr+ text
    oid, boolean
3159 pg_get_viewdef sr+ text
    oid, integer
2705 pg_has_role ss+ boolean
    name, name, text
2706 pg_has_role ss+ boolean
    name, oid, text
2707 pg_has_role ss+ boolean
    oid, name, text
2708 pg_has_role ss+ boolean
    oid, oid, text
2709 pg_has_role ss+ boolean
    name, text
2710 pg_has_role ss+ boolean
    oid, text
2998 pg_indexes_size vs+ bigint
    regclass
3810 pg_is_in_recovery vs+ boolean
2855 pg_is_other_temp_schema ss+ boolean
    oid
3820 pg_last_wal_receive_lsn vs+ pg_lsn
3821 pg_last_wal_replay_lsn vs+ pg_lsn
6305 pg_log_standby_snapshot vs+ pg_lsn
3577 pg_logical_emit_message vu+ pg_lsn
    transactional boolean, prefix text, message text, flush boolean DEFAULT false
3578 pg_logical_emit_message vu+ pg_lsn
    transactional boolean, prefix text, message bytea, flush boolean DEFAULT false
3783 pg_logical_slot_get_binary_changes vu SETOF record
    slot_name name, upto_lsn pg_lsn, upto_nchanges integer, VARIADIC options text[] DEFAULT
    '{}'::text[], OUT lsn pg_lsn, OUT xid xid, OUT data bytea
3782 pg_logical_slot_get_changes vu SETOF record
    slot_name name, upto_lsn pg_lsn, upto_nchanges integer, VARIADIC options text[] DEFAULT
    '{}'::text[], OUT lsn pg_lsn, OUT xid xid, OUT data text
3785 pg_logical_slot_peek_binary_changes vu SETOF record
    slot_name name, upto_lsn pg_lsn, upto_nchanges integer, VARIADIC options text[] DEFAULT
    '{}'::text[], OUT lsn pg_lsn, OUT xid xid, OUT data bytea
3784 pg_logical_slot_peek_changes vu SETOF record
    slot_name name, upto_lsn pg_lsn, upto_nchanges integer, VARIADIC options text[] DEFAULT
    '{}'::text[], OUT lsn pg_lsn, OUT xid xid, OUT data text
3229 pg_lsn_in is+ pg_lsn
    cstring
5024 pg_lsn_mii is+ pg_lsn
    pg_lsn, numeric
3230 pg_lsn_out is+ cstring
    pg_lsn
5022 pg_lsn_pli is+ pg_lsn
    pg_lsn, numeric
2854 pg_my_temp_schema sr+ oid
2083 pg_opclass_is_visible ss+ boolean
    oid
2082 pg_operator_is_visible ss+ boolean
    oid
3829 pg_opfamily_is_visible ss+ boolean
    oid
3425 pg_partition_ancestors vs+ SETOF regclass
    partitionid regclass, OUT relid regclass
3423 pg_partition_tree vs+ SETOF record
    rootrelid regclass, OUT relid regclass, OUT parentrelid regclass, OUT isleaf boolean, OUT
    level integer
2560 pg_postmaster_start_time ss+ timestamp with time zone
2999 pg_relation_filenode ss+ oid
    regclass
6121 pg_relation_is_publishable ss+ boolean
    regclass
2325 pg_relation_size vs+ bigint
    regclass
2332 pg_relation_size vs+ bigint
    regclass, text
2621 pg_reload_conf vs+ boolean
6012 pg_replication_origin_advance vu+ void
    text, pg_lsn
6003 pg_replication_origin_create vu+ oid
    text
6004 pg_replication_origin_drop vu+ void
    text
6005 pg_replication_origin_oid ss+ oid
    text
6013 pg_replication_origin_progress vu+ pg_lsn
    text, boolean
6008 pg_replication_origin_session_is_setup vr+ boolean
6009 pg_replication_origin_session_progress vu+ pg_lsn
    boolean
6007 pg_replication_origin_session_reset vu+ void
6006 pg_replication_origin_session_setup vu+ void
    text
6011 pg_replication_origin_xact_reset vr+ void
6010 pg_replication_origin_xact_setup vr+ void
    pg_lsn, timestamp with time zone
3878 pg_replication_slot_advance vu+ record
    slot_name name, upto_lsn pg_lsn, OUT slot_name name, OUT end_lsn pg_lsn
2288 pg_size_pretty is+ text
    bigint
3166 pg_size_pretty is+ text
    numeric
6169 pg_stat_get_replication_slot sr+ record
    slot_name text, OUT slot_name text, OUT spill_txns bigint, OUT spill_count bigint, OUT
    spill_bytes bigint, OUT stream_txns bigint, OUT stream_count bigint, OUT stream_bytes
    bigint, OUT total_txns bigint, OUT total_bytes bigint, OUT stats_reset timestamp with time
    zone
6118 pg_stat_get_subscription sr SETOF record
    subid oid, OUT subid oid, OUT relid oid, OUT pid integer, OUT leader_pid integer, OUT
    received_lsn pg_lsn, OUT last_msg_send_time timestamp with time zone, OUT
    last_msg_receipt_time timestamp with time zone, OUT latest_end_lsn pg_lsn, OUT
    latest_end_time timestamp with time zone, OUT worker_type text
6231 pg_stat_get_subscription_stats sr+ record
    subid oid, OUT subid oid, OUT apply_error_count bigint, OUT sync_error_count bigint, OUT
    confl_insert_exists bigint, OUT confl_update_origin_differs bigint, OUT confl_update_exists
    bigint, OUT confl_update_missing bigint, OUT confl_delete_origin_differs bigint, OUT
    confl_delete_missing bigint, OUT confl_multiple_unique_conflicts bigint, OUT stats_reset
    timestamp with time zone
6170 pg_stat_reset_replication_slot vs void
    text
6232 pg_stat_reset_subscription_stats vs void
    oid
3403 pg_statistics_obj_is_visible ss+ boolean
    oid
6344 pg_sync_replication_slots vu+ void
2079 pg_table_is_visible ss+ boolean
    oid
2997 pg_table_size vs+ bigint
    regclass
3778 pg_tablespace_location ss+ text
    oid
2322 pg_tablespace_size vs+ bigint
    oid
2323 pg_tablespace_size vs+ bigint
    name
2096 pg_terminate_backend vs+ boolean
    pid integer, timeout bigint DEFAULT 0
2286 pg_total_relation_size vs+ bigint
    regclass
3758 pg_ts_config_is_visible ss+ boolean
    oid
3757 pg_ts_dict_is_visible ss+ boolean
    oid
3756 pg_ts_parser_is_visible ss+ boolean
    oid
3768 pg_ts_template_is_visible ss+ boolean
    oid
2080 pg_type_is_visible ss+ boolean
    oid
2851 pg_walfile_name is+ text
    pg_lsn
2943 txid_current su+ bigint
3348 txid_current_if_assigned su+ bigint
"""

_HEAD: Final = re.compile(r"(\d+) (\w+) ([isv])([rsu])(\+?) (.*)")

_ARGUMENT: Final = re.compile(
    r"(?:(OUT|INOUT|VARIADIC) )?(?:([a-z_0-9]+) (?!with|without|varying|precision))?"
    r"(.*?)(?: DEFAULT (.*))?"
)

_MODES: Final = {None: "i", "OUT": "o", "INOUT": "b", "VARIADIC": "v"}


_PSEUDO_TYPES: Final = {
    "record": Oid(2249),
    "cstring": Oid(2275),
    '"any"': Oid(2276),
    "anyarray": Oid(2277),
    "void": Oid(2278),
    "internal": Oid(2281),
    "anyelement": Oid(2283),
}
"""Types that no column can have."""


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a function."""

    mode: str
    """pg_proc.proargmodes: i, o, b or v."""
    name: str
    """Empty: the argument has no name."""
    type_oid: Oid
    has_default: bool


@dataclass(frozen=True, slots=True)
class FunctionRow:
    """A row of pg_proc."""

    oid: Oid
    name: str
    volatility: str
    parallel: str
    strict: bool
    result: str
    """Result type, as pg_get_function_result() shows it."""
    shown: str
    """Arguments, as pg_get_function_arguments() shows them."""
    arguments: tuple[Argument, ...]

    @property
    def returns_set(self) -> bool:
        """Whether the function returns a set."""
        return self.result.startswith("SETOF ")

    @property
    def result_oid(self) -> Oid:
        """pg_proc.prorettype."""
        return _type_oid(self.result.removeprefix("SETOF "))

    @property
    def identity(self) -> str:
        """The arguments without their defaults."""
        return re.sub(r" DEFAULT .*?(?=, |$)", "", self.shown)


def _argument(text: str) -> Argument:
    match = _ARGUMENT.fullmatch(text)
    assert match is not None
    mode, name, kind, default = match.groups()
    return Argument(_MODES[mode], name or "", _type_oid(kind), default is not None)


def _type_oid(name: str) -> Oid:
    return _PSEUDO_TYPES.get(name) or parse_type_name(name)[0]


def _parse(text: str) -> dict[Oid, FunctionRow]:
    rows = {}
    for entry in re.split(r"\n(?=\d)", text.strip()):
        head, _, rest = entry.partition("\n")
        match = _HEAD.fullmatch(head)
        assert match is not None
        oid, name, volatility, parallel, strict, result = match.groups()
        shown = " ".join(rest.split())
        rows[Oid(int(oid))] = FunctionRow(
            Oid(int(oid)),
            name,
            volatility,
            parallel,
            bool(strict),
            result,
            shown,
            tuple(map(_argument, shown.split(", "))) if shown else (),
        )
    return rows


FUNCTION_ROWS: Final = _parse(_TEXT)
