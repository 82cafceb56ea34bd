"""The functions that the views of slots and subscriptions are made of; what results look like."""

from __future__ import annotations

import struct
from datetime import UTC, datetime

from tests.fakes.catalog_source import OBJECTS, FakeSource, session

from wal2lake.catalog import Progress, SubscriptionStats
from wal2lake.model import ConflictType, Lsn, Oid
from wal2lake.sql.sysviews import SystemCatalog, is_system_query
from wal2lake.tablesync.attempt import RunningCopy
from wal2lake.wire.frontback import Format

SUB = Oid(OBJECTS["subscription sub"])


def _rows(catalog: SystemCatalog, sql: str) -> list[tuple[str | None, ...]]:
    assert is_system_query(sql), sql
    return catalog.query(sql, (), session())[1]


def test_workers_of_subscriptions(source: FakeSource, catalog: SystemCatalog) -> None:
    of = "select * from pg_stat_get_subscription({})"
    assert _rows(catalog, of.format("null")) == []
    none = Lsn(0)
    source.progress_by_sub[SUB] = Progress(
        5, Lsn(0x100), none, none, none, 0, 0, Lsn(0x90), 0, 0, none
    )
    at = datetime(2026, 1, 2, tzinfo=UTC)
    source.copies_by_sub[SUB] = [RunningCopy(Oid(16999), at)]
    source.change_counter += 1
    apply = (str(SUB), None, "5", None, "0/100", None, None, "0/90", None, "apply")
    pid = str(source.engine_pid)
    copy = (
        *(str(SUB), "16999", pid, None, None, None, "2026-01-02 00:00:00+00"),
        *(None, None, "table synchronization"),
    )
    assert _rows(catalog, of.format("null")) == [apply, copy]
    assert _rows(catalog, of.format(int(SUB))) == [apply, copy]
    assert _rows(catalog, of.format(1)) == []
    # As in the definition of PostgreSQL's view.
    joined = (
        "select subname, worker_type from pg_subscription su"
        " left join pg_stat_get_subscription(null) st on st.subid = su.oid order by 2"
    )
    assert _rows(catalog, joined) == [
        ("sub", "apply"),
        ("sub", "table synchronization"),
    ]


def test_failures_of_subscriptions(source: FakeSource, catalog: SystemCatalog) -> None:
    source.stats_list.append(
        SubscriptionStats(SUB, 3, 4, None, {ConflictType.UPDATE_MISSING: 7})
    )
    of = "select * from pg_stat_get_subscription_stats({})"
    counts = ("3", "4", "0", "0", "0", "7", "0", "0", "0", None)
    assert _rows(catalog, of.format(int(SUB))) == [(str(SUB), *counts)]
    every = "select (pg_stat_get_subscription_stats(oid)).* from pg_subscription"
    assert _rows(catalog, every) == [(str(SUB), *counts)]
    assert _rows(catalog, of.format(5)) == [("5", *("0",) * 9, None)]
    assert _rows(catalog, of.format("null")) == [(None,) * 11]


def test_slots(catalog: SystemCatalog) -> None:
    assert _rows(catalog, "select * from pg_get_replication_slots()") == []
    of = "select * from pg_stat_get_replication_slot({})"
    assert _rows(catalog, of.format("'nope'")) == [("nope", *("0",) * 8, None)]
    assert _rows(catalog, of.format("null")) == [(None,) * 10]


def test_oid_types_are_numbers_in_binary(catalog: SystemCatalog) -> None:
    sql = "select 'pg_class'::regclass, 'int4'::regtype, null::regrole, oid::regclass"
    sql += " from pg_class where relname = 'pg_type'"
    columns = []
    for code in (Format.BINARY, Format.TEXT):
        formats = [*[code] * 3, Format.TEXT]
        (batch,) = catalog.execute(sql, (), session(), formats).batches
        columns.append([column[0] for column in batch.columns])
    numbers = [struct.pack("!I", number) for number in (1259, 23)]
    assert columns == [
        [*numbers, None, b"pg_type"],
        [b"pg_class", b"integer", None, b"pg_type"],
    ]
