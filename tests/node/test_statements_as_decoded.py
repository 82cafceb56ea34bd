"""One workload at a node and at PostgreSQL: their plugins tell the same of each transaction."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

import pytest
from tests.conftest import Database
from tests.node.conftest import answers

from wal2lake.model import Oid
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until
from wal2lake.wire.pgoutput import (
    Begin,
    Delete,
    Insert,
    LogicalMessage,
    RelationMessage,
    Truncate,
    Update,
    read_message,
)

NAMES = ("t", "pair", "counted", "whole", "fully", "unknown")

TABLES = (
    "create schema same",
    "create table same.t (id int primary key, v text)",
    "create table same.pair (a int, v text, b text, n numeric(6,2), primary key (b, a))",
    "create table same.counted (id serial primary key, v text)",
    "create table same.whole (a int, v text, n numeric(6,2), at timestamptz, k text[])",
    "alter table same.whole replica identity full",
    "create table same.fully (id int primary key, v text)",
    "alter table same.fully replica identity full",
    "create table same.unknown (a int, v text)",
    "insert into same.whole values (1, 'a', 1.10, '2026-01-01 12:00+00', '{x,null}'),"
    " (1, 'b', null, null, null), (2, null, 0, null, null), (2, null, 0, null, null)",
    "insert into same.fully values (1, 'one'), (2, 'two'), (3, null)",
    "insert into same.t values (1, 'one'), (2, 'two'), (3, null)",
    "insert into same.pair values (1, 'v', 'x', 1.50), (2, null, 'it''s', null)",
)

KEYS = (
    "update same.t set id = 10 where id = 1",
    "update same.t set id = id + 100, v = 'moved' where id < 10",
    "update same.t set id = id, v = 'stays' where id = 10",
    "update same.pair set b = b || '!', v = 'w' where a = 2",
    "update same.pair set a = 7",
    "begin; update same.t set id = 11 where id = 10; savepoint a;"
    " update same.t set id = 12 where id = 11; rollback to a;"
    " update same.t set v = 'again' where id = 102; commit",
    "begin; insert into same.t values (5, 'new'); delete from same.t where id = 11;"
    " update same.fully set id = 20 where id = 2; update same.fully set v = 'V' where id = 1;"
    " commit",
    "update same.fully set id = id + 30",
    "update same.t set id = 6 from same.fully f where f.id = 31 and t.id = f.id - 26",
)

WHOLE = (
    "update same.whole set v = 'c' where v = 'b'",
    "update same.whole set n = 0.5, at = '2026-02-03 04:05:06.7+00' where a = 1",
    "update same.whole set a = 3, v = 'two of them' where a = 2",
    "begin; update same.whole set k = array['y'] where a = 1; delete from same.whole where a = 3;"
    " insert into same.whole values (9, 'nine'); commit",
    "insert into same.unknown values (1, 'x'), (2, 'y')",
    "update same.whole set a = a + 1",
)

UNKNOWN = (
    "update same.unknown set v = 'z' where a = 1",
    "delete from same.unknown where a = 2",
)
"""Without a replica identity; a publication with updates would refuse them."""


TRUNCATES = (
    "truncate same.counted restart identity",
    "truncate same.counted, same.pair restart identity cascade",
    "truncate same.t cascade",
    "begin; truncate same.t, same.pair cascade;"
    " insert into same.t values (8, 'eight'); commit",
    "begin; truncate same.t restart identity; truncate same.pair; commit",
    "begin; savepoint a; truncate same.t cascade; rollback to a;"
    " insert into same.t values (9, 'nine'); commit",
    "truncate same.t",
)


NET = (
    "begin; update same.t set id = 40 where id = 1; update same.t set id = 41 where id = 40;"
    " insert into same.t values (1, 'anew'); commit",
    "begin; update same.t set id = 42 where id = 41; delete from same.t where id = 42; commit",
    "begin; update same.t set id = 9 where id = 2; update same.t set id = 2 where id = 3;"
    " update same.t set id = 3 where id = 9; commit",
    "update same.t set id = id + 1",
    "update same.whole set v = v || '+' where a = 1",
    "update same.whole set a = 3 where a = 2",
    "update same.fully set id = id - 1, v = 'all'",
    "update same.t set id = -id where id = 3",
)
"""Transactions that change a row several times, and chains of keys."""


BLOCKS = (
    "begin; insert into same.t values (50, 'a'), (51, 'b'), (52, 'c');"
    " update same.t set v = 'd' where id = 50; delete from same.t where id = 51; commit",
    "begin; insert into same.pair values (7, 'v', 'seven', 1); insert into same.t values (53, 'e');"
    " update same.pair set v = 'w' where a = 7; update same.t set id = 54 where id = 53;"
    " insert into same.pair values (8, 'v', 'eight', 2); commit",
    "begin; update same.t set v = v || '+' where id < 3; savepoint a; delete from same.t;"
    " rollback to a; update same.t set v = v || '-' where id < 3; release a;"
    " update same.t set id = 150 where id = 50; update same.t set id = 50 where id = 150; commit",
    "begin; insert into same.t values (60, 'gone at once'); delete from same.t where id = 60;"
    " insert into same.fully values (60, 'stays'); commit",
    "begin; update same.t set id = -1 where id = 1; update same.t set id = 1 where id = 2;"
    " update same.t set id = 2 where id = -1; commit",
    "begin; insert into same.whole values (5, 'five'); update same.whole set v = 'V' where a = 5;"
    " update same.whole set a = 6, n = 1.5 where a = 5; delete from same.whole where a = 6; commit",
    "begin; insert into same.counted (v) values ('x'); insert into same.counted (v) values ('y');"
    " update same.counted set v = 'z' where id = 1; commit",
    "begin; delete from same.t where id = 3; truncate same.t, same.counted restart identity;"
    " insert into same.counted (v) values ('anew'); truncate same.counted;"
    " insert into same.t values (3, 'again'); update same.t set v = 'three'; commit",
)
"""Transactions of several statements: each of these is told, in their order."""


TOUCHES = (
    "update same.t set v = v where id = 3",
    "update same.t set id = id where id = 3",
    "update same.pair set n = 1.5, b = b where a = 1",
    "update same.fully set v = null where id = 3",
    "update same.whole set k = '{x,null}' where v = 'a'",
    "update same.t set v = f.v from same.fully f where f.id = t.id and t.id = 3",
    "begin; update same.t set v = v where id = 3; update same.t set v = v where id = 3;"
    " insert into same.unknown values (1, 'x'); commit",
    "begin; update same.t set id = id where id = 3; update same.fully set id = id where id = 1;"
    " savepoint a; update same.pair set b = b where a = 2; rollback to a; commit",
)
"""UPDATEs that leave rows as they were: they are told, too."""


RETURNED = (
    "insert into same.t values (80, 'eighty') returning id",
    "update same.t set v = upper(v), id = id + 1 where v = 'eighty' returning id, v",
    "insert into same.t values (81, 'met') on conflict (id) do update set v = excluded.v",
    "insert into same.t values (81, 'M') on conflict (id) do update set id = 82, v = excluded.v",
    "begin; insert into same.t values (83, 'a') returning id; insert into same.t values (83, 'b')"
    " on conflict (id) do update set v = t.v || excluded.v returning v;"
    " update same.t set id = 84 where v like 'ab%' returning id;"
    " insert into same.t values (85, 'c') on conflict do nothing; commit",
    "update same.whole set v = v || '!' where v like '%' returning v",
    "delete from same.t where lower(v) = 'm' returning id",
)
"""Statements whose rows pass through the node."""


MESSAGES = (
    "begin; insert into same.unknown values (2, 'y');"
    " select pg_logical_emit_message(true, 'p', 'behind one'); commit",
    "begin; insert into same.unknown values (3, 'y'), (4, 'z');"
    " select pg_logical_emit_message(true, 'p', 'between'); savepoint a;"
    " select pg_logical_emit_message(true, 'p', 'not said'); rollback to a;"
    " insert into same.unknown values (5, 'y');"
    " select pg_logical_emit_message(true, 'p', 'last'); commit",
    "begin; select pg_logical_emit_message(true, 'p', 'first');"
    " insert into same.t values (5, 'gone at once'); delete from same.t where id = 5; commit",
    "begin; truncate same.unknown; select pg_logical_emit_message(true, 'p', 'empty'); commit",
)
"""Messages among the changes: each where it was emitted."""

ALL = (*TOUCHES, *MESSAGES, *BLOCKS, *RETURNED)


@pytest.fixture
def publisher(node: Node) -> Iterator[Node]:
    """The shared node with the tables."""
    for sql in TABLES:
        node.sql(sql)
    yield node
    for table in NAMES:
        node.sql(f"drop table same.{table}")
    node.sql("drop schema same")


DEFINITIONS = (
    "create table same.d (i int primary key)",
    "create table if not exists same.d (i int primary key)",
    "drop table if exists same.nope",
    "alter table if exists same.nope add v text",
    "alter table same.d add v text",
    "insert into same.d values (1, 'one')",
    "alter table same.d alter v type varchar(9)",
    "alter table same.d alter v set default 'v', alter v set not null",
    "insert into same.d values (2, 'two')",
    "alter table same.d rename to e",
    "alter table same.e replica identity full",
    "delete from same.e",
    "create schema other",
    "create schema if not exists other",
    "create role someone",
    "grant select on same.e to someone",
    "revoke select on same.e from someone",
    "alter role someone login",
    "create publication dp for table same.e",
    "alter publication dp set (publish = 'insert')",
    "drop publication if exists nope",
    "drop role if exists nope",
    "drop schema if exists nope",
    "begin; drop publication dp; create publication dp for table same.e;"
    " alter publication dp drop table same.e; commit",
    "begin; drop publication dp; rollback",
    "create subscription ds connection 'dbname=x' publication p with (connect = false)",
    "alter subscription ds set (slot_name = none)",
    "drop subscription ds",
    "drop publication dp",
    "drop table same.e",
    "drop schema other",
    "drop role someone",
)


@pytest.mark.slow
def test_definitions_are_empty_transactions(
    publisher: Node, database: Callable[[int], Database]
) -> None:
    """Statement by statement as PostgreSQL's; pgoutput tells nobody of them."""
    node, server = publisher, database(17)
    server.psql("create schema same")
    both: dict[str, Callable[[str], list[str]]] = {
        "node": lambda sql: [str(row[0]) for row in node.sql(sql)],
        "server": lambda sql: server.psql(sql).splitlines(),
    }
    results = []
    for sql in both.values():
        sql("create publication rows for all tables with (publish = 'truncate')")
        for slot in ("same", "skipping"):
            sql(f"select pg_create_logical_replication_slot('{slot}', 'test_decoding')")
        sql("select pg_create_logical_replication_slot('rows', 'pgoutput')")
        get = "select data from pg_logical_slot_get_changes('{}', null, null{})"
        told = []
        for statement in DEFINITIONS:
            sql(statement)
            lines = sql(get.format("same", ", 'include-xids', '0'"))
            told.append((statement, lines))
        options = ", 'include-xids', '0', 'skip-empty-xacts', '1'"
        skipping = sql(get.format("skipping", options))
        rows = sql(
            "select data from pg_logical_slot_get_binary_changes('rows', null, null,"
            " 'proto_version', '1', 'publication_names', 'rows')"
        )
        sql("drop publication rows")
        for slot in ("same", "skipping", "rows"):
            sql(f"select pg_drop_replication_slot('{slot}')")
        results.append((told, skipping, rows))
    mine, theirs = results
    for one, other in zip(mine[0], theirs[0], strict=True):
        assert one == other
    assert mine == theirs
    assert mine[0][0][1] == ["BEGIN", "COMMIT"] and len(mine[1]) == 10 and not mine[2]


def decoded(
    sql: Callable[[str], list[str]], call: str, *, as_told: bool = False
) -> list[list[str]]:
    """What a function of the slot gives, by transaction; in each in an order that does not depend
    on that of rows or tables, unless ``as_told``."""
    found: list[list[str]] = []
    names: dict[Oid, str] = {}
    for line in sql(f"select data from {call}"):
        text = line if not line.startswith("\\x") else said(line, names)
        if text.startswith("BEGIN"):
            found.append([])
        elif text and not text.startswith("COMMIT"):
            found[-1].append(text)
    return [one if as_told else sorted(one) for one in found if one]


def said(payload: str, names: dict[Oid, str]) -> str:
    """A message of pgoutput; relations by their names, which it may tell."""
    message = read_message(bytes.fromhex(payload.removeprefix("\\x")))
    if isinstance(message, Begin):
        return "BEGIN"
    if isinstance(message, RelationMessage):
        names[message.relation.relid] = message.relation.name
    if isinstance(message, Truncate):
        tables = sorted(names[relid] for relid in message.relids)
        return f"TRUNCATE {tables} {message.options}"
    if isinstance(message, LogicalMessage):
        return f"message {message.prefix} {message.content!r} {message.transactional}"
    if isinstance(message, Insert | Update | Delete):
        return f"{names[message.relid]} {replace(message, relid=Oid(0))}"
    return ""


@pytest.mark.slow
@pytest.mark.parametrize("plugin", ["test_decoding", "pgoutput"])
def test_statements_are_decoded_as_postgresql_decodes_them(
    publisher: Node, database: Callable[[int], Database], plugin: str
) -> None:
    # PostgreSQL 17 as it is installed has test_decoding, the wheel of 18 has not.
    node, server = publisher, database(18 if plugin == "pgoutput" else 17)
    for table in TABLES:
        server.psql(table)
    statements: tuple[str, ...] = (*KEYS, *WHOLE, *UNKNOWN, *TRUNCATES)
    if plugin == "pgoutput":
        statements = (*KEYS[:4], *WHOLE[:3], *TRUNCATES[1:3])
    both: dict[str, Callable[[str], list[str]]] = {
        "node": lambda sql: [str(row[0]) for row in node.sql(sql)],
        "server": lambda sql: server.psql(sql).splitlines(),
    }
    results = []
    for sql in both.values():
        listed = "same.t, same.pair, same.whole, same.fully, same.counted"
        sql(f"create publication same for table {listed}")
        sql(f"create publication inserts for table {listed} with (publish = 'insert')")
        sql(f"select pg_create_logical_replication_slot('same', '{plugin}')")
        for statement in statements:
            sql(statement)
        calls = ["pg_logical_slot_get_changes('same', null, null)"]
        if plugin == "pgoutput":
            options = "null, null, 'proto_version', '2', 'publication_names'"
            calls = [
                f"pg_logical_slot_peek_binary_changes('same', {options}, 'inserts')",
                f"pg_logical_slot_get_binary_changes('same', {options}, 'same')",
            ]
        results.append([decoded(sql, call) for call in calls])
        sql("select pg_drop_replication_slot('same')")
    node.sql("drop publication same")
    node.sql("drop publication inserts")
    mine, theirs = results
    for statement, one, other in zip(statements, mine[-1], theirs[-1], strict=True):
        assert ordered(one) == ordered(other), statement
    assert mine == theirs or plugin == "test_decoding"


@pytest.mark.parametrize("plugin", ["test_decoding", "pgoutput"])
@pytest.mark.slow
def test_each_statement_of_a_transaction_is_told(
    publisher: Node, database: Callable[[int], Database], plugin: str
) -> None:
    node, server = publisher, database(18 if plugin == "pgoutput" else 17)
    for table in TABLES:
        server.psql(table)
    both: dict[str, Callable[[str], list[str]]] = {
        "node": lambda sql: [str(row[0]) for row in node.sql(sql)],
        "server": lambda sql: server.psql(sql).splitlines(),
    }
    results = []
    for sql in both.values():
        sql("create publication told for all tables")
        sql(f"select pg_create_logical_replication_slot('told', '{plugin}')")
        for statement in ALL:
            sql(statement)
        call = "pg_logical_slot_get_changes('told', null, null)"
        if plugin == "pgoutput":
            call = (
                "pg_logical_slot_get_binary_changes('told', null, null,"
                " 'proto_version', '2', 'publication_names', 'told', 'messages', 'true')"
            )
        results.append(decoded(sql, call, as_told=True))
        sql("select pg_drop_replication_slot('told')")
        sql("drop publication told")
    mine, theirs = results
    for statement, one, other in zip(ALL, mine, theirs, strict=True):
        assert one == other, statement
    wait_until(
        lambda: not list((node.directory / "log/publish/statements").iterdir()),
        describe="nothing is left of what was captured",
    )


def ordered(changes: list[str]) -> list[str]:
    """The tables of a TRUNCATE by name."""
    found = []
    for one in changes:
        truncated = re.fullmatch(r"table (.*): TRUNCATE: (.*)", one)
        if truncated is not None:
            one = f"TRUNCATE {sorted(truncated[1].split(', '))} {truncated[2]}"
        found.append(one)
    return sorted(found)


def differs(copy: Database, table: str) -> str:
    return f"{table} equal\n{copy.server.log_text()[-3000:]}"


@pytest.mark.slow
def test_a_subscriber_follows_keys_that_change(publisher: Node, pg18: Database) -> None:
    node, copy = publisher, pg18
    for sql in TABLES:
        if not sql.startswith("insert"):
            copy.psql(sql)
    node.sql("create role reader login superuser replication password 'secret'")
    node.sql(
        "create publication same for table same.t where (id > 0), same.whole, same.fully"
    )
    address = re.sub(r"user=\S+|password=\S+", "", node.conninfo())
    copy.psql(
        f"create subscription same connection $${address} user=reader password=secret$$"
        " publication same"
    )
    for statement in NET:
        node.sql(statement)
    for table, rows in (("t", "id > 0"), ("whole", "true"), ("fully", "true")):
        sql = f"select * from same.{table} where {rows} order by 1, 2"
        wanted = "\n".join("|".join(v or "" for v in row) for row in node.sql(sql))
        wait_until(
            partial(answers, copy.psql, sql, wanted.strip()),
            timeout_seconds=90,
            describe=partial(differs, copy, table),
        )
    assert copy.psql("select apply_error_count from pg_stat_subscription_stats") == "0"
    copy.psql("drop subscription same")
    node.sql("drop publication same")
    node.sql("drop role reader")
