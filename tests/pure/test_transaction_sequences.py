"""Who may commit when a sequence is restarted beside it: no value belongs to two rows."""

from __future__ import annotations

import threading
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import cast

import pytest

from wal2lake.catalog import (
    Catalog,
    ColumnDef,
    CopyRange,
    OwnedSequence,
    Subscription,
    SubscriptionRel,
    TableDef,
)
from wal2lake.engine.columndefaults import EvaluatedDefaults
from wal2lake.lake import CommitConflict
from wal2lake.lake.spark.query import Queries
from wal2lake.lake.staging.defaults import Fills
from wal2lake.local.concurrency.sequencevalues import (
    SequenceLocks,
    SessionSequences,
    TransactionSequences,
)
from wal2lake.model import Lsn, Oid, SyncState

pytestmark = pytest.mark.usefixtures("no_fsync")

COLUMN = ColumnDef("id", Oid(23), sequence=Oid(501))
TABLE = TableDef(Oid(500), "public", "t", Oid(10), (COLUMN,), (), "/t")
SEQUENCE = OwnedSequence(Oid(501), "public", "t_id_seq", Oid(500), Oid(23))


class World:
    def __init__(self, directory: Path) -> None:
        self.catalog = Catalog.create(directory / "catalog.sqlite", "boss", None)
        self.catalog.create_table(TABLE, owning=[SEQUENCE])
        self.locks = SequenceLocks()

        self.copies: list[tuple[Oid, Oid]] = []
        """Those under way, by subscription and table."""

    def transaction(self) -> TransactionSequences:
        return TransactionSequences(self.catalog, self.locks, lambda _: self.copies)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_values_go_on_where_the_restart_has_left_them(world: World) -> None:
    one = world.transaction()
    assert one.take(SEQUENCE, 3) == 1
    with one.settled():
        pass
    one = world.transaction()
    one.restart([TABLE])
    assert one.take(SEQUENCE, 2) == 1
    mark = one.mark()
    assert one.take(SEQUENCE, 5) == 3
    one.back_to(mark)
    assert one.peek(SEQUENCE).first == 3
    # Others see nothing of it yet.
    assert world.transaction().peek(SEQUENCE).first == 4
    with one.settled():
        pass
    assert world.transaction().take(SEQUENCE, 1) == 3


def test_a_commit_that_fails_restarts_nothing(world: World) -> None:
    world.transaction().take(SEQUENCE, 3)
    one = world.transaction()
    one.restart([TABLE])
    with suppress(RuntimeError), one.settled():
        raise RuntimeError
    assert world.transaction().take(SEQUENCE, 1) == 4


@pytest.mark.parametrize("peeks", [False, True])
def test_who_has_values_of_before_a_restart_cannot_commit(
    world: World, peeks: bool
) -> None:
    other, one = world.transaction(), world.transaction()
    if peeks:
        # An INSERT ... SELECT: its rows are written before their number is known.
        assert other.peek(SEQUENCE).first == 1
    else:
        other.take(SEQUENCE, 1)
    one.restart([TABLE])
    with one.settled():
        pass
    if peeks:
        other.take(SEQUENCE, 10)
    with pytest.raises(CommitConflict), other.settled():
        pass
    later = world.transaction()
    later.take(SEQUENCE, 1)
    with later.settled():
        pass


def test_a_restart_meets_values_that_were_taken_since(world: World) -> None:
    one = world.transaction()
    one.restart([TABLE])
    world.transaction().take(SEQUENCE, 1)
    with (
        pytest.raises(CommitConflict, match="serialize access") as refused,
        one.settled(),
    ):
        pass
    assert refused.value.detail == 'Others have taken values of sequence "t_id_seq".'


def test_setval_and_what_a_session_has_taken(world: World) -> None:
    one = world.transaction()
    session = SessionSequences(world.locks, lambda: one)
    world.catalog.set_value(SEQUENCE.oid, 7, is_called=False)
    assert one.peek(SEQUENCE).first == 7
    assert session.take(SEQUENCE, 2) == 7
    assert (session.last, session.values) == (SEQUENCE.oid, {SEQUENCE.oid: 8})
    world.catalog.set_value(SEQUENCE.oid, 20, is_called=True)
    assert one.take(SEQUENCE, 1) == 21


def test_a_copy_that_has_taken_values_begins_anew(world: World) -> None:
    """They are in files that the table does not have yet."""
    rels = [
        SubscriptionRel(
            Oid(1), relid, "public", name, SyncState.DATASYNC, Lsn(500), epoch=7
        )
        for relid, name in ((Oid(500), "t"), (Oid(600), "other"))
    ]
    world.catalog.create_subscription(
        Subscription(Oid(1), "s", Oid(10), True, "host=x", "s", ("p",)), rels
    )
    world.catalog.record_ranges(
        [CopyRange(Oid(1), rel.relid, 7, "a", 1, 3, "[]") for rel in rels]
    )
    world.transaction().take(SEQUENCE, 3)
    world.copies = [(Oid(1), Oid(500))]
    failing = world.transaction()
    failing.restart([TABLE])
    with suppress(RuntimeError), failing.settled():
        raise RuntimeError
    assert world.catalog.ranges(Oid(1), Oid(500))
    one = world.transaction()
    one.restart([TABLE])
    with one.settled():
        pass
    assert [len(world.catalog.ranges(Oid(1), rel.relid)) for rel in rels] == [0, 1]
    anew, other = world.catalog.rels(Oid(1))
    assert (anew.epoch != 7, anew.lsn) == (True, None)
    assert (other.epoch, other.lsn) == (7, 500)
    assert world.catalog.next_values(SEQUENCE.oid, 1) == 1


def test_nobody_takes_values_while_a_sequence_is_restarted(world: World) -> None:
    """A batch that did would have read the table behind the TRUNCATE, and its values would be
    given again."""
    defaults = EvaluatedDefaults(world.catalog, cast(Queries, None), world.locks)
    fills = defaults(TABLE.oid, ["id"])
    found: list[Fills] = []
    batch = threading.Thread(target=lambda: found.append(defaults.numbered(fills, 5)))
    world.transaction().take(SEQUENCE, 3)
    one = world.transaction()
    with ExitStack() as until_the_commit:
        one.restart([TABLE], until_the_commit)
        with one.settled():
            batch.start()
            batch.join(0.2)
            assert not found
    batch.join(20)
    assert found[0]["id"].first == 1
