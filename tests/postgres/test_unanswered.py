"""Whether it is known what became of a statement: a command that drops a slot depends on it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest
from tests.conftest import Database

from wal2lake.errors import PublisherError
from wal2lake.pg import Session, connect
from wal2lake.testing.proxy import TcpProxy


class Ended(Exception):
    """Somebody ends the wait."""


@dataclass
class Impatience:
    """Ends the wait for a statement when it has been looked at twice."""

    looks: int | None = None
    first: Callable[[], object] = lambda: None

    def check(self) -> None:
        if self.looks is None:
            return
        self.looks += 1
        if self.looks > 2:
            self.looks = None
            self.first()
            raise Ended


def test_what_became_of_a_statement_is_known_if_the_server_has_said_it(
    pg18: Database,
) -> None:
    somebody = Impatience()

    def begin(conninfo: str) -> Session:
        return connect(conninfo, application_name="test", check=somebody.check)

    with TcpProxy("127.0.0.1", pg18.server.port) as proxy:
        conninfo = pg18.conninfo(host="127.0.0.1", port=str(proxy.port))
        session = begin(conninfo)
        assert not session.unanswered
        with pytest.raises(PublisherError, match="division by zero"):
            session.query("select 1/0")
        assert not session.unanswered
        # Cancelled, and the server says so.
        somebody.looks = 0
        with pytest.raises(Ended):
            session.query("select pg_sleep(600)")
        assert not session.unanswered
        # The server ends: it may have been done.
        session = begin(conninfo)
        with pytest.raises(PublisherError):
            session.query("select pg_terminate_backend(pg_backend_pid())")
        assert session.unanswered
        # Cancelled, and nothing comes through.
        session = begin(conninfo)
        somebody.looks, somebody.first = 0, proxy.stall
        with pytest.raises(Ended):
            session.query("select pg_sleep(600)")
        assert session.unanswered
