"""A table of a server is compared as the snapshot has it, or not at all, and its lock is given
back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

import pytest

from wal2lake.commands.maintenance.sourcetables import import_snapshot, locked_table
from wal2lake.pg import Publisher, RemoteTable, Session, connect
from wal2lake.testing.postgres import PostgresServer
from wal2lake.verify import NotComparable

TABLES = """
drop schema if exists vt cascade;
create schema vt;
create table vt.t (id int primary key, n int);
insert into vt.t select i, i from generate_series(1, 10) i;
create table vt.parts (id int primary key, n int) partition by range (id);
create table vt.low partition of vt.parts for values from (0) to (6);
create table vt.high partition of vt.parts for values from (6) to (100);
insert into vt.parts select i from generate_series(1, 10) i;
drop publication if exists vt;
create publication vt for table vt.t, vt.parts with (publish_via_partition_root);
"""

Locked = Callable[[str], AbstractContextManager[RemoteTable]]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with PostgresServer(18) as running:
        yield running


@pytest.fixture
def reader(server: PostgresServer) -> Iterator[Session]:
    """A session in a snapshot of the tables."""
    server.psql(TABLES)
    with (
        connect(server.conninfo(), application_name="exports") as exporter,
        connect(server.conninfo(), application_name="reads") as session,
    ):
        exporter.execute("BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY")
        snapshot = exporter.value("SELECT pg_catalog.pg_export_snapshot()")
        import_snapshot(session, str(snapshot), 200)
        exporter.execute("COMMIT")
        yield session


@pytest.fixture
def locked(reader: Session) -> Locked:
    def lock(table: str) -> AbstractContextManager[RemoteTable]:
        name = ("vt", table)
        return locked_table(
            reader, lambda: Publisher(reader).tables((name,), ("vt",)).get(name)
        )

    return lock


def rows(reader: Session, table: str) -> str | None:
    return reader.value(f"SELECT pg_catalog.count(*) FROM vt.{table}")


@pytest.mark.parametrize("table", ["t", "parts"])
def test_a_table_is_locked_only_while_it_is_compared(
    server: PostgresServer, reader: Session, locked: Locked, table: str
) -> None:
    for _ in range(2):
        with locked(table):
            assert rows(reader, table) == "10"
            with pytest.raises(RuntimeError, match="lock timeout"):
                server.psql(f"set lock_timeout = 100; alter table vt.{table} add c int")
    server.psql(f"set lock_timeout = 100; truncate vt.{table}")


@pytest.mark.parametrize("table", ["t", "parts"])
@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("truncate vt.t, vt.parts", "truncated"),
        (
            "alter table vt.t alter n type bigint;"
            " alter table vt.parts alter n type bigint",
            "altered|truncated",
        ),
        ("drop table vt.t, vt.parts", "dropped|could not open relation"),
    ],
)
def test_a_table_that_changed_since_the_snapshot_is_not_comparable(
    server: PostgresServer,
    reader: Session,
    locked: Locked,
    table: str,
    change: str,
    words: str,
) -> None:
    server.psql(change)
    with pytest.raises(NotComparable, match=words), locked(table):
        rows(reader, table)
    assert reader.value("SELECT 1") == "1"


def test_a_partition_that_was_truncated_is_found(
    server: PostgresServer, reader: Session, locked: Locked
) -> None:
    server.psql("truncate vt.low")
    with pytest.raises(NotComparable, match="truncated"), locked("parts"):
        assert rows(reader, "parts") == "5"


def test_a_table_that_another_session_has_locked_is_not_awaited(
    server: PostgresServer, reader: Session, locked: Locked
) -> None:
    with connect(server.conninfo(), application_name="alters") as other:
        other.execute("BEGIN")
        other.execute("LOCK TABLE vt.t IN ACCESS EXCLUSIVE MODE")
        with pytest.raises(NotComparable, match="another session"), locked("t"):
            pass
        with (
            pytest.raises(NotComparable, match="a table of the same publication"),
            locked("parts"),
        ):
            pass
        other.execute("ROLLBACK")
    for table in ("t", "parts"):
        with locked(table):
            assert rows(reader, table) == "10"
