"""synchronous_standby_names: how it is read, whom it names, and what a COMMIT waits for."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from wal2lake.errors import ConfigurationError, UsageError
from wal2lake.model import Lsn
from wal2lake.publish.synchronous import (
    CommitWaits,
    Standbys,
    Walsender,
    parse_standbys,
)
from wal2lake.publish.walsender.page import WalsenderPositions


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("", None),
        (" \n ", None),
        ("s1", Standbys(False, 1, ("s1",))),
        ("*", Standbys(False, 1, ("*",))),
        ("s1, S2 ,*", Standbys(False, 1, ("s1", "S2", "*"))),
        ("2 (a, b, c)", Standbys(False, 2, ("a", "b", "c"))),
        ("First 3(a,b,c)", Standbys(False, 3, ("a", "b", "c"))),
        ('ANY 2 ("a b", "c""d", 7)', Standbys(True, 2, ("a b", 'c"d', "7"))),
        ("7", Standbys(False, 1, ("7",))),
        ("größe_$1", Standbys(False, 1, ("größe_$1",))),
    ],
)
def test_it_is_read_as_postgresql_reads_it(text: str, found: Standbys | None) -> None:
    assert parse_standbys(text) == found


@pytest.mark.parametrize(
    "text",
    [
        *(
            "a b",
            "a,",
            ",a",
            "2 (a",
            "ANY (a)",
            "FIRST a",
            "ANY 1",
            "0 (a)",
            "ANY 0 (a)",
        ),
        *('"a', "a;b", "2 ()", "a (b)", "2 (a) b", "(a)"),
    ],
)
def test_what_is_none_is_refused(text: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        parse_standbys(text)
    wanted = f'invalid value for parameter "synchronous_standby_names": "{text}"'
    assert refused.value.message == wanted and refused.value.detail


def sender(
    pid: int, name: str, flush: int, *, apply: int = 0, streaming: bool = True
) -> Walsender:
    at = Lsn(flush)
    return Walsender(
        pid, name, WalsenderPositions(at, at, at, Lsn(apply), 0, streaming)
    )


def test_the_first_of_the_list_are_synchronous() -> None:
    found = parse_standbys("2 (b, a, c)")
    assert found is not None
    all_ = [
        sender(1, "A", 10),
        sender(2, "b", 30, streaming=False),
        sender(3, "c", 20),
        sender(4, "d", 90),
        sender(5, "a", 40),
    ]
    assert [found.priority(one.application_name) for one in all_] == [2, 1, 3, 0, 2]
    # One that has not caught up is none yet.
    states = [found.state(one, all_) for one in all_]
    assert states == ["sync", "potential", "potential", "async", "sync"]
    assert found.confirmed(all_, "flush") == 10
    assert found.confirmed(all_[:1], "flush") is None


def test_any_of_a_quorum_will_do() -> None:
    found = parse_standbys("any 2 (a, b, c)")
    assert found is not None
    all_ = [sender(1, "a", 10), sender(2, "b", 30, apply=5), sender(3, "c", 20)]
    assert [found.state(one, all_) for one in all_] == ["quorum"] * 3
    assert {found.priority(one.application_name) for one in all_} == {1}
    assert found.confirmed(all_, "flush") == 20
    assert found.confirmed(all_, "apply") == 0
    assert found.confirmed(all_[:1], "flush") is None


class World:
    """A log that ends at 100, and who has confirmed how much of it."""

    def __init__(self, names: str) -> None:
        self.senders: list[Walsender] = []
        self.standbys = parse_standbys(names)
        self.looked = threading.Event()
        self.cancelled = False
        capture = SimpleNamespace(
            catch_up=lambda seconds, check: SimpleNamespace(lsn=Lsn(100))
        )
        self.commits = CommitWaits(
            cast(Any, capture), self._walsenders, lambda: self.standbys
        )
        self.answers: list[bool] = []

    def _walsenders(self) -> list[Walsender]:
        self.looked.set()
        return self.senders

    def _check(self) -> None:
        if self.cancelled:
            raise UsageError("canceling statement", sqlstate="57014")

    def wait(self, level: str, then: Callable[[], None]) -> bool:
        """``then`` happens when it has begun to wait."""
        thread = threading.Thread(
            target=lambda: self.answers.append(self.commits.wait(level, self._check))
        )
        thread.start()
        assert self.looked.wait(10)
        assert not self.answers
        then()
        thread.join(10)
        return self.answers.pop()


def test_a_commit_waits_for_its_standbys() -> None:
    world = World("a")
    assert world.commits.wait("local", world._check)
    assert world.commits.wait("off", world._check)

    def confirm(flush: int, apply: int) -> None:
        world.senders = [sender(1, "a", flush, apply=apply)]

    confirm(99, 0)
    assert world.wait("on", lambda: confirm(100, 0))
    # remote_apply asks for more.
    world.looked.clear()
    assert world.wait("remote_apply", lambda: confirm(100, 100))
    assert world.commits.wait("remote_write", world._check)

    world.senders = []
    world.looked.clear()
    assert not world.wait("on", lambda: setattr(world, "cancelled", True))
    world.cancelled = False
    # Who takes the names away frees those who wait.
    world.looked.clear()
    assert world.wait("on", lambda: setattr(world, "standbys", None))
