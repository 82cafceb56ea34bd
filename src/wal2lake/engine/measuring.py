"""Gauges of the engine that no other part reports: a thread reads them at intervals.

    every second     version, files, bytes and deletion vectors of tables whose version is new
    every 2 seconds  the publisher half: end of the log, slots, walsenders
    every 5 seconds  heap of the JVM; which tables there are, so that series of others end

In: what the engine's parts have in memory, the catalog. Out: gauges in the engine's telemetry. No
table's log is read for it: a table that this process has not read or written yet has no gauges. A
thousand tables of which none has changed take a millisecond.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from wal2lake.catalog import Catalog
from wal2lake.lake import TableSize
from wal2lake.model import Lsn
from wal2lake.observe import get_logger
from wal2lake.observe.telemetry import Telemetry
from wal2lake.publish.limits import Room
from wal2lake.publish.slots import SlotUse
from wal2lake.publish.walsender.page import WalsenderPositions

_LOOK_SECONDS: Final = 1.0
_PUBLISHER_SECONDS: Final = 2.0
_SELDOM_SECONDS: Final = 5.0


class PublisherFacts(Protocol):
    """Facts about the publisher half."""

    def end(self) -> Lsn | None:
        """Return the end of the publisher's log; None if it has not been opened."""

    def captured_at(self) -> float | None:
        """Return a time (Unix) such that every commit before it is in the log."""

    def rooms(self) -> Sequence[tuple[SlotUse, Room]]:
        """Return all slots, their users, and their distance to the limit."""

    def positions(self) -> Sequence[tuple[int, str, WalsenderPositions]]:
        """Return session, slot and positions of each walsender."""


class TableSizes(Protocol):
    """Sizes of tables, as far as this process knows them."""

    def size(self, location: str, last_version: int | None) -> TableSize | None:
        """Return the size of the newest version that this process has met, without a look at the
        table; None if that is version ``last_version``, or there is none."""


class DoorClient(Protocol):
    """A session of the front door."""

    @property
    def pid(self) -> int:
        """Number of the session."""

    @property
    def application_name(self) -> str:
        """Name that the client has given."""

    @property
    def client_host(self) -> str:
        """Address of the client."""


@dataclass(frozen=True, slots=True)
class _Series:
    subscription: str
    table: str
    location: str


class EngineMeasures:
    """Looks at gauges in a thread of its own, from ``start`` to ``stop``."""

    def __init__(
        self,
        telemetry: Telemetry,
        catalog: Catalog,
        tables: TableSizes,
        publisher: PublisherFacts,
        sessions: Callable[[], Sequence[DoorClient]],
        heap: Callable[[], tuple[int, int] | None],
    ) -> None:
        """``heap`` returns the used bytes of the JVM's heap and their limit."""
        self._telemetry = telemetry
        self._catalog = catalog
        self._tables = tables
        self._publisher = publisher
        self._sessions = sessions
        self._heap = heap
        self._series: list[_Series] = []
        self._versions: dict[_Series, int] = {}
        """Version of the gauges."""
        self._seen_change = -1
        self._members: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
        self._looks_left = 0
        """Looks that end series of tables that have left."""
        self._present: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
        """Slots and walsenders at the last look."""
        self._due: dict[Callable[[], None], float] = {}
        self._stop = threading.Event()
        self._reported = False
        self._thread = threading.Thread(target=self._run, name="measures", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End within a few seconds, or let the thread end with the process."""
        self._stop.set()
        self._thread.join(2.0)

    def _run(self) -> None:
        while not self._stop.wait(_LOOK_SECONDS):
            try:
                self.look(time.monotonic())
                self._reported = False
            except Exception as error:
                # Gauges are never a reason to stop: they say how old they are.
                if not (self._reported or self._stop.is_set()):
                    self._reported = True
                    get_logger().warning("could not measure the engine", exc_info=error)

    def look(self, now: float) -> None:
        """Set the gauges that are due at a monotonic time."""
        for work, interval in (
            (self._look_at_members, _SELDOM_SECONDS),
            (self._look_at_tables, _LOOK_SECONDS),
            (self._look_at_publisher, _PUBLISHER_SECONDS),
            (self._look_at_heap, _SELDOM_SECONDS),
        ):
            if now >= self._due.get(work, now):
                self._due[work] = now + interval
                work()

    def _look_at_members(self) -> None:
        """Find out which tables there are, and end the series of all others."""
        change = self._catalog.change_counter
        if change == self._seen_change and not self._looks_left:
            return
        names = {s.oid: s.name for s in self._catalog.subscriptions()}
        tables = {table.oid: table for table in self._catalog.tables()}
        self._series = [
            _Series(
                names[rel.subid],
                tables[rel.relid].qualified,
                tables[rel.relid].location,
            )
            for rel in self._catalog.rels()
            if rel.subid in names and rel.relid in tables
        ]
        self._seen_change = change
        members: dict[tuple[str, ...], set[tuple[str, ...]]] = {
            ("subscription",): {(name,) for name in names.values()},
            ("subscription", "table"): {
                (series.subscription, series.table) for series in self._series
            },
        }
        if members != self._members:
            self._members = members
            # A batch in hand may count for a table that has left.
            self._looks_left = 2
        if self._looks_left:
            self._looks_left -= 1
            for labels, values in members.items():
                self._telemetry.keep_only(labels, values)
            kept = set(self._series)
            self._versions = {s: v for s, v in self._versions.items() if s in kept}

    def _look_at_tables(self) -> None:
        for series in self._series:
            size = self._tables.size(series.location, self._versions.get(series))
            if size is None:
                continue
            self._versions[series] = size.version
            for name, value in (
                ("table_version", size.version),
                ("table_files", size.files),
                ("table_size_bytes", size.size),
                ("table_deletion_vectors", size.vectors),
            ):
                self._telemetry.gauge(
                    name, value, subscription=series.subscription, table=series.table
                )

    def _look_at_heap(self) -> None:
        heap = self._heap()
        used, limit = (None, None) if heap is None else heap
        self._telemetry.gauge("jvm_heap_used_bytes", used)
        self._telemetry.gauge("jvm_heap_limit_bytes", limit)

    # ---- the publisher half ------------------------------------------------------------

    def _look_at_publisher(self) -> None:
        end = self._publisher.end()
        gauge = self._telemetry.gauge
        gauge("published_lsn", end)
        gauge("captured_timestamp_seconds", self._publisher.captured_at())
        rooms = self._publisher.rooms()
        for use, room in rooms:
            slot = use.slot
            name, user = slot.name, use.session or slot.temporary or None
            gauge("slot_active_pid", user, slot=name)
            gauge("slot_confirmed_lsn", slot.confirmed_lsn, slot=name)
            gauge("slot_restart_lsn", slot.restart_lsn, slot=name)
            gauge("slot_safe_bytes", room.safe_bytes, slot=name)
            held = None if end is None else max(0, int(end) - int(slot.restart_lsn))
            gauge("slot_retained_bytes", held if slot.restart_lsn else None, slot=name)
            self._telemetry.state(
                "slot_wal_status", "status", room.wal_status, slot=name
            )
        positions = self._publisher.positions()
        clients = {client.pid: client for client in self._sessions()}
        senders = [sender for sender in positions if sender[0] in clients]
        for pid, slot_name, sent in senders:
            self._look_at_walsender(clients[pid], slot_name, sent)
        present: dict[tuple[str, ...], set[tuple[str, ...]]] = {
            ("slot",): {(use.slot.name,) for use, _ in rooms},
            ("pid",): {(str(pid),) for pid, _, _ in senders},
        }
        if present != self._present:
            for labels, values in present.items():
                self._telemetry.keep_only(labels, values)
            self._present = present

    def _look_at_walsender(
        self, client: DoorClient, slot: str, positions: WalsenderPositions
    ) -> None:
        pid = str(client.pid)
        self._telemetry.state(
            "walsender_state",
            "state",
            "streaming" if positions.streaming else "catchup",
            pid=pid,
            slot=slot,
            application_name=client.application_name,
            client=client.client_host,
        )
        for name, lsn in (
            ("sent", positions.sent),
            ("write", positions.write),
            ("flush", positions.flush),
            ("replay", positions.apply),
        ):
            self._telemetry.gauge(f"walsender_{name}_lsn", lsn, pid=pid)
        for name, lag in (
            ("write", positions.write_lag_us),
            ("flush", positions.flush_lag_us),
            ("replay", positions.apply_lag_us),
        ):
            self._telemetry.gauge(
                f"walsender_{name}_lag_seconds",
                None if lag is None else lag / 1e6,
                pid=pid,
            )
