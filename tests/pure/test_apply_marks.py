"""A session gets the state of exactly the LSN that it marks, whatever batches are made."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
from tests.fakes.apply_world import Side, World, model
from tests.fakes.publisher import Change, Transaction

from wal2lake.apply.step.statemarks import StateMark
from wal2lake.model import Lsn

pytestmark = pytest.mark.usefixtures("no_fsync")


def insert(relid: int, key: int) -> Change:
    return Change(relid, "I", (b"%d" % key, b"v"))


def mark_at(side: Side, lsn: int) -> StateMark:
    """Mark a position; the worker runs or is about to."""
    assert side.worker is not None
    mark = StateMark(Lsn(lsn))
    side.worker.marks.add(mark)
    return mark


def check_state(side: Side, mark: StateMark, *relids: int) -> None:
    """The state has each transaction that commits below the mark, and no other."""
    assert mark.wait(30.0, lambda: None)
    assert mark.vector is not None
    assert mark.vector.lsn <= mark.lsn
    for relid in relids:
        version = mark.vector.versions[100 + relid]
        expected = model(side.sent, relid, int(mark.lsn))
        assert side.table(relid).versions[version] == expected


def test_a_batch_ends_at_a_mark_and_the_next_goes_on(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        side = world.side
        may_commit = threading.Event()
        world.lake.before_commit = lambda location: (may_commit.wait(30), None)[1]
        side.send(Transaction(50, (insert(1, 0),)))
        side.start()
        # The worker is in its first batch while the rest arrives as one segment.
        side.send(
            *(
                Transaction(n * 100, (insert(1, n), insert(1 + n % 3, 10 + n)))
                for n in range(1, 9)
            )
        )
        marks = [mark_at(side, lsn) for lsn in (400, 550, 599, 808)]
        may_commit.set()
        for mark in marks:
            check_state(side, mark, 1)
        side.reaches(808)


def test_a_mark_with_nothing_left_below_is_the_newest_state(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        side = world.side
        side.send(Transaction(100, (insert(1, 1), insert(2, 1), insert(3, 1))))
        side.start()
        side.reaches(108)
        mark = mark_at(side, 108)
        check_state(side, mark, 1, 2, 3)
        # A position that the log has not reached is waited for.
        later = mark_at(side, 300)
        assert not later.wait(0.5, lambda: None)
        side.send(Transaction(200, (insert(1, 2),)), Transaction(400, (insert(1, 4),)))
        check_state(side, later, 1, 2, 3)
        side.reaches(408)


def test_a_mark_below_the_published_state_is_missed(tmp_path: Path) -> None:
    with World(tmp_path) as world:
        side = world.side
        side.send(Transaction(100, (insert(1, 1),)), Transaction(200, (insert(1, 2),)))
        side.start()
        side.reaches(208)
        mark = mark_at(side, 150)
        assert mark.wait(30.0, lambda: None)
        assert mark.vector is None
