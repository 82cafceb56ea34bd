"""What psql shows when a subscription is made, or gets tables, that will misbehave."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from tests.conftest import Database
from tests.fakes.pooler_front import PoolerFront
from tests.node.conftest import Psql

from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import PostgresServer

Subscribe = Callable[..., Mirror]
Say = Callable[[str], list[str]]

CREATED = 'NOTICE:  created replication slot "{0}" on publisher'


@pytest.fixture
def say(node: Node, psql: Psql) -> Iterator[Say]:
    """Run statements with psql; every line that it writes to stderr."""

    def go(sql: str) -> list[str]:
        return psql(node.conninfo(), "-c", sql).stderr.splitlines()

    yield go
    for name in ("pf", "pg"):
        node.sql(f"drop subscription if exists {name}")
        node.sql(f"drop schema if exists {name} cascade")


def create(name: str, conninfo: str, options: str = "") -> str:
    return (
        f"create subscription {name} connection {quote_literal(conninfo)}"
        f" publication {name} {options}"
    )


def test_a_good_publication_is_told_what_postgresql_tells_and_a_bad_one_all_at_once(
    pg18: Database, say: Say, node: Node
) -> None:
    pg18.psql(
        "create schema pf; create table pf.a (id int primary key, v text);"
        " create table pf.b (id int primary key, v text);"
        " create publication pf for tables in schema pf;"
        " drop role if exists careful; create role careful login replication;"
        " grant usage on schema pf to careful; grant select on pf.a to careful"
    )
    try:
        assert say(create("pf", pg18.conninfo())) == [CREATED.format("pf")]
        refresh = "alter subscription pf refresh publication"
        assert say(refresh) == []
        # Only of what is new: careful may not read b, either.
        say(
            f"alter subscription pf connection {quote_literal(pg18.conninfo(user='careful'))}"
        )
        pg18.psql(
            "create table pf.keyless (v text); create unlogged table pf.u (v text);"
            "create table pf.closed (id int primary key);"
            "alter table pf.closed enable row level security;"
            "grant select on pf.closed, pf.keyless to careful"
        )
        assert say(refresh) == [
            'WARNING:  table "pf.closed" has row-level security, which hides rows from the'
            " copy",
            "HINT:  Use a role with BYPASSRLS, or the table's owner.",
            'WARNING:  table "pf.keyless" has no replica identity: once it is published,'
            " the source refuses UPDATE and DELETE on it",
            'HINT:  Add a primary key, or: ALTER TABLE "pf"."keyless" REPLICA IDENTITY'
            " USING INDEX (a unique index on NOT NULL columns) or FULL.",
            *(
                f'NOTICE:  table "pf.{name}" added to subscription "pf", and will be copied'
                for name in ("closed", "keyless")
            ),
        ]
        assert say(refresh) == []
        node.sql("drop subscription pf; drop schema pf cascade")
        pg18.psql("alter publication pf set (publish = 'insert')")
        told = say(
            create("pf", pg18.conninfo(user="careful"), "with (enabled = false)")
        )
        assert [line for line in told if not line.startswith(("HINT", "DETAIL"))] == [
            'WARNING:  table "pf.b" cannot be read, so its existing rows cannot be copied',
            'WARNING:  table "pf.closed" has row-level security, which hides rows from the'
            " copy",
            "NOTICE:  4 tables are published without UPDATE, DELETE, TRUNCATE: the copies"
            " will differ from them after one",
            'NOTICE:  table "pf.u" is not logged, so it is not published',
            CREATED.format("pf"),
        ]
        assert 'DETAIL:  Tables: "pf.a", "pf.b", "pf.closed", "pf.keyless".' in told
        node.sql("drop subscription pf")
        # Nothing is looked at.
        told = say(
            create("pf", pg18.conninfo(user="careful"), "with (connect = false)")
        )
        assert told[0] == "WARNING:  subscription was created, but is not connected"
        assert len(told) == 2
        node.sql("alter subscription pf set (slot_name = none); drop subscription pf")
    finally:
        pg18.psql("drop owned by careful; drop role careful")


def test_what_the_publisher_will_refuse_is_found_before_a_table_or_a_schema_is_made(
    say: Say, node: Node
) -> None:
    settings = {
        "wal_level": "replica",
        "max_slot_wal_keep_size": "64MB",
        "idle_replication_slot_timeout": "1h",
    }
    with PostgresServer(18, settings=settings) as strict:
        strict.psql(
            "create schema pg; create table pg.t (v text); create publication pg for"
            " table pg.t; create role limited login"
        )
        told = say(create("pg", strict.conninfo()))
        lost = "its slot is invalidated, and all tables must be copied again"
        assert [line for line in told if not line.startswith("HINT")] == [
            'WARNING:  table "pg.t" has no replica identity: once it is published, the'
            " source refuses UPDATE and DELETE on it",
            "NOTICE:  max_slot_wal_keep_size is 64 MB: if the node is behind by more,"
            f" {lost}",
            "NOTICE:  idle_replication_slot_timeout is 3600 s: if the node is away for"
            f" longer, {lost}",
            'ERROR:  could not create replication slot "pg": ERROR:  logical decoding'
            ' requires "wal_level" >= "logical"',
        ]
        told = say(create("pg", strict.conninfo(user="limited")))
        assert "permission denied to start WAL sender" in told[0]
        assert told[-1].startswith("HINT:  ALTER ROLE ... REPLICATION on the publisher")
    assert node.sql("select 1 from pg_namespace where nspname = 'pg'") == []


def test_a_pooler_in_between_and_a_narrow_table_are_named(
    pg18: Database, say: Say, node: Node
) -> None:
    pg18.psql(
        "create schema pf; create table pf.t (id int primary key);"
        " create publication pf for table pf.t;"
        f" alter database {pg18.name} set datestyle = german"
    )
    with PoolerFront(pg18.server.port, old=True) as front:
        told = say(create("pf", pg18.conninfo(port=str(front.port))))
        assert "FATAL:  unsupported startup parameter: replication" in told[0]
        assert told[1] == (
            "HINT:  A connection pooler (PgBouncer) has answered, and does not pass on"
            " what replication needs. Connect to the server itself."
        )
    node.sql("create schema pf; create table pf.t (id smallint primary key)")
    with PoolerFront(pg18.server.port, transactions=True) as front:
        conninfo = pg18.conninfo(port=str(front.port))
        told = say(create("pf", conninfo, "with (enabled = false)"))
    assert [line for line in told if not line.startswith("HINT")] == [
        "WARNING:  a connection pooler is in between that ignores what a connection sets"
        " at its start (datestyle): the copy may bring values in another form",
        "WARNING:  a connection pooler is in between that gives each transaction another"
        " server process: what is set for a connection is lost, or meets somebody else's",
        'NOTICE:  table "pf.t" has columns that do not hold every value of the'
        ' publisher\'s: "id" (integer, here smallint)',
        CREATED.format("pf"),
    ]
    connection = quote_literal(pg18.conninfo())
    node.sql(f"alter subscription pf connection {connection}; drop subscription pf")
