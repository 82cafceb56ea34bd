"""COPY ... TO STDOUT, asked of PostgreSQL 18 and of the front door: the same bytes, tags and
errors.

The door's Backend is a fake that copies ``COPIED``, so everything is compared but the query.
"""

from __future__ import annotations

import psycopg
import psycopg.sql
import pytest
from psycopg import generators, pq
from tests.fakes.door import COPIED, open_door

STATEMENTS = r"""
copy t to stdout
copy t to stdin
COPY public.t (a, "C ""c"",\") TO STDOUT
copy t (b) to stdout
copy (select * from t) to stdout
copy binary t to stdout
copy t to stdout binary
copy t to stdout with binary
copy t to stdout with (format binary)
copy t to stdout (format 'text')
copy t to stdout (format "csv")
copy t to stdout csv
copy t (a) to stdout csv
copy t to stdout with csv header
copy t to stdout with (header)
copy t to stdout with (header true, format text)
copy t to stdout with (header 1, format csv)
copy t to stdout with (header off)
copy t to stdout with (format csv, header 0, force_quote *)
copy t to stdout with (format csv, force_quote (a, b))
copy t to stdout with csv force quote a, b
copy t to stdout csv header force quote *
copy t to stdout csv delimiter ';' null as 'x' quote as '''' escape '\'
copy t to stdout with (format csv, delimiter e'\t', null 'NULL', quote 'a', escape 'b')
copy t to stdout with (format csv, null '\N')
copy t to stdout with (delimiter '|', null '')
copy t to stdout with (delimiter ',', null 'NULL')
copy t to stdout using delimiters '|'
copy t to stdout delimiters '|' with null 'a'
copy t to stdout delimiter e'\x01'
copy t to stdout with (null '', header)
copy t (a, b) to stdout with (encoding 'utf-8', log_verbosity verbose)
copy t (b) to stdout encoding 'LATIN1'
copy t (a) to stdout encoding 'latin1'
copy t to stdout (format 'xml')
copy t to stdout (format)
copy t to stdout (format (a, b))
copy t to stdout (format text, format csv)
copy t to stdout csv binary
copy binary t to stdout csv
copy t to stdout (nosuch 1)
copy t to stdout (header 2)
copy t to stdout (header match)
copy t to stdout (header maybe)
copy t to stdout (format binary, delimiter ',')
copy t to stdout (format binary, null 'x')
copy t to stdout (format binary, default 'x')
copy t to stdout (format binary, header)
copy t to stdout (delimiter 'ab')
copy t to stdout (delimiter '')
copy t to stdout (delimiter 'é')
copy t to stdout (delimiter e'\n')
copy t to stdout (delimiter 'a')
copy t to stdout (delimiter '.')
copy t to stdout (null e'\r')
copy t to stdout (null 'a|b', delimiter '|')
copy t to stdout (format csv, null '"')
copy t to stdout (quote '"')
copy t to stdout (escape '"')
copy t to stdout (force_quote *)
copy t to stdout (force_null *)
copy t to stdout (format csv, force_null *)
copy t to stdout (format csv, force_not_null (a))
copy t to stdout csv force not null a
copy t to stdout (format csv, quote 'ab')
copy t to stdout (format csv, quote ',')
copy t to stdout (format csv, escape '')
copy t to stdout (format csv, force_quote a)
copy t to stdout (format csv, force_quote (a, nosuch))
copy (select * from t) to stdout (format csv, force_quote (nosuch))
copy t (a) to stdout (format csv, force_quote (b))
copy t to stdout (format csv, force_quote (a, a))
copy t to stdout (freeze)
copy t to stdout (freeze 3)
copy t to stdout freeze
copy t to stdout (default 'x')
copy t to stdout (on_error ignore)
copy t to stdout (reject_limit 3)
copy t to stdout (reject_limit 0)
copy t to stdout (log_verbosity loud)
copy t to stdout (encoding 'klingon')
copy t to stdout (encoding)
copy t (a, nosuch) to stdout
copy t (a, a) to stdout
copy t to stdout where a = 'x'
copy (select * from t) to stdout where a = 'x'
copy (select * from t) to stdout delimiters '|'
copy t to stdout (format csv
copy t to stdout ()
copy t to stdout (format csv,)
copy t to stdout (format select)
copy t to stdout csv quote
copy t to stdout force a
copy t to stdout nosuch
copy t to
copy t to nowhere
copy t () to stdout
copy
"""


def answer(connection: psycopg.Connection, sql: str) -> list[object]:
    """The messages of a copy, or the error's fields."""
    pgconn = connection.pgconn
    pgconn.send_query(sql.encode())
    *_, result = connection.wait(generators.execute(pgconn))
    found: list[object] = []
    if result.status == pq.ExecStatus.COPY_OUT:
        formats = [result.fformat(column) for column in range(result.nfields)]
        found.append((result.binary_tuples, formats))
        try:
            while isinstance(
                data := connection.wait(generators.copy_from(pgconn)), memoryview
            ):
                found.append(bytes(data))
        except psycopg.Error as error:
            return [error.sqlstate, error.diag.message_primary]
        return [*found, data.command_status]
    if result.status != pq.ExecStatus.FATAL_ERROR:
        return [result.command_status]
    fields = (
        pq.DiagnosticField.SQLSTATE,
        pq.DiagnosticField.MESSAGE_PRIMARY,
        pq.DiagnosticField.MESSAGE_DETAIL,
        pq.DiagnosticField.MESSAGE_HINT,
        pq.DiagnosticField.STATEMENT_POSITION,
    )
    return [(result.error_field(field) or b"").decode() for field in fields]


@pytest.fixture(scope="module")
def door():
    with open_door() as opened:
        yield opened


def test_copies_are_postgresqls_byte_for_byte(pg18, door):
    with (
        psycopg.connect(pg18.conninfo(), autocommit=True) as server,
        psycopg.connect(**door.conninfo(), autocommit=True) as client,
    ):
        names = [psycopg.sql.Identifier(name) for name in COPIED]
        columns = psycopg.sql.SQL(", ").join(
            psycopg.sql.SQL("{} text").format(name) for name in names
        )
        server.execute(psycopg.sql.SQL("create table t ({})").format(columns))
        with server.cursor() as cursor:
            cursor.executemany(
                "insert into t values (%s, %s, %s)",
                [
                    [None if v is None else v.decode() for v in row]
                    for row in zip(*COPIED.values(), strict=True)
                ],
            )
        different: list[object] = []
        for encoding in ("UTF8", "GB18030", "LATIN1"):
            for connection in (server, client):
                connection.execute(f"set client_encoding = '{encoding}'")
            for sql in STATEMENTS.strip().splitlines():
                if encoding == "UTF8" or sql.isascii():
                    found, expected = answer(client, sql), answer(server, sql)
                    if found != expected:
                        different.append((encoding, sql, found, expected))
        assert not different, different
