"""Simple and extended queries, transactions and errors, message by message."""

from __future__ import annotations

import struct
import threading
import time

import pytest
from tests.fakes.door import INT4, TEXT, RawClient, errors, open_door

from wal2lake.door import ListenerSettings
from wal2lake.wire.frontback import (
    Bind,
    Close,
    CommandComplete,
    CopyData,
    CopyDone,
    DataRow,
    Describe,
    DescribeTarget,
    ErrorResponse,
    Execute,
    FieldDescription,
    Flush,
    Frame,
    FunctionCall,
    ParameterDescription,
    ParameterStatus,
    Parse,
    Query,
    ReadyForQuery,
    RowDescription,
    Signal,
    Sync,
    Terminate,
)

STATEMENT, PORTAL = DescribeTarget.STATEMENT, DescribeTarget.PORTAL


@pytest.fixture
def door():
    with open_door() as opened:
        yield opened


@pytest.fixture
def client(door):
    with RawClient(door.port) as raw:
        raw.start()
        yield raw


def ask(client, sql):
    client.send(Query(sql.encode()))
    return client.until_ready()


def tags(messages):
    return [m.tag for m in messages if isinstance(m, CommandComplete)]


def rows(messages):
    return [m.values for m in messages if isinstance(m, DataRow)]


def status(messages):
    assert isinstance(messages[-1], ReadyForQuery)
    return messages[-1].status.value.decode()


# -- simple query


def test_a_query_answers_fields_rows_tag_and_ready(client, door):
    answer = ask(client, "rows 3")
    assert answer[0] == RowDescription(
        (FieldDescription("n", INT4, 4), FieldDescription("word", TEXT)), (0, 0)
    )
    assert rows(answer) == [(b"0", b"word 0"), (b"1", b"word 1"), (b"2", None)]
    assert tags(answer) == ["SELECT 3"]
    assert status(answer) == "I"
    assert door.journal.calls == [
        "begin statement",
        "prepare rows 3",
        "execute rows 3",
        "closed",
        "commit",
    ]


def test_a_large_result_comes_whole_and_in_order(client):
    answer = ask(client, "rows 25000")
    assert [int(row[0]) for row in rows(answer)] == list(range(25000))
    assert tags(answer) == ["SELECT 25000"]


def test_a_string_of_statements_is_one_transaction(client, door):
    answer = ask(client, "insert; rows 1;; insert")
    assert tags(answer) == ["INSERT 0 3", "SELECT 1", "INSERT 0 3"]
    calls = [c for c in door.journal.calls if not c.startswith("prepare")]
    assert calls == [
        "begin string",
        "execute insert",
        "execute rows 1",
        "closed",
        "execute insert",
        "commit",
    ]


def test_an_error_ends_the_string_and_rolls_all_of_it_back(client, door):
    answer = ask(client, "set timezone = 'Asia/Tokyo'; insert; fail; insert")
    assert tags(answer) == ["SET", "INSERT 0 3"]
    assert errors(answer) == [("ERROR", "42P01", 'relation "x" does not exist')]
    assert door.journal.calls[-1] == "rollback"
    assert rows(ask(client, "show timezone")) == [(b"UTC",)]


def test_an_empty_query_has_its_own_answer(client):
    for sql in ("", " ; -- nothing"):
        assert ask(client, sql)[0] is Signal.EMPTY_QUERY


def test_all_fields_of_an_error_reach_the_client(client):
    (error,) = [m for m in ask(client, "fail") if isinstance(m, ErrorResponse)]
    assert error.fields.severity == error.fields.severity_nonlocalized == "ERROR"
    assert error.fields.detail == "a detail"
    assert error.fields.hint == "a hint"
    assert error.fields.where == "a context"


def test_a_syntax_error_points_into_the_whole_string(client):
    (error,) = [
        m for m in ask(client, "insert; é /**/ oops") if isinstance(m, ErrorResponse)
    ]
    assert error.fields.message == 'syntax error at or near "é"'
    assert error.fields.position == "9"
    (error,) = [m for m in ask(client, "insert;  set") if isinstance(m, ErrorResponse)]
    assert error.fields.position == "13"


def test_a_bug_is_an_internal_error_without_its_text_and_the_session_lives(client):
    answer = ask(client, "bug")
    assert errors(answer) == [("ERROR", "XX000", "internal error")]
    assert tags(ask(client, "insert")) == ["INSERT 0 3"]


def test_a_failed_commit_is_reported_instead_of_the_tag(client, door):
    door.journal.fail_commit = True
    answer = ask(client, "insert")
    assert tags(answer) == []
    assert errors(answer) == [("ERROR", "40001", "could not serialize access")]
    assert status(answer) == "I"


def test_notices_come_before_the_tag_and_can_be_switched_off(client):
    notices = [m for m in ask(client, "warn") if isinstance(m, ErrorResponse)]
    assert [(n.notice, n.fields.severity, n.fields.sqlstate) for n in notices] == [
        (True, "WARNING", "55000"),
        (True, "NOTICE", "00000"),
    ]
    ask(client, "set client_min_messages = warning")
    notices = [m for m in ask(client, "warn") if isinstance(m, ErrorResponse)]
    assert [n.fields.message for n in notices] == ["early"]


def test_a_parameter_in_a_simple_query_is_refused(client):
    assert errors(ask(client, "echo")) == [
        ("ERROR", "42P02", "there is no parameter $1")
    ]


def test_function_calls_are_refused_in_an_orderly_way(client):
    client.send(FunctionCall(1, (), (), 0))
    answer = client.until_ready()
    assert [e[1] for e in errors(answer)] == ["0A000"]
    assert status(answer) == "I"


def test_left_over_copy_messages_are_ignored(client):
    client.send(CopyData(b"x"), CopyDone(), Query(b"insert"))
    assert tags(client.until_ready()) == ["INSERT 0 3"]


# -- transactions


def test_the_status_follows_the_block(client, door):
    assert status(ask(client, "begin")) == "T"
    assert status(ask(client, "insert")) == "T"
    assert status(ask(client, "commit")) == "I"
    assert [c for c in door.journal.calls if "prepare" not in c] == [
        "begin block",
        "execute insert",
        "commit",
    ]


def test_after_an_error_a_block_refuses_everything_until_it_ends(client, door):
    ask(client, "begin")
    assert status(ask(client, "fail")) == "E"
    for sql in ("insert", "show timezone", "set timezone = 'UTC'", "begin"):
        answer = ask(client, sql)
        assert errors(answer) == [
            (
                "ERROR",
                "25P02",
                "current transaction is aborted, commands ignored until end of "
                "transaction block",
            )
        ]
        assert status(answer) == "E"
    answer = ask(client, "commit")
    assert tags(answer) == ["ROLLBACK"]
    assert status(answer) == "I"
    assert door.journal.calls.count("rollback") == 1
    assert "commit" not in door.journal.calls


def test_a_rollback_undoes_settings_and_tells_the_client(client):
    ask(client, "begin")
    answer = ask(client, "set timezone = 'Asia/Tokyo'")
    assert ParameterStatus("TimeZone", "Asia/Tokyo") in answer
    answer = ask(client, "rollback")
    assert ParameterStatus("TimeZone", "UTC") in answer


def test_control_without_a_block_warns(client):
    for sql, tag in (("commit", "COMMIT"), ("rollback", "ROLLBACK")):
        answer = ask(client, sql)
        assert answer[0].fields.message == "there is no transaction in progress"
        assert answer[0].fields.sqlstate == "25P01"
        assert tags(answer) == [tag]
    ask(client, "begin")
    answer = ask(client, "begin")
    assert answer[0].fields.message == "there is already a transaction in progress"
    assert status(answer) == "T"


def test_begin_inside_a_string_turns_it_into_a_block(client, door):
    assert status(ask(client, "insert; begin; insert")) == "T"
    assert [c for c in door.journal.calls if "prepare" not in c] == [
        "begin string",
        "execute insert",
        "begin block",
        "execute insert",
    ]
    assert status(ask(client, "insert; commit; insert; fail")) == "I"
    assert [c for c in door.journal.calls[-9:] if "prepare" not in c] == [
        "execute insert",
        "commit",
        "begin string",
        "execute insert",
        "execute fail",
        "rollback",
    ]


def test_modes_of_a_block_are_parameters_until_it_ends(client):
    ask(client, "begin isolation level serializable read only")
    assert rows(ask(client, "show transaction isolation level")) == [(b"serializable",)]
    assert rows(ask(client, "show transaction_read_only")) == [(b"on",)]
    assert status(ask(client, "commit and chain")) == "T"
    assert rows(ask(client, "show transaction_isolation")) == [(b"serializable",)]
    ask(client, "rollback")
    assert rows(ask(client, "show transaction_isolation")) == [(b"read committed",)]


@pytest.mark.parametrize(
    ("sql", "sqlstate"),
    [
        ("savepoint a", "25P01"),
        ("commit and chain", "25P01"),
        ("begin; release a", "3B001"),
        ("begin; rollback to a", "3B001"),
        ("commit prepared 'x'", "42704"),
        ("insert; commit prepared 'x'", "25001"),
        ("begin; rollback prepared 'x'", "25001"),
        ("begin; discard all", "25001"),
    ],
)
def test_what_is_not_there_is_refused_with_postgresqls_codes(client, sql, sqlstate):
    assert [e[1] for e in errors(ask(client, sql))] == [sqlstate]


def test_what_cannot_be_prepared_is_rolled_back(client, door):
    ask(client, "begin; insert; fail")
    answer = ask(client, "prepare transaction 'x'")
    assert (tags(answer), status(answer)) == (["ROLLBACK"], "I")
    assert tags(ask(client, "prepare transaction 'x'")) == ["ROLLBACK"]
    ask(client, "begin; savepoint a; insert")
    answer = ask(client, "prepare transaction 'refused'")
    assert errors(answer) == [("ERROR", "55000", "prepared transactions are disabled")]
    assert status(answer) == "I"
    assert rows_after(door, "execute insert")[-1] == "prepare refused"


def test_a_prepared_transaction_is_ended_by_any_session(client, door):
    ask(client, "begin; savepoint a; insert; set timezone = 'Asia/Tokyo'")
    answer = ask(client, "prepare transaction 'x'")
    assert (tags(answer), status(answer)) == (["PREPARE TRANSACTION"], "I")
    assert tags(ask(client, "commit prepared 'x'")) == ["COMMIT PREPARED"]
    answer = ask(client, "insert; prepare transaction 'y'")
    assert (tags(answer)[-1], status(answer)) == ("PREPARE TRANSACTION", "I")
    assert tags(ask(client, "rollback prepared 'y'")) == ["ROLLBACK PREPARED"]
    assert [call for call in door.journal.calls if call[-2:] in (" x", " y")] == [
        "prepare x",
        "commit prepared x",
        "prepare y",
        "rollback prepared y",
    ]


def test_a_savepoint_saves_a_block_from_an_error(client, door):
    ask(client, "begin; insert; savepoint a; set timezone = 'Asia/Tokyo'")
    ask(client, "savepoint b; set timezone = 'Asia/Seoul'")
    assert status(ask(client, "fail")) == "E"
    assert rows_after(door, "execute fail") == ["rollback to 2"]
    assert [e[1] for e in errors(ask(client, "release a"))] == ["25P02"]
    answer = ask(client, "rollback to b")
    assert tags(answer) == ["ROLLBACK"]
    assert status(answer) == "T"
    assert rows(ask(client, "show timezone")) == [(b"Asia/Tokyo",)]
    answer = ask(client, "rollback to savepoint a; show timezone")
    assert rows(answer) == [(b"UTC",)]
    assert tags(ask(client, "release a; commit")) == ["RELEASE", "COMMIT"]
    assert rows_after(door, "execute fail") == [
        "rollback to 2",
        "rollback to 2",
        "rollback to 1",
        "release 1",
        "commit",
    ]


def rows_after(door, call):
    calls = door.journal.calls
    return calls[calls.index(call) + 1 :]


def test_the_newer_of_two_savepoints_of_a_name_counts(client, door):
    ask(client, "begin; savepoint a; savepoint a; release a; rollback to a; rollback")
    assert door.journal.calls == [
        "begin block",
        "savepoint 1",
        "savepoint 2",
        "release 2",
        "rollback to 1",
        "rollback",
    ]
    ask(client, "begin")
    assert [e[1] for e in errors(ask(client, "rollback to a"))] == ["3B001"]


def test_a_failed_block_with_savepoints_ends_rolled_back(client, door):
    ask(client, "begin; savepoint a; fail")
    answer = ask(client, "commit")
    assert tags(answer) == ["ROLLBACK"]
    assert status(answer) == "I"
    assert rows_after(door, "execute fail") == ["rollback to 1", "rollback"]


def test_a_backend_that_cannot_undo_loses_the_whole_block(client, door):
    door.journal.fail_rollback_to = True
    ask(client, "begin; insert; savepoint a")
    answer = ask(client, "rollback to a")
    assert [e[1] for e in errors(answer)] == ["0A000"]
    assert status(answer) == "E"
    assert [e[1] for e in errors(ask(client, "rollback to a"))] == ["3B001"]
    assert tags(ask(client, "rollback")) == ["ROLLBACK"]
    assert rows_after(door, "execute insert") == [
        "savepoint 1",
        "rollback to 1",
        "rollback",
    ]


def test_a_client_that_goes_leaves_no_transaction_behind(door):
    with RawClient(door.port) as client:
        client.start()
        ask(client, "begin; insert")
        client.send(Terminate())
        assert client.rest() == []
    assert door.journal.calls[-2:] == ["rollback", "close"]


# -- parameters


def test_show_all_lists_every_parameter_with_its_description(client):
    answer = ask(client, "show all")
    assert [f.name for f in answer[0].fields] == ["name", "setting", "description"]
    found = {row[0]: row[1] for row in rows(answer)}
    assert found[b"server_version"] == b"18.0"
    assert tags(answer) == ["SHOW"]


def test_the_column_of_show_has_the_parameters_own_spelling(client):
    assert ask(client, "show datestyle")[0].fields[0].name == "DateStyle"


def test_set_local_outside_a_block_warns_and_does_nothing(client):
    answer = ask(client, "set local timezone = 'Asia/Tokyo'")
    assert answer[0].fields.message == (
        "SET LOCAL can only be used in transaction blocks"
    )
    assert rows(ask(client, "show timezone")) == [(b"UTC",)]


def test_a_list_is_quoted_and_only_lists_take_several_values(client):
    ask(client, "set search_path = lake, \"$user\", 'x y'")
    assert rows(ask(client, "show search_path")) == [(b'lake, "$user", "x y"',)]
    assert errors(ask(client, "set timezone = 'UTC', 'UTC'")) == [
        ("ERROR", "22023", "SET timezone takes only one argument")
    ]


def test_a_session_becomes_who_the_backend_lets_it_become(client):
    for sql in ("set role none", "set role alice", "set session authorization default"):
        assert tags(ask(client, sql)) == ["SET"]
    assert rows(ask(client, "set role alice; show role")) == [(b"alice",)]
    assert [e[1] for e in errors(ask(client, "set role bob"))] == ["42501"]
    assert rows(ask(client, "show role")) == [(b"alice",)]
    ask(client, "begin; set local role none; rollback")
    assert rows(ask(client, "reset all; show role")) == [(b"alice",)]
    assert rows(ask(client, "reset role; show role")) == [(b"none",)]


def test_another_client_encoding_converts_both_ways(client):
    assert ParameterStatus("client_encoding", "LATIN1") in ask(
        client, "set names 'latin1'"
    )
    client.send(Query("text 'é'".encode("latin-1")))
    assert rows(client.until_ready()) == [(b"\xe9",)]
    ask(client, "set client_encoding = utf8")
    answer = ask(client, "text '€'; set client_encoding = latin1; text '€'")
    assert [e[1] for e in errors(answer)] == ["22P05"]
    assert rows(answer) == [("€".encode(),)]
    client.send(Query(b"text '\xff'"))
    assert [e[1] for e in errors(client.until_ready())] == ["22021"]


# -- extended query


def series(client, *messages):
    client.send(*messages, Sync())
    return client.until_ready()


def test_parse_bind_describe_execute_close(client, door):
    answer = series(
        client,
        Parse(b"s", b"echo"),
        Describe(STATEMENT, b"s"),
        Bind(b"p", b"s", (1, 0), (struct.pack("!i", 7), b"x"), (1, 0)),
        Describe(PORTAL, b"p"),
        Execute(b"p"),
        Close(PORTAL, b"p"),
        Close(STATEMENT, b"nothing"),
    )
    fields = (FieldDescription("n", INT4, 4), FieldDescription("word", TEXT))
    assert answer[:-1] == [
        Signal.PARSE_COMPLETE,
        ParameterDescription((INT4, TEXT)),
        RowDescription(fields, (0, 0)),
        Signal.BIND_COMPLETE,
        RowDescription(fields, (1, 0)),
        DataRow((b"\0\0\0\7", b"x")),
        CommandComplete("SELECT 1"),
        Signal.CLOSE_COMPLETE,
        Signal.CLOSE_COMPLETE,
    ]
    assert door.journal.calls == [
        "begin pipeline",
        "prepare echo",
        "execute echo",
        "commit",
    ]
    # The statement lives on, the portals do not.
    answer = series(client, Describe(STATEMENT, b"s"), Execute(b"p"))
    assert errors(answer) == [("ERROR", "34000", 'portal "p" does not exist')]


def test_a_row_limit_suspends_the_portal(client, door):
    answer = series(
        client,
        Parse(b"", b"rows 5"),
        Bind(b"", b""),
        Execute(b"", 2),
        Execute(b"", 2),
        Execute(b"", 2),
        Execute(b"", 2),
    )
    assert answer[2:-1] == [
        DataRow((b"0", b"word 0")),
        DataRow((b"1", b"word 1")),
        Signal.PORTAL_SUSPENDED,
        DataRow((b"2", None)),
        DataRow((b"3", b"word 3")),
        Signal.PORTAL_SUSPENDED,
        DataRow((b"4", b"word 4")),
        CommandComplete("SELECT 1"),
        CommandComplete("SELECT 0"),
    ]


def test_a_suspended_portal_ends_with_its_transaction(client, door):
    series(client, Parse(b"", b"rows 5000"), Bind(b"p", b""), Execute(b"p", 1))
    assert door.journal.calls[-2:] == ["commit", "closed"]
    ask(client, "begin")
    series(client, Parse(b"", b"rows 5000"), Bind(b"p", b""), Execute(b"p", 1))
    assert rows(series(client, Execute(b"p", 1))) == [(b"1", b"word 1")]
    ask(client, "commit")
    assert [e[1] for e in errors(series(client, Execute(b"p", 1)))] == ["34000"]


def test_an_error_in_a_block_closes_its_portals(client, door):
    ask(client, "begin; savepoint a")
    series(client, Parse(b"", b"rows 5000"), Bind(b"p", b""), Execute(b"p", 1))
    ask(client, "fail")
    assert door.journal.calls[-2:] == ["closed", "rollback to 1"]
    ask(client, "rollback to a")
    assert [e[1] for e in errors(series(client, Execute(b"p", 1)))] == ["34000"]


def test_an_error_skips_to_sync(client, door):
    answer = series(
        client,
        Parse(b"", b"fail"),
        Bind(b"", b""),
        Execute(b""),
        Parse(b"", b"insert"),
        Query(b"insert"),
        Execute(b""),
    )
    assert answer[0:2] == [Signal.PARSE_COMPLETE, Signal.BIND_COMPLETE]
    assert [type(m).__name__ for m in answer[2:]] == ["ErrorResponse", "ReadyForQuery"]
    assert "execute insert" not in door.journal.calls
    assert tags(ask(client, "insert")) == ["INSERT 0 3"]


def test_a_pipeline_is_one_transaction_that_sync_commits(client, door):
    insert = (Parse(b"", b"insert"), Bind(b"", b""), Execute(b""))
    answer = series(client, *insert, *insert)
    assert tags(answer) == ["INSERT 0 3"] * 2
    calls = [c for c in door.journal.calls if "prepare" not in c]
    assert calls == ["begin pipeline", "execute insert", "execute insert", "commit"]
    door.journal.fail_commit = True
    answer = series(client, *insert)
    assert [e[1] for e in errors(answer)] == ["40001"]
    assert status(answer) == "I"


def test_transaction_control_and_show_can_be_prepared(client):
    answer = series(
        client,
        Parse(b"", b"begin"),
        Bind(b"", b""),
        Describe(PORTAL, b""),
        Execute(b""),
        Parse(b"", b"show TIMEZONE"),
        Bind(b"", b"", (), (), (1,)),
        Describe(PORTAL, b""),
        Execute(b""),
    )
    assert Signal.NO_DATA in answer
    assert rows(answer) == [(b"UTC",)]
    assert status(answer) == "T"
    series(client, Parse(b"", b"fail"), Bind(b"", b""), Execute(b""))
    answer = series(client, Parse(b"", b"rollback"), Bind(b"", b""), Execute(b""))
    assert tags(answer) == ["ROLLBACK"]
    assert status(answer) == "I"


def test_an_empty_statement_can_be_executed(client):
    answer = series(
        client,
        Parse(b"", b" /* nothing */ "),
        Describe(STATEMENT, b""),
        Bind(b"", b""),
        Execute(b""),
    )
    assert answer[1:3] == [ParameterDescription(()), Signal.NO_DATA]
    assert Signal.EMPTY_QUERY in answer


@pytest.mark.parametrize(
    ("messages", "sqlstate", "message"),
    [
        (
            [Parse(b"a", b"insert"), Parse(b"a", b"insert")],
            "42P05",
            'prepared statement "a" already exists',
        ),
        ([Bind(b"", b"a")], "26000", 'prepared statement "a" does not exist'),
        ([Bind(b"", b"")], "26000", "unnamed prepared statement does not exist"),
        ([Describe(STATEMENT, b"a")], "26000", 'prepared statement "a" does not exist'),
        ([Describe(PORTAL, b"a")], "34000", 'portal "a" does not exist'),
        (
            [Parse(b"", b"insert; insert")],
            "42601",
            "cannot insert multiple commands into a prepared statement",
        ),
        (
            [Parse(b"s", b"echo"), Bind(b"", b"s", (), (b"1",))],
            "08P01",
            'bind message supplies 1 parameters, but prepared statement "s" requires 2',
        ),
        (
            [Parse(b"", b"echo"), Bind(b"", b"", (0, 0, 0), (b"1", b"2"))],
            "08P01",
            "bind message has 3 parameter formats but 2 parameters",
        ),
        (
            [Parse(b"", b"rows 1"), Bind(b"", b"", (), (), (0, 0, 0))],
            "08P01",
            "bind message has 3 result formats but query has 2 columns",
        ),
        (
            [Parse(b"", b"rows 1"), Bind(b"", b"", (), (), (2,))],
            "22023",
            "unsupported format code: 2",
        ),
        (
            [Parse(b"", b"rows 1"), Bind(b"p", b""), Bind(b"p", b"")],
            "42P03",
            'cursor "p" already exists',
        ),
        (
            [Parse(b"", b"insert"), Bind(b"p", b""), Execute(b"p"), Execute(b"p")],
            "55000",
            'portal "p" cannot be run',
        ),
        (
            [Parse(b"", b"show nosuch")],
            "42704",
            'unrecognized configuration parameter "nosuch"',
        ),
    ],
)
def test_extended_errors_are_postgresqls(client, messages, sqlstate, message):
    assert errors(series(client, *messages)) == [("ERROR", sqlstate, message)]


def test_a_message_that_breaks_the_protocol_inside_is_an_ordinary_error(client):
    client.socket.sendall(Frame(b"B", b"\0\0\0\1").encode())
    answer = series(client)
    assert errors(answer) == [("ERROR", "08P01", "insufficient data left in message")]
    client.socket.sendall(Frame(b"Q", b"no end").encode())
    assert errors(client.until_ready()) == [
        ("ERROR", "08P01", "invalid string in message")
    ]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"!\0\0\0\4", "invalid frontend message type 33"),
        (b"Q\0\0\0\2", "invalid message length"),
        (b"Q\x7f\xff\xff\xff", "invalid message length"),
        (b"p\0\0\0\4", "invalid frontend message type 112"),
    ],
)
def test_a_message_that_cannot_be_framed_ends_the_session(client, data, message):
    client.socket.sendall(data)
    assert errors(client.rest()) == [("FATAL", "08P01", message)]


def test_a_result_that_changed_since_it_was_described_is_refused(client, door):
    series(client, Parse(b"s", b"version"), Describe(STATEMENT, b"s"))
    door.journal.shape = (FieldDescription("v", TEXT),)
    answer = series(client, Bind(b"", b"s"), Execute(b""))
    assert errors(answer) == [
        ("ERROR", "0A000", "cached plan must not change result type")
    ]


def test_flush_sends_without_ending_the_series(client):
    client.send(Parse(b"", b"insert"), Flush())
    assert client.next() is Signal.PARSE_COMPLETE
    assert isinstance(series(client)[-1], ReadyForQuery)


def test_statements_of_a_session_are_bounded_in_bytes():
    settings = ListenerSettings(max_session_bytes=100_000)
    with open_door(settings=settings) as door, RawClient(door.port) as client:
        client.start()
        names = [b"s%d" % n for n in range(200)]
        answer = series(client, *(Parse(name, b"insert") for name in names))
        assert [e[1] for e in errors(answer)] == ["53200"]
        assert tags(ask(client, "deallocate s1; deallocate all")) == [
            "DEALLOCATE",
            "DEALLOCATE ALL",
        ]
        assert errors(series(client, Parse(b"s", b"insert"))) == []


# -- interrupts


@pytest.mark.parametrize("sql", ["wait", "wait politely"])
def test_statement_timeout_cancels_with_its_own_text(client, sql):
    ask(client, "set statement_timeout = 50")
    answer = ask(client, sql)
    assert errors(answer) == [
        ("ERROR", "57014", "canceling statement due to statement timeout")
    ]
    assert tags(ask(client, "insert")) == ["INSERT 0 3"]


@pytest.mark.parametrize(
    ("setting", "sql", "sqlstate"),
    [
        ("idle_session_timeout", "", "57P05"),
        ("idle_in_transaction_session_timeout", "begin", "25P03"),
    ],
)
def test_idle_timeouts_end_the_session(client, setting, sql, sqlstate):
    ask(client, f"set {setting} = 30; {sql}")
    assert [e[:2] for e in errors(client.rest())] == [("FATAL", sqlstate)]


@pytest.mark.parametrize("sql", ["begin", "begin; wait", "wait politely"])
def test_a_transaction_timeout_ends_the_session(client, sql):
    ask(client, "set transaction_timeout = 50")
    client.send(Query(sql.encode()))
    assert errors(client.rest()) == [
        ("FATAL", "25P04", "terminating connection due to transaction timeout")
    ]


def test_a_transaction_that_has_ended_has_no_timeout(client):
    ask(client, "set transaction_timeout = 60; begin; commit")
    ask(client, "begin; set local transaction_timeout = 0")
    time.sleep(0.15)
    assert tags(ask(client, "commit")) == ["COMMIT"]


def test_each_transaction_of_a_string_has_a_timeout_of_its_own(client, monkeypatch):
    seen = []

    class Timer(threading.Timer):
        def start(self):
            seen.append("start")
            super().start()

        def cancel(self):
            seen.append("cancel")
            super().cancel()

    monkeypatch.setattr(threading, "Timer", Timer)
    ask(client, "set transaction_timeout = 77000")
    del seen[:]
    ask(client, "begin")
    ask(client, "select 1")
    assert seen == ["start"]
    for sql in ("commit; begin", "rollback; begin", "commit and chain"):
        del seen[:]
        ask(client, sql)
        assert seen == ["cancel", "start"], sql
    ask(client, "selec")
    assert seen[2:] == ["cancel"]
    ask(client, "rollback")


def test_a_shutdown_ends_idle_and_busy_sessions_with_57p01(door, client):
    with RawClient(door.port) as busy:
        busy.start()
        busy.send(Query(b"wait"))
        assert door.journal.waiting.wait(5)
        assert sorted(s.state for s in door.listener.sessions()) == ["active", "idle"]
        stopper = threading.Thread(target=door.listener.stop)
        stopper.start()
        expected = "terminating connection due to administrator command"
        for raw in (client, busy):
            assert errors(raw.rest()) == [("FATAL", "57P01", expected)]
        stopper.join(10)
        assert not stopper.is_alive()


def test_one_session_can_be_terminated_from_another(door, client):
    (session,) = door.listener.sessions()
    assert session.user == "alice"
    assert session.state == "idle"
    assert door.listener.terminate(session.pid)
    assert [e[:2] for e in errors(client.rest())] == [("FATAL", "57P01")]
    assert not door.listener.terminate(session.pid + 1)


def test_a_smart_shutdown_waits_for_its_clients(door, client):
    assert not door.listener.drain(timeout_s=0.01)
    with RawClient(door.port) as late:
        assert errors(late.start()) == [
            ("FATAL", "57P03", "the database system is shutting down")
        ]
    client.send(Terminate())
    assert door.listener.drain(timeout_s=5)


def test_a_client_that_reads_nothing_is_cut_off():
    settings = ListenerSettings(write_timeout_s=0.2)
    with open_door(settings=settings) as door, RawClient(door.port) as client:
        client.start()
        client.send(Query(b"rows 2000000"))
        deadline = threading.Event()
        for _ in range(1000):
            if door.journal.calls[-1:] == ["close"]:
                break
            deadline.wait(0.01)
        assert door.journal.calls[-3:] == ["closed", "rollback", "close"]
