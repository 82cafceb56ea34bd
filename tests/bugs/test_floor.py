"""The floor once passed tables whose copy ended while a batch was being applied: their
changes between the copy's snapshot and the batch's end were never applied."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from wal2lake.catalog import (
    Catalog,
    CopyRange,
    Subscription,
    SubscriptionRel,
    SyncSnapshot,
)
from wal2lake.model import Lsn, Oid, SyncState


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    made = Catalog.create(tmp_path / "catalog.sqlite", "boss", None)
    made.create_subscription(
        Subscription(Oid(1), "s", Oid(10), True, "host=x", "s", ("p",)),
        [
            SubscriptionRel(Oid(1), Oid(n), "public", f"t{n}", SyncState.INIT, None, n)
            for n in (7, 8)
        ],
    )
    return made


def test_a_copy_that_ended_meanwhile_holds_the_floor_at_its_snapshot(
    catalog: Catalog,
) -> None:
    catalog.update_rel(Oid(1), Oid(7), state=SyncState.FINISHEDCOPY, lsn=Lsn(500))
    assert catalog.publish(Oid(1), Lsn(900), {}, participants=[]) == 500
    assert catalog.publish(Oid(1), Lsn(900), {}, participants=[7]) == 900


def test_a_running_copy_holds_the_floor_at_its_snapshot_or_where_it_is(
    catalog: Catalog,
) -> None:
    assert catalog.publish(Oid(1), Lsn(100), {}) == 100
    catalog.update_rel(Oid(1), Oid(8), state=SyncState.DATASYNC)
    assert catalog.publish(Oid(1), Lsn(300), {}) == 100
    catalog.hold_snapshot(SyncSnapshot(Oid(1), "x", Lsn(250), "me", (8,)))
    assert catalog.publish(Oid(1), Lsn(300), {}) == 250


def test_a_ready_table_that_is_new_to_the_worker_holds_the_floor_where_it_is(
    catalog: Catalog,
) -> None:
    assert catalog.publish(Oid(1), Lsn(100), {}) == 100
    catalog.update_rel(Oid(1), Oid(7), state=SyncState.READY)
    assert catalog.publish(Oid(1), Lsn(300), {}) == 100
    assert catalog.publish(Oid(1), Lsn(300), {}, participants=[7]) == 300


def test_a_table_that_is_copied_anew_is_left_out_of_the_floor_below_its_snapshot(
    catalog: Catalog,
) -> None:
    for relid in (7, 8):
        catalog.update_rel(Oid(1), Oid(relid), state=SyncState.READY)
    assert catalog.publish(Oid(1), Lsn(100), {7: 1, 8: 1}, participants=[7, 8]) == 100
    catalog.copy_table_anew(Oid(1), Oid(7))
    # As in PostgreSQL, whose apply worker passes what the copy is going to bring.
    assert catalog.publish(Oid(1), Lsn(300), {8: 2}, participants=[8]) == 300
    vector = catalog.newest_vector(Oid(1))
    assert vector is not None and vector.apart == {7: 100}
    catalog.update_rel(Oid(1), Oid(7), state=SyncState.DATASYNC)
    catalog.hold_snapshot(SyncSnapshot(Oid(1), "x", Lsn(350), "me", (7,)))
    assert catalog.publish(Oid(1), Lsn(400), {8: 3}, participants=[8]) == 350


def rel(catalog: Catalog, relid: int) -> SubscriptionRel:
    return next(r for r in catalog.rels(Oid(1)) if r.relid == relid)


def test_a_finished_copy_has_its_snapshots_position_and_the_floor_goes_on_to_it(
    catalog: Catalog,
) -> None:
    """It was not stored: the floor froze until the apply worker had taken the table."""
    catalog.publish(Oid(1), Lsn(100), {})
    catalog.update_rel(Oid(1), Oid(7), state=SyncState.DATASYNC)
    copied = replace(rel(catalog, 7), lsn=Lsn(500))
    assert catalog.finish_copies([copied]) == {7}
    assert (rel(catalog, 7).state, rel(catalog, 7).lsn) == (
        SyncState.FINISHEDCOPY,
        Lsn(500),
    )
    assert catalog.publish(Oid(1), Lsn(900), {}, participants=[]) == 500


def test_the_floor_waits_for_a_commit_that_the_catalog_has_not_heard_of(
    catalog: Catalog,
) -> None:
    """A copy was committed at S, a crash came before f, and a later snapshot was taken: the
    floor went on to that one's position, and the changes between the two were lost."""
    catalog.publish(Oid(1), Lsn(100), {})
    catalog.update_rel(Oid(1), Oid(8), state=SyncState.DATASYNC)
    catalog.hold_snapshot(SyncSnapshot(Oid(1), "x", Lsn(250), "me", (8,)))
    catalog.begin_copies([replace(rel(catalog, 8), lsn=Lsn(250), copy_plan="{}")])
    # Here the table commits with cursor 250, and everything dies.
    catalog.release_snapshot(Oid(1))
    catalog.hold_snapshot(SyncSnapshot(Oid(1), "y", Lsn(600), "me", (8,)))
    assert catalog.publish(Oid(1), Lsn(900), {}) == 250
    # Also if the wait for a snapshot is given up meanwhile.
    catalog.update_rel(Oid(1), Oid(8), state=SyncState.INIT)
    assert catalog.publish(Oid(1), Lsn(900), {}) == 250


def test_an_attempt_that_has_surely_not_committed_holds_nothing(
    catalog: Catalog,
) -> None:
    catalog.update_rel(Oid(1), Oid(8), state=SyncState.DATASYNC)
    catalog.hold_snapshot(SyncSnapshot(Oid(1), "x", Lsn(250), "me", (8,)))
    catalog.begin_copies([replace(rel(catalog, 8), lsn=Lsn(250), copy_plan="{}")])
    catalog.end_attempts([(rel(catalog, 8), "no", "22000", False)])
    assert (rel(catalog, 8).lsn, rel(catalog, 8).error) == (None, "no")
    catalog.hold_snapshot(SyncSnapshot(Oid(1), "y", Lsn(600), "me", (8,)))
    assert catalog.publish(Oid(1), Lsn(900), {}) == 600
    # One whose commit may have been made keeps it, and the error that it has.
    catalog.begin_copies([replace(rel(catalog, 8), lsn=Lsn(600), copy_plan="{}")])
    catalog.end_attempts([(rel(catalog, 8), None, None, True)])
    assert (rel(catalog, 8).lsn, rel(catalog, 8).error) == (Lsn(600), "no")


def test_a_table_that_left_and_came_back_is_not_finished_by_its_old_copy(
    catalog: Catalog,
) -> None:
    catalog.update_rel(Oid(1), Oid(7), state=SyncState.DATASYNC)
    old = replace(rel(catalog, 7), lsn=Lsn(250), copy_plan="{}")
    catalog.remove_rel(Oid(1), Oid(7))
    catalog.add_rels([replace(old, epoch=99, lsn=None, copy_plan=None)])
    catalog.begin_copies([old])
    catalog.record_ranges([CopyRange(Oid(1), Oid(7), old.epoch, "x", 0, 5, "[]")])
    catalog.end_attempts([(old, "no", "22000", True)])
    assert catalog.finish_copies([old]) == set()
    now = rel(catalog, 7)
    assert (now.state, now.lsn, now.error) == (SyncState.DATASYNC, None, None)
    assert (now.rows_copied, catalog.ranges(Oid(1), Oid(7))) == (0, [])
