"""Enforces limits of replication slots: on the log that they hold, and on idle time.

In: slots and their users, the publisher's log. Out: invalidated slots, reported in the server log
in PostgreSQL's words; the room that each slot has left (pg_replication_slots).

A slot holds the bytes of all segments with contents at or above its ``restart_lsn``. Capture
enforces the limits once a second, before it trims the log; PostgreSQL does it at checkpoints. A
client that streams from an invalidated slot is disconnected.

Source: InvalidatePossiblyObsoleteSlot() and ReportSlotInvalidation() in slot.c,
pg_get_replication_slots() in slotfuncs.c (PostgreSQL 18).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wal2lake.catalog import ReplicationSlot
from wal2lake.changelog import Inventory, LogContents
from wal2lake.errors import Wal2LakeError
from wal2lake.observe import get_logger
from wal2lake.publish.slots import SlotManager, SlotUse

WAL_REMOVED: Final = "wal_removed"
IDLE_TIMEOUT: Final = "idle_timeout"

_MB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Limits:
    """Settings of these names."""

    max_slot_wal_keep_size: int
    """MB; -1 for no limit."""
    idle_replication_slot_timeout: int
    """Seconds; 0 for no limit."""

    @property
    def keep_bytes(self) -> int | None:
        """The size limit in bytes; None for no limit."""
        size = self.max_slot_wal_keep_size
        return None if size < 0 else size * _MB


@dataclass(frozen=True, slots=True)
class Room:
    """Room that a slot has left."""

    wal_status: str
    """reserved, unreserved (the next look invalidates the slot) or lost; never extended, because
    there is no max_wal_size."""
    safe_bytes: int | None
    """Bytes that may be written before the slot is lost. None for no limit, or if it is lost."""


class SlotLimits:
    """Limits of one node's slots. Thread-safe."""

    def __init__(
        self,
        slots: SlotManager,
        directory: Path,
        limits: Callable[[], Limits],
        terminate: Callable[[int], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """``directory``: the publisher's log. ``terminate`` ends a session's use of a slot.
        ``clock`` returns Unix time."""
        self._slots = slots
        self._limits = limits
        self._terminate = terminate
        self._clock = clock
        self._inventory = Inventory(directory)
        self._lock = threading.Lock()

    def enforce(self) -> None:
        """Invalidate slots beyond a limit."""
        uses = self._slots.in_use()
        for use in uses:
            if use.slot.invalidation is not None and use.session is not None:
                # The session acquired the slot after the last attempt to end it.
                self._terminate(use.session)
        limits = self._limits()
        if limits.keep_bytes is None and not limits.idle_replication_slot_timeout:
            return
        held = self._held([use.slot for use in uses], limits)
        for use in uses:
            cause = self._cause(use, held.get(use.slot.name), limits)
            if cause is not None:
                self._invalidate(use, *cause)

    def rooms(self, slots: Sequence[ReplicationSlot]) -> dict[str, Room]:
        """Return the room of slots, by name."""
        limits = self._limits()
        held = self._held(slots, limits)
        return {slot.name: _room(slot, held.get(slot.name), limits) for slot in slots}

    def _held(self, slots: Sequence[ReplicationSlot], limits: Limits) -> dict[str, int]:
        """Return the held bytes of valid slots, by name; nothing if there is no limit."""
        if limits.keep_bytes is None:
            return {}
        with self._lock:
            contents = self._inventory.read()
            return {
                slot.name: self._bytes_above(contents, slot)
                for slot in slots
                if slot.invalidation is None and slot.restart_lsn
            }

    def _bytes_above(self, contents: LogContents | None, slot: ReplicationSlot) -> int:
        if contents is None:
            return 0
        return self._inventory.above(contents, slot.restart_lsn).bytes

    def _cause(
        self, use: SlotUse, held: int | None, limits: Limits
    ) -> tuple[str, str, str] | None:
        """Return (reason, DETAIL, setting) if the slot must be invalidated."""
        slot = use.slot
        if slot.invalidation is not None or not slot.restart_lsn:
            return None
        keep = limits.keep_bytes
        if keep is not None and held is not None and held > keep:
            over = held - keep
            return (
                WAL_REMOVED,
                f"The slot's restart_lsn {slot.restart_lsn} exceeds the limit by {over}"
                f" byte{'' if over == 1 else 's'}.",
                "max_slot_wal_keep_size",
            )
        timeout = limits.idle_replication_slot_timeout
        idle = self._clock() - use.left_at
        if timeout and use.session is None and idle >= timeout:
            return (
                IDLE_TIMEOUT,
                f"The slot's idle time of {int(idle)}s exceeds the configured"
                f' "idle_replication_slot_timeout" duration of {timeout}s.',
                "idle_replication_slot_timeout",
            )
        return None

    def _invalidate(self, use: SlotUse, reason: str, detail: str, setting: str) -> None:
        name = use.slot.name
        report = Wal2LakeError(
            f'invalidating obsolete replication slot "{name}"',
            detail=detail,
            hint=f'You might need to increase "{setting}".',
        )
        if not self._slots.invalidate(use, reason):
            # The slot has advanced, or its user has changed. The next look decides again.
            return
        if use.session is not None:
            get_logger().info(
                f'terminating process {use.session} to release replication slot "{name}"'
            )
            self._terminate(use.session)
        get_logger().warning(report.message, error=report)


def _room(slot: ReplicationSlot, held: int | None, limits: Limits) -> Room:
    if slot.invalidation is not None:
        return Room("lost", None)
    keep = limits.keep_bytes
    if keep is None or held is None:
        return Room("reserved", None)
    return Room("reserved" if held <= keep else "unreserved", keep - held)
