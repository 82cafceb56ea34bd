"""A followed ALTER TABLE cuts the part of its own table only, and never lies above a failure."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.apply_world import Side, World, model
from tests.fakes.publisher import Change, Transaction

from wal2lake.apply.schema.follow import DueAlteration
from wal2lake.catalog import Subscription, SubscriptionRel
from wal2lake.errors import UsageError
from wal2lake.model import INVALID_LSN, Lsn, Oid

pytestmark = pytest.mark.usefixtures("no_fsync")


@dataclass
class Schemas:
    """Stands for ``SchemaFollower``: alterations that the test names."""

    side: Side
    due_at: list[tuple[int, int]]
    """Table and transaction."""
    free: bool = True
    refuses: bool = False
    seen: list[tuple[int, int, int, int]] = field(default_factory=list)
    """What each alteration found: table, transaction, its table's version, published vectors."""
    joins: list[int] = field(default_factory=list)
    """Transactions whose columns can be added at once."""
    through: list[int] = field(default_factory=list)
    """The last transaction of those that each alteration carried out."""

    def refresh(self, subscription: Subscription) -> None:
        pass

    def relabelled(self, rels: Sequence[SubscriptionRel]) -> DueAlteration | None:
        return None

    def agree(self, *_: object) -> None:
        pass

    def translated(self, manifests: Sequence[Any]) -> Sequence[Any]:
        return manifests

    def due(self, rels: Sequence[SubscriptionRel], end: Lsn) -> DueAlteration | None:
        by_relid = {int(rel.relid) - 100: rel for rel in rels}
        found = [
            (at, relid) for relid, at in self.due_at if relid in by_relid and at < end
        ]
        if not found:
            return None
        at, relid = min(found)
        return DueAlteration(by_relid[relid], None, Lsn(at))

    def additions(
        self, _: object, due: DueAlteration, table: object, end: Lsn
    ) -> tuple[Any, ...]:
        return tuple(
            SimpleNamespace(
                sent=SimpleNamespace(commit_lsn=Lsn(at)),
                steps=SimpleNamespace(steps=()),
            )
            for at in self.joins
            if due.lsn <= at < end
        )

    def is_free(self, due: DueAlteration) -> bool:
        return self.free

    def adopt(
        self,
        subscription: Subscription,
        due: DueAlteration,
        *_: object,
        through: Lsn = INVALID_LSN,
        **__: object,
    ) -> None:
        if self.refuses:
            raise UsageError("it cannot be followed", sqlstate="0A000")
        relid = int(due.rel.relid) - 100
        vectors = len(self.side.world.catalog.vectors())
        table = self.side.table(relid)
        self.seen.append((relid, int(due.lsn), table.version, vectors))
        last = max(due.lsn, through)
        self.through.append(int(last))
        self.due_at = [d for d in self.due_at if d[0] != relid or d[1] > last]
        # The table's own commit, with the rows that it has.
        table.versions.append(dict(table.versions[-1]))


def insert(relid: int, key: int, value: str = "v") -> Change:
    return Change(relid, "I", (b"%d" % key, value.encode()))


def start(side: Side, schemas: Schemas, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "wal2lake.apply.step.nextbatch.SchemaFollower", lambda *_: schemas
    )
    side.start()


BATCH = (
    Transaction(100, (insert(1, 1), insert(2, 1))),
    Transaction(200, (insert(1, 2), insert(2, 2))),
    Transaction(300, (insert(1, 3), insert(2, 3), insert(3, 1))),
    Transaction(400, (insert(1, 4), insert(2, 4))),
)


def published(world: World) -> list[tuple[int, dict[int, int]]]:
    _, *vectors = world.catalog.vectors()
    return [(int(v.lsn), dict(v.versions)) for v in vectors]


def test_only_the_altered_table_is_committed_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with World(tmp_path) as world:
        side = world.side
        schemas = Schemas(side, [(1, 200), (1, 300), (3, 250)])
        side.send(*BATCH)
        start(side, schemas, monkeypatch)
        side.reaches(408)
        for relid in (1, 2, 3):
            assert side.table(relid).versions[-1] == model(side.sent, relid)
        # Table 1: below 200, altered, below 300, altered, the rest; table 3 had nothing below 250.
        assert published(world) == [(408, {101: 5, 102: 1, 103: 2})]
        # In the order of their transactions, and while readers had the state of before.
        assert schemas.seen == [(1, 200, 1, 1), (3, 250, 0, 1), (1, 300, 3, 1)]


def test_an_alteration_above_a_failure_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with World(tmp_path) as world:
        side = world.side
        world.lake.poison = {b"bad"}
        schemas = Schemas(side, [(1, 300)])
        side.send(
            *BATCH[:1],
            Transaction(200, (insert(1, 2), insert(2, 2, "bad"))),
            *BATCH[2:],
        )
        start(side, schemas, monkeypatch)
        side.stops("finished at 0/C8")
        side.reaches(200)
        assert schemas.seen == []
        assert published(world) == [(200, {101: 1, 102: 1, 103: 0})]
        world.lake.poison = set()
        side.reaches(408)
        assert side.table(1).versions[-1] == model(side.sent, 1)


def test_a_failure_behind_an_alteration_stops_all_tables_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with World(tmp_path) as world:
        side = world.side
        world.lake.poison = {b"bad"}
        schemas = Schemas(side, [(1, 200)])
        side.send(
            *BATCH[:2],
            Transaction(300, (insert(1, 3, "bad"), insert(2, 3), insert(3, 1))),
            *BATCH[3:],
        )
        start(side, schemas, monkeypatch)
        side.stops("finished at 0/12C")
        side.reaches(300)
        assert len(schemas.seen) == 1
        for relid in (1, 2, 3):
            assert side.visible(relid) == model(side.sent, relid, below=300)
        world.lake.poison = set()
        side.reaches(408)
        for relid in (1, 2, 3):
            assert side.visible(relid) == model(side.sent, relid)


@pytest.mark.parametrize("refuses", [False, True])
def test_an_alteration_that_cannot_be_made_in_between_ends_the_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refuses: bool
) -> None:
    with World(tmp_path) as world:
        side = world.side
        schemas = Schemas(side, [(1, 200)], free=refuses, refuses=refuses)
        side.send(*BATCH)
        start(side, schemas, monkeypatch)
        if refuses:
            side.stops("it cannot be followed")
            side.reaches(200)
            for relid in (1, 2):
                assert side.visible(relid) == model(side.sent, relid, below=200)
            schemas.refuses = False
        side.reaches(408)
        assert [lsn for lsn, _ in published(world)] == [200, 408]
        for relid in (1, 2, 3):
            assert side.visible(relid) == model(side.sent, relid)


def test_a_table_that_went_ahead_before_a_crash_is_caught_up_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with World(tmp_path) as world:
        side = world.side
        schemas = Schemas(side, [(1, 200)])
        side.send(*BATCH)
        broken = threading.Event()

        def break_once(location: str) -> None:
            # The second commit of the batch: table 1 is altered, and nothing is published.
            if schemas.seen and not broken.is_set():
                broken.set()
                raise OSError("the power is gone")

        world.lake.before_commit = break_once
        start(side, schemas, monkeypatch)
        side.reaches(408)
        for relid in (1, 2, 3):
            assert side.visible(relid) == model(side.sent, relid)
        vector = world.catalog.newest_vector(side.subid)
        assert vector is not None
        assert Oid(101) in vector.versions


# ---- several alterations at once --------------------------------------------------------


def test_columns_are_added_at_once_if_no_row_in_between_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with World(tmp_path) as world:
        side = world.side
        schemas = Schemas(side, [(1, 200), (1, 300), (1, 400)], joins=[200, 300, 400])
        side.send(*BATCH)
        start(side, schemas, monkeypatch)
        side.reaches(408)
        assert schemas.through == [400]
        for relid in (1, 2, 3):
            assert side.table(relid).versions[-1] == model(side.sent, relid)
        # The rows below 200, the columns, the rest.
        assert published(world) == [(408, {101: 3, 102: 1, 103: 1})]
        assert world.lake.discarded == 1


def test_a_row_that_fails_between_two_alterations_has_the_first_one_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with World(tmp_path) as world:
        side = world.side
        world.lake.poison = {b"bad"}
        schemas = Schemas(side, [(1, 200), (1, 400)], joins=[200, 400])
        side.send(
            *BATCH[:2],
            Transaction(300, (insert(1, 3, "bad"), insert(2, 3))),
            BATCH[3],
        )
        start(side, schemas, monkeypatch)
        side.stops("finished at 0/12C")
        assert schemas.through == [200]
        world.lake.poison = set()
        side.reaches(408)
        assert schemas.through == [200, 400]
        assert side.table(1).versions[-1] == model(side.sent, 1)


def test_an_alteration_of_another_table_in_between_is_not_passed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with World(tmp_path) as world:
        side = world.side
        schemas = Schemas(
            side, [(1, 200), (1, 300), (1, 400), (2, 350)], joins=[200, 300, 400]
        )
        side.send(*BATCH)
        start(side, schemas, monkeypatch)
        side.reaches(408)
        assert schemas.through == [300, 350, 400]
        for relid in (1, 2, 3):
            assert side.table(relid).versions[-1] == model(side.sent, relid)


def test_columns_are_added_at_once_if_no_row_is_in_between(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with World(tmp_path) as world:
        side = world.side
        schemas = Schemas(side, [(1, 402), (1, 406)], joins=[402, 406])
        side.send(*BATCH)
        start(side, schemas, monkeypatch)
        side.reaches(408)
        assert schemas.through == [406]
        # Nothing was tried.
        assert world.lake.discarded == 0
        for relid in (1, 2, 3):
            assert side.table(relid).versions[-1] == model(side.sent, relid)
