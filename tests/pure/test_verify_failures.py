"""What fails for one table or one subscription is the reason of its tables, and the others are
compared all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.fakes.commands import GONE, KEPT, World, rel, remote, table

from wal2lake.catalog import Catalog, Role, SnapshotVector, Subscription
from wal2lake.commands.maintenance import verifying
from wal2lake.commands.maintenance.comparedsource import ComparedSource
from wal2lake.errors import PublisherError, StorageError, UsageError, Wal2LakeError
from wal2lake.local.node import Caller
from wal2lake.model import Lsn, Oid
from wal2lake.pg import RemoteTable, Session
from wal2lake.sql.grammar.maintenance import VerifyTables
from wal2lake.verify import Comparison, DifferenceKind, NotComparable

pytestmark = pytest.mark.usefixtures("no_fsync")

OTHER, OTHERS_TABLE = Oid(20001), Oid(30003)
Answer = tuple[str, str, str | None]


class Sources:
    """A node with two subscriptions, whose sources answer as a test wants."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.world = World(directory, monkeypatch)
        catalog = self.world.catalog
        catalog.create_table(table(OTHERS_TABLE))
        catalog.create_subscription(
            Subscription(OTHER, "z", Oid(10), True, "host=z", "z", ("p",)),
            [replace(rel(OTHERS_TABLE), subid=OTHER)],
            {int(OTHERS_TABLE): 1},
        )
        self.states: dict[str, Wal2LakeError] = {}
        self.tables: dict[Oid, Wal2LakeError] = {}
        self.results: dict[Oid, Comparison] = {}
        self.hashes: Wal2LakeError | None = None
        self.check: Callable[[], None] = lambda: None
        monkeypatch.setattr(verifying, "state_at_snapshot", self.state)
        monkeypatch.setattr(verifying, "check_hashes", self.check_hashes)
        monkeypatch.setattr(ComparedSource, "locked", self.locked)
        monkeypatch.setattr(verifying, "Publisher", lambda _: self)
        monkeypatch.setattr(verifying._Verification, "_compare", self.compared)

    def state(self, _: object, subscription: Subscription, *__: object) -> Any:
        if subscription.name in self.states:
            raise self.states[subscription.name]
        versions = {int(oid): 1 for oid in (KEPT, GONE, OTHERS_TABLE)}
        vector = SnapshotVector(subscription.oid, Lsn(9), "2026-01-01", versions)
        return SimpleNamespace(), Lsn(9), vector

    def check_hashes(self, _: Session) -> None:
        if self.hashes is not None:
            raise self.hashes

    def publish_everything(self, _: object) -> bool:
        return True

    @contextmanager
    def locked(self, *_: object) -> Iterator[RemoteTable]:
        yield remote(KEPT)

    def compared(self, _: object, table: Any, *__: object) -> Comparison:
        if table.oid in self.tables:
            raise self.tables[table.oid]
        return self.results.get(table.oid, Comparison(1, 5, 5))

    def answers(self) -> list[Answer]:
        role = Role(Oid(10), "me", True, None)
        caller = Caller(role, self.world.notices.append, check=self.check)
        outcome = verifying.verify(self.world.node, caller, VerifyTables())
        (batch,) = outcome.batches
        _, names, results, *_, details = [
            [None if v is None else v.decode() for v in column]
            for column in batch.columns
        ]
        return cast(list[Answer], list(zip(names, results, details, strict=True)))


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sources:
    return Sources(tmp_path, monkeypatch)


def test_tables_are_compared_although_another_subscription_cannot_be(
    sources: Sources,
) -> None:
    sources.states["s"] = UsageError("no worker", hint="Start one.")
    assert sources.answers() == [
        ("public.t30000", "not comparable", "no worker\nStart one."),
        ("public.t30001", "not comparable", "no worker\nStart one."),
        ("public.t30003", "equal", None),
    ]
    sources.states = {"z": PublisherError("no connection")}
    assert [answer[1:] for answer in sources.answers()] == [
        ("equal", None),
        ("equal", None),
        ("not comparable", "no connection"),
    ]


def test_a_source_with_other_hashes_is_the_reason(sources: Sources) -> None:
    sources.hashes = NotComparable("other hashes")
    assert {answer[1:] for answer in sources.answers()} == {
        ("not comparable", "other hashes")
    }


def test_tables_are_compared_although_another_table_cannot_be(
    sources: Sources,
) -> None:
    sources.tables[KEPT] = StorageError("no such file")
    assert [answer[1:] for answer in sources.answers()] == [
        ("not comparable", "no such file"),
        ("equal", None),
        ("equal", None),
    ]


@pytest.mark.parametrize("place", ["states", "tables"])
def test_a_cancel_ends_the_statement(sources: Sources, place: str) -> None:
    canceled = UsageError("canceling statement", sqlstate="57014")
    sources.states = {"s": canceled} if place == "states" else {}
    sources.tables = {KEPT: canceled} if place == "tables" else {}
    with pytest.raises(UsageError, match="canceling"):
        sources.answers()


def test_an_error_that_a_cancel_has_caused_ends_the_statement(
    sources: Sources,
) -> None:
    sources.tables[KEPT] = PublisherError("the connection is lost")

    def check() -> None:
        raise UsageError("canceling statement", sqlstate="57014")

    sources.check = check
    with pytest.raises(UsageError, match="canceling"):
        sources.answers()


def test_rows_are_not_named_to_who_may_not_read_them(
    sources: Sources, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in conflict reports, the role that writes the table has to have SELECT."""
    quoted: list[bool] = []

    def comparison(*_: object, quoted_: bool) -> Comparison:
        quoted.append(quoted_)
        return Comparison(1, 5, 5, 1, ((DifferenceKind.CHANGED, 1),))

    monkeypatch.setattr(
        verifying._Verification,
        "_compare",
        lambda self, session, table, remote, vector, quoted: comparison(quoted_=quoted),
    )
    rights = SimpleNamespace(may_quote=lambda table: table.oid == KEPT)
    monkeypatch.setattr(Catalog, "target_rights", lambda *_: rights)
    details = [answer[2] for answer in sources.answers()]
    assert quoted == [True, False, False]
    words = "rows are not named, because the role that writes the table may not read it"
    assert (
        details
        == ["1 changed in 1 of 1 blocks"] + [f"1 changed in 1 of 1 blocks\n{words}"] * 2
    )
