"""Functions of slots, called as users of PostgreSQL call them: the same statements at the node and
at PostgreSQL 18 give the same."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from tests.conftest import Database

from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

PEEK = "select data from pg_logical_slot_peek_binary_changes('one', null, null"

CALLS = (
    # Arguments by their names.
    "select slot_name from pg_create_logical_replication_slot(slot_name => 'one',"
    " plugin := 'pgoutput', failover => true)",
    "select failover, temporary, two_phase from pg_replication_slots where slot_name = 'one'",
    "select slot_name from pg_create_logical_replication_slot('a', plugin => 'x', plugin => 'y')",
    "select slot_name from pg_create_logical_replication_slot(slot_name => 'a', 'b')",
    "select slot_name from pg_create_logical_replication_slot('a', nosuch => 'y')",
    # Null.
    "select * from pg_create_logical_replication_slot('a', null)",
    "select pg_create_logical_replication_slot('a', null)",
    "select pg_replication_slot_advance('one', null)",
    # Options.
    f"{PEEK}, variadic array[['a','b'],['c','d']])",
    f"{PEEK}, 'a')",
    f"{PEEK}, 'a', null)",
    f"{PEEK}, 'proto_version', '1', 'proto_version', '1')",
    f"{PEEK}, variadic '{{proto_version,9}}')",
    f"{PEEK}, 'proto_version', '1', 'publication_names', 'two')",
    "select count(*) from pg_logical_slot_peek_binary_changes('one', null, 0,"
    " 'proto_version', '1', 'publication_names', 'fine')",
    # Bytes.
    *(
        f"select {what} from pg_logical_slot_peek_binary_changes('one', null, null,"
        " variadic '{proto_version,1,publication_names,fine}')"
        " where get_byte(data, 0) = ascii('I')"
        for what in (
            "encode(substr(data, 6), 'escape')",
            "length(data)",
            "encode(substring(data from 6 for 3), 'hex')",
            "encode(data, 'base64') = encode(decode(encode(data, 'base64'), 'base64'), 'base64')",
            "get_byte(data, 1000)",
            "encode(data, 'rot13')",
        )
    ),
    "select decode('5c', 'hex'), encode('\\x5c00ff61', 'escape'), decode('a\\\\b', 'escape')",
    # Names are cut.
    f"select slot_name from pg_create_logical_replication_slot('{'n' * 70}', 'pgoutput')",
    f"select pg_drop_replication_slot('{'n' * 70}')",
    "select pg_walfile_name('0/1000001')",
    # Positions alone.
    "select '0/20'::pg_lsn + 16",
    "select '0/20'::pg_lsn - 16, '0/20'::pg_lsn - '0/10'::pg_lsn",
    "select cast('0/20' as pg_lsn) - 100",
    # Temporary ones are their session's, as long as it goes well.
    "select slot_name from pg_create_logical_replication_slot('brief', 'pgoutput', true)",
    "select active, active_pid = pg_backend_pid() from pg_replication_slots"
    " where slot_name = 'brief'",
    "select slot_name from pg_copy_logical_replication_slot('one', 'copied', true)",
    "select pg_create_logical_replication_slot('never', 'pgoutput', temporary => true,"
    " failover => true)",
    "select slot_name from pg_replication_slots order by 1",
    "select 1 / 0",
    "select slot_name from pg_replication_slots order by 1",
    "select pg_drop_replication_slot('one')",
)


@pytest.fixture
def tables(node: Node, pg18: Database) -> Iterator[None]:
    for sql in (node.sql, pg18.psql):
        sql("create table told (id int primary key, v text)")
        sql("create publication fine for table told")
    yield
    node.sql("drop publication fine")
    node.sql("drop table told")


def said(client: psycopg.Connection[Any], sql: str) -> object:
    """Rows as text, or the error."""
    try:
        rows = client.execute(sql).fetchall()
    except psycopg.Error as error:
        told = error.diag
        return error.sqlstate, told.message_primary, told.message_hint
    return [tuple(None if one is None else str(one) for one in row) for row in rows]


@pytest.mark.usefixtures("tables")
def test_they_say_what_postgresqls_say(node: Node, pg18: Database) -> None:
    results = []
    for conninfo in (node.conninfo(), pg18.conninfo()):
        with psycopg.connect(conninfo, autocommit=True) as client:
            found = [said(client, CALLS[0])]
            client.execute("insert into told values (1, 'ä\\0')")
            found += [said(client, sql) for sql in CALLS[1:]]
            with client.transaction(force_rollback=True):
                client.execute("insert into told values (2, 'b')")
                make = "select pg_create_logical_replication_slot('late', 'pgoutput')"
                found.append(said(client, make))
            with client.transaction():
                client.execute("set transaction read only")
                make = "select slot_name from pg_create_logical_replication_slot('ro', 'pgoutput')"
                found.append(said(client, make))
            found.append(said(client, "select pg_drop_replication_slot('ro')"))
        results.append(found)
    mine, theirs = results
    assert mine == theirs


@pytest.mark.usefixtures("tables")
def test_a_publication_that_is_not_there_is_a_warning(
    node: Node, pg18: Database
) -> None:
    calls = (
        "'publication_names', 'lost,fine'",
        "'publication_names', '\"Gone\",lost', 'publication_names', 'fine'",
        "'publication_names', '\"Gone\",lost'",
    )
    found = []
    for conninfo in (node.conninfo(), pg18.conninfo()):
        told: list[object] = []

        def hear(diag: psycopg.errors.Diagnostic, told: list[object] = told) -> None:
            where = (diag.context or "").partition(" LSN ")[0]
            text = diag.message_primary, diag.message_detail, diag.message_hint
            told.append((diag.severity, diag.sqlstate, *text, where))

        with psycopg.connect(conninfo, autocommit=True) as client:
            client.add_notice_handler(hear)
            client.execute(
                "select pg_create_logical_replication_slot('warn', 'pgoutput')"
            )
            client.execute("insert into told values (7, 'x')")
            for options in calls:
                sql = (
                    "select count(*) from pg_logical_slot_peek_binary_changes('warn', '0/0',"
                    f" null, 'proto_version', '1', {options})"
                )
                try:
                    told.append(client.execute(sql).fetchall())
                except psycopg.Error as error:
                    told.append((error.diag.message_primary, error.diag.context))
            client.execute("set client_min_messages = error")
            client.execute(sql)
            client.execute("select pg_drop_replication_slot('warn')")
        found.append(told)
    mine, theirs = found
    assert mine == theirs
    assert sum("skipped loading" in str(one) for one in mine) == 3


def test_slots_that_no_command_makes(node: Node, pg18: Database) -> None:
    begin = "begin isolation level repeatable read, read only"
    make = "CREATE_REPLICATION_SLOT never"
    found = []
    for conninfo in (node.conninfo(), pg18.conninfo()):
        told = []
        with psycopg.connect(
            f"{conninfo} replication=database", autocommit=True
        ) as client:
            failing = f"{make} TEMPORARY LOGICAL pgoutput (FAILOVER)"
            told.append(said(client, failing))
            client.execute(begin)
            client.execute("savepoint inside")
            told.append(said(client, f"{make} LOGICAL pgoutput (SNAPSHOT 'use')"))
            client.execute("rollback")
        found.append(told)
    mine, theirs = found
    assert mine == theirs


def test_temporary_slots_end_with_their_session(node: Node) -> None:
    make = "select slot_name from pg_create_logical_replication_slot('gone', 'pgoutput', true)"
    here = "select slot_name from pg_replication_slots where slot_name = 'gone'"
    with psycopg.connect(node.conninfo(), autocommit=True) as client:
        assert client.execute(make).fetchall() == [("gone",)]
        assert node.sql(here) == [("gone",)]
    wait_until(lambda: node.sql(here) == [], describe="the slot is gone")
