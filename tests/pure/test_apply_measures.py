"""What an apply worker counts, against what the publisher has sent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.apply_world import World
from tests.fakes.publisher import Change, Transaction

from wal2lake.model import SyncState
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.usefixtures("no_fsync")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with World(tmp_path, (1, 2)) as found:
        yield found


def counters(world: World, name: str) -> dict[tuple[str, ...], Any]:
    """Counters by the values of their labels, the subscription left out."""
    found = {}
    for (series, labels), value in world.telemetry.copy().counters.items():
        if series == name:
            assert ("subscription", "s1") in labels
            values = [value for label, value in labels if label != "subscription"]
            found[tuple(values)] = value
    return found


def observed(world: World, name: str) -> int:
    """Number of observations of a histogram."""
    return sum(
        sum(counts)
        for (series, _), (counts, _) in world.telemetry.copy().histograms.items()
        if series == name
    )


def insert(lsn: int, relid: int = 1, value: bytes = b"v") -> Transaction:
    return Transaction(lsn, (Change(relid, "I", (b"%d" % lsn, value)),))


def test_rows_bytes_batches_and_transactions_are_counted(world: World) -> None:
    side = world.side
    side.start()
    side.send(insert(100), insert(200), insert(300, 2))
    side.reaches(308)
    side.send(
        Transaction(
            400,
            (
                Change(1, "U", (b"100", b"w")),
                Change(1, "D", key=b"200"),
                Change(2, "T"),
                Change(2, "I", (b"1", b"2")),
            ),
        )
    )
    side.reaches(408)
    wait_until(lambda: observed(world, "commit_to_visible_seconds") == 4)
    assert counters(world, "rows_total") == {
        ("inserted", "public.t1"): 2,
        ("updated", "public.t1"): 1,
        ("deleted", "public.t1"): 1,
        ("inserted", "public.t2"): 2,
        ("truncated", "public.t2"): 1,
    }
    batches = counters(world, "batches_total")
    assert set(batches) == {("upsert", "public.t1"), ("upsert", "public.t2")}
    assert sum(batches.values()) == 4
    assert all(size > 0 for size in counters(world, "applied_bytes_total").values())
    assert observed(world, "batch_seconds") == 2


def test_rows_below_a_tables_position_are_not_counted(world: World) -> None:
    """A copied table takes only a part of the files."""
    side = world.side
    side.send(*(insert(lsn) for lsn in range(100, 600, 100)))
    world.catalog.update_rel(
        side.subid, side.rel(1, SyncState.READY).relid, state=SyncState.DATASYNC
    )
    side.copied(1, {b"100": (b"100", b"v"), b"200": (b"200", b"v")}, 300)
    side.start()
    side.reaches(508)
    wait_until(lambda: counters(world, "rows_total"))
    assert counters(world, "rows_total") == {("inserted", "public.t1"): 3}


def test_a_batch_that_is_cut_counts_what_it_applied(world: World) -> None:
    world.fail_once()
    side = world.side
    world.lake.poison.add(b"bad")
    side.send(insert(100), insert(200), insert(300, value=b"bad"), insert(400))
    side.start()
    wait_until(lambda: counters(world, "errors_total"))
    assert counters(world, "errors_total") == {("22P02", "apply"): 1}
    assert counters(world, "rows_total") == {("inserted", "public.t1"): 2}
    assert observed(world, "commit_to_visible_seconds") == 2


def test_conflicts_and_coercions_are_counted_by_kind(world: World) -> None:
    side = world.side
    world.lake.odd.add(b"odd")
    side.send(
        insert(100, value=b"odd"), Transaction(200, (Change(1, "D", key=b"gone"),))
    )
    side.start()
    side.reaches(208)
    wait_until(lambda: observed(world, "commit_to_visible_seconds") == 2)
    assert counters(world, "conflicts_total") == {("delete_missing", "public.t1"): 1}
    assert counters(world, "coercions_total") == {("null", "public.t1"): 1}


def test_many_segments_are_observed_without_their_files(world: World) -> None:
    side = world.side
    for lsn in range(100, 2100, 100):
        side.send(insert(lsn), insert(lsn + 50, 2))
    side.start()
    side.reaches(2058)
    wait_until(lambda: observed(world, "commit_to_visible_seconds") == 40)


def test_a_renamed_subscription_counts_under_its_new_name(world: World) -> None:
    side = world.side
    side.send(insert(100))
    side.start()
    side.reaches(108)
    world.catalog.update_subscription(side.subid, name="renamed", bump=True)
    side.send(insert(200))
    side.reaches(208)
    wait_until(lambda: observed(world, "commit_to_visible_seconds") == 2)
    names = {
        dict(labels)["subscription"] for _, labels in world.telemetry.copy().counters
    }
    assert names == {"s1", "renamed"}
