"""From the first byte to ReadyForQuery, and every way not to get there."""

from __future__ import annotations

import threading

import psycopg
import pytest
from structlog.testing import capture_logs
from tests.fakes.door import (
    PASSWORD,
    ROLES,
    FakeBackend,
    FakeDoor,
    Journal,
    RawClient,
    errors,
    open_door,
)

from wal2lake.door import (
    AuthMethod,
    Door,
    Entrance,
    Listener,
    ListenerSettings,
    everybody,
)
from wal2lake.door.greeting import command_line_settings
from wal2lake.errors import SqlSyntaxError
from wal2lake.launch.listeners import open_listeners
from wal2lake.sql.backend import Outcome
from wal2lake.testing.waits import wait_until
from wal2lake.wire.frontback import (
    AuthenticationData,
    AuthenticationSASL,
    BackendKeyData,
    CancelRequest,
    CommandComplete,
    NegotiateProtocolVersion,
    ParameterStatus,
    Parse,
    Query,
    ReadyForQuery,
    SSLRequest,
    Sync,
    write_startup,
)


def fatal(**conninfo):
    with pytest.raises(psycopg.OperationalError) as caught:
        psycopg.connect(**conninfo)
    return str(caught.value).partition("failed: ")[2].partition("failed: ")[2]


def test_psycopg_logs_in_with_its_password_by_scram():
    with (
        open_door(method=AuthMethod.SCRAM) as door,
        psycopg.connect(**door.conninfo()) as connection,
    ):
        assert connection.info.server_version == 180000
        assert connection.info.user == "alice"
        assert connection.pgconn.used_password


@pytest.mark.parametrize(
    "changes", [{"password": "no"}, {"user": "bob"}, {"user": "nologin"}]
)
def test_wrong_password_and_unknown_user_cannot_be_told_apart(changes):
    user = changes.get("user", "alice")
    with open_door(method=AuthMethod.SCRAM) as door:
        assert fatal(**door.conninfo(**changes)) == (
            f'FATAL:  password authentication failed for user "{user}"'
        )


def test_trust_wants_the_role_to_exist():
    with open_door() as door:
        with psycopg.connect(**door.conninfo(password=None)) as connection:
            assert not connection.pgconn.used_password
        message = fatal(**door.conninfo(user="bob"))
        assert message == 'FATAL:  role "bob" does not exist'


def test_the_default_database_is_the_users_name_and_does_not_exist():
    with open_door() as door:
        message = fatal(**door.conninfo(dbname=None))
        assert message == 'FATAL:  database "alice" does not exist'
        with RawClient(door.port) as client:
            found = errors(client.start(database="Other"))
            assert found == [("FATAL", "3D000", 'database "Other" does not exist')]


def test_the_answer_to_a_startup_message_has_everything_a_client_waits_for():
    with open_door() as door, RawClient(door.port) as client:
        answer = client.start(application_name="t", options="-c timezone=Asia/Tokyo")
        told = {m.name: m.value for m in answer if isinstance(m, ParameterStatus)}
        assert told["application_name"] == "t"
        assert told["TimeZone"] == "Asia/Tokyo"
        assert told["is_superuser"] == "on"
        assert told["session_authorization"] == "alice"
        assert told["server_version"] == "18.0"
        assert isinstance(answer[-2], BackendKeyData)
        assert isinstance(answer[-1], ReadyForQuery)
        assert [c.user for c in door.journal.contexts] == ["alice"]


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ("", []),
        (
            " -c datestyle=ISO -c intervalstyle=postgres",
            [("datestyle", "ISO"), ("intervalstyle", "postgres")],
        ),
        ("-cwork-mem=1MB --a-b=c=d", [("work_mem", "1MB"), ("a_b", "c=d")]),
        (
            r"-c application_name=a\ b\\c",
            [("application_name", "a b\\c")],
        ),
    ],
)
def test_startup_options_are_read_as_a_command_line(options, settings):
    assert command_line_settings(options) == settings


@pytest.mark.parametrize("options", ["-d 1", "-c", "-c x", "--x", "word"])
def test_other_startup_options_are_refused(options):
    with pytest.raises(SqlSyntaxError):
        command_line_settings(options)


def test_an_unknown_startup_parameter_ends_the_session():
    with open_door() as door, RawClient(door.port) as client:
        found = errors(client.start(nosuch="1"))
        assert found == [
            ("FATAL", "42704", 'unrecognized configuration parameter "nosuch"')
        ]


@pytest.mark.parametrize(
    ("minor", "parameters", "unrecognized"),
    [
        (2, {}, ()),
        (9999, {"_pq_.grease": "1"}, (b"_pq_.grease",)),
        (0, {"_pq_.a": "", "_pq_.b": "x"}, (b"_pq_.a", b"_pq_.b")),
    ],
)
def test_newer_protocols_and_unknown_options_are_negotiated(
    minor, parameters, unrecognized
):
    with open_door() as door, RawClient(door.port) as client:
        answer = client.start(minor=minor, **parameters)
        assert answer[0] == NegotiateProtocolVersion(3, 0, unrecognized)
        assert isinstance(answer[-1], ReadyForQuery)


def test_libpq_asking_for_the_latest_protocol_settles_for_ours():
    with (
        open_door() as door,
        psycopg.connect(**door.conninfo(max_protocol_version="latest")) as connection,
    ):
        assert connection.execute("rows 1").fetchall() == [(0, "word 0")]


def test_protocol_two_gets_an_error_in_its_own_shape():
    with open_door() as door, RawClient(door.port) as client:
        client.socket.sendall(b"\0\0\0\x10\0\2\0\0database")
        data = b""
        while piece := client.socket.recv(1000):
            data += piece
        assert data == (
            b"EFATAL:  unsupported frontend protocol 2.0: server supports 3.0 to 3.0\n\0"
        )


def test_encryption_is_refused_with_one_byte_and_the_client_goes_on():
    with open_door() as door, RawClient(door.port) as client:
        client.socket.sendall(write_startup(SSLRequest()))
        assert client.socket.recv(10) == b"N"
        assert isinstance(client.start()[-1], ReadyForQuery)


def test_encryption_can_be_asked_for_once_only():
    with open_door() as door, RawClient(door.port) as client:
        client.socket.sendall(write_startup(SSLRequest()) * 2)
        assert client.socket.recv(1) == b"N"
        assert client.rest() == []


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"\0\0\0\0",
        b"\0\0\0\x08\0\3\0\0",
        b"\xff" * 70_000,
    ],
)
def test_garbage_is_answered_with_a_closed_connection(garbage):
    with open_door() as door:
        with RawClient(door.port) as client:
            client.socket.sendall(garbage)
            assert client.rest() == []
        with RawClient(door.port) as client:
            assert isinstance(client.start()[-1], ReadyForQuery)


def test_a_bad_answer_to_the_challenge_is_a_fatal_error():
    with open_door(method=AuthMethod.SCRAM) as door:
        for message in (Query(b"x"), AuthenticationData(b"PLAIN\0\0\0\0\0")):
            with RawClient(door.port) as client:
                client.socket.sendall(startup(b"alice"))
                assert client.next() == AuthenticationSASL(("SCRAM-SHA-256",))
                client.send(message)
                assert [e[:2] for e in errors(client.rest())] == [("FATAL", "08P01")]


def startup(user):
    body = b"\0\3\0\0user\0" + user + b"\0database\0lake\0\0"
    return (len(body) + 4).to_bytes(4, "big") + body


def test_a_client_that_never_authenticates_is_cut_off():
    settings = ListenerSettings(authentication_timeout_s=0.2)
    with open_door(method=AuthMethod.SCRAM, settings=settings) as door:
        with RawClient(door.port) as client:
            assert client.rest() == []
        with RawClient(door.port) as client:
            client.socket.sendall(startup(b"alice"))
            assert errors(client.rest()) == [
                ("FATAL", "57014", "canceling authentication due to timeout")
            ]


def test_before_ready_every_client_is_told_that_the_node_starts():
    with capture_logs() as log, open_door(is_ready=False) as door:
        message = fatal(**door.conninfo())
        assert message == "FATAL:  the database system is starting up"
        with RawClient(door.port) as client:
            assert [e[:2] for e in errors(client.start())] == [("FATAL", "57P03")]
        refused = [one for one in log if one.get("sqlstate") == "57P03"]
        assert len(refused) >= 2, log
        assert {one["log_level"] for one in refused} == {"debug"}, "no FATAL line"
        door.open()
        psycopg.connect(**door.conninfo()).close()


def test_above_max_connections_clients_are_told_so_and_cancels_still_work():
    settings = ListenerSettings(max_connections=2)
    with open_door(settings=settings) as door:
        first = psycopg.connect(**door.conninfo())
        second = psycopg.connect(**door.conninfo())
        assert fatal(**door.conninfo()) == "FATAL:  sorry, too many clients already"
        waiter = threading.Thread(target=_expect_cancel, args=(first,))
        waiter.start()
        assert door.journal.waiting.wait(5)
        first.cancel_safe()
        waiter.join(5)
        assert not waiter.is_alive()
        first.close()
        second.close()
        # The listener forgets a session before its client sees the end of it.
        wait_until(lambda: not door.listener.sessions())
        psycopg.connect(**door.conninfo()).close()


def _expect_cancel(connection):
    with pytest.raises(psycopg.errors.QueryCanceled):
        connection.execute("wait")


def test_connections_far_above_the_limit_are_closed_unread():
    with open_door(settings=ListenerSettings(max_connections=1)) as door:
        clients = [RawClient(door.port) for _ in range(12)]
        try:
            wait_until(
                lambda: sum("session-" in t.name for t in threading.enumerate()) >= 4
            )
            assert sum("session-" in t.name for t in threading.enumerate()) == 4
            assert clients[-1].rest() == []
        finally:
            for client in clients:
                client.socket.close()


def test_one_listener_serves_several_sockets_with_one_set_of_pids():
    sockets = open_listeners("127.0.0.1,127.0.0.2", 0)
    entrance = Entrance(everybody(AuthMethod.TRUST))
    listener = Listener(sockets, ListenerSettings(), entrance)
    fake = FakeDoor(listener, Journal(), Door("lake", ROLES.get, b""))
    listener.start()
    fake.open()
    try:
        with (
            psycopg.connect(**fake.conninfo()) as first,
            psycopg.connect(**fake.conninfo(host="127.0.0.2")) as second,
        ):
            assert first.info.backend_pid != second.info.backend_pid
            assert len(listener.sessions()) == 2
    finally:
        listener.stop()


def test_replication_connections_are_refused_unless_somebody_takes_them():
    with open_door() as door:
        with RawClient(door.port) as client:
            found = errors(client.start(replication="database"))
            assert found == [
                ("FATAL", "0A000", "replication connections are not supported")
            ]
        with RawClient(door.port) as client:
            assert errors(client.start(replication="sideways")) == [
                (
                    "FATAL",
                    "22023",
                    'invalid value for parameter "replication": "sideways"',
                )
            ]
        commands = []

        class Commands:
            def run(self, text, transaction):
                commands.append(text)
                return Outcome("IDENTIFY_SYSTEM")

            def next_query(self):
                commands.append("next")

            def close(self):
                commands.append("closed")

        door.listener.ready(
            door.door,
            lambda context: FakeBackend(context, door.journal),
            replication=lambda conversation, context, backend: Commands(),
        )
        with RawClient(door.port) as client:
            answer = client.start(replication="database")
            assert isinstance(answer[-1], ReadyForQuery)
            client.send(Query(b"IDENTIFY_SYSTEM"))
            answer = client.until_ready()
            assert CommandComplete("IDENTIFY_SYSTEM") in answer
            # Anything else is a statement, but not by extended messages.
            client.send(Query(b"select 1"))
            assert any(isinstance(one, CommandComplete) for one in client.until_ready())
            client.send(Parse(b"", b"select 1", ()), Sync())
            assert errors(client.until_ready()) == [
                (
                    "ERROR",
                    "08P01",
                    "extended query protocol not supported in a replication connection",
                )
            ]
        wait_until(lambda: commands == ["next", "IDENTIFY_SYSTEM", "next", "closed"])


def test_a_cancel_request_with_a_wrong_key_does_nothing():
    with open_door() as door, psycopg.connect(**door.conninfo()) as connection:
        waiter = threading.Thread(target=_expect_cancel, args=(connection,))
        waiter.start()
        assert door.journal.waiting.wait(5)
        pid = connection.info.backend_pid
        for request in (CancelRequest(pid, b"nope"), CancelRequest(pid + 7, b"nope")):
            with RawClient(door.port) as client:
                client.socket.sendall(write_startup(request))
                assert client.rest() == []
        assert waiter.is_alive()
        assert door.listener.cancel(pid)
        waiter.join(5)
        assert not waiter.is_alive()


def test_an_error_in_the_list_of_roles_is_an_internal_error_and_no_crash():
    def broken(name):
        raise OSError("disk gone")

    with open_door(roles=broken) as door, RawClient(door.port) as client:
        assert errors(client.start()) == [("FATAL", "XX000", "internal error")]


def test_the_password_of_the_test_is_one_that_saslprep_changes():
    assert not PASSWORD.isascii()
