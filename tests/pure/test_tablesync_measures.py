"""What copies count, and which of their gauges are left when they have ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.tablesync_world import LARGE, SMALL, World, tablesync_world

from wal2lake.errors import ApplyError
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.usefixtures("no_fsync")


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    with tablesync_world(tmp_path, monkeypatch) as made:
        yield made


def series(world: World, kind: str) -> dict[tuple[str, ...], Any]:
    """Series by name and values of labels."""
    return {
        (name, *(value for label, value in labels if label != "subscription")): value
        for (name, labels), value in getattr(world.telemetry.copy(), kind).items()
    }


def test_a_copy_has_progress_while_it_runs(world: World) -> None:
    seen: dict[str, dict[tuple[str, ...], Any]] = {}

    def look(location: str) -> None:
        seen[location] = series(world, "gauges")

    world.committing = look
    world.subscribe(1, {101: LARGE, 102: SMALL})
    world.hold(1, "a", 500)
    world.start()
    world.reaches(1, {101: "f", 102: "f"})
    ranges = -(-LARGE * 8192 // (1 << 20))
    wait_until(lambda: not series(world, "gauges"))
    large = seen["/t101"]
    assert large["copy_ranges", "public.t101"] == ranges
    assert large["copy_finished_ranges", "public.t101"] == ranges
    assert large["copy_expected_bytes", "public.t101"] == LARGE * 8192
    assert large["copy_resumed_ranges", "public.t101"] == 0
    began = large["copy_started_timestamp_seconds", "public.t101"]
    assert began <= large["copy_progress_timestamp_seconds", "public.t101"]
    counters = series(world, "counters")
    assert counters["rows_total", "copied", "public.t101"] == 10 * ranges
    assert counters["rows_total", "copied", "public.t102"] == 10
    assert counters["copied_bytes_total", "public.t101"] > 0


def test_errors_of_copies_are_counted_by_sqlstate(world: World) -> None:
    world.bad["t101"] = ApplyError("no", sqlstate="22P02")
    world.subscribe(1, {101: LARGE})
    world.hold(1, "a", 500)
    world.start()
    world.fails(1, 101, "no")
    key = ("errors_total", "22P02", "table synchronization")
    wait_until(lambda: series(world, "counters").get(key))
    wait_until(lambda: not series(world, "gauges"))
