"""The columns of pg_catalog's views, as PostgreSQL 18 declares them.

Comes in: nothing. Goes out: ``VIEWS``, text that ``relations`` reads. Views have no fixed OIDs.

Generated from pg_attribute of a server; a test compares it with one.
Source: src/backend/catalog/system_views.sql.
"""

from __future__ import annotations

from typing import Final

VIEWS: Final = """
pg_available_extensions
    name name, default_version text, installed_version text, comment text
pg_cursors
    name text, statement text, is_holdable bool, is_binary bool, is_scrollable bool,
    creation_time timestamptz
pg_group
    groname name, grosysid oid, grolist _oid
pg_indexes
    schemaname name, tablename name, indexname name, tablespace name, indexdef text
pg_locks
    locktype text, database oid, relation oid, page int4, tuple int2, virtualxid text,
    transactionid xid, classid oid, objid oid, objsubid int2, virtualtransaction text, pid int4,
    mode text, granted bool, fastpath bool, waitstart timestamptz
pg_matviews
    schemaname name, matviewname name, matviewowner name, tablespace name, hasindexes bool,
    ispopulated bool, definition text
pg_policies
    schemaname name, tablename name, policyname name, permissive text, roles _name, cmd text,
    qual text, with_check text
pg_prepared_statements
    name text, statement text, prepare_time timestamptz, parameter_types _regtype, result_types
    _regtype, from_sql bool, generic_plans int8, custom_plans int8
pg_prepared_xacts
    transaction xid, gid text, prepared timestamptz, owner name, database name
pg_publication_tables
    pubname name, schemaname name, tablename name, attnames _name, rowfilter text
pg_replication_origin_status
    local_id oid, external_id text, remote_lsn pg_lsn, local_lsn pg_lsn
pg_replication_slots
    slot_name name, plugin name, slot_type text, datoid oid, database name, temporary bool,
    active bool, active_pid int4, xmin xid, catalog_xmin xid, restart_lsn pg_lsn,
    confirmed_flush_lsn pg_lsn, wal_status text, safe_wal_size int8, two_phase bool,
    two_phase_at pg_lsn, inactive_since timestamptz, conflicting bool, invalidation_reason text,
    failover bool, synced bool
pg_roles
    rolname name, rolsuper bool, rolinherit bool, rolcreaterole bool, rolcreatedb bool,
    rolcanlogin bool, rolreplication bool, rolconnlimit int4, rolpassword text, rolvaliduntil
    timestamptz, rolbypassrls bool, rolconfig _text, oid oid
pg_rules
    schemaname name, tablename name, rulename name, definition text
pg_seclabels
    objoid oid, classoid oid, objsubid int4, objtype text, objnamespace oid, objname text,
    provider text, label text
pg_sequences
    schemaname name, sequencename name, sequenceowner name, data_type regtype, start_value int8,
    min_value int8, max_value int8, increment_by int8, cycle bool, cache_size int8, last_value
    int8
pg_settings
    name text, setting text, unit text, category text, short_desc text, extra_desc text, context
    text, vartype text, source text, min_val text, max_val text, enumvals _text, boot_val text,
    reset_val text, sourcefile text, sourceline int4, pending_restart bool
pg_shadow
    usename name, usesysid oid, usecreatedb bool, usesuper bool, userepl bool, usebypassrls
    bool, passwd text, valuntil timestamptz, useconfig _text
pg_stat_activity
    datid oid, datname name, pid int4, leader_pid int4, usesysid oid, usename name,
    application_name text, client_addr inet, client_hostname text, client_port int4,
    backend_start timestamptz, xact_start timestamptz, query_start timestamptz, state_change
    timestamptz, wait_event_type text, wait_event text, state text, backend_xid xid,
    backend_xmin xid, query_id int8, query text, backend_type text
pg_stat_all_tables
    relid oid, schemaname name, relname name, seq_scan int8, last_seq_scan timestamptz,
    seq_tup_read int8, idx_scan int8, last_idx_scan timestamptz, idx_tup_fetch int8, n_tup_ins
    int8, n_tup_upd int8, n_tup_del int8, n_tup_hot_upd int8, n_tup_newpage_upd int8, n_live_tup
    int8, n_dead_tup int8, n_mod_since_analyze int8, n_ins_since_vacuum int8, last_vacuum
    timestamptz, last_autovacuum timestamptz, last_analyze timestamptz, last_autoanalyze
    timestamptz, vacuum_count int8, autovacuum_count int8, analyze_count int8, autoanalyze_count
    int8, total_vacuum_time float8, total_autovacuum_time float8, total_analyze_time float8,
    total_autoanalyze_time float8
pg_stat_database
    datid oid, datname name, numbackends int4, xact_commit int8, xact_rollback int8, blks_read
    int8, blks_hit int8, tup_returned int8, tup_fetched int8, tup_inserted int8, tup_updated
    int8, tup_deleted int8, conflicts int8, temp_files int8, temp_bytes int8, deadlocks int8,
    checksum_failures int8, checksum_last_failure timestamptz, blk_read_time float8,
    blk_write_time float8, session_time float8, active_time float8, idle_in_transaction_time
    float8, sessions int8, sessions_abandoned int8, sessions_fatal int8, sessions_killed int8,
    parallel_workers_to_launch int8, parallel_workers_launched int8, stats_reset timestamptz
pg_stat_replication
    pid int4, usesysid oid, usename name, application_name text, client_addr inet,
    client_hostname text, client_port int4, backend_start timestamptz, backend_xmin xid, state
    text, sent_lsn pg_lsn, write_lsn pg_lsn, flush_lsn pg_lsn, replay_lsn pg_lsn, write_lag
    interval, flush_lag interval, replay_lag interval, sync_priority int4, sync_state text,
    reply_time timestamptz
pg_stat_replication_slots
    slot_name text, spill_txns int8, spill_count int8, spill_bytes int8, stream_txns int8,
    stream_count int8, stream_bytes int8, total_txns int8, total_bytes int8, stats_reset
    timestamptz
pg_stat_ssl
    pid int4, ssl bool, version text, cipher text, bits int4, client_dn text, client_serial
    numeric, issuer_dn text
pg_stat_subscription
    subid oid, subname name, worker_type text, pid int4, leader_pid int4, relid oid,
    received_lsn pg_lsn, last_msg_send_time timestamptz, last_msg_receipt_time timestamptz,
    latest_end_lsn pg_lsn, latest_end_time timestamptz
pg_stat_subscription_stats
    subid oid, subname name, apply_error_count int8, sync_error_count int8, confl_insert_exists
    int8, confl_update_origin_differs int8, confl_update_exists int8, confl_update_missing int8,
    confl_delete_origin_differs int8, confl_delete_missing int8, confl_multiple_unique_conflicts
    int8, stats_reset timestamptz
pg_stat_user_tables
    relid oid, schemaname name, relname name, seq_scan int8, last_seq_scan timestamptz,
    seq_tup_read int8, idx_scan int8, last_idx_scan timestamptz, idx_tup_fetch int8, n_tup_ins
    int8, n_tup_upd int8, n_tup_del int8, n_tup_hot_upd int8, n_tup_newpage_upd int8, n_live_tup
    int8, n_dead_tup int8, n_mod_since_analyze int8, n_ins_since_vacuum int8, last_vacuum
    timestamptz, last_autovacuum timestamptz, last_analyze timestamptz, last_autoanalyze
    timestamptz, vacuum_count int8, autovacuum_count int8, analyze_count int8, autoanalyze_count
    int8, total_vacuum_time float8, total_autovacuum_time float8, total_analyze_time float8,
    total_autoanalyze_time float8
pg_stat_wal_receiver
    pid int4, status text, receive_start_lsn pg_lsn, receive_start_tli int4, written_lsn pg_lsn,
    flushed_lsn pg_lsn, received_tli int4, last_msg_send_time timestamptz, last_msg_receipt_time
    timestamptz, latest_end_lsn pg_lsn, latest_end_time timestamptz, slot_name text, sender_host
    text, sender_port int4, conninfo text
pg_stats
    schemaname name, tablename name, attname name, inherited bool, null_frac float4, avg_width
    int4, n_distinct float4, most_common_vals anyarray, most_common_freqs _float4,
    histogram_bounds anyarray, correlation float4, most_common_elems anyarray,
    most_common_elem_freqs _float4, elem_count_histogram _float4, range_length_histogram
    anyarray, range_empty_frac float4, range_bounds_histogram anyarray
pg_tables
    schemaname name, tablename name, tableowner name, tablespace name, hasindexes bool, hasrules
    bool, hastriggers bool, rowsecurity bool
pg_user
    usename name, usesysid oid, usecreatedb bool, usesuper bool, userepl bool, usebypassrls
    bool, passwd text, valuntil timestamptz, useconfig _text
pg_user_mappings
    umid oid, srvid oid, srvname name, umuser oid, usename name, umoptions _text
pg_views
    schemaname name, viewname name, viewowner name, definition text
"""
