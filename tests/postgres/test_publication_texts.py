"""Publications, stated at PostgreSQL 18 and at the node's commands: the same tags, errors and
notices, the same rows of the catalogs, the same texts of row filters.

The node's part needs no Spark: tables have no storage, and the system views are asked by
themselves. What may differ is in ``DIFFERENT`` and ``REFUSED`` with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import Database
from tests.fakes.publication_script import (
    FILTERED,
    FILTERS,
    SCRIPT,
    SETUP,
    STATES,
    WRITES,
)
from tests.fakes.publishing import Answer, PublishingNode

from wal2lake.pg.client import Client, Failure

DIFFERENT = {
    "drop role alice": "public's OID is below that of the database there",
}
"""Statements with another answer, and why."""

REFUSED = (
    *("i4 = any (array[1, 2]::int4[])", "t ~ '(a|b)+'", "t ~ v"),
    *("n / 2 > 1", "t ilike 'x'", "(i4, i8) = (1, 2)"),
    *("row(i4, i8) = row(1, 2)", "t collate \"POSIX\" = 'x'"),
    *(
        "js = '1'",
        "js -> 'a' = js",
        "tm = '10:00'",
        "i4 << 1 = 2",
        "i4 & 1 = 1",
        "i4 ^ 2 = 1",
    ),
    *("lower(t) = 'x'", "upper(v) = 'X'", "jb = '1'"),
    "substring(t from 1 for 2) = 'x'",
)
"""Row filters that PostgreSQL reads and the node refuses with 0A000."""

ELSEWHERE = ("v in ('a', 'b')",)
"""Row filters of whose error PostgreSQL does not say where it is: it converts an array."""


class Server:
    """PostgreSQL's side."""

    def __init__(self, database: Database) -> None:
        self.database = database
        self._told: list[Answer] = []
        self._clients: dict[str, Client] = {}

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        for client in self._clients.values():
            client.close()

    def _client(self, role: str) -> Client:
        if role not in self._clients:
            client = Client(self.database.conninfo(), on_notice=self._tell)
            self._clients[role] = client
            if role != "postgres":
                list(client.run(f"set session authorization {role}"))
        return self._clients[role]

    def _tell(self, one: Failure) -> None:
        fields = one.severity, one.sqlstate, one.message, one.detail, one.hint
        is_error = one.severity == "ERROR"
        self._told.append((*fields, one.position) if is_error else fields)

    def run(self, sql: str, role: str = "postgres") -> list[Answer]:
        """One statement; what its client is told."""
        for outcome in self._client(role).run(sql):
            if isinstance(outcome, Failure):
                self._tell(outcome)
            else:
                rows = tuple(outcome.rows) if outcome.columns else (outcome.tag,)
                self._told.append(rows)
        told, self._told = self._told, []
        return told


@pytest.fixture
def server(pg18: Database) -> Iterator[Server]:
    with Server(pg18) as found:
        yield found


def _split(sql: str) -> tuple[str, str]:
    if not sql.startswith("@"):
        return "postgres", sql
    role, _, rest = sql[1:].partition(" ")
    return role, rest


@pytest.fixture
def node(
    tmp_path: Path, no_fsync: None, monkeypatch: pytest.MonkeyPatch
) -> PublishingNode:
    return PublishingNode(tmp_path, monkeypatch)


def _statements(database: str) -> list[str]:
    return [sql.format(database=database) for sql in (*SETUP, *SCRIPT)]


def test_statements_about_publications_are_answered_as_postgresql_does(
    server: Server, node: PublishingNode
) -> None:
    database = server.database.name
    ours, theirs = _statements("lake"), _statements(database)
    differences = []
    try:
        for mine, other in zip(ours, theirs, strict=True):
            expected = server.run(_split(other)[1], _split(other)[0])
            expected = [
                tuple(
                    part.replace(f"database {database}", "database lake")
                    if isinstance(part, str)
                    else part
                    for part in one
                )
                for one in expected
            ]
            found = node.run(_split(mine)[1], _split(mine)[0])
            if found != expected and mine not in DIFFERENT:
                differences.append(
                    f"{mine}\n  PostgreSQL: {expected}\n  node:       {found}"
                )
        for sql in STATES:
            expected = server.run(sql)
            found = node.run(sql)
            if found != expected:
                differences.append(
                    f"{sql}\n  PostgreSQL: {expected}\n  node:       {found}"
                )
    finally:
        roles = "alice, bob, carol"
        server.run(f"drop owned by {roles} cascade")
        server.run(f"drop role {roles}")
    assert not differences, "\n".join(differences)


def test_row_filters_are_accepted_and_shown_as_postgresql_does(
    server: Server, node: PublishingNode
) -> None:
    shown = (
        "select pg_get_expr(prqual, prrelid) from pg_publication_rel r"
        " join pg_publication p on p.oid = prpubid where pubname = 'fp'"
    )
    differences, refused = [], set()
    for one in (server, node):
        assert one.run(FILTERED) == [("CREATE TABLE",)]
    for text in FILTERS:
        answers = []
        for one in (server, node):
            found = one.run(f"create publication fp for table f where ({text})")
            if found == [("CREATE PUBLICATION",)]:
                found = one.run(shown)
                one.run("drop publication fp")
            answers.append(found)
        expected, found = answers
        if found == expected:
            continue
        if text in ELSEWHERE and found[0][:-1] == expected[0][:-1]:
            continue
        if found[0][1:2] == ("0A000",) and "is not supported" in str(found[0][2]):
            refused.add(text)
            continue
        differences.append(f"{text}\n  PostgreSQL: {expected}\n  node:       {found}")
    assert not differences, "\n".join(differences)
    assert refused == set(REFUSED)


@pytest.mark.parametrize("identity", ["default", "full", "nothing"])
def test_updates_and_deletes_of_published_tables_are_refused_as_postgresql_does(
    server: Server, node: PublishingNode, identity: str
) -> None:
    tables = {
        "w": "update w set b = 0",
        "wn": "update wn set a = 0",
        "pt": "update pt set a = 0",
    }
    for sql in WRITES:
        if sql.startswith("create table"):
            assert server.run(sql) == node.run(sql)
    for table in (*tables, "pd"):
        change = f"alter table {table} replica identity {identity}"
        assert server.run(change) == node.run(change)
    differences = []
    for sql in WRITES:
        if sql.startswith("create table"):
            continue
        assert server.run(sql) == node.run(sql) == [("CREATE PUBLICATION",)]
        for table, update in tables.items():
            for verb, statement in (
                ("UPDATE", update),
                ("DELETE", f"delete from {table}"),
            ):
                told = server.run(statement)[0]
                expected = told[1:-1] if told[0] == "ERROR" else (verb,)
                found = node.write(table, verb)
                if found != expected:
                    differences.append(f"{sql}; {verb} {table}: {expected} {found}")
        server.run("drop publication w1")
        node.run("drop publication w1")
    assert not differences, "\n".join(differences)
