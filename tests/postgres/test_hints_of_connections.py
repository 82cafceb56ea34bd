"""Hints of connections, done word by word."""

from __future__ import annotations

import socket
import time

import pytest
from tests.conftest import Database
from tests.fakes.front import Front, pass_on, readable
from tests.fakes.pooler_front import PoolerFront

from wal2lake.errors import PublisherError, UsageError
from wal2lake.pg import Session, connect
from wal2lake.pg.connection import CONNECT_TIMEOUT
from wal2lake.testing.proxy import TcpProxy


class Late(Front):
    """Connections are passed on after a while."""

    def _serve(self, client: socket.socket) -> None:
        time.sleep(1.3)
        with self._reach() as server:
            ways = {client: server, server: client}
            while all(pass_on(one, ways[one]) for one in readable(client, server)):
                pass


def test_a_longer_wait_for_a_slow_server(
    pg18: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CONNECT_TIMEOUT, "1")
    with Late(pg18.server.port) as front:
        slow = pg18.conninfo(host="127.0.0.1", port=str(front.port))

        def begin(given: str = "") -> Session:
            return connect(slow + given, application_name="test")

        with pytest.raises(PublisherError) as refused:
            begin()
        assert refused.value.hint == (
            "The longest wait is connect_timeout in the connection string, or else"
            f' {CONNECT_TIMEOUT} in the environment, or else "subscription.connect_timeout_ms".'
        )
        begin(" connect_timeout=20").close()
        # The setting is what the environment has where nobody else has said anything:
        # test_the_limit_is_in_whole_seconds_and_never_none.
        monkeypatch.setenv(CONNECT_TIMEOUT, "20")
        begin().close()


def test_a_server_that_says_nothing_is_looked_at(pg18: Database) -> None:
    with TcpProxy("127.0.0.1", pg18.server.port) as proxy:
        through = pg18.conninfo(host="127.0.0.1", port=str(proxy.port))

        def begin() -> Session:
            return connect(through, application_name="test", answer_timeout_seconds=0.5)

        session = begin()
        proxy.stall()
        with pytest.raises(PublisherError) as refused:
            session.query("select 1")
        assert refused.value.hint == (
            "Look at the network and at the server: it has taken the statement, and says"
            " nothing."
        )
        session.close()
        proxy.resume()
        session = begin()
        assert session.query("select 1") == [("1",)]
        session.close()


def test_the_server_itself_behind_a_pooler(pg18: Database) -> None:
    with PoolerFront(pg18.server.port, old=True) as front:
        through = pg18.conninfo(host="127.0.0.1", port=str(front.port))
        with pytest.raises(PublisherError) as refused:
            connect(through, application_name="test", replication=True)
    assert str(refused.value.hint).endswith("Connect to the server itself.")
    connect(pg18.conninfo(), application_name="test", replication=True).close()


def test_no_password_is_required(pg18: Database) -> None:
    """Of the two ways the first one is ``test_a_subscription_of_somebody_who_is_no_superuser``."""
    given = pg18.conninfo() + " password=unused"

    def begin(required: bool) -> Session:
        return connect(given, application_name="test", must_use_password=required)

    with pytest.raises(UsageError) as refused:
        begin(True)
    assert str(refused.value.hint).endswith(
        "or set password_required=false in the subscription parameters."
    )
    begin(False).close()
