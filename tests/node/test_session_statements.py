"""Cursors and PREPARE at the front door answer as PostgreSQL does."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from wal2lake.testing.node import Node
from wal2lake.testing.postgres import PostgresServer

TABLE = "create table numbers (i int primary key, t text)"

DATABASE = "session_statements"


@pytest.fixture(scope="module")
def sides(
    node: Node, postgres_server: Callable[[int], PostgresServer]
) -> Iterator[tuple[str, str]]:
    """Connection strings of a node and of PostgreSQL 18 with the same table."""
    server = postgres_server(18)
    server.psql(f"create database {DATABASE}")
    both = node.conninfo(), server.conninfo(DATABASE)
    for conninfo in both:
        with psycopg.connect(conninfo, autocommit=True) as connection:
            connection.execute(TABLE)
            connection.execute(
                "insert into numbers values "
                + ", ".join(f"({i}, 'row {i}')" for i in range(1, 8))
            )
    yield both
    node.sql("drop table numbers")
    server.psql(f"drop database {DATABASE}")


def answers(conninfo: str, statements: list[str]) -> list[Any]:
    """Run statements in one session; return tags with rows, and errors."""
    found: list[Any] = []
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for statement in statements:
            try:
                cursor = connection.execute(statement)
                rows = cursor.fetchall() if cursor.description else []
                found.append((statement, cursor.statusmessage, rows))
            except psycopg.Error as error:
                diagnostic = error.diag
                found.append(
                    (
                        statement,
                        diagnostic.sqlstate,
                        diagnostic.message_primary,
                        diagnostic.message_hint,
                    )
                )
    return found


QUERY = "select i, t from numbers order by i"

SCRIPTS = {
    "forward only": [
        "begin",
        f"declare c no scroll cursor for {QUERY}",
        "fetch c",
        "fetch 2 from c",
        "fetch forward 1 in c",
        "move c",
        "fetch absolute 6 from c",
        "fetch all c",
        "fetch next from c",
        "fetch prior from c",
        "fetch c",
        "rollback",
        "fetch c",
    ],
    "only in a block": [
        f"declare c cursor for {QUERY}",
        "fetch c",
        "close c",
        "close all",
    ],
    "names": [
        "begin",
        f'declare "A b" cursor for {QUERY}',
        'fetch 1 "A b"',
        "savepoint s",
        f'declare "A b" cursor for {QUERY}',
        "rollback",
        "begin",
        'declare "" cursor for select 1',
        "rollback",
        "begin",
        "declare next cursor for select 1",
        "fetch next",
        "fetch next next",
        "close next",
        "commit",
    ],
    "options": [
        "begin",
        "declare c scroll no scroll cursor for select 1",
        "rollback",
        "begin",
        "declare c insensitive asensitive cursor for select 1",
        "rollback",
        "begin",
        "declare c insensitive scroll cursor without hold for select 1",
        "commit",
    ],
    "held": [
        "begin",
        f"declare h scroll cursor with hold for {QUERY}",
        "fetch 2 h",
        f"declare n no scroll cursor with hold for {QUERY}",
        "fetch 3 n",
        "delete from numbers where i = 7",
        "rollback",
        "fetch h",
        "begin",
        f"declare h scroll cursor with hold for {QUERY}",
        "fetch 2 h",
        f"declare n no scroll cursor with hold for {QUERY}",
        "fetch 3 n",
        "commit",
        "fetch 2 h",
        "fetch backward all h",
        "fetch 2 n",
        "fetch absolute 1 from n",
        "select 1/0",
        "fetch all n",
        "close n",
        "fetch n",
        "discard all",
        "fetch h",
    ],
    "held at once": [
        f"declare h cursor with hold for {QUERY}",
        "fetch 2 h",
        "close h",
    ],
    "savepoints": [
        "begin",
        f"declare a cursor for {QUERY}",
        "savepoint s",
        f"declare b cursor for {QUERY}",
        "fetch b",
        "rollback to s",
        "fetch a",
        f"declare b cursor for {QUERY}",
        "release s",
        "savepoint s",
        "rollback to s",
        "fetch b",
        "fetch a",
        "commit",
    ],
    "syntax": [
        "declare c cursor for delete from numbers",
        "declare c cursor for select from where",
        "fetch absolute from c",
        "fetch 1",
        "fetch forward backward c",
        "move",
        "close",
        "declare c cursor",
    ],
    "prepare": [
        "prepare q(int) as select $1 + 1",
        "execute q(1)",
        "execute q('2')",
        "execute q('2'::text)",
        "execute q(1, 2)",
        "execute q",
        "execute nope(1)",
        "prepare q(int) as select 1",
        "prepare r(nope) as select $1",
        "prepare s as insert into numbers values ($1, $2)",
        "execute s(101, 'a')",
        "execute s(102.6, null)",
        "execute s('x', 'a')",
        "execute s(101, 'twice')",
        "prepare t as begin",
        "prepare u (int, text) as update numbers set t = $2 where i = $1",
        "execute u(101, 'b' || repeat('c', 3))",
        "select i, t from numbers where i > 100 order by i",
        "begin",
        "execute s(105, '(,')",
        "execute u(105, 'd')",
        "select i, t from numbers where i > 104",
        "rollback",
        "deallocate q",
        "execute q(1)",
        "prepare as select 1",
        "execute q(",
        "execute q(1,)",
        "execute q()",
        "prepare x (numeric(5, 2), varchar(3)) as select $1, $2",
        "execute x(1.555, 'abcdef')",
        "prepare d as delete from numbers where i > $1",
        "execute d(100)",
        "deallocate all",
    ],
    "of constants": [
        "begin",
        "declare c cursor for values (1, 'a'), (2, null)",
        "fetch all c",
        "declare d cursor for select count(*) from numbers",
        "fetch all d",
        "declare e cursor for select i from numbers where i > 100",
        "fetch all e",
        "move all in c",
        "commit",
    ],
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_session_gets_the_answers_of_postgresql(
    sides: tuple[str, str], name: str
) -> None:
    node, server = sides
    assert answers(node, SCRIPTS[name]) == answers(server, SCRIPTS[name])


STRINGS = (
    "declare c cursor for select 'é' from where",
    "/* é */ declare c cursor for select 1, from numbers",
    "declare c cursor for /* é */ select i from numbers limit 1, 2",
    "declare c cursor for select (select i frum from numbers)",
    "declare c cursor for insert into numbers values (1)",
    "begin; declare c cursor for select 'é'; fetch c; declare d cursor for select from from",
    "declare c cursor for select E'\\000'",
    "prepare q as select 'é' +",
    "prepare q (int,) as select 1",
    "prepare q (numeric(5, ) as select 1",
    "prepare q (int) as update numbers set where i = $1",
    "prepare q (int) as insert into numbers values ($1, 'é'",
    "prepare q (int) as select $1a",
    "select 'é'; prepare q as prepare r as select 1",
    "select 'é'; prepare q as select 1; execute q (1 +)",
    "execute q ('é', i from)",
    "execute q (1, (select i, from numbers))",
    "execute q (case when 'é' then end)",
    "select 'é'; fetch 'a' from c",
)


@pytest.mark.parametrize("is_prepared", [False, True])
def test_syntax_errors_in_inner_queries_have_their_places(
    sides: tuple[str, str], is_prepared: bool
) -> None:
    def errors(conninfo: str) -> list[Any]:
        failures = []
        with psycopg.connect(conninfo, autocommit=True) as connection:
            for string in STRINGS:
                with pytest.raises(psycopg.Error) as caught:
                    connection.execute(string, prepare=is_prepared)
                said = caught.value.diag
                place = said.statement_position
                failures.append((string, said.sqlstate, said.message_primary, place))
        return failures

    node, server = sides
    assert errors(node) == errors(server)


def test_directions_at_random_go_where_postgresql_goes(sides: tuple[str, str]) -> None:
    chance = random.Random(7)
    script = ["begin", f"declare c scroll cursor for {QUERY}"]
    for _ in range(300):
        count = chance.choice([-9, -7, -3, -2, -1, 0, 1, 2, 3, 7, 9])
        direction = chance.choice(
            ["next", "prior", "first", "last", "all", "backward all", "forward all"]
            + [f"{word} {count}" for word in ("absolute", "relative", "forward")] * 2
            + [f"backward {count}", str(count)]
        )
        verb = chance.choice(["fetch", "fetch", "move"])
        script.append(f"{verb} {direction} from c")
    node, server = sides
    assert answers(node, script) == answers(server, script)


def test_named_cursors_of_psycopg_read_large_results_in_portions(
    sides: tuple[str, str],
) -> None:
    query = "select g, repeat('x', 100) from generate_series(1, %s) g order by g"
    with (
        psycopg.connect(sides[0]) as connection,
        connection.cursor("large") as cursor,
    ):
        cursor.itersize = 5000
        cursor.execute(query, (60_000,))
        assert cursor.description is not None
        assert [column.name for column in cursor.description] == ["g", "repeat"]
        numbers = [row[0] for row in cursor]
    assert numbers == list(range(1, 60_001))


def test_a_cursor_with_scroll_goes_back_over_rows_that_are_on_the_disk(
    sides: tuple[str, str],
) -> None:
    query = "select g, repeat('x', 200) from generate_series(1, 50000) g order by g"
    with psycopg.connect(sides[0]) as connection:
        connection.execute(f"declare c scroll cursor for {query}")
        connection.execute("move all c")
        rows = connection.execute("fetch backward all c").fetchall()
        assert [row[0] for row in rows] == list(range(50_000, 0, -1))
        one = connection.execute("fetch absolute 31234 c").fetchall()
        assert one == [(31234, "x" * 200)]


def test_a_cursor_that_goes_backward_needs_scroll(sides: tuple[str, str]) -> None:
    with psycopg.connect(sides[0]) as connection:
        connection.execute(f"declare c cursor for {QUERY}")
        connection.execute("fetch 2 c")
        with pytest.raises(psycopg.errors.ObjectNotInPrerequisiteState) as caught:
            connection.execute("fetch prior c")
        hint = "Declare it with SCROLL option to enable backward scan."
        assert caught.value.diag.message_hint == hint
        connection.rollback()
        connection.execute(f"declare c scroll cursor for {QUERY}")
        connection.execute("fetch 2 c")
        assert connection.execute("fetch prior c").fetchall() == [(1, "row 1")]


def test_values_in_binary_format_are_refused(sides: tuple[str, str]) -> None:
    with psycopg.connect(sides[0]) as connection:
        connection.execute(f"declare c cursor for {QUERY}")
        with pytest.raises(psycopg.errors.FeatureNotSupported):
            connection.execute("fetch 1 c", binary=True)
    with (
        psycopg.connect(sides[0]) as connection,
        pytest.raises(psycopg.errors.FeatureNotSupported),
    ):
        connection.execute("declare c binary cursor for select 1")
