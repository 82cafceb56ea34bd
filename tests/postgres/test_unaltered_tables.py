"""What a copy reads is what its snapshot has, whatever a table has become since: at a real server,
with what PostgreSQL shows of it to the same snapshot."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from tests.conftest import Database

from wal2lake.errors import PublisherError
from wal2lake.pg import Publisher, RemoteTable, Session, connect
from wal2lake.tablesync.unaltered import (
    PlannedTable,
    SourceChanged,
    check_files,
    lock_unaltered,
)


@contextmanager
def snapshot(source: Database) -> Iterator[str]:
    with connect(source.conninfo(), application_name="exporter") as session:
        session.execute("begin isolation level repeatable read")
        yield str(session.value("select pg_export_snapshot()"))


def described(source: Database, name: str) -> RemoteTable:
    with connect(source.conninfo(), application_name="x") as session:
        return Publisher(session).table("public", name, ("p",))


@contextmanager
def reading(source: Database, name: str) -> Iterator[Session]:
    with connect(source.conninfo(), application_name="reader") as session:
        session.execute("set lock_timeout = 300")
        session.execute("begin isolation level repeatable read read only")
        session.execute(f"set transaction snapshot '{name}'")
        yield session


@pytest.fixture
def source(pg18: Database) -> Database:
    pg18.psql(
        "create domain mark as varchar(9);"
        "create table t (id int primary key, a text, b text, m mark, gone int);"
        "alter table t drop gone;"
        "insert into t select i, 'a' || i, 'b' || i, 'm' from generate_series(1, 9) i;"
        "create table part (id int, v text) partition by range (id);"
        "create table low partition of part for values from (0) to (5);"
        "create table high partition of part for values from (5) to (99);"
        "insert into part select i, 'v' from generate_series(1, 9) i;"
        "create table apart (id int, v text); insert into apart values (100, 'v');"
        "create publication p for all tables"
    )
    return pg18


@pytest.mark.parametrize(
    ("statement", "rows"),
    [
        # What the snapshot's reader gets if it does not look: PostgreSQL's answer.
        ("truncate t", "0"),
        ("alter table t alter id type bigint", "0"),
        ("alter table t alter a type varchar(9) using upper(a)", "0"),
        ("vacuum full t", "9"),
        ("cluster t using t_pkey", "9"),
        ("alter table t rename a to c", "9"),
        ("alter table t rename a to c; alter table t rename b to a;"
         " alter table t rename c to b", "9"),
        ("alter table t drop column b; alter table t add column b text", "9"),
        ("alter table t alter m type varchar(20)", "0"),
        ("drop table t; create table t (id int primary key, a text, b text, m mark)",
         "0"),
    ],
)  # fmt: skip
def test_what_has_changed_since_is_not_read(
    source: Database, statement: str, rows: str
) -> None:
    table = PlannedTable.of(described(source, "t"))
    with snapshot(source) as name:
        source.psql(statement)
        with reading(source, name) as session:
            assert session.value("select count(*) from public.t") == rows
            with pytest.raises(SourceChanged) as caught:
                lock_unaltered(session, table)
            assert caught.value.sqlstate == "55000"
        # Told of the table as it is now, and reading what it was.
        with reading(source, name) as session, pytest.raises(SourceChanged):
            lock_unaltered(session, PlannedTable.of(described(source, "t")))


def test_a_table_that_is_gone_has_changed(source: Database) -> None:
    table = PlannedTable.of(described(source, "t"))
    with snapshot(source) as name:
        source.psql("drop table t")
        with reading(source, name) as session, pytest.raises(SourceChanged):
            lock_unaltered(session, table)


@pytest.mark.parametrize(
    "statement",
    [
        "select",
        "alter table t add column c int default 5",
        "create index on t (a)",
        "insert into t values (100)",
        "update t set a = 'x'; delete from t where id < 5; vacuum t; analyze t",
        "alter table t alter a set default 'x'; alter table t alter b set not null",
        "alter table t replica identity full",
    ],
)
def test_what_takes_nothing_away_from_the_snapshot_is_read_on(
    source: Database, statement: str
) -> None:
    table = PlannedTable.of(described(source, "t"))
    with snapshot(source) as name:
        for one in statement.split(";"):
            source.psql(one)
        with reading(source, name) as session:
            lock_unaltered(session, table)
            assert session.value("select count(*) from public.t") == "9"
            # From here on it stays so.
            with pytest.raises(RuntimeError, match="lock timeout"):
                source.psql("set lock_timeout = 100; truncate t")


@pytest.mark.parametrize(
    ("statement", "changed"),
    [
        ("select", False),
        ("truncate high", True),
        ("alter table part alter v type varchar(9)", True),
        ("vacuum full low", True),
        ("alter table part detach partition low; drop table low", True),
        ("alter table part detach partition low", True),
        ("alter table part attach partition apart for values from (99) to (999)", True),
        ("create table far partition of part for values from (99) to (999)", False),
    ],
)
def test_the_leaves_of_a_partitioned_table_are_compared_behind_the_copy(
    source: Database, statement: str, changed: bool
) -> None:
    table = PlannedTable.of(described(source, "part"))
    with snapshot(source) as name:
        for one in statement.split(";"):
            source.psql(one)
        with reading(source, name) as session:
            try:
                lock_unaltered(session, table)
                session.query("select * from public.part")
                check_files(session, table)
            except SourceChanged:
                assert changed
            else:
                assert not changed


def test_a_lock_that_somebody_else_has_is_waited_for_until_the_timeout(
    source: Database,
) -> None:
    table = PlannedTable.of(described(source, "t"))
    with (
        snapshot(source) as name,
        connect(source.conninfo(), application_name="x") as other,
        reading(source, name) as session,
    ):
        other.execute("begin; lock table public.t in access exclusive mode")
        with pytest.raises(PublisherError) as caught:
            lock_unaltered(session, table)
        assert caught.value.sqlstate == "55P03"
        assert not isinstance(caught.value, SourceChanged)
