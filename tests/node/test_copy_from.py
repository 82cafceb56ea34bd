"""COPY ... FROM STDIN: rows, tags and errors are PostgreSQL's for the same data."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg import pq
from tests.conftest import Database
from tests.node.conftest import Psql
from tests.node.test_returning import BothSides

from wal2lake.launch.directory.passfile import connection_parameters
from wal2lake.testing.node import Node

TABLES = """
create schema cf;
create table cf.t (id int, v text, n numeric(8,2), b bool, d date, at timestamptz, tm timestamp(0),
 f float8, u uuid, j jsonb, y bytea, c char(3), vc varchar(3), a int[], iv interval, ti time);
create table cf.two (a int, b text);
create table cf.one (a text);
create table cf.strict (id int primary key, w text not null, n int check (n < 100) default 7,
 g int generated always as (id * 2) stored);
create table cf.serial (id serial primary key, w text, k int default 3)
"""


class Copied:
    """What a COPY gives: its tag, or the fields of its error."""

    def __init__(self, side: Any) -> None:
        self._side = side

    def __call__(self, sql: str, data: Sequence[bytes]) -> tuple[Any, ...]:
        notices: list[tuple[str | None, ...]] = []

        def hear(diag: psycopg.errors.Diagnostic) -> None:
            notices.append((diag.severity, diag.message_primary, diag.context))

        self._side.add_notice_handler(hear)
        try:
            with self._side.cursor() as cursor:
                with cursor.copy(sql) as copy:
                    for part in data:
                        copy.write(part)
                return cursor.statusmessage, tuple(notices)
        except psycopg.Error as error:
            diag = error.diag
            return (
                diag.sqlstate,
                diag.message_primary,
                diag.message_detail,
                diag.message_hint,
                diag.context,
            )
        finally:
            self._side.remove_notice_handler(hear)


class Copies(BothSides):
    """Both sides, with COPY."""

    def copy(self, sql: str, *data: bytes, table: str = "") -> tuple[Any, ...]:
        """Run a COPY at both, whole and one byte after the other, and compare."""
        ours, theirs = (Copied(side)(sql, data) for side in self.sides)
        assert ours == theirs, (sql, data)
        name = table or sql.split()[1]
        if name.startswith("cf."):
            self.compare(f"select * from {name}")
        return ours


@pytest.fixture(scope="module")
def sides(node: Node, postgres_server: Callable[..., Any]) -> Iterator[Copies]:
    server = postgres_server(18)
    server.psql("create database of_copy_from")
    source = Database(server, "of_copy_from")
    with (
        psycopg.connect(source.conninfo(), autocommit=True) as theirs,
        psycopg.connect(node.conninfo(), autocommit=True) as ours,
    ):
        both = Copies(ours, theirs)
        both.both("set timezone = 'UTC'")
        for statement in TABLES.strip().split(";\n"):
            both.both(statement)
        yield both
        ours.rollback()
        ours.execute("drop schema cf cascade")
    server.psql("drop database of_copy_from with (force)")


TEXTS = [
    ("copy cf.two from stdin", b"1\tx\n2\t\\N\n3\t\n"),
    ("copy cf.two from stdin", b"4\tno newline at the end"),
    ("copy cf.two from stdin", b"5\ta\\tb\\\\c\\n\\x41\\101\\.\\q\n6\tq\\\nw\n"),
    ("copy cf.two from stdin", b"7\tx\r\n8\ty\r\n"),
    ("copy cf.two from stdin", b"9\tx\n\\.\n"),
    ("copy cf.two (b, a) from stdin", b"x\t10\n"),
    ("copy cf.two (b) from stdin", b"only\n"),
    ("copy cf.two from stdin with (delimiter '|', null '')", b"11|x\n12|\n|y\n"),
    ("copy cf.two from stdin (header)", b"a\tb\n13\tx\n"),
    ("copy cf.two from stdin (header match)", b"a\tb\n14\tx\n"),
    ("copy cf.two from stdin", b""),
    ("copy cf.one from stdin", b"\n\nx\n"),
    ("copy cf.two from stdin", "15\tgrün 日本\n".encode()),
    ("copy cf.two from stdin (encoding 'latin1')", "16\tgrün\n".encode("latin-1")),
]

CSVS = [
    ("copy cf.two from stdin csv", b'1,x\n2,\n3,""\n'),
    ("copy cf.two from stdin csv", b'4,"a,b"\n5,"a\nb"\n6,"a""b"\n7,a"b,c"d\n'),
    ("copy cf.two from stdin csv header", b'a,b\n8,"x"\n'),
    ("copy cf.two from stdin csv quote '''' escape '\\'", b"9,'a\\'b\\\\c'\n"),
    ("copy cf.two from stdin csv null 'NULL'", b'10,NULL\n11,"NULL"\n'),
    ("copy cf.two from stdin csv force not null b", b"12,\n"),
    ("copy cf.two from stdin (format csv, force_null (b))", b'13,""\n14,"x"\n'),
    ("copy cf.two from stdin (format csv, force_null *)", b'"",""\n'),
    ("copy cf.two from stdin csv delimiter ';'", b"15;x,y\r\n16;z\r\n"),
    ("copy cf.two from stdin csv", b'17,"\\."\n18,\\.\n'),
    ("copy cf.one from stdin csv", b'\n""\nx\n'),
]

REFUSED = [
    ("copy cf.two from stdin", b"1\tx\nabc\ty\n"),
    ("copy cf.two from stdin", b"1\tx\n99999999999\ty\n"),
    ("copy cf.two from stdin", b"1\tx\n2\n"),
    ("copy cf.two from stdin", b"1\tx\tz\n"),
    ("copy cf.two from stdin", b"\n"),
    ("copy cf.two from stdin", b"1\ta\rb\n"),
    ("copy cf.two from stdin", b"1\ta\r\n2\tb\n"),
    ("copy cf.two from stdin", b"1\tx\\.\n"),
    ("copy cf.two from stdin", b"1\t\xff\n"),
    ("copy cf.two from stdin", b"1\tx\n2\ta\0b\n"),
    ("copy cf.two from stdin", b"1\t" + b"long" * 60 + b"\tx\n"),
    ("copy cf.two from stdin csv", b'1,"x\n'),
    ("copy cf.two from stdin csv", b"1,x\n2\n"),
    ("copy cf.two from stdin csv", b'1,"a\nb"\n2,x,y\n'),
    ("copy cf.two from stdin csv", b'1,"a\nb"\nz,x\n'),
    ("copy cf.two from stdin (header match)", b"a\tc\n1\tx\n"),
    ("copy cf.two from stdin (header match)", b"a\n1\tx\n"),
    ("copy cf.two (a, a) from stdin", b""),
    ("copy cf.two (nothing) from stdin", b""),
    ("copy cf.nothing from stdin", b""),
    ("copy cf.strict (g) from stdin", b""),
    ("copy cf.two from stdin (force_null (a))", b""),
    ("copy cf.two (a) from stdin (format csv, force_null (b))", b""),
    ("copy cf.two (a) from stdin (format csv, force_not_null (b))", b""),
    ("copy cf.two from stdin (format csv, force_quote (a))", b""),
    ("copy cf.two from stdin (on_error nothing)", b""),
    ("copy cf.two from stdin (reject_limit 3)", b""),
    ("copy cf.two from stdin (format binary, on_error ignore)", b""),
    ("copy cf.strict (id, w) from stdin", b"1\tx\n2\t\\N\n"),
    ("copy cf.strict (id, w) from stdin", b"1\tx\n\\N\ty\n"),
    ("copy cf.strict (id, w, n) from stdin", b"1\tx\t5\n2\ty\t100\nz\tq\t1\n"),
    ("copy cf.strict (id, w, n) from stdin", b"1\tx\t5\nz\tq\t1\n2\ty\t100\n"),
    ("copy cf.t (n) from stdin", b"1234567.89\n"),
    ("copy cf.t (n) from stdin", b"x\n"),
    ("copy cf.t (b) from stdin", b"maybe\n"),
    ("copy cf.t (d) from stdin", b"2024-02-30\n"),
    ("copy cf.t (d) from stdin", b"x\n"),
    ("copy cf.t (at) from stdin", b"2024-01-01 25:00:00\n"),
    ("copy cf.t (u) from stdin", b"x\n"),
    ("copy cf.t (vc) from stdin", b"abcd\n"),
    ("copy cf.t (c) from stdin", b"abcd\n"),
    ("copy cf.t (f) from stdin", b"1e400\n"),
    ("copy cf.t (iv) from stdin", b"x\n"),
]

SKIPPED = [
    ("copy cf.two from stdin (on_error ignore)", b"1\tx\nz\ty\n3\tw\nq\tq\n"),
    ("copy cf.two from stdin (on_error ignore, log_verbosity silent)", b"z\ty\n"),
    (
        "copy cf.two from stdin (on_error ignore, log_verbosity verbose)",
        b"z\ty\n4\tx\n",
    ),
    ("copy cf.two from stdin (on_error ignore, reject_limit 1)", b"z\ty\n4\tx\n"),
    ("copy cf.two from stdin (on_error ignore, reject_limit 1)", b"z\ty\n4\tx\nq\tr\n"),
    ("copy cf.two from stdin (on_error ignore)", b"z\ty\n4\n"),
    ("copy cf.serial (w, k) from stdin (on_error ignore)", b"a\tz\nb\t1\nc\t2\n"),
]

VALUES = b"""\
1\ttext\t1.005\tt\t2024-01-05\t2024-01-05 10:00:00+02\t2024-01-05 10:00:00.6\t1.5\t\
a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11\t{"b": 1, "a": [1]}\t\\\\x6162\tx\tabc\t{1,2,NULL}\t\
1 day\t10:00
 2 \t\t-0\tyes\t2024-1-6\t2024-01-05 10:00:00\t2024-01-05\tinf\t\
A0EEBC99-9C0B-4EF8-BB6D-6BB9BD380A11\t"x"\tab\tab \tab   \t{}\t1 day 02:03\t10:00:00.5
0x1F\t\\N\t1e3\toff\t2024-01-07\t2024-01-05T10:00:00Z\t2024-01-05T10:00\tNaN\t\\N\tnull\t\\N\t\\N\t\\N\t\
\\N\t-1 year 2 mons\t\\N
"""


def test_rows_of_texts(sides: Copies) -> None:
    for sql, data in TEXTS:
        sides.copy(sql, data)


@pytest.mark.slow
def test_rows_of_csv(sides: Copies) -> None:
    for sql, data in CSVS:
        sides.copy(sql, data)


def test_values_are_read_by_their_types(sides: Copies) -> None:
    sides.copy("copy cf.t from stdin", VALUES)
    sides.both("set timezone = 'Europe/Berlin'")
    sides.copy("copy cf.t (at) from stdin", b"2024-07-01 10:00\n2024-01-01 10:00:00\n")
    sides.both("set timezone = 'UTC'")


def test_errors_name_line_and_column(sides: Copies) -> None:
    for sql, data in REFUSED:
        found = sides.copy(sql, data)
        assert len(found) == 5, sql


def test_rows_that_cannot_be_read_are_skipped(sides: Copies) -> None:
    for sql, data in SKIPPED:
        sides.copy(sql, data)


def test_a_block_undoes_a_copy(sides: Copies) -> None:
    sides.both("truncate cf.two")
    for sql, data in (
        ("begin", b""),
        ("copy cf.two from stdin", b"1\tx\n2\ty\n"),
        ("savepoint s", b""),
        ("copy cf.two from stdin", b"3\tz\n"),
        ("rollback to s", b""),
        ("copy cf.two from stdin", b"4\tz\nbad\tz\n"),
        ("rollback to s", b""),
        ("copy cf.two from stdin", b"5\tw\n"),
        ("commit", b""),
        ("begin", b""),
        ("copy cf.two from stdin", b"6\tw\n"),
        ("rollback", b""),
    ):
        if sql.startswith("copy"):
            ours, theirs = (Copied(side)(sql, [data]) for side in sides.sides)
            assert ours == theirs
        else:
            sides.both(sql)
    sides.compare("select * from cf.two")


def test_keys_defaults_and_generated_columns(sides: Copies) -> None:
    sides.both("truncate cf.strict")
    sides.copy("copy cf.strict (id, w) from stdin", b"1\tx\n2\ty\n")
    for data in (b"3\tx\n1\ty\n", b"4\tx\n4\ty\n"):
        ours, theirs = (
            Copied(side)("copy cf.strict (id, w) from stdin", [data])
            for side in sides.sides
        )
        # The context of PostgreSQL has the line, too.
        assert ours[:4] == theirs[:4]
        assert ours[4] == "COPY strict"
    sides.copy("copy cf.serial (w) from stdin", b"x\ny\n")
    sides.compare("insert into cf.serial (w) values ('z') returning id")
    sides.compare("select * from cf.strict")


def test_binary_rows(sides: Copies) -> None:
    ours, theirs = sides.sides
    sides.both("truncate cf.t")
    sides.copy("copy cf.t from stdin", VALUES)
    with theirs.cursor().copy("copy cf.t to stdout binary") as copy:
        data = [bytes(part) for part in copy]
    ours.execute("truncate cf.t")
    assert Copied(ours)("copy cf.t from stdin binary", data)[0] == "COPY 3"
    sides.compare("select * from cf.t")
    for sql, broken in (
        ("copy cf.two from stdin binary", b"rubbish"),
        ("copy cf.two from stdin binary", data[0][:19]),
        ("copy cf.two from stdin binary", data[0]),
    ):
        sides.copy(sql, broken)


def test_the_client_ends_a_copy(sides: Copies) -> None:
    found = []
    fields = (
        pq.DiagnosticField.SQLSTATE,
        pq.DiagnosticField.MESSAGE_PRIMARY,
        pq.DiagnosticField.CONTEXT,
    )
    for side in sides.sides:
        connection = side.pgconn
        assert (
            connection.exec_(b"copy cf.two from stdin").status == pq.ExecStatus.COPY_IN
        )
        connection.put_copy_data(b"1\tx\n")
        connection.put_copy_end(b"enough")
        result = connection.get_result()
        found.append([result.error_field(field) for field in fields])
        assert connection.get_result() is None
        assert side.execute("select 1").fetchone() == (1,)
    assert found[0] == found[1]


def test_clients_load_tables(node: Node, psql: Psql, tmp_path: Path) -> None:
    node.sql("create table cf_clients (id int, w text, at timestamptz)")
    file = tmp_path / "rows.csv"
    file.write_text('id,w,at\n1,"a,b",2026-01-01 00:00:00+00\n2,,\n')
    done = psql(node.conninfo(), "-c", f"\\copy cf_clients from '{file}' csv header")
    assert (done.stdout.strip(), done.stderr) == ("COPY 2", "")
    done = psql(node.conninfo(), stdin="copy cf_clients from stdin;\n3\tx\t\\N\n\\.\n")
    assert done.stdout.strip() == "COPY 1"
    with psycopg.connect(node.conninfo()) as session, session.cursor() as cursor:
        with cursor.copy("copy cf_clients (id, w) from stdin") as copy:
            for row in ((4, "t\\a\tb"), (5, None)):
                copy.write_row(row)
        with cursor.copy("copy cf_clients (id, w) from stdin binary") as copy:
            copy.set_types(["int4", "text"])
            copy.write_row((6, "binary"))
        session.commit()

    async def records() -> None:
        parts = connection_parameters(node.directory)
        connection = await asyncpg.connect(
            host=str(parts["host"]),
            port=int(str(parts["port"])),
            user=str(parts["user"]),
            database=str(parts["dbname"]),
            passfile=str(parts["passfile"]),
        )
        when = dt.datetime(2026, 1, 2, tzinfo=dt.UTC)
        status = await connection.copy_records_to_table(
            "cf_clients", records=[(7, "r", when), (8, None, None)]
        )
        assert status == "COPY 2"
        status = await connection.copy_to_table(
            "cf_clients", source=file, format="csv", header=True
        )
        assert status == "COPY 2"
        await connection.close()

    asyncio.run(records())
    rows = node.sql("select id, w from cf_clients order by id, w")
    assert rows == [
        ("1", "a,b"),
        ("1", "a,b"),
        ("2", None),
        ("2", None),
        ("3", "x"),
        ("4", "t\\a\tb"),
        ("5", None),
        ("6", "binary"),
        ("7", "r"),
        ("8", None),
    ]
    node.sql("drop table cf_clients")
