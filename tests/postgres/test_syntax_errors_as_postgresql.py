"""Errors of the scanner and the grammar: words, SQLSTATE, position, detail and hint of a server's.

``corpus/statements.json`` has statements of PostgreSQL's regression tests (src/test/regress/sql):
all that its grammar refuses, and a choice of those that it parses. They are only parsed. Each is
also changed at random: cut off, or with a token left out, repeated, or taken from another one.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import pq

from wal2lake.errors import Wal2LakeError
from wal2lake.sql.grammar import parse_string

TEXTS = (
    "selekt 1",
    "select 'é' from",
    "select 1; begin; selekt 2",
    "select $1a",
    "select 1a",
    "select 'abc",
    "select e'\\000'",
    "select e'\\xff'",
    "select e'\\u00'",
    "select e'\\ud800'",
    "select u&'\\00'",
    "select 1 limit 1, 2",
    "drop operator + (int)",
    "create role public",
    "create role current_user",
    "create role none",
    "create role r unencrypted password 'x'",
    "create schema if not exists s create table t (a int)",
    "alter table a.b.c.d add c int",
    "create assertion a check (true)",
    "create table t (a float(0))",
    "create table t (a float(54))",
    "create table t (a int, check (a > 0) deferrable)",
    "create table t (a int references b match partial)",
    "create table t (a int) partition by round (a)",
    "create table t partition of p for values with (modulus 1, modulus 2)",
    "select sum(a) over (rows between unbounded following and current row) from t",
    "select sum(a) over (rows between current row and 1 preceding) from t",
    "select unique (select 1)",
    "create publication p for t",
    "create or replace constraint trigger t after insert on a execute function f()",
    "alter index i alter column 70000 set statistics 1",
    "create policy p on t as strict",
    "alter publication p add t",
    "select json_array(returning text format json encoding utf64)",
)

CORPUS = Path(__file__).parent / "corpus" / "statements.json"
CHANGES = 3
"""Changed statements for each of the corpus."""

OF_THE_GRAMMAR = {"gram.y", "mbutils.c", "parser.c", "scan.l", "scansup.c"}
"""PostgreSQL's sources that report what is compared; all other errors mean that a text parses."""

TOKEN = re.compile(r"\s+|\w+|'[^']*'|[^\w\s]")


Failure = tuple[str, str, int, str, str]


def refused_by_server(connection: psycopg.Connection, sql: str) -> Failure | None:
    result = connection.pgconn.prepare(b"", sql.encode())
    if result.status != pq.ExecStatus.FATAL_ERROR:
        return None
    fields = pq.DiagnosticField
    file, sqlstate, message, place, detail, hint = (
        (result.error_field(field) or b"").decode()
        for field in (
            fields.SOURCE_FILE,
            fields.SQLSTATE,
            fields.MESSAGE_PRIMARY,
            fields.STATEMENT_POSITION,
            fields.MESSAGE_DETAIL,
            fields.MESSAGE_HINT,
        )
    )
    if file not in OF_THE_GRAMMAR:
        return None
    return sqlstate, message, int(place or 0), detail, hint


def refused_by_us(sql: str) -> Failure | None:
    try:
        parse_string(sql)
    except Wal2LakeError as error:
        said = error.sqlstate, error.message, error.position
        return *said, error.detail or "", error.hint or ""
    return None


@pytest.mark.parametrize("sql", TEXTS)
def test_an_error_is_the_servers(connection, sql):
    theirs = refused_by_server(connection, sql)
    assert theirs is not None
    assert refused_by_us(sql) == theirs


def changed(statements: list[str]) -> Iterator[str]:
    """Yield the statements with random errors in them."""
    chance = random.Random(35)
    for statement in statements * CHANGES:
        tokens = TOKEN.findall(statement)
        index = chance.randrange(len(tokens))
        other = chance.choice(TOKEN.findall(chance.choice(statements)))
        put = chance.choice(([], [tokens[index], " ", tokens[index]], [other]))
        rest = chance.choice((tokens[index + 1 :], tokens[index + 1 :], []))
        yield "".join([*tokens[:index], *put, *rest])


def test_statements_of_the_regression_tests_have_the_servers_errors(connection):
    statements = json.loads(CORPUS.read_text(encoding="utf-8"))
    texts = [*statements, *changed(statements)]
    differences = []
    errors = 0
    for sql in texts:
        theirs, ours = refused_by_server(connection, sql), refused_by_us(sql)
        errors += theirs is not None
        if ours != theirs:
            differences.append((sql, theirs, ours))
    assert differences == []
    assert len(statements) < errors < len(texts)
