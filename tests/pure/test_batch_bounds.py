"""Bounds of a batch: how far its tables come, and whether it only catches up."""

from __future__ import annotations

from wal2lake.apply.batch import BatchBounds
from wal2lake.model import Lsn


def test_a_batch_reaches_its_end_or_its_cut() -> None:
    bounds = BatchBounds(Lsn(10), Lsn(10), Lsn(50))
    assert (bounds.reached, bounds.cut) == (Lsn(50), None)
    cut = bounds.below(Lsn(30))
    assert (cut.reached, cut.cut, cut.end) == (Lsn(30), Lsn(30), Lsn(50))
    # Each cut of an attempt is below the last one.
    assert cut.below(Lsn(20)).reached == Lsn(20)


def test_tables_behind_the_vector_catch_up() -> None:
    assert BatchBounds(Lsn(10), Lsn(20), Lsn(50)).catching_up
    assert not BatchBounds(Lsn(20), Lsn(20), Lsn(50)).catching_up
