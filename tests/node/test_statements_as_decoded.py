"""One workload at a node and at PostgreSQL: their plugins tell the same of each transaction."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from tests.conftest import Database

from wal2lake.model import Oid
from wal2lake.testing.node import Node
from wal2lake.wire.pgoutput import (
    Delete,
    Insert,
    RelationMessage,
    Truncate,
    Update,
    read_message,
)

TABLES = (
    "create schema same",
    "create table same.t (id int primary key, v text)",
    "create table same.pair (a int, v text, b text, n numeric(6,2), primary key (b, a))",
    "create table same.counted (id serial primary key, v text)",
    "insert into same.t values (1, 'one'), (2, 'two'), (3, null)",
    "insert into same.pair values (1, 'v', 'x', 1.50), (2, null, 'it''s', null)",
)

TRUNCATES = (
    "insert into same.counted (v) values ('a')",
    "truncate same.counted restart identity",
    "insert into same.counted (v) values ('b')",
    "truncate same.counted, same.pair restart identity cascade",
    "truncate same.t cascade",
    "begin; truncate same.t, same.pair cascade;"
    " insert into same.t values (8, 'eight'); commit",
    "begin; truncate same.t restart identity; truncate same.pair; commit",
    "begin; savepoint a; truncate same.t cascade; rollback to a;"
    " insert into same.t values (9, 'nine'); commit",
    "truncate same.t",
)


class Both:
    """A node and a server with the same tables, a slot of one plugin at each."""

    def __init__(self, node: Node, server: Database, plugin: str) -> None:
        self.node, self.server, self.plugin = node, server, plugin
        for sql in TABLES:
            self.run(sql)
        if plugin == "pgoutput":
            self.run("create publication same for tables in schema same")
        self.run(f"select pg_create_logical_replication_slot('same', '{plugin}')")

    def run(self, sql: str) -> None:
        """At both."""
        self.node.sql(sql)
        self.server.psql(sql)

    def close(self) -> None:
        """Leave nothing."""
        self.node.sql("select pg_drop_replication_slot('same')")
        if self.plugin == "pgoutput":
            self.node.sql("drop publication same")
        for (table,) in self.node.sql(
            "select relname from pg_class c join pg_namespace n on n.oid = relnamespace"
            " where nspname = 'same' and relkind = 'r'"
        ):
            self.node.sql(f"drop table same.{table}")
        self.node.sql("drop schema same")

    def said(self) -> tuple[list[str], list[str]]:
        """What the slots have now: of the node, of the server."""
        if self.plugin == "pgoutput":
            sql = (
                "select data from pg_logical_slot_get_binary_changes('same',"
                " null, null, 'proto_version', '2', 'publication_names', 'same')"
            )
            hexed = [str(row[0]) for row in self.node.sql(sql)]
            return messages(hexed), messages(self.server.psql(sql).splitlines())
        sql = "select data from pg_logical_slot_get_changes('same', null, null)"
        mine = [str(row[0]) for row in self.node.sql(sql)]
        return lines(mine), lines(self.server.psql(sql).splitlines())


def lines(found: list[str]) -> list[str]:
    """Changes of one transaction, in an order that does not depend on the rows' or tables'."""
    said = []
    for one in found:
        truncated = re.fullmatch(r"table (.*): TRUNCATE: (.*)", one)
        if truncated is not None:
            said.append(f"TRUNCATE {sorted(truncated[1].split(', '))} {truncated[2]}")
        elif not re.match(r"(BEGIN|COMMIT) ", one):
            said.append(one)
    return sorted(said)


def messages(found: list[str]) -> list[str]:
    """Likewise; relations by their names."""
    names: dict[Oid, str] = {}
    said = []
    for payload in (bytes.fromhex(one.removeprefix("\\x")) for one in found):
        if payload[:1] == b"R":
            relation = read_message(payload)
            assert isinstance(relation, RelationMessage)
            names[relation.relation.relid] = relation.relation.name
        if payload[:1] not in (b"I", b"U", b"D", b"T"):
            continue
        message = read_message(payload)
        if isinstance(message, Truncate):
            tables = sorted(names[relid] for relid in message.relids)
            said.append(f"TRUNCATE {tables} {message.options}")
        else:
            assert isinstance(message, Insert | Update | Delete)
            table = names[message.relid]
            said.append(f"{table} {replace(message, relid=Oid(0))}")
    return sorted(said)


@pytest.fixture(params=["test_decoding", "pgoutput"])
def both(
    request: pytest.FixtureRequest, node: Node, database: Callable[[int], Database]
) -> Both:
    """PostgreSQL 17 as it is installed has test_decoding, the wheel of 18 has pgoutput."""
    version = 18 if request.param == "pgoutput" else 17
    found = Both(node, database(version), request.param)
    request.addfinalizer(found.close)
    return found


def test_a_truncate_is_said_with_its_options(both: Both) -> None:
    for sql in TRUNCATES:
        both.run(sql)
        mine, theirs = both.said()
        assert mine == theirs and theirs, sql
