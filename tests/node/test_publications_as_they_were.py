"""A backlog is sent as publications and tables were when it was written: the same statements at a
node and at PostgreSQL 18, read when all of them are over."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from tests.conftest import Database

from wal2lake.model import Oid
from wal2lake.testing.node import Node
from wal2lake.wire.pgoutput import (
    Begin,
    Delete,
    Insert,
    RelationMessage,
    Truncate,
    Update,
    read_message,
)

STATEMENTS = (
    "insert into was.a values (1, 'one')",
    "insert into was.b values (1, 'not yet')",
    "alter publication was add table was.b where (id > 10)",
    "insert into was.b values (11, 'sent'), (2, 'filtered')",
    "alter publication was set table was.a (id), was.b where (id > 20)",
    "insert into was.a values (3, 'of which the number')",
    "insert into was.b values (12, 'filtered'), (21, 'sent')",
    "alter publication was set (publish = 'delete')",
    "insert into was.a values (5, 'an operation that is not sent')",
    "delete from was.a where id = 3",
    "alter publication was set (publish = 'insert, update, delete, truncate')",
    "alter publication was drop table was.a",
    "insert into was.a values (6, 'between two times')",
    "alter publication was add table was.a",
    "insert into was.a values (7, 'again')",
    "alter table was.b rename column id to number",
    "insert into was.b values (13, 'filtered'), (22, 'sent')",
    "alter table was.a rename to renamed",
    "update was.renamed set v = 'seven' where id = 7",
    "alter table was.renamed set schema been",
    "insert into been.renamed values (8, 'moved')",
    "alter publication was rename to later",
    "insert into been.renamed values (9, 'published by nobody')",
    "alter publication later rename to was",
    "begin; insert into been.renamed values (10, 'ten'); delete from was.b; commit",
    "alter table was.b replica identity full",
    "insert into was.b values (23, 'whole')",
    "update was.b set v = 'with an old row' where number = 23",
    "alter table was.b replica identity default",
    "alter table was.b add column more int default 5",
    "insert into was.b values (24, 'more')",
    "alter table was.b drop column v",
    "insert into was.b values (25)",
    "drop table been.renamed",
    "drop publication was",
    "insert into was.b values (30)",
    "create publication was for tables in schema been",
    "create table been.c (id int primary key)",
    "insert into been.c values (1)",
    "insert into was.b values (31)",
    "drop publication was",
    "create publication was for all tables",
    "insert into been.c values (2)",
    "insert into was.b values (32)",
    "truncate was.b",
    "drop table was.b, been.c",
    "drop publication was",
)


def said(payload: str, names: dict[Oid, str]) -> str:
    """A message; relations by their names and columns of then."""
    message = read_message(bytes.fromhex(payload.removeprefix("\\x")))
    if isinstance(message, Begin):
        return "begin"
    if isinstance(message, RelationMessage):
        found = message.relation
        columns = ", ".join(column.name for column in found.columns)
        names[found.relid] = f"{found.namespace}.{found.name} ({columns})"
    if isinstance(message, Truncate):
        return f"truncate {[names[relid] for relid in message.relids]}"
    if isinstance(message, Insert | Update | Delete):
        return f"{names[message.relid]} {replace(message, relid=Oid(0))}"
    return ""


def transactions(payloads: list[str]) -> list[list[str]]:
    """Of each that is not empty what is said, in an order that does not depend on that of rows."""
    names: dict[Oid, str] = {}
    found: list[list[str]] = []
    for payload in payloads:
        text = said(payload, names)
        if text == "begin":
            found.append([])
        elif text:
            found[-1].append(text)
    return [sorted(one) for one in found if one]


def test_a_backlog_is_sent_as_it_was_published(node: Node, pg18: Database) -> None:
    both: dict[str, Callable[[str], list[str]]] = {
        "node": lambda sql: [str(row[0]) for row in node.sql(sql)],
        "server": lambda sql: pg18.psql(sql).splitlines(),
    }
    results = []
    for sql in both.values():
        sql("create schema was")
        sql("create schema been")
        sql("create table was.a (id int primary key, v text)")
        sql("create table was.b (id int primary key, v text)")
        sql("create publication was for table was.a")
        sql("select pg_create_logical_replication_slot('was', 'pgoutput')")
        for statement in STATEMENTS:
            sql(statement)
        found = sql(
            "select data from pg_logical_slot_get_binary_changes('was', null, null,"
            " 'proto_version', '2', 'publication_names', 'was')"
        )
        results.append(transactions(found))
        sql("select pg_drop_replication_slot('was')")
        sql("drop schema was")
        sql("drop schema been")
    mine, theirs = results
    for one, other in zip(mine, theirs, strict=False):
        assert one == other
    assert len(mine) == len(theirs) > 15
