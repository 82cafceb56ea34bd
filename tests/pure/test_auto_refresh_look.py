"""A look's questions are several; their answers count only if nothing has changed meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from wal2lake.commands.subscription.auto import look
from wal2lake.errors import PublisherError
from wal2lake.model import Lsn, Oid
from wal2lake.pg.publications import PublishedState

T = PublishedState(Oid(100), "s", "t", frozenset({"r1"}), "iudt", "[null, []]")


@dataclass
class FakePublisher:
    """A publisher whose publication "p" is dropped and made anew at some questions."""

    changes_at: Sequence[str] = ()
    oid: int | None = 1
    asked: list[str] = field(default_factory=list)

    def answer(self, question: str) -> None:
        self.asked.append(question)
        if f"{question} {self.asked.count(question)}" in self.changes_at:
            self.oid = None if self.oid is not None else 1 + len(self.asked)

    def existing_publications(self, names: tuple[str, ...]) -> set[str]:
        self.answer("existing")
        return set() if self.oid is None else set(names)

    def states(self, *_: Any) -> list[PublishedState]:
        self.answer("states")
        return [] if self.oid is None else [T]

    def position(self) -> Lsn:
        self.answer("position")
        return Lsn(7)

    def fingerprint(self, *_: Any) -> str:
        self.answer("fingerprint")
        return str(self.oid)


@pytest.fixture
def publisher(monkeypatch: pytest.MonkeyPatch) -> FakePublisher:
    fake = FakePublisher()
    monkeypatch.setattr(look, "Publisher", lambda session: fake)
    monkeypatch.setattr(look, "published_states", fake.states)
    monkeypatch.setattr(look, "publication_fingerprint", fake.fingerprint)
    return fake


def test_a_publication_that_is_made_anew_between_two_questions_is_not_empty(
    publisher: FakePublisher,
) -> None:
    session: Any = None
    before = publisher.fingerprint()
    publisher.changes_at = ["states 1", "position 1"]
    found = look.ask(session, ("p",), [], before)
    assert (found.missing, found.states, found.lsn) == ([], [T], Lsn(7))
    assert publisher.asked.count("states") == 2


def test_a_publication_that_is_dropped_is_missing(publisher: FakePublisher) -> None:
    session: Any = None
    before = publisher.fingerprint()
    publisher.changes_at = ["states 1"]
    found = look.ask(session, ("p",), [], before)
    assert (found.missing, found.states) == (["p"], [])


def test_publications_that_change_all_the_time_are_an_error(
    publisher: FakePublisher,
) -> None:
    session: Any = None
    before = publisher.fingerprint()
    publisher.changes_at = [f"position {number}" for number in range(9)]
    with pytest.raises(PublisherError, match="changed during each look") as caught:
        look.ask(session, ("p",), [], before)
    assert caught.value.sqlstate == "40001"
    assert caught.value.hint == "The next look follows by itself."
