"""The catalog's SQLite schema and its version.

One file, ``catalog.sqlite`` in the node's directory, WAL mode, synchronous=FULL: a commit
survives power loss. A file with a newer version is refused, an older one is brought up to date
by ``database`` when it is opened. LSNs are signed 64-bit integers here, which holds for the
first 8 EiB of WAL.

A change of a table needs a new version, and statements in ``LATER`` that lead to it. These also run
for a new catalog.
"""

from __future__ import annotations

from typing import Final

from wal2lake.catalog.access import predefined
from wal2lake.model import Oid

VERSION: Final = 35

FIRST_OID: Final = 16384
"""PostgreSQL's FirstNormalObjectId. Lower OIDs belong to built-in objects."""

PUBLIC_OID: Final = 2200
"""pg_namespace's row for schema public, the same in every PostgreSQL."""

SUBSCRIPTION_CATALOG: Final = Oid(6100)
"""OID of pg_subscription, as the classid of comments."""

PUBLICATION_CATALOG: Final = Oid(6104)
"""OID of pg_publication."""

_ROLES_4: Final = """
alter table role add column inherit integer not null default 1;
alter table role add column createrole integer not null default 0;
alter table role add column createdb integer not null default 0;
alter table role add column login integer not null default 1;
alter table role add column replication integer not null default 0;
alter table role add column bypassrls integer not null default 0;
alter table role add column connlimit integer not null default -1;
alter table role add column valid_until text;
alter table namespace add column acl text;
alter table relation add column acl text;
create table role_member (
    oid integer primary key, roleid integer not null, member integer not null,
    grantor integer not null, admin integer not null, inherit integer not null,
    set_role integer not null,
    unique (roleid, member, grantor));
update role set createrole = 1, createdb = 1, replication = 1, bypassrls = 1
    where superuser = 1;
"""
"""Attributes of roles, memberships and acls, added in version 4."""

DDL: Final = """
create table meta (key text primary key, value text not null) without rowid;
create table role (
    oid integer primary key, name text not null unique,
    superuser integer not null, password text);
create table namespace (
    oid integer primary key, name text not null unique, owner integer not null);
create table relation (
    oid integer primary key,
    namespace text not null references namespace(name),
    name text not null, owner integer not null, location text not null,
    columns text not null, key text not null, key_name text,
    partition_key text, partition_of integer,
    unique (namespace, name));
create table subscription (
    oid integer primary key, name text not null unique, owner integer not null,
    enabled integer not null, conninfo text not null, slot_name text,
    publications text not null, synchronous_commit text not null,
    create_tables integer not null, generation integer not null,
    floor integer not null, system_identifier text, timeline integer,
    dropping integer not null, options text not null,
    skip_lsn integer not null default 0, skipping integer not null default 0,
    recopying integer not null default 0);
create table subscription_error (
    subid integer not null references subscription(oid) on delete cascade,
    worker text not null, error text not null, noted_at text not null,
    primary key (subid, worker)) without rowid;
create table subscription_stats (
    subid integer primary key references subscription(oid) on delete cascade,
    apply_errors integer not null default 0,
    sync_errors integer not null default 0, stats_reset text);
create table comment (
    classid integer not null, objid integer not null, description text not null,
    primary key (classid, objid)) without rowid;
create table planned_slot (
    slot_name text not null, conninfo text not null, subname text not null,
    lsn integer not null,
    primary key (slot_name, conninfo)) without rowid;
create table subscription_rel (
    subid integer not null references subscription(oid) on delete cascade,
    relid integer not null,
    remote_namespace text not null, remote_name text not null,
    state text not null, lsn integer, epoch integer not null,
    rows_copied integer not null default 0, rows_expected integer,
    bytes_copied integer not null default 0, error text,
    copy_plan text, trusted integer not null default 1,
    replaces integer not null default 0,
    primary key (subid, relid)) without rowid;
create table copy_range (
    subid integer not null, relid integer not null, epoch integer not null,
    snapshot text not null, number integer not null, rows integer not null,
    files text not null, coercions text not null default '[]',
    primary key (subid, relid, epoch, snapshot, number),
    foreign key (subid, relid) references subscription_rel(subid, relid)
        on delete cascade) without rowid;
create table sync_snapshot (
    subid integer primary key references subscription(oid) on delete cascade,
    snapshot text not null, lsn integer not null, holder text not null,
    relids text not null);
create table snapshot_vector (
    subid integer not null references subscription(oid) on delete cascade,
    lsn integer not null, committed_at text not null, versions text not null,
    number integer not null,
    primary key (subid, number)) without rowid;
create table coercion (
    subid integer not null references subscription(oid) on delete cascade,
    relid integer not null, phase text not null, column_name text not null,
    policy text not null, reason text not null, count integer not null,
    first_lsn integer not null, last_lsn integer not null,
    first_at text not null, last_at text not null, example text not null,
    primary key (subid, relid, phase, column_name, policy, reason)) without rowid;
create table coercion_pending (
    subid integer not null, relid integer not null, reached integer not null,
    coercions text not null,
    primary key (subid, relid, reached),
    foreign key (subid, relid) references subscription_rel(subid, relid)
        on delete cascade) without rowid;
"""
"""Tables as of version 3. ``LATER`` adds the rest, for new and older catalogs alike."""

_PLANS_5: Final = """
alter table planned_slot add column must_use_password integer not null default 0;
"""

_CONFLICTS_6: Final = """
alter table subscription_stats add column conflicts text not null default '{}';
create table conflict (
    number integer primary key autoincrement,
    subid integer not null references subscription(oid) on delete cascade,
    relid integer not null, type text not null, resolution text not null,
    commit_lsn integer not null, key text, xid integer, origin text,
    committed_at text, count integer not null, noted_at text not null,
    reached integer);
create index conflict_of on conflict (subid, reached);
"""
"""``reached``: end of the batch whose publication makes the conflict count; null if it counts."""

_SQLSTATES_7: Final = """
alter table subscription_error add column sqlstate text;
alter table subscription_rel add column sqlstate text;
"""

_COMMITS_8: Final = """
create table local_commit (
    number integer primary key autoincrement, tables text not null);
"""

_STATES_9: Final = """
alter table snapshot_vector add column since integer not null default 0;
update snapshot_vector set since = lsn;
"""
"""A state holds for all positions from ``since`` to ``lsn``."""

_ALTERED_10: Final = """
alter table local_commit add column altered text;
create table relation_history (
    relid integer not null, version integer not null,
    columns text not null, key text not null, key_name text,
    altered_at text not null,
    primary key (relid, version)) without rowid;
"""
"""``altered``: definitions that change with the commit of an ALTER TABLE."""

_PAUSES_11: Final = """
alter table subscription_rel add column paused_at text;
alter table subscription_rel add column rejoins integer not null default 0;
alter table snapshot_vector add column apart text not null default '{}';
"""

_SCHEMAS_12: Final = """
create table sent_schema (
    subid integer not null references subscription(oid) on delete cascade,
    remote_relid integer not null, at integer not null,
    relation text not null, schema text not null,
    primary key (subid, remote_relid, at)) without rowid;
create table followed_schema (
    subid integer not null, relid integer not null, schema text not null,
    begins integer not null, previous text, making text,
    primary key (subid, relid),
    foreign key (subid, relid) references subscription_rel(subid, relid)
        on delete cascade) without rowid;
create table schema_change (
    number integer primary key autoincrement,
    subid integer not null references subscription(oid) on delete cascade,
    relid integer not null, lsn integer not null, change text not null,
    outcome text not null, noted_at text not null);
"""

_SCHEMAS_13: Final = """
alter table sent_schema add column settled integer not null default 0;
alter table followed_schema add column required text not null default '[]';
alter table followed_schema add column settles integer not null default 0;
create table prepared_relation (
    subid integer not null references subscription(oid) on delete cascade,
    xid integer not null, remote_relid integer not null, relation text not null,
    primary key (subid, xid, remote_relid)) without rowid;
"""
"""``settled``: position from which NOT NULL at the publisher holds for all rows. ``settles``:
position at which the columns ``required`` become NOT NULL here."""

_PARAMETERS_14: Final = """
alter table relation add column parameters text not null default '[]';
"""

_PUBLICATIONS_15: Final = """
alter table relation add column replica_identity text not null default 'd';
create table publication (
    oid integer primary key, name text not null unique, owner integer not null,
    all_tables integer not null, publishes text not null,
    via_root integer not null, generated_columns text not null);
create table publication_rel (
    oid integer primary key,
    pubid integer not null references publication(oid) on delete cascade,
    relid integer not null, columns text, filter text,
    filter_columns text not null,
    unique (pubid, relid));
create table publication_namespace (
    oid integer primary key,
    pubid integer not null references publication(oid) on delete cascade,
    nspid integer not null, unique (pubid, nspid));
"""
"""``filter_columns``: names of the columns that ``filter`` refers to by number."""

_SLOTS_16: Final = """
create table replication_slot (
    name text primary key, plugin text not null,
    temporary integer not null, two_phase integer not null,
    failover integer not null, restart_lsn integer not null,
    confirmed_lsn integer not null, two_phase_at integer,
    invalidation text, inactive_since text) without rowid;
"""
"""``temporary``: session that owns a temporary slot; 0 for a permanent one."""

_SLOTS_17: Final = """
alter table replication_slot drop column inactive_since;
"""
"""The time is kept in memory and begins anew with each start, as in PostgreSQL."""

_PREPARED_18: Final = """
create table prepared_commit (
    number integer primary key autoincrement, gid text not null unique,
    owner integer not null, prepared_at integer not null, state text not null,
    xid integer, tables text not null, messages text not null);
"""
"""The publisher's log contains the numbers, so none is used twice."""

_SEQUENCES_19: Final = """
create table sequence (
    oid integer primary key, namespace text not null, name text not null,
    relid integer not null, type_oid integer not null,
    start integer not null, increment integer not null, last_value integer,
    unique (namespace, name));
"""
"""``last_value``: null if no value was taken."""

_ORIGINS_20: Final = """
create table replication_origin (
    number integer primary key, name text not null unique,
    remote_lsn integer not null default 0);
"""
"""Origins created by pg_replication_origin_create. Each subscription has an origin besides
these."""

_SEQUENCES_21: Final = """
alter table sequence add column is_called integer not null default 1;
"""
"""``is_called``: 0 if ``last_value`` is the next value."""

_DEFINITIONS_22: Final = """
create table definition_history (
    kind text not null, oid integer not null, lsn integer not null, definition text,
    primary key (kind, oid, lsn)) without rowid;
"""

_RESTARTS_23: Final = """
create table restart_pending (
    subid integer not null, relid integer not null, reached integer not null,
    sequence integer not null, found integer, last integer,
    primary key (subid, sequence, reached),
    foreign key (subid, relid) references subscription_rel(subid, relid)
        on delete cascade) without rowid;
"""
"""``found``: the sequence's last value when the restart was recorded. ``last``: its last value
after the restart. Null if no value was taken."""

_COPIED_24: Final = """
alter table subscription_rel add column copied_from integer;
alter table subscription_rel add column begins integer;
alter table subscription_rel add column published_as text;
"""
"""``copied_from``: null if an older version copied the table, or no copy was made."""

_DEFERRALS_25: Final = """
alter table relation add column key_deferral text not null default 'n';
update definition_history set definition = json_set(definition, '$.key_deferral', 'n')
    where kind = 'relation' and definition is not null;
"""

_APPLIED_26: Final = """
create table applied_end (
    subid integer primary key references subscription(oid) on delete cascade,
    remote_lsn integer not null, newest integer not null);
insert into applied_end select oid, floor, floor from subscription;
"""
"""``remote_lsn``: end of the last transaction that all tables have. ``newest``: end of the last
published transaction, which a copied or paused table may lack. There is no row if there was no
transaction."""

_PLACES_27: Final = ""
"""Locations become relative to the warehouse (``places``)."""

_CHECKS_28: Final = """
alter table relation add column checks text not null default '[]';
update definition_history set definition = json_set(definition, '$.checks', '[]')
    where kind = 'relation' and definition is not null;
"""

_XIDS_29: Final = """
insert or ignore into meta (key, value)
    select 'next_xid', cast(1001 + coalesce(max(version.value), 0) as text)
    from snapshot_vector, json_each(snapshot_vector.versions) as version;
"""
"""First transaction number that no process has reserved (``xids``). Earlier versions marked rows of
local statements with the version of their table, so the numbers begin above those versions."""

_SEEN_30: Final = """
alter table subscription_rel add column seen_as text;
"""
"""How a table was published at the last look of ``auto_refresh``."""
_HISTORIES_31: Final = """
create table history_pending (
    subid integer not null, relid integer not null, reached integer not null,
    cursor_name text not null, history integer not null, files text not null,
    primary key (subid, relid, cursor_name, reached),
    foreign key (subid, relid) references subscription_rel(subid, relid)
        on delete cascade) without rowid;
"""
"""``history``: OID of the history table."""

_VERIFICATIONS_32: Final = """
create table verification (
    subid integer not null, relid integer not null, epoch integer not null,
    compared_lsn integer not null, compared_at text not null,
    blocks integer not null, row_count integer not null, differing_rows integer not null,
    verified_lsn integer, verified_at text,
    different_lsn integer, different_at text,
    repaired_rows integer not null default 0,
    primary key (subid, relid),
    foreign key (subid, relid) references subscription_rel(subid, relid)
        on delete cascade) without rowid;
create table difference (
    number integer primary key, subid integer not null, relid integer not null,
    kind text not null, key text not null, columns text not null,
    lsn integer not null, since text not null,
    foreign key (subid, relid) references subscription_rel(subid, relid)
        on delete cascade);
create index difference_of on difference (subid, relid);
"""
"""Results of VERIFY. ``epoch``: that of the copy that was compared."""

_PENDING_DELETES_33: Final = """
create table pending_delete (
    location text primary key, relid integer not null) without rowid;
"""
"""Places whose files go at the start of the node, unless a table has them by then: of tables that
an open block has made, and of dropped ones."""

_INDEXES_34: Final = """
create table table_index (
    oid integer primary key, relid integer not null, name text not null,
    method text not null, keys text not null, included text not null,
    is_unique integer not null, parameters text not null);
"""
"""Definitions of indexes that statements have made; those of primary keys are in relation."""

_HEALS_35: Final = """
alter table subscription_rel add column heals integer not null default 0;
"""
"""Whether the copy of this epoch writes the differing rows only."""

LATER: Final = (
    _ROLES_4 + predefined.INSERTS,
    _PLANS_5,
    _CONFLICTS_6,
    _SQLSTATES_7,
    _COMMITS_8,
    _STATES_9,
    _ALTERED_10,
    _PAUSES_11,
    _SCHEMAS_12,
    _SCHEMAS_13,
    _PARAMETERS_14,
    _PUBLICATIONS_15,
    _SLOTS_16,
    _SLOTS_17,
    _PREPARED_18,
    _SEQUENCES_19,
    _ORIGINS_20,
    _SEQUENCES_21,
    _DEFINITIONS_22,
    _RESTARTS_23,
    _COPIED_24,
    _DEFERRALS_25,
    _APPLIED_26,
    _PLACES_27,
    _CHECKS_28,
    _XIDS_29,
    _SEEN_30,
    _HISTORIES_31,
    _VERIFICATIONS_32,
    _PENDING_DELETES_33,
    _INDEXES_34,
    _HEALS_35,
)
"""Statements of the versions after 3, in order. A new column of a table whose rows are in
definition_history (``definitions.historic``) is added there, too, with json_set()."""

MIGRATIONS: Final = {
    2: """
create table planned_slot (
    slot_name text not null, conninfo text not null, subname text not null,
    lsn integer not null,
    primary key (slot_name, conninfo)) without rowid;
alter table copy_range add column coercions text not null default '[]';
create table coercion (
    subid integer not null references subscription(oid) on delete cascade,
    relid integer not null, phase text not null, column_name text not null,
    policy text not null, reason text not null, count integer not null,
    first_lsn integer not null, last_lsn integer not null,
    first_at text not null, last_at text not null, example text not null,
    primary key (subid, relid, phase, column_name, policy, reason)) without rowid;
create table coercion_pending (
    subid integer not null, relid integer not null, reached integer not null,
    coercions text not null,
    primary key (subid, relid, reached),
    foreign key (subid, relid) references subscription_rel(subid, relid)
        on delete cascade) without rowid;
""",
    3: """
alter table subscription drop column last_error;
alter table subscription add column skip_lsn integer not null default 0;
alter table subscription add column skipping integer not null default 0;
create table subscription_error (
    subid integer not null references subscription(oid) on delete cascade,
    worker text not null, error text not null, noted_at text not null,
    primary key (subid, worker)) without rowid;
create table subscription_stats (
    subid integer primary key references subscription(oid) on delete cascade,
    apply_errors integer not null default 0,
    sync_errors integer not null default 0, stats_reset text);
create table comment (
    classid integer not null, objid integer not null, description text not null,
    primary key (classid, objid)) without rowid;
insert into subscription_stats (subid) select oid from subscription;
""",
    4: """
alter table subscription add column recopying integer not null default 0;
alter table subscription_rel add column replaces integer not null default 0;
alter table relation add column partition_key text;
alter table relation add column partition_of integer;
"""
    + LATER[0],
    5: LATER[1],
    6: LATER[2],
    7: LATER[3],
    8: LATER[4],
    9: LATER[5],
    10: LATER[6],
    11: LATER[7],
    12: LATER[8],
    13: LATER[9],
    14: LATER[10],
    15: LATER[11],
    16: LATER[12],
    17: LATER[13],
    18: LATER[14],
    19: LATER[15],
    20: LATER[16],
    21: LATER[17],
    22: LATER[18],
    23: LATER[19],
    24: LATER[20],
    25: LATER[21],
    26: LATER[22],
    27: LATER[23],
    28: LATER[24],
    29: LATER[25],
    30: LATER[26],
    31: LATER[27],
    32: LATER[28],
    33: LATER[29],
    34: LATER[30],
    35: LATER[31],
}
"""For each version, the statements that upgrade the previous version (without semicolons inside).

The upgrade to 3 drops old errors, because their worker is not known. A worker that still has the
error records it again as it starts."""
