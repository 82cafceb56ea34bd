"""``wal2lake sql``'s client and print, against a real server and the real psql."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from wal2lake.cli.sql import failure_lines
from wal2lake.cli.terminal.print import Layout, render
from wal2lake.errors import PublisherError
from wal2lake.pg.client import Client, Failure, ResultRows

QUERIES = [
    "select 1 as id, 'x' as name",
    "select * from generate_series(9, 11) as n",
    "select null::int as a, null::text as b, '' as c",
    "select 'two' || chr(10) || 'lines' as a, 2.50 as b, 'one' as c",
    "select 'one' as c, 'two' || chr(10) || 'lines' as a",
    "select 1::money, 2::oid, 'x'::name, true, 1.5::float8 where false",
    "select '日本語' as wide, 'e' || chr(769) as combining, repeat('x', 9) as x",
    'select array[1,2] as "a long name", \'{"a": 1}\'::jsonb as j, now() - now() as i',
]


@pytest.fixture
def client(pg18):
    with Client(pg18.conninfo()) as made:
        yield made


@pytest.mark.parametrize("query", QUERIES)
@pytest.mark.parametrize("aligned", [True, False])
def test_rows_look_as_in_psql(client, pg18, query, aligned):
    installation = pg18.server.installation
    arguments = [
        "-X",
        "-q",
        "-P",
        "pager=off",
        "-d",
        pg18.conninfo(client_encoding="utf8"),
    ]
    if not aligned:
        arguments.append("-A")
    theirs = installation.run("psql", *arguments, "-c", query)
    (outcome,) = client.run(query)
    assert isinstance(outcome, ResultRows)
    ours = "\n".join(render(outcome, Layout(aligned=aligned))) + "\n"
    assert ours == theirs


def test_every_statement_of_a_string_has_its_outcome(client):
    outcomes = list(
        client.run(
            "create temp table t(a int); insert into t values (1), (2) returning a;"
            " select count(*) from t"
        )
    )
    assert [o.tag for o in outcomes if isinstance(o, ResultRows)] == [
        "CREATE TABLE",
        "INSERT 0 2",
        "SELECT 1",
    ]
    assert outcomes[2].rows == (("2",),)
    assert client.rows("select 'x', null") == [("x", None)]


def test_an_error_has_its_fields_and_points_at_its_place(client):
    text = "select 1,\n  nope"
    (failure,) = client.run(text)
    assert isinstance(failure, Failure)
    assert failure.sqlstate == "42703"
    assert list(failure_lines(failure, text)) == [
        'ERROR:  column "nope" does not exist',
        "LINE 2:   nope",
        "          ^",
    ]
    with pytest.raises(PublisherError) as caught:
        client.rows("select 1/0")
    assert caught.value.sqlstate == "22012"
    assert client.rows("select 1") == [("1",)]


def test_notices_arrive(pg18):
    told: list[Failure] = []
    with Client(pg18.conninfo(), on_notice=told.append) as client:
        list(client.run("do $$ begin raise notice 'hello'; end $$"))
    assert [(n.severity, n.message) for n in told] == [("NOTICE", "hello")]


def test_copy_works_out_and_is_refused_in(client):
    (outcome,) = client.run("copy (values (1, 'a'), (2, 'b')) to stdout")
    assert outcome.rows == (("1\ta",), ("2\tb",))
    list(client.run("create temp table c(a int)"))
    (failure,) = client.run("copy c from stdin")
    assert isinstance(failure, Failure)
    assert "needs psql" in failure.message
    assert client.rows("select 1") == [("1",)]


@pytest.fixture
def control_c():
    """Python's own handler, also where the test run was started with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_control_c_cancels_the_statement_and_keeps_the_connection(client, control_c):
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    (failure,) = client.run("select pg_sleep(60)")
    assert isinstance(failure, Failure)
    assert failure.message == "canceling statement due to user request"
    assert client.rows("select 1") == [("1",)]


def test_a_connection_that_cannot_be_is_libpqs_own_error(pg18):
    with pytest.raises(PublisherError, match='database "nope" does not exist'):
        Client(pg18.server.conninfo("nope"))


def test_a_connection_that_breaks_is_an_error(client, pg18):
    pid = client.rows("select pg_backend_pid()")[0][0]
    pg18.psql(f"select pg_terminate_backend({pid})")
    with pytest.raises(PublisherError, match="terminating connection"):
        client.rows("select 1")
