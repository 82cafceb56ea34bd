"""System views over a fake catalog: types, functions, errors, freshness, safety."""

from __future__ import annotations

import threading
from dataclasses import replace
from datetime import UTC, datetime
from typing import cast

import pytest
from tests.fakes.catalog_source import OBJECTS, FakeSource, rel, session, table

from wal2lake.catalog import (
    Comment,
    Progress,
    Publication,
    Role,
    RoleMember,
    SnapshotVector,
    SubscriptionError,
    SubscriptionStats,
    WorkerKind,
)
from wal2lake.changelog import PreparedTransaction
from wal2lake.errors import FeatureNotSupportedError, UsageError, Wal2LakeError
from wal2lake.lake.batch.methods import Method, Total
from wal2lake.model import ConflictType, Lsn, Oid, SyncState, Xid
from wal2lake.pg import Session
from wal2lake.pg.publishedtables import (
    describe_schemas,
    describe_tables,
    publication_marks,
    unique_columns,
)
from wal2lake.pg.types import describe_enums
from wal2lake.sql.backend import SessionContext
from wal2lake.sql.query.translate import BoundParameter
from wal2lake.sql.sysviews import (
    LoggedMessage,
    SystemCatalog,
    is_system_query,
)
from wal2lake.tablesync.attempt import RunningCopy
from wal2lake.wire.frontback import Format

SUB = Oid(OBJECTS["subscription sub"])


def _rows(catalog: SystemCatalog, sql: str) -> list[tuple[str | None, ...]]:
    assert is_system_query(sql), sql
    return catalog.query(sql, (), session())[1]


def _types(catalog: SystemCatalog, sql: str) -> list[tuple[str, int]]:
    fields = catalog.query(sql, (), session())[0]
    return [(field.name, field.type_oid) for field in fields]


# ---- routing --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        ("select 1", True),
        ("values (1)", True),
        ("select version()", True),
        ("select * from generate_series(1, 3)", True),
        ("select * from pg_class", True),
        ("table pg_publication", True),
        ("select * from information_schema.tables t join pg_class c on true", True),
        ("select * from wal2lake.snapshots", True),
        ("with t as (select 1 a) select * from t", True),
        ("select * from customers", False),
        ("select * from public.pg_like", False),
        ("select * from pg_class, customers", False),
        ("select (select max(id) from customers)", False),
        ("select * from pg_class for update", False),
        ("insert into t select * from pg_class", False),
        ("select 1 +", False),
    ],
)
def test_only_queries_without_lake_tables_are_system_queries(
    sql: str, expected: bool
) -> None:
    assert is_system_query(sql) is expected


# ---- types and functions -------------------------------------------------------------------


def test_catalog_types_keep_their_oids(catalog: SystemCatalog) -> None:
    assert _types(
        catalog,
        "select c.relname, c.oid, c.relkind, c.relname::text t, c.oid::regclass r,"
        " array_agg(a.attname) names, count(*), c.oid = 1 as eq"
        " from pg_class c join pg_attribute a on a.attrelid = c.oid"
        " group by c.relname, c.oid, c.relkind",
    ) == [
        ("relname", 19),
        ("oid", 26),
        ("relkind", 18),
        ("t", 25),
        ("r", 2205),
        ("names", 1003),
        ("count", 20),
        ("eq", 16),
    ]
    assert _types(catalog, "select * from pg_index where false")[-2:] == [
        ("indexprs", 194),
        ("indpred", 194),
    ]
    assert _types(
        catalog,
        "select x.* from (select indkey, indkey[0], subskiplsn from pg_index,"
        " pg_subscription) x",
    ) == [("indkey", 22), ("indkey", 21), ("subskiplsn", 3220)]


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        # Each answer is PostgreSQL 18.4's for the same schema.
        ("select 'customers'::regclass::oid", str(OBJECTS["public.customers"])),
        ("select 'sales.orders'::regclass", "sales.orders"),
        ('select \'"Odd ""Name"\'::regclass', '"Odd ""Name"'),
        ("select 0::regclass", "-"),
        ("select 'varchar(10)'::regtype::oid", "1043"),
        ("select to_regclass('nope')", None),
        ("select 'sales'::regnamespace", "sales"),
        (
            "select indkey from pg_index where indrelid = 'sales.orders'::regclass",
            "2 1",
        ),
        (
            "select indkey[1] from pg_index where indrelid = 'sales.orders'::regclass",
            "1",
        ),
        ("select conkey[1] from pg_constraint where conname = 'Orders key'", "2"),
        (
            "select array_agg(attname order by attnum) from pg_attribute"
            " where attrelid = 'sales.orders'::regclass",
            '{customer,"Line No",price,flags,ok}',
        ),
        ("select current_schemas(true)", "{pg_catalog,public}"),
        ("select current_database()", "lake"),
        ("select current_user", "postgres"),
        ("select format_type(1700, 655366)", "numeric(10,2)"),
        ("select pg_get_userbyid(99)", "unknown (OID=99)"),
        ("select pg_size_pretty(10240::bigint)", "10 kB"),
        ("select pg_size_pretty(123456789::bigint)", "118 MB"),
        ("select pg_size_pretty(-20000::bigint)", "-20 kB"),
        ("select format('%I.%s=%L', 'A', 'b', 'c''d')", "\"A\".b='c''d'"),
        ("select quote_literal('a\\b')", "E'a\\\\b'"),
        ("select '0/20'::pg_lsn - '0/10'::pg_lsn", "16"),
        ("select '0/10'::pg_lsn - '0/20'", "-16"),
        ("select '0/20'::pg_lsn - 1", "0/1F"),
        ("select '0/20'::pg_lsn + 16.5::numeric", "0/31"),
        ("select '0/20'::pg_lsn - 16.5::numeric", "0/10"),
        ("select -1 + '1/0'::pg_lsn", "0/FFFFFFFF"),
        ("select ('0/20'::pg_lsn + 8) - '0/10'::pg_lsn", "24"),
        ("select '0/20'::pg_lsn + null is null", "t"),
        ("select '0/16b3748'::pg_lsn", "0/16B3748"),
        ("select '0/1'::pg_lsn < '0/2'", "t"),
        ("select sum(x) from generate_series(1, 3) x", "6"),
        ("select s from generate_series(2, 2) s", "2"),
        ("select o from unnest(array['a']) with ordinality t(x, o)", "1"),
        ("select 'b' = any('{a,\"b\"}')", "t"),
        ("select '{1,2}'::int[]", "{1,2}"),
        ("select array_length('{}'::int[], 1)", None),
        ("select array_to_string(array['a', null, 'b'], ',', '*')", "a,*,b"),
        ("select interval '1 year -2 days 03:04:05.6'", "1 year -2 days +03:04:05.6"),
        (
            "select pg_get_constraintdef(oid) from pg_constraint where contype = 'p'"
            " and conname = 'Orders key'",
            'PRIMARY KEY ("Line No", customer)',
        ),
        ("select tableoid::regclass from pg_namespace limit 1", "pg_namespace"),
        ("select 7 / 2", "3"),
        ("select pg_typeof(now())", "timestamp with time zone"),
        ("select pg_typeof(floor(1.5))", "numeric"),
        ("select max from (select max(1), lower('A')) x where lower = 'a'", "1"),
        (
            "with w as (select row_number() over (order by oid) from pg_class)"
            " select row_number from w where row_number = 1",
            "1",
        ),
        ("select 'trigger'::regtype::oid", "2279"),
        ("select pg_typeof(ceil(2))", "double precision"),
        ("select count(*) from pg_class where lake.pg_catalog.pg_class.oid = 0", "0"),
        ("select col_description('customers'::regclass, 1)", None),
        ("select has_table_privilege('customers', 'select')", "t"),
        ("select pg_relation_is_publishable('customers')", "t"),
    ],
)
def test_expressions_answer_as_postgresql(
    sql: str, expected: str | None, catalog: SystemCatalog
) -> None:
    assert _rows(catalog, sql) == [(expected,)]


@pytest.mark.parametrize(
    ("sql", "sqlstate", "message"),
    [
        ("select 'nope'::regclass", "42P01", 'relation "nope" does not exist'),
        ("select 'a.b'::regclass", "42P01", 'relation "a.b" does not exist'),
        ("select * from pg_nope", "42P01", 'relation "pg_nope" does not exist'),
        (
            "select * from other.pg_catalog.pg_class",
            "0A000",
            'cross-database references are not implemented: "other.pg_catalog.pg_class"',
        ),
        (
            "select other.pg_catalog.pg_class.oid from pg_class",
            "0A000",
            "cross-database references are not implemented:"
            " other.pg_catalog.pg_class.oid",
        ),
        (
            "select public.pg_class.oid from pg_class",
            "42P01",
            'invalid reference to FROM-clause entry for table "pg_class"',
        ),
        (
            "select lower(relname, 1) from pg_class",
            "42883",
            "function lower(name, integer) does not exist",
        ),
        ("select nope from pg_class", "42703", 'column "nope" does not exist'),
        (
            "select nope(1, 'a')",
            "42883",
            "function nope(integer, unknown) does not exist",
        ),
        ("select 'a'::int", "22P02", 'invalid input syntax for type integer: "a"'),
        ("select 'x'::pg_lsn", "22P02", 'invalid input syntax for type pg_lsn: "x"'),
        ("select '0/1'::pg_lsn - 2", "22023", "pg_lsn out of range"),
        ("select '0/1'::pg_lsn + 1e30::numeric", "22023", "pg_lsn out of range"),
        ("select '0/1'::pg_lsn + 'NaN'::numeric", "22023", "cannot add NaN to pg_lsn"),
        ("select 1 / 0", "22012", "division by zero"),
        ("select 1::nosuch", "42704", 'type "nosuch" does not exist'),
        ("select $1", "42P02", "there is no parameter $1"),
        (
            "select current_setting('nope')",
            "42704",
            'unrecognized configuration parameter "nope"',
        ),
        (
            "select has_table_privilege('x', 'select')",
            "42P01",
            'relation "x" does not exist',
        ),
    ],
)
def test_errors_are_postgresqls(
    sql: str, sqlstate: str, message: str, catalog: SystemCatalog
) -> None:
    with pytest.raises(Wal2LakeError) as caught:
        _rows(catalog, sql)
    assert (caught.value.sqlstate, caught.value.message) == (sqlstate, message)
    assert _rows(catalog, "select 1") == [("1",)]


def test_what_psql_asks_about_objects_that_a_node_has_not_is_answered_with_nothing(
    catalog: SystemCatalog,
) -> None:
    # \do, \dO, \lo_list
    assert not _rows(
        catalog,
        "select pg_catalog.obj_description(o.oid, 'pg_operator'),"
        " pg_catalog.obj_description(o.oprcode, 'pg_proc') from pg_catalog.pg_operator o",
    )
    assert _rows(
        catalog,
        "select c.collname from pg_catalog.pg_collation c where c.collencoding"
        " in (-1, pg_catalog.pg_char_to_encoding(pg_catalog.getdatabaseencoding()))"
        " order by 1",
    )
    assert not _rows(
        catalog,
        "select oid, pg_catalog.pg_get_userbyid(lomowner), lomacl"
        " from pg_catalog.pg_largeobject_metadata order by oid",
    )


def test_statistics_name_the_lake_tables_and_count_nothing(
    catalog: SystemCatalog,
) -> None:
    found = _rows(
        catalog, "select schemaname, relname, n_live_tup from pg_stat_user_tables"
    )
    tables = _rows(
        catalog,
        "select schemaname, tablename, null from pg_tables"
        " where schemaname not in ('pg_catalog', 'information_schema')",
    )
    assert sorted(found) == sorted(tables)
    assert found
    everything = _rows(catalog, "select relname from pg_stat_all_tables")
    assert {("pg_class",), *((name,) for _, name, _ in found)} <= set(everything)


def test_parameters_have_their_types(catalog: SystemCatalog) -> None:
    sql = "select $1 + 1, $2, $3, relname from pg_class where relkind = any($4)"
    parameters = [
        BoundParameter("41", 23),
        BoundParameter("it's", 0),
        BoundParameter(None, 25),
        BoundParameter("{m,i}", 1009),
    ]
    fields, rows = catalog.query(sql, parameters, session())
    assert [f.type_oid for f in fields] == [23, 25, 25, 19]
    assert ("42", "it's", None, "customers_pkey") in rows


def test_values_can_be_had_in_binary(catalog: SystemCatalog) -> None:
    sql = (
        "select oid, relname, relkind, relhasindex, oid::regclass from pg_class"
        " where oid = 'customers'::regclass"
    )
    outcome = catalog.execute(sql, (), session(), [Format.BINARY] * 4 + [Format.TEXT])
    (batch,) = outcome.batches
    oid = OBJECTS["public.customers"].to_bytes(4, "big")
    assert [column[0] for column in batch.columns] == [
        oid,
        b"customers",
        b"r",
        b"\x01",
        b"customers",
    ]
    assert outcome.tag == "SELECT"


def test_functions_see_the_session_that_asks(catalog: SystemCatalog) -> None:
    there = replace(session(search_path="sales, public"), pid=99, user="joe")
    sql = (
        "select pg_backend_pid(), current_user, current_schema(),"
        " 'orders'::regclass::text, pg_table_is_visible('sales.orders'::regclass)"
    )
    assert catalog.query(sql, (), there)[1] == [("99", "joe", "sales", "orders", "t")]
    catalog.query("select set_config('application_name', 'x', false)", (), there)
    assert there.parameters["application_name"] == "x"
    assert _rows(catalog, "select current_setting('application_name')") == [("",)]


def test_times_are_shown_in_the_sessions_zone(catalog: SystemCatalog) -> None:
    sql = "select pg_postmaster_start_time()"
    assert _rows(catalog, sql) == [("2026-01-02 03:04:05+00",)]
    there = session(TimeZone="Europe/Berlin")
    assert catalog.query(sql, (), there)[1] == [("2026-01-02 04:04:05+01",)]


# ---- rows -----------------------------------------------------------------------------------


def test_information_schema_describes_columns(catalog: SystemCatalog) -> None:
    assert _rows(
        catalog,
        "select column_name, data_type, character_maximum_length, numeric_precision,"
        " numeric_scale, datetime_precision, is_nullable, column_default, udt_name"
        " from information_schema.columns where table_name = 'customers'"
        " and ordinal_position in (1, 2, 3, 4, 5, 6) order by ordinal_position",
    ) == [
        ("id", "integer", None, "32", "0", None, "NO", None, "int4"),
        ("name", "text", None, None, None, None, "NO", "'it''s'::text", "text"),
        ("balance", "numeric", None, "10", "2", None, "YES", "0", "numeric"),
        (
            "created",
            "timestamp with time zone",
            None,
            None,
            None,
            "3",
            "YES",
            "now()",
            "timestamptz",
        ),
        ("tags", "ARRAY", None, None, None, None, "YES", None, "_text"),
        ("code", "character", "4", None, None, None, "YES", None, "bpchar"),
    ]
    assert _rows(
        catalog,
        "select k.column_name from information_schema.table_constraints c"
        " join information_schema.key_column_usage k using (constraint_name, table_schema)"
        " where c.constraint_type = 'PRIMARY KEY' and c.table_name = 'orders'"
        " order by k.ordinal_position",
    ) == [("Line No",), ("customer",)]


def test_subscriptions_and_their_tables(
    source: FakeSource, catalog: SystemCatalog
) -> None:
    source.rel_list = [
        rel("public.customers", SyncState.READY, "0/2000"),
        rel(
            "sales.orders",
            SyncState.DATASYNC,
            None,
            rows_copied=5,
            rows_expected=9,
            bytes_copied=70,
            error="broken",
            sqlstate="22P02",
        ),
    ]
    source.vector_list = [
        SnapshotVector(
            SUB,
            Lsn.parse("0/2000"),
            "2026-01-02T03:04:05.678900+00:00",
            {OBJECTS["public.customers"]: 3, 99: 1},
        ),
    ]
    source.error_list = [
        SubscriptionError(
            SUB, WorkerKind.APPLY, "no way", "2026-01-02T03:04:05+00:00", "23505"
        ),
        SubscriptionError(
            SUB, WorkerKind.RECEIVER, "no net", "2026-01-02T03:04:05+00:00"
        ),
    ]
    source.stats_list = [
        SubscriptionStats(
            SUB,
            3,
            2,
            "2026-01-02T03:04:05+00:00",
            {ConflictType.UPDATE_MISSING: 4},
        )
    ]
    source.comment_list = [
        Comment(Oid(6100), SUB, "what for"),
        Comment(Oid(6100), Oid(99), "another's"),
    ]
    source.change_counter += 1
    assert _rows(
        catalog,
        "select srrelid::regclass, srsubstate, srsublsn from pg_subscription_rel"
        " order by 1",
    ) == [("customers", "r", "0/2000"), ("sales.orders", "d", None)]
    assert _rows(catalog, "select * from wal2lake.snapshots") == [
        (
            str(SUB),
            "sub",
            "0/2000",
            "2026-01-02 03:04:05.6789+00",
            "public",
            "customers",
            "3",
        ),
    ]
    assert _rows(catalog, "select * from wal2lake.sync_progress where state = 'd'") == [
        ("sub", "sales", "orders", "d", "5", "9", "70", "broken", None, None),
    ]
    assert _rows(
        catalog,
        "select subname, tablename, error, worker, sqlstate"
        " from wal2lake.subscription_errors",
    ) == [
        ("sub", None, "no way", "apply", "23505"),
        ("sub", None, "no net", "receiver", None),
        ("sub", "orders", "broken", "table synchronization", "22P02"),
    ]
    assert _rows(catalog, "select * from pg_stat_subscription_stats") == [
        (str(SUB), "sub", "3", "2", *"0004000", "2026-01-02 03:04:05+00"),
    ]
    assert _rows(
        catalog,
        "select obj_description(oid, 'pg_subscription'), obj_description(oid),"
        " obj_description(oid, 'pg_class'), (select description from pg_description d"
        " where d.objoid = s.oid and classoid = 'pg_subscription'::regclass)"
        " from pg_subscription s",
    ) == [("what for", "what for", None, "what for")]
    assert _rows(
        catalog,
        "select external_id, remote_lsn, local_lsn from pg_replication_origin_status",
    ) == [(f"pg_{SUB}", "0/FF8", "0/88")]


def test_moving_views_need_no_change_of_the_catalog(
    source: FakeSource, catalog: SystemCatalog
) -> None:
    sql = (
        "select subname, worker_type, pid, relid, received_lsn, last_msg_send_time,"
        " latest_end_lsn from pg_stat_subscription"
    )
    assert _rows(catalog, sql) == [("sub",) + (None,) * 6]
    source.progress_by_sub[SUB] = Progress(
        receiver_pid=12,
        received=Lsn(0x30),
        logged=Lsn(0x30),
        applied=Lsn(0x20),
        sealed=Lsn(0x20),
        last_msg_send_time=1_000_000,
        last_msg_receipt_time=0,
        latest_end_lsn=Lsn(0x20),
        latest_end_time=0,
        engine_pid=11,
        replay_lsn=Lsn(0x20),
    )
    assert _rows(catalog, sql) == [
        ("sub", "apply", "12", None, "0/30", "2000-01-01 00:00:01+00", "0/20")
    ]
    source.copies_by_sub[SUB] = [
        RunningCopy(Oid(16500), None),
        RunningCopy(Oid(16501), datetime(2026, 1, 2, tzinfo=UTC)),
    ]
    sql = (
        "select subid, worker_type, pid, leader_pid, relid, last_msg_receipt_time"
        " from pg_stat_subscription where relid is not null"
    )
    row = (str(SUB), "table synchronization", "11", None)
    assert _rows(catalog, sql) == [
        (*row, "16500", None),
        (*row, "16501", "2026-01-02 00:00:00+00"),
    ]
    # Each is a backend, as in PostgreSQL; the copies here share the engine's process.
    assert _rows(
        catalog,
        "select datname, pid, usename, application_name, client_port, backend_type"
        " from pg_stat_activity where backend_type <> 'client backend'",
    ) == [
        ("lake", pid, "postgres", "", None, f"logical replication {kind} worker")
        for pid, kind in (("12", "apply"), ("11", "tablesync"), ("11", "tablesync"))
    ]


@pytest.mark.parametrize(
    "call",
    [
        "pg_create_physical_replication_slot('p')",
        "pg_create_physical_replication_slot('p', true, false)",
        "pg_catalog.pg_copy_physical_replication_slot('p', 'q')",
    ],
)
def test_functions_of_physical_slots_are_known_and_refused(
    catalog: SystemCatalog, call: str
) -> None:
    for sql in (f"select {call}", f"select * from {call}"):
        with pytest.raises(FeatureNotSupportedError, match="is not supported here"):
            _rows(catalog, sql)


def test_a_function_of_one_value_is_a_row_in_from(catalog: SystemCatalog) -> None:
    assert _rows(catalog, "select * from current_database()") == [("lake",)]
    assert _rows(catalog, "select d from current_database() d") == [("lake",)]
    assert _rows(catalog, "select x.y from current_database() as x(y)") == [("lake",)]


@pytest.mark.parametrize("sql", ["select", "select * from"])
def test_slots_are_synchronized_to_a_standby_only(
    catalog: SystemCatalog, sql: str
) -> None:
    with pytest.raises(UsageError) as refused:
        _rows(catalog, f"{sql} pg_sync_replication_slots()")
    assert (refused.value.sqlstate, refused.value.message) == (
        "55000",
        "replication slots can only be synchronized to a standby server",
    )


def test_prepared_transactions_have_the_names_that_a_subscriber_gives_them(
    source: FakeSource, catalog: SystemCatalog
) -> None:
    sql = "select transaction, gid, prepared, owner, database from pg_prepared_xacts"
    assert _rows(catalog, sql) == []
    source.prepared_by_sub[SUB] = [
        PreparedTransaction(Xid(780), "gid at the source", Lsn(0x30), 1_000_000)
    ]
    (found,) = _rows(catalog, sql)
    assert found[:3] == ("780", f"pg_gid_{SUB}_780", "2000-01-01 00:00:01+00")
    assert found[4] == "lake"


def test_logical_messages_are_listed_in_the_types_that_postgresql_has_for_them(
    source: FakeSource, catalog: SystemCatalog
) -> None:
    assert _rows(catalog, "select * from wal2lake.messages") == []
    source.messages_by_sub[SUB] = [
        LoggedMessage(Lsn(0x30), None, "at once", b"\0\xff"),
        LoggedMessage(Lsn(0x38), Lsn(0x40), "outbox", b"{}"),
    ]
    assert _rows(catalog, "select * from wal2lake.messages") == [
        (str(SUB), "sub", "0/30", None, "f", "at once", "\\x00ff"),
        (str(SUB), "sub", "0/38", "0/40", "t", "outbox", "\\x7b7d"),
    ]
    # As a consumer polls: from where it was, by prefix.
    sql = (
        "select convert_from(content, 'UTF8') from wal2lake.messages"
        " where prefix = 'outbox' and commit_lsn > '0/38'"
    )
    assert _types(catalog, "select lsn, prefix, content from wal2lake.messages") == [
        ("lsn", 3220),
        ("prefix", 25),
        ("content", 17),
    ]
    assert _rows(catalog, sql) == [("{}",)]
    for argument, sqlstate, message in (
        ("'UTF8'", "22021", 'invalid byte sequence for encoding "UTF8": 0xff'),
        ("'nope'", "22023", 'invalid source encoding name "nope"'),
    ):
        with pytest.raises(Wal2LakeError) as caught:
            _rows(
                catalog,
                f"select convert_from(content, {argument}) from wal2lake.messages",
            )
        assert (caught.value.sqlstate, caught.value.message) == (sqlstate, message)


def test_rows_are_made_again_only_when_the_counter_moves(
    source: FakeSource, catalog: SystemCatalog
) -> None:
    sql = "select count(*) from pg_class where relname = 'fresh'"
    assert _rows(catalog, sql) == [("0",)]
    reads = source.reads
    source.table_list = [*source.table_list, table("create table fresh (a int)", 30000)]
    assert _rows(catalog, sql) == [("0",)]
    assert source.reads == reads
    source.change_counter += 1
    assert _rows(catalog, sql) == [("1",)]
    assert _rows(catalog, "select 'fresh'::regclass::oid") == [("30000",)]
    source.table_list = source.table_list[:-1]
    source.change_counter += 1
    assert _rows(catalog, sql) == [("0",)]


def of(user: str) -> SessionContext:
    return replace(session(), user=user)


def test_passwords_are_shown_to_whom_they_belong(
    source: FakeSource, catalog: SystemCatalog
) -> None:
    source.role_list += [
        Role(Oid(20001), "owner", False, None),
        Role(Oid(20002), "somebody", False, None),
        Role(Oid(20003), "boss", True, None),
    ]
    sub = source.subscription_list[0]
    source.subscription_list[0] = replace(sub, owner=Oid(20001))
    sql = "select subconninfo from pg_subscription"
    shown = {
        name: str(catalog.query(sql, (), of(name))[1])
        for name in ("owner", "somebody", "boss")
    }
    for name in ("owner", "boss"):
        assert "host=127.0.0.1" in shown[name] and "secret" not in shown[name]
    assert shown["somebody"] == "[('********',)]"
    for view, word in (("pg_authid", "table"), ("pg_shadow", "view")):
        for query in (f"select * from {view}", f"select 1 where exists (table {view})"):
            with pytest.raises(Wal2LakeError, match=f"denied for {word}") as caught:
                catalog.query(query, (), of("somebody"))
            assert caught.value.sqlstate == "42501"
    assert "SCRAM" in str(catalog.query("select * from pg_authid", (), of("boss")))
    assert "SCRAM" not in str(catalog.query("table pg_roles", (), of("boss")))


def test_how_batches_were_written_is_told_by_table(
    source: FakeSource, catalog: SystemCatalog
) -> None:
    assert _rows(catalog, "table wal2lake.apply_methods") == []
    source.rel_list.append(rel("public.customers", SyncState.READY, "0/2000"))
    source.change_counter += 1
    customers = next(t for t in source.table_list if t.name == "customers")
    source.methods_by_place[customers.location] = {
        Method.UPSERT: Total(3, 1000, 0.75),
        Method.TRUNCATE: Total(1, 5_000_000, 61.0004),
    }
    assert _rows(catalog, "table wal2lake.apply_methods") == [
        (str(SUB), "sub", "public", "customers", "upsert", "3", "1000", "0.75"),
        (str(SUB), "sub", "public", "customers", "truncate", "1", "5000000", "61"),
    ]


def test_what_may_quote_rows_is_for_the_owner_and_who_may_read_everything(
    source: FakeSource, catalog: SystemCatalog
) -> None:
    reader = RoleMember(Oid(20009), Oid(3375), Oid(20002), Oid(10))
    source.role_list += [
        Role(Oid(20001), "owner", False, None),
        Role(Oid(20002), "reader", False, None),
        Role(Oid(20003), "somebody", False, None),
        Role(Oid(3375), "pg_read_all_stats", False, None),
    ]
    source.member_list.append(reader)
    sub = source.subscription_list[0]
    source.subscription_list[0] = replace(sub, owner=Oid(20001))
    source.error_list = [
        SubscriptionError(SUB, WorkerKind.APPLY, "Key (id)=(7)", "2026-01-01T00:00:00")
    ]
    sql = "select count(*) from wal2lake.subscription_errors"
    # The one who sees all comes last and first: what he saw is not kept for others.
    for name, seen in (
        ("postgres", "1"),
        ("somebody", "0"),
        ("owner", "1"),
        ("reader", "1"),
        ("somebody", "0"),
        ("postgres", "1"),
    ):
        assert catalog.query(sql, (), of(name))[1] == [(seen,)], name


def test_sessions_may_ask_at_the_same_time(catalog: SystemCatalog) -> None:
    failures: list[str] = []

    def ask(pid: int) -> None:
        there = replace(session(), pid=pid)
        for _ in range(10):
            rows = catalog.query(
                "select pg_backend_pid() from pg_namespace", (), there
            )[1]
            if set(rows) != {(str(pid),)}:
                failures.append(f"{pid}: {rows}")

    threads = [threading.Thread(target=ask, args=(pid,)) for pid in range(1, 5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not failures


def test_a_running_query_can_be_cancelled(catalog: SystemCatalog) -> None:
    _rows(catalog, "select 1")
    done = threading.Event()
    states: list[str] = []

    def ask() -> None:
        try:
            catalog.query(
                "select count(*) from generate_series(1, 100000) a,"
                " generate_series(1, 1000000) b where a.a % 7 = b.b % 11",
                (),
                session(),
            )
        except Wal2LakeError as error:
            states.append(error.sqlstate)
        done.set()

    thread = threading.Thread(target=ask)
    thread.start()
    while not done.wait(0.05):
        catalog.cancel(8)
        catalog.cancel(7)
    thread.join(60)
    assert states == ["57014"]
    assert _rows(catalog, "select 1") == [("1",)]


def test_functions_that_change_something_do_it_once_a_row_and_for_superusers(
    source: FakeSource, catalog: SystemCatalog
) -> None:
    reset = "select pg_stat_reset_subscription_stats({})"
    sql = f"{reset.format('oid')} from pg_subscription"
    assert is_system_query(reset.format(7))
    catalog.describe(sql, (), session())
    assert source.resets == [], "a description runs nothing"
    fields, rows = catalog.query(sql, (), session())
    assert rows == [("",)]
    assert [field.type_oid for field in fields] == [2278]
    catalog.query(reset.format("null"), (), session())
    assert source.resets == [SUB, None]
    reload = "select pg_reload_conf()"
    assert is_system_query(reload)
    catalog.describe(reload, (), session())
    assert source.reloads == 0, "a description runs nothing"
    fields, rows = catalog.query(reload, (), session())
    assert (rows, [field.type_oid for field in fields]) == ([("t",)], [16])
    assert source.reloads == 1
    with pytest.raises(Wal2LakeError, match="invalid subscription OID 0") as caught:
        catalog.query(reset.format(0), (), session())
    assert caught.value.sqlstate == "22023"
    source.role_list.append(Role(Oid(20001), "somebody", False, None))
    source.change_counter += 1
    somebody = of("somebody")
    for sql in (reset.format(7), reload):
        with pytest.raises(Wal2LakeError, match="denied for function pg_") as caught:
            catalog.query(sql, (), somebody)
        assert caught.value.sqlstate == "42501"
    assert (source.resets, source.reloads) == ([SUB, None], 1)


def test_a_nodes_own_publications_are_published_the_same_way_always(
    catalog: SystemCatalog, source: FakeSource
) -> None:
    """What our subscriber asks before a copy is answered by a node, too; its rows have no
    versions."""

    class Asked:
        server_version = 180000

        def query(self, sql: str) -> list[tuple[str | None, ...]]:
            return _rows(catalog, sql)

    source.publication_list = [Publication(Oid(90000), "p", Oid(10), all_tables=True)]
    found = _rows(catalog, "select oid from pg_class where relname = 'orders'")
    relids = [Oid(int(str(oid))) for (oid,) in found]
    asking = cast(Session, Asked())
    marks = publication_marks(asking, relids, ("p",))
    assert set(marks) == set(relids)
    assert marks == publication_marks(asking, relids, ("p",))
    assert set(unique_columns(asking, relids)) <= set(relids)
    names = [
        (str(schema), str(name))
        for schema, name in _rows(
            catalog,
            "select relnamespace::regnamespace, relname from pg_class"
            " where relname = 'orders'",
        )
    ]
    assert list(describe_tables(asking, names, ("p",))) == names
    assert set(describe_schemas(asking, relids)) == set(relids)
    assert describe_enums(asking, relids).columns == {}


@pytest.mark.parametrize(
    ("sql", "rows"),
    [
        # PostgreSQL 18's answers.
        ("select '{}'::regtype[]", [("{}",)]),
        ("select cast('{23,25}' as oid [ ])", [("{23,25}",)]),
        ("select oid from pg_type where oid = any('{23,25}'::oid[]) order by 1",
         [("23",), ("25",)]),
        ("select string_agg((select string_agg(a, '' order by a desc) from (values ('1'),"
         " ('2')) i (a)) || b, ',' order by b) from (values ('y'), ('x')) o (b)",
         [("21x,21y",)]),
        ("select string_agg((select string_agg(a, '' order by a desc) from (values ('1'),"
         " ('2')) i (a)) || b, ','), pg_catalog.string_agg(b, '' order by b desc)"
         " from (values ('y')) o (b)", [("21y", "y")]),
        ("select '::oid[]', oid as \"oid[]\" from pg_type where oid = 23",
         [("::oid[]", "23")]),
        ("select 1 operator(pg_catalog.!=) 2, 1 operator(pg_catalog.<=) 2", [("t", "t")]),
        ("select * from unnest(array[1, 2], array['a']) as t(i, s)",
         [("1", "a"), ("2", None)]),
        ("select c.relname, k.n from pg_class c,"
         " unnest(array[c.relname::text], array[1]) k(name, n)"
         " where k.name = c.relname and c.relname = 'pg_class'", [("pg_class", "1")]),
    ],
)  # fmt: skip
def test_what_clients_ask_at_their_start(
    catalog: SystemCatalog, sql: str, rows: list[tuple[str | None, ...]]
) -> None:
    assert _rows(catalog, sql) == rows


@pytest.mark.parametrize(
    ("sql", "expected"),
    [
        # PostgreSQL 18's answers.
        (
            "select q.length, exists (select upper(b.relname), length(b.relname)"
            " from pg_class b where length = 2000) from (select 2000 as length) q",
            [("2000", "t")],
        ),
        ("select (select current_date) is not null", [("t",)]),
        ("with x as (select current_date) select count(*) from x", [("1",)]),
        ("select count(*) from (select localtime) x", [("1",)]),
        ("select lower from (select lower('A')) x", [("a",)]),
        ("select ceil(12345678901234567890.5 * 1)", [("12345678901234567891",)]),
        (
            "select round(sum(n), 2) from (values (1.25), (2.333)) v(n)",
            [("3.58",)],
        ),
    ],
)
def test_names_of_calls_and_rounded_numbers_are_those_of_the_query(
    catalog: SystemCatalog, sql: str, expected: list[tuple[str]]
) -> None:
    assert _rows(catalog, sql) == expected
