"""The session's own statements, asked of PostgreSQL 18 and of the front door: same answers.

Compared are tags, rows, column names, SQLSTATE, message, detail, hint, position, notices
and the transaction status. Every line is a session; its queries are separated by ``##``.
"""

from __future__ import annotations

import psycopg
import pytest
from psycopg import generators, pq
from tests.fakes.door import open_door

SCRIPTS = """
set
set a
set statement_timeout = '5 parsecs'
set statement_timeout = '1.5min' ## show statement_timeout
set statement_timeout = -1
set extra_float_digits = 4
set jit = maybe
set bytea_output = nope
set client_min_messages = foo
set synchronous_commit = foo
set timezone = 'Nowhere'
set timezone = '-7' ## show timezone
set time zone -7.5 ## show time zone
set time zone interval '+05:30' hour to minute ## show timezone
set timezone = 'europe/berlin' ## show timezone
set timezone = 'GMT+02:00' ## show timezone
set timezone = 'utc' ## show timezone
set timezone='Zulu' ## show timezone
set datestyle = german ## show datestyle
set datestyle = 'sql, dmy' ## show datestyle
set datestyle = sql, dmy ## show datestyle
set datestyle = 'iso, sql'
set datestyle = foo
set client_encoding = 'latin1' ## show client_encoding
set client_encoding = klingon
set names 'win1252' ## show client_encoding
set server_version = '9'
set nosuch = 3
show nosuch
reset nosuch
set my.own = 1, 2
set my.own = 'x' ## show my.own ## reset my.own ## show my.own
show my.other
set "1a.b" = 1
set timezone = 'UTC', 'UTC'
set search_path = lake, "$user", 'x y', Foo ## show search_path
set search_path to 'a, b' ## show search_path
set search_path = default ## show search_path
set local timezone = 'Asia/Tokyo' ## show timezone
set transaction read only
begin ## set transaction isolation level serializable \
## show transaction_isolation ## commit ## show transaction isolation level
begin isolation level repeatable read, read only deferrable ## show transaction_read_only \
## show transaction_deferrable ## rollback
begin isolation level foo
begin; begin; commit; commit
rollback
commit and chain
rollback and chain
begin ## commit and chain ## rollback and no chain
savepoint a
release a
rollback to a
begin ## savepoint a ## savepoint b ## oops \
## release b ## rollback to b ## release a ## rollback to a ## commit
begin ## oops ## set timezone = 'UTC' ## show timezone ## begin ## savepoint x ## commit
begin ## oops ## prepare transaction 'x'
begin ## oops ## rollback to nope ## end
commit prepared 'x'
discard all ## discard plans ## discard temp ## discard sequences
begin ## discard all
discard foo
deallocate nope
deallocate all ## deallocate prepare all
close all ## unlisten *
set role none ## set role alice ## show role
set session authorization default ## set session authorization alice
set session characteristics as transaction read only \
## show default_transaction_read_only ## show transaction_read_only
show transaction isolation level ## show session authorization
select 'abc
show all extra
begin work foo
set xml option document ## show xmloption
set work_mem = '3000kB' ## show work_mem \
## set work_mem = '1GB' ## show work_mem ## set work_mem = 10
set application_name = 'é x' ## show application_name
set standard_conforming_strings = on
set schema 'abc' ## show search_path
start transaction read only; commit work
abort
end transaction
set idle_session_timeout = '1h' ## show idle_session_timeout
set timezone to local ## show timezone
show TimeZone
show "TimeZone"
show "timezone"
set datestyle to 'ISO, MDY' ## reset datestyle ## reset all
set a.b.c = 5 ## show a.b.c
set foo.bar = default ## show foo.bar
set work_mem = '3000kB'; selekt ## show work_mem
begin; set work_mem = '3000kB'; commit; selekt ## show work_mem
begin ## oops ## set work_mem = '3000kB'; selekt \
## rollback; create publication for table ## rollback
begin; set work_mem = '3000kB'; commit; set a ## show work_mem \
## begin; show work_mem; commit foo
"""


def transcript(connection, script):
    notices = []
    connection.add_notice_handler(
        lambda d: notices.append((d.severity, d.sqlstate, d.message_primary))
    )
    answers = []
    for query in script.split("##"):
        connection.pgconn.send_query(query.strip().encode())
        for result in connection.wait(generators.execute(connection.pgconn)):
            answers.append(describe(result))
        answers.append(connection.info.transaction_status.name)
    return answers, notices


def describe(result):
    if result.status == pq.ExecStatus.FATAL_ERROR:
        fields = (
            pq.DiagnosticField.SQLSTATE,
            pq.DiagnosticField.MESSAGE_PRIMARY,
            pq.DiagnosticField.MESSAGE_DETAIL,
            pq.DiagnosticField.MESSAGE_HINT,
            pq.DiagnosticField.STATEMENT_POSITION,
        )
        return [(result.error_field(field) or b"").decode() for field in fields]
    rows = [
        [result.get_value(row, column) for column in range(result.nfields)]
        for row in range(result.ntuples)
    ]
    names = [result.fname(column) for column in range(result.nfields)]
    return [result.command_status, names, rows]


@pytest.fixture(scope="module")
def door():
    with open_door() as opened:
        yield opened


@pytest.mark.parametrize("script", SCRIPTS.strip().splitlines())
def test_the_front_door_answers_as_postgresql(postgres_server, door, script):
    server = postgres_server(18).conninfo("postgres", options="-c timezone=UTC")
    with psycopg.connect(server, autocommit=True) as connection:
        user = connection.info.user
        expected = transcript(connection, script.replace("alice", user))
    conninfo = door.conninfo()
    with psycopg.connect(**conninfo, autocommit=True) as connection:
        found = transcript(connection, script)
    assert repr(found).replace("alice", user) == repr(expected)
