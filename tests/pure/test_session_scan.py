"""Query strings: where statements end, and which of them are the session's own."""

from __future__ import annotations

import contextlib
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wal2lake.errors import SqlSyntaxError
from wal2lake.frontend.session.commands import (
    Acknowledge,
    Deallocate,
    Discard,
    Reset,
    SetParameter,
    SetTransaction,
    Show,
    TransactionControl,
    TransactionVerb,
    parse_command,
)
from wal2lake.frontend.session.scan import split, tokens


@pytest.mark.parametrize(
    ("sql", "statements"),
    [
        ("", []),
        (" ;; -- nothing\n/* at all */ ; ", []),
        ("select 1", ["select 1"]),
        ("select 1; select 2;", ["select 1", "select 2"]),
        ("select ';'; b", ["select ';'", "b"]),
        ("select 'it''s;'; b", ["select 'it''s;'", "b"]),
        (r"select E'\';'; b", [r"select E'\';'", "b"]),
        (r"select '\'; b", [r"select '\'", "b"]),
        ('select ";"";" ; b', ['select ";"";"', "b"]),
        ("select $$;$$; b", ["select $$;$$", "b"]),
        ("select $a$;$$;$b$;$a$; b", ["select $a$;$$;$b$;$a$", "b"]),
        ("select a$b$; b$a", ["select a$b$", "b$a"]),
        ("select $1; b", ["select $1", "b"]),
        ("a -- ;\n b; c", ["a -- ;\n b", "c"]),
        ("a /* ; /* ; */ ; */ b; c", ["a /* ; /* ; */ ; */ b", "c"]),
        ("/* head */ a /* tail */; b", ["a", "b"]),
        ("select u&'\\0061;' ; b", ["select u&'\\0061;'", "b"]),
        ("select x'1;2'; é;", ["select x'1;2'", "é"]),
    ],
)
def test_a_string_is_cut_where_postgresql_cuts_it(sql, statements):
    found = split(sql)
    assert [s.text for s in found] == statements
    assert all(sql[s.offset :].startswith(s.text) for s in found)


@pytest.mark.parametrize(
    ("sql", "what", "position"),
    [
        ("select 'a", "quoted string", 8),
        ("select 'a''", "quoted string", 8),
        ("select E'a\\'", "quoted string", 8),
        ('select "a', "quoted identifier", 8),
        ("select 1; $x$ a $y$", "dollar-quoted string", 11),
        ("a /* /* */", "/* comment", 3),
        ("select b'1", "bit string literal", 8),
    ],
)
def test_what_is_never_closed_is_a_syntax_error(sql, what, position):
    with pytest.raises(SqlSyntaxError, match=r"^unterminated") as caught:
        split(sql)
    assert caught.value.message.startswith(f"unterminated {what} at or near")
    assert caught.value.position == position


@settings(deadline=None)
@given(st.text(st.sampled_from("'\"$;-/*\\eEa \n1"), max_size=40))
def test_any_text_is_statements_or_a_syntax_error(sql):
    with contextlib.suppress(SqlSyntaxError):
        for statement in split(sql):
            assert statement.text in sql
            assert statement.text.strip()
    with contextlib.suppress(SqlSyntaxError):
        parse_command(sql)


@settings(deadline=None)
@given(st.text(max_size=30), st.text(max_size=30))
def test_a_quoted_value_never_ends_a_statement(value, name):
    literal = "'" + value.replace("'", "''") + "'"
    identifier = '"' + name.replace('"', '""') + '"'
    assert len(split(f"select {literal} as {identifier}; b")) == 2
    assert [t.value for t in tokens(f"{literal} {identifier}")] == [value, name]


@pytest.mark.parametrize("piece", ["''", "\\'", "$a", "/*", "*/", '"', "e'", "--"])
def test_hostile_text_is_scanned_in_linear_time(piece):
    started = time.perf_counter()
    for opening in ("'", "E'", '"', "$$", "/*", ""):
        with contextlib.suppress(SqlSyntaxError):
            split(opening + piece * 50_000)
    assert time.perf_counter() - started < 5


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
            SetParameter("TimeZone", ("+02:00",)),
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
        ("show all", Show(None)),
        ("show transaction isolation level", Show("transaction_isolation")),
        ("SHOW Time Zone", Show("TimeZone")),
        ("reset all", Reset(None)),
        ("reset a.b", Reset("a.b")),
        ("discard temporary", Discard("TEMP")),
        ("deallocate prepare all", Deallocate(None)),
        ('deallocate "_pg3_0"', Deallocate("_pg3_0")),
        ("close all", Acknowledge("CLOSE CURSOR ALL")),
        ("unlisten *", Acknowledge("UNLISTEN")),
        ("select 1", None),
        ("settle", None),
        ("set constraints all deferred", None),
        ("prepare a as select 1", None),
        ("close c", None),
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
