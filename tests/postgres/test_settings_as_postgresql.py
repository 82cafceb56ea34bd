"""SET and SHOW of every setting that PostgreSQL 18 lets a session change: same answers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress

import psycopg
import pytest
from tests.fakes.door import open_door

from wal2lake.errors import UsageError
from wal2lake.sql.parameters import Parameters
from wal2lake.testing.postgres import PostgresServer

OWN_ANSWER = {
    "DateStyle": "test_session_as_postgresql.py",
    "TimeZone": "test_session_as_postgresql.py",
    "default_toast_compression": "PostgreSQL's choices depend on how it was built",
    "array_nulls": "off is refused",
    "backslash_quote": "off is refused",
    "client_encoding": "the names of encodings",
    "default_table_access_method": "no access method is looked up",
    "default_tablespace": "no tablespace is looked up",
    "lc_messages": "locales are the system's",
    "lc_monetary": "locales are the system's",
    "lc_numeric": "locales are the system's",
    "lc_time": "locales are the system's",
    "logical_decoding_work_mem": "of a node's own settings",
    "max_stack_depth": "PostgreSQL looks at the platform's limit",
    "password_encryption": "md5 is refused",
    "role": "test_session_as_postgresql.py",
    "session_authorization": "test_session_as_postgresql.py",
    "standard_conforming_strings": "off is refused",
    "tcp_keepalives_count": "PostgreSQL shows what the socket has",
    "tcp_keepalives_idle": "PostgreSQL shows what the socket has",
    "tcp_keepalives_interval": "PostgreSQL shows what the socket has",
    "tcp_user_timeout": "PostgreSQL shows what the socket has",
    "temp_tablespaces": "no tablespace is looked up",
    "timezone_abbreviations": "no file is read",
    "transaction_deferrable": "test_session_as_postgresql.py",
    "transaction_isolation": "test_session_as_postgresql.py",
    "transaction_read_only": "test_session_as_postgresql.py",
    "track_activities": "off is refused",
    "transform_null_equals": "on is refused",
    "wal_compression": "PostgreSQL's choices depend on how it was built",
    "wal_sender_timeout": "of a node's own settings",
}
"""Known, and with another answer or with one that another test compares."""

UNKNOWN = {
    "dynamic_library_path",
    "exit_on_error",
    "extension_control_path",
    "local_preload_libraries",
    "session_preload_libraries",
}
"""Libraries to load, and an end of the session that would not come: as unknown as developers'
options and what only the server's configuration sets."""

SETTINGS = """
select name, vartype, min_val, max_val, coalesce(enumvals, '{}'), unit, boot_val from pg_settings
where context in ('user', 'superuser') and category <> 'Developer Options'
and name !~ '[.]' order by name
"""

GENERAL = (
    "nonsense",
    "-2",
    "1",
    "1e9",
    "on",
    "tr",
    "7.5",
    "3min",
    "5000kB",
    "debug",
    "",
)


@pytest.fixture(scope="module")
def sessions(
    postgres_server,
) -> Iterator[tuple[psycopg.Connection, psycopg.Connection]]:
    server: PostgresServer = postgres_server(18)
    with (
        open_door() as door,
        psycopg.connect(server.conninfo("postgres"), autocommit=True) as there,
        psycopg.connect(**door.conninfo(), autocommit=True) as here,
    ):
        yield there, here


def answer(session: psycopg.Connection, name: str, value: str | None) -> object:
    """What SET and then SHOW say; None: what the value is if nobody has set it."""
    try:
        with session.cursor() as cursor:
            if value is not None:
                cursor.execute(f"set {name} = '{value}'".encode())
            return cursor.execute(f"show {name}".encode()).fetchone()
    except psycopg.DatabaseError as error:
        assert not session.closed, (name, value)
        told = error.diag
        return (
            told.sqlstate,
            told.message_primary,
            told.message_detail,
            told.message_hint,
        )
    finally:
        with suppress(psycopg.Error):
            session.execute(f"reset {name}".encode())


def test_every_setting_of_a_session_is_known_and_checked_as_postgresql_does(
    sessions,
) -> None:
    there, here = sessions
    asked = there.execute(SETTINGS).fetchall()
    assert len(asked) > 150
    differing = []
    for name, kind, least, most, choices, unit, default in asked:
        if name in UNKNOWN:
            assert answer(here, name, "1") == (
                "42704",
                f'unrecognized configuration parameter "{name}"',
                None,
                None,
            )
            continue
        if name in OWN_ANSWER:
            assert isinstance(answer(here, name, None), tuple)
            continue
        values = [*GENERAL, *choices, *filter(None, (least, most, default))]
        if kind == "integer":
            values += [str(int(least) - 1), str(int(most) + 1), f"{most}{unit or ''}"]
        if "timeout" in name:
            # Shorter ones would end the session.
            values = [
                "nonsense",
                "-2",
                "1e9",
                "3min",
                "5000kB",
                "",
                *values[len(GENERAL) :],
            ]
        for value in values:
            expected = answer(there, name, value)
            found = answer(here, name, value)
            if found != expected:
                differing.append((name, value, found, expected))
    assert not differing


def test_what_a_session_cannot_change_is_said_as_postgresql_says_it(sessions) -> None:
    there, here = sessions
    for name in ("server_version", "block_size", "in_hot_standby"):
        expected = answer(there, name, "1")
        assert re.match(r"\('55P02', ", repr(expected))
        assert answer(here, name, "1") == expected


def test_what_only_superusers_may_set_is_said_as_postgresql_says_it(sessions) -> None:
    there, _ = sessions
    there.execute("create role plain_setter")
    there.execute("set session authorization plain_setter")
    try:
        for name in ("log_statement", "deadlock_timeout", "track_counts"):
            with pytest.raises(UsageError) as caught:
                Parameters().set(name, "off")
            found = caught.value.sqlstate, caught.value.message, None, None
            assert found == answer(there, name, "off")
            assert found[0] == "42501"
    finally:
        there.execute("reset session authorization")
        there.execute("drop role plain_setter")


def test_what_would_change_answers_is_refused(sessions) -> None:
    _, here = sessions
    refused = answer(here, "transform_null_equals", "on")
    assert "0A000" in repr(refused)
    assert answer(here, "transform_null_equals", "off") == ("off",)


def test_a_connection_string_sets_them_too(postgres_server, sessions) -> None:
    _, here = sessions
    options = "-c log_statement=none -c vacuum_cost_delay=1.5ms -c jit_expressions=off"
    with psycopg.connect(here.info.dsn, options=options) as session:
        for name, value in (
            ("log_statement", "none"),
            ("vacuum_cost_delay", "1500us"),
            ("jit_expressions", "off"),
        ):
            assert session.execute(f"show {name}".encode()).fetchone() == (value,)
    wrong = "-c vacuum_cost_limit=0"
    messages = []
    for dsn in (postgres_server(18).conninfo("postgres"), here.info.dsn):
        with pytest.raises(psycopg.OperationalError) as caught:
            psycopg.connect(dsn, options=wrong)
        messages.append(str(caught.value).partition("FATAL:")[2])
    assert messages[0] == messages[1]


@pytest.mark.parametrize(
    "value",
    [
        *("none", "set", "SET,Inherit", "set,", "set,,inherit", ",", "", '"set"'),
        *('"SET"', '"set', "set set", "set inherit", " ", '"se""t"', '""'),
    ],
)
def test_createrole_self_grant_is_a_list_of_two_words(
    value: str, postgres_server: Callable[[int], PostgresServer]
) -> None:
    expected: object = None
    with psycopg.connect(postgres_server(18).conninfo(), autocommit=True) as server:
        try:
            server.execute(
                "select set_config('createrole_self_grant', %s, false)", (value,)
            )
        except psycopg.Error as error:
            diag = error.diag
            expected = error.sqlstate, diag.message_primary, diag.message_detail
    answer: object = None
    try:
        Parameters().set("createrole_self_grant", value)
    except UsageError as failure:
        answer = failure.sqlstate, str(failure), failure.detail
    assert answer == expected
