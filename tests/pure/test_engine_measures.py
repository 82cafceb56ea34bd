"""Gauges that the engine looks at: tables, heap, the publisher half."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.apply_world import World

from wal2lake.catalog import ReplicationSlot
from wal2lake.engine.measuring import EngineMeasures
from wal2lake.lake import TableSize
from wal2lake.model import Lsn, Oid
from wal2lake.observe.telemetry import Telemetry
from wal2lake.publish.limits import Room
from wal2lake.publish.slots import SlotUse
from wal2lake.publish.walsender.page import WalsenderPositions

pytestmark = pytest.mark.usefixtures("no_fsync")


class Engine:
    """Parts of an engine that a test changes."""

    def __init__(self, world: World) -> None:
        self.telemetry = Telemetry()
        self.sizes: dict[str, TableSize] = {}
        self.uses: list[tuple[SlotUse, Room]] = []
        self.walsenders: list[tuple[int, str, WalsenderPositions]] = []
        self.asked = 0
        self.heap: tuple[int, int] | None = (10, 20)
        self.measures = EngineMeasures(
            self.telemetry,
            world.catalog,
            self,
            self,
            lambda: [SimpleNamespace(pid=9, application_name="app", client_host="::1")],
            lambda: self.heap,
        )
        self.now = 0.0

    def size(self, location: str, known: int | None) -> TableSize | None:
        found = self.sizes.get(location)
        self.asked += 1
        return None if found is None or found.version == known else found

    def end(self) -> Lsn | None:
        return Lsn(1000)

    def captured_at(self) -> float | None:
        return 5.0

    def rooms(self) -> Sequence[tuple[SlotUse, Room]]:
        return self.uses

    def positions(self) -> Sequence[tuple[int, str, WalsenderPositions]]:
        return self.walsenders

    def look(self) -> dict[tuple[str, ...], Any]:
        """Gauges a while later, by name and values of labels."""
        self.now += 60
        self.measures.look(self.now)
        return {
            (name, *(value for _, value in labels)): value
            for (name, labels), value in self.telemetry.copy().gauges.items()
        }


def test_tables_have_the_size_of_their_newest_known_version(tmp_path: Path) -> None:
    with World(tmp_path, (1, 2)) as world:
        engine = Engine(world)
        engine.sizes["/lake/t1"] = TableSize(3, 2, 100, 1)
        gauges = engine.look()
        assert gauges["table_version", "s1", "public.t1"] == 3
        assert gauges["table_files", "s1", "public.t1"] == 2
        assert gauges["table_size_bytes", "s1", "public.t1"] == 100
        assert gauges["table_deletion_vectors", "s1", "public.t1"] == 1
        assert not [key for key in gauges if "public.t2" in key]
        engine.sizes["/lake/t1"] = TableSize(4, 3, 200, None)
        gauges = engine.look()
        assert gauges["table_size_bytes", "s1", "public.t1"] == 200
        assert ("table_deletion_vectors", "s1", "public.t1") not in gauges


def test_series_end_with_their_table_and_subscription(tmp_path: Path) -> None:
    with World(tmp_path, (1, 2)) as world:
        engine = Engine(world)
        for relid in (1, 2):
            engine.sizes[f"/lake/t{relid}"] = TableSize(3, 2, 100, 1)
        engine.look()
        for table in ("public.t1", "public.t2"):
            engine.telemetry.count("rows_total", subscription="s1", table=table)
        engine.telemetry.count("errors_total", subscription="s1")
        world.catalog.set_publications(Oid(1), ("p",), removed=[Oid(101)])
        gauges = engine.look()
        assert not [key for key in gauges if "public.t1" in key]
        assert ("table_files", "s1", "public.t2") in gauges
        # A batch that was in hand.
        engine.telemetry.count("rows_total", subscription="s1", table="public.t1")
        engine.look()
        counters = [labels for _, labels in engine.telemetry.copy().counters]
        assert not [labels for labels in counters if ("table", "public.t1") in labels]
        assert len(counters) == 2
        world.catalog.drop_subscription(Oid(1))
        gauges = engine.look()
        assert not [key for key in gauges if "s1" in key]
        assert engine.telemetry.copy().counters == {}


def test_heap_is_unknown_when_the_jvm_does_not_answer(tmp_path: Path) -> None:
    with World(tmp_path, ()) as world:
        engine = Engine(world)
        gauges = engine.look()
        assert gauges["jvm_heap_used_bytes",] == 10
        assert gauges["jvm_heap_limit_bytes",] == 20
        engine.heap = None
        assert ("jvm_heap_used_bytes",) not in engine.look()


def test_slots_and_walsenders_come_and_go(tmp_path: Path) -> None:
    with World(tmp_path, ()) as world:
        engine = Engine(world)
        slot = ReplicationSlot("one", "pgoutput", Lsn(400), Lsn(500))
        engine.uses = [(SlotUse(slot, 9, 0.0), Room("unreserved", 7))]
        at = WalsenderPositions(Lsn(9), Lsn(8), Lsn(7), Lsn(6), 0, True, 1500)
        engine.walsenders = [(9, "one", at), (10, "gone", at)]
        gauges = engine.look()
        assert gauges["published_lsn",] == 1000
        assert gauges["captured_timestamp_seconds",] == 5
        assert gauges["slot_active_pid", "one"] == 9
        assert gauges["slot_confirmed_lsn", "one"] == 500
        assert gauges["slot_retained_bytes", "one"] == 600
        assert gauges["slot_safe_bytes", "one"] == 7
        assert gauges["slot_wal_status", "one", "unreserved"] == 1
        # Labels are sorted: application_name, client, pid, slot, state.
        assert gauges["walsender_state", "app", "::1", "9", "one", "streaming"] == 1
        assert gauges["walsender_sent_lsn", "9"] == 9
        assert gauges["walsender_replay_lsn", "9"] == 6
        assert gauges["walsender_write_lag_seconds", "9"] == 0.0015
        assert not [key for key in gauges if "10" in key]
        engine.uses, engine.walsenders = [], []
        gauges = engine.look()
        assert not [key for key in gauges if key[0].startswith(("slot_", "walsender"))]


def test_a_thousand_unchanged_tables_take_no_time(tmp_path: Path) -> None:
    with World(tmp_path, ()) as world:
        world.subscribe(2, range(1, 1001))
        engine = Engine(world)
        for relid in range(1, 1001):
            engine.sizes[f"/lake/t{relid}"] = TableSize(3, 2, 100, 1)
        engine.look()
        # The second look after a change of the members ends series, too.
        engine.look()
        changes = engine.telemetry.changes
        asked = engine.asked
        began = time.thread_time()
        engine.look()
        took = time.thread_time() - began
        assert engine.asked == asked + 1000
        assert engine.telemetry.changes == changes
        # Most of it is the test's own copy of the gauges.
        assert took < 0.1


def test_a_failing_look_is_no_end(tmp_path: Path) -> None:
    with World(tmp_path, ()) as world:
        engine = Engine(world)

        def broken() -> Any:
            raise RuntimeError("no")

        engine.rooms = broken  # type: ignore[method-assign]
        engine.measures.start()
        time.sleep(0.01)
        engine.measures.stop()
