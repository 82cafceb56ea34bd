"""The floor once passed tables whose copy ended while a batch was being applied: their
changes between the copy's snapshot and the batch's end were never applied."""

from __future__ import annotations

from pathlib import Path

import pytest

from wal2lake.catalog import Catalog, Subscription, SubscriptionRel, SyncSnapshot
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
