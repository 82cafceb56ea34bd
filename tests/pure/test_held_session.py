"""Looks at the publisher's catalog for one group of changes share a session."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from wal2lake.errors import PublisherError
from wal2lake.receive.source.heldsession import HeldSession


class Server:
    """Counts the sessions that were opened, and those that are open."""

    def __init__(self) -> None:
        self.opened = 0
        self.open = 0

    def session(self) -> Any:
        self.opened += 1
        self.open += 1
        number = self.opened
        return SimpleNamespace(number=number, close=self._close)

    def _close(self) -> None:
        self.open -= 1


@pytest.fixture
def server() -> Server:
    return Server()


def look(held: HeldSession) -> int:
    with held() as session:
        found: Any = session
        return int(found.number)


def test_looks_of_a_group_share_a_session_that_is_closed_behind_it(
    server: Server,
) -> None:
    held = HeldSession(server.session)
    with held.held():
        assert (look(held), look(held)) == (1, 1)
        assert server.open == 1
    assert server.open == 0
    with held.held():
        assert look(held) == 2
    assert server.open == 0


def test_a_group_without_a_look_opens_none(server: Server) -> None:
    with HeldSession(server.session).held():
        pass
    assert server.opened == 0


def test_a_look_by_itself_has_a_session_of_its_own(server: Server) -> None:
    held = HeldSession(server.session)
    assert (look(held), look(held)) == (1, 2)
    assert server.open == 0


def test_after_an_error_the_next_look_opens_another_one(server: Server) -> None:
    held = HeldSession(server.session)
    with held.held():
        with pytest.raises(PublisherError), held():
            raise PublisherError("terminating connection", sqlstate="57P01")
        assert server.open == 0
        assert look(held) == 2
    assert server.open == 0
