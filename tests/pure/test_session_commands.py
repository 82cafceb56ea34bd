"""Which statements are the session's own, and what they say."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wal2lake.door.session.commands import (
    Acknowledge,
    CloseCursor,
    Deallocate,
    DeclareCursor,
    Discard,
    ExecuteStatement,
    Fetch,
    FetchDirection,
    PrepareStatement,
    Reset,
    SetParameter,
    SetSnapshot,
    SetTransaction,
    ShowParameter,
    TransactionControl,
    TransactionVerb,
    parse_command,
)
from wal2lake.errors import SqlSyntaxError, Wal2LakeError

BEGIN, COMMIT, ROLLBACK = (
    TransactionVerb.BEGIN,
    TransactionVerb.COMMIT,
    TransactionVerb.ROLLBACK,
)


@pytest.mark.parametrize(
    ("sql", "command"),
    [
        ("BEGIN", TransactionControl(BEGIN)),
        ("begin work", TransactionControl(BEGIN)),
        (
            "begin isolation level repeatable read, read only not deferrable",
            TransactionControl(
                BEGIN,
                (
                    ("isolation", "repeatable read"),
                    ("read_only", "on"),
                    ("deferrable", "off"),
                ),
            ),
        ),
        (
            "START TRANSACTION read write",
            TransactionControl(TransactionVerb.START, (("read_only", "off"),)),
        ),
        ("END", TransactionControl(COMMIT)),
        ("commit and chain", TransactionControl(COMMIT, chain=True)),
        ("commit and no chain", TransactionControl(COMMIT)),
        ("ABORT transaction", TransactionControl(ROLLBACK)),
        (
            'rollback work to savepoint "A"',
            TransactionControl(TransactionVerb.ROLLBACK_TO, name="A"),
        ),
        ("release s", TransactionControl(TransactionVerb.RELEASE, name="s")),
        (
            "commit prepared 'x'",
            TransactionControl(TransactionVerb.COMMIT_PREPARED, name="x"),
        ),
        (
            "set TimeZone to 'Europe/Berlin'",
            SetParameter("timezone", ("Europe/Berlin",)),
        ),
        ("SET x.Y = on", SetParameter("x.y", ("on",))),
        ("set session a = -1", SetParameter("a", ("-1",))),
        ("set local a = default", SetParameter("a", None, True)),
        (
            "set search_path = Public, \"Public\", 'x y'",
            SetParameter("search_path", ("public", "Public", "x y")),
        ),
        ("set time zone local", SetParameter("TimeZone", None)),
        ("set time zone -7", SetParameter("TimeZone", ("-7",))),
        (
            "set time zone interval '+02:00' hour to minute",
            SetParameter("TimeZone", ("<+02>-02",)),
        ),
        ("set names 'latin1'", SetParameter("client_encoding", ("latin1",))),
        ("set role none", SetParameter("role", None)),
        ("set role = bob", SetParameter("role", ("bob",))),
        (
            "set session authorization default",
            SetParameter("session_authorization", None),
        ),
        ("set schema 's'", SetParameter("search_path", ("s",))),
        (
            "set transaction isolation level serializable",
            SetTransaction((("isolation", "serializable"),)),
        ),
        (
            "set session characteristics as transaction read only",
            SetTransaction((("read_only", "on"),), session=True),
        ),
        ("set transaction snapshot '0-1'", SetSnapshot("0-1")),
        ("set local transaction snapshot '0-1'", SetSnapshot("0-1", local=True)),
        ("show all", ShowParameter(None)),
        ("show transaction isolation level", ShowParameter("transaction_isolation")),
        ("SHOW Time Zone", ShowParameter("TimeZone")),
        ("reset all", Reset(None)),
        ("reset a.b", Reset("a.b")),
        ("discard temporary", Discard("TEMP")),
        ("deallocate prepare all", Deallocate(None)),
        ('deallocate "_pg3_0"', Deallocate("_pg3_0")),
        (
            "prepare q (int, numeric(5,2)) as select $1 ;",
            PrepareStatement("q", (("int", 11), ("numeric(5,2)", 16)), "select $1", 33),
        ),
        (
            "execute q(f(1, 2), '),')",
            ExecuteStatement("q", (("f(1, 2)", 10), ("'),'", 19))),
        ),
        ("execute q", ExecuteStatement("q", ())),
        ("close all", CloseCursor(None)),
        ('close "A b"', CloseCursor("A b")),
        ("declare c cursor for values (1);", DeclareCursor("c", "values (1)", 21)),
        (
            "declare c scroll cursor with hold for select 1",
            DeclareCursor("c", "select 1", 38, scroll=True, hold=True),
        ),
        ("fetch c", Fetch("c", FetchDirection.FORWARD, 1)),
        ("fetch -3 in c", Fetch("c", FetchDirection.FORWARD, -3)),
        ("fetch last from c", Fetch("c", FetchDirection.ABSOLUTE, -1)),
        ("move backward all in c", Fetch("c", FetchDirection.BACKWARD, None, True)),
        ("unlisten *", Acknowledge("UNLISTEN")),
        ("select 1", None),
        ("settle", None),
        ("set constraints all deferred", None),
        ("prepare a as select 1", PrepareStatement("a", (), "select 1", 13)),
        ("close c", CloseCursor("c")),
    ],
)
def test_the_sessions_own_commands_are_recognised(sql, command):
    assert parse_command(sql) == command


@pytest.mark.parametrize(
    ("sql", "message", "position"),
    [
        ("set", "syntax error at end of input", 4),
        ("set a", "syntax error at end of input", 6),
        ("set a = ", "syntax error at end of input", 9),
        ("set a = 1 2", 'syntax error at or near "2"', 11),
        ("begin foo", 'syntax error at or near "foo"', 7),
        ("show", "syntax error at end of input", 5),
        ("discard foo", 'syntax error at or near "foo"', 9),
        ("set transaction", "syntax error at end of input", 16),
    ],
)
def test_a_malformed_command_is_a_syntax_error_at_its_place(sql, message, position):
    with pytest.raises(SqlSyntaxError) as caught:
        parse_command(sql)
    assert caught.value.message == message
    assert caught.value.position == position


@settings(deadline=None)
@given(
    st.sampled_from(["begin", "set", "show", "discard", "rollback"]),
    st.text(st.sampled_from("'\"$;-/*\\eEa \n1=,."), max_size=40),
)
def test_any_text_behind_a_first_word_is_a_command_or_an_error(first, rest):
    with contextlib.suppress(Wal2LakeError):
        assert parse_command(f"{first} {rest}") is not None
