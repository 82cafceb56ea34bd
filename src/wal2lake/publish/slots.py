"""Manages replication slots, which hold the part of the publisher's log that clients need.

In: commands and SQL functions. Out: PostgreSQL's results and errors. A slot is a row of the
catalog. The session that uses it is recorded here only, because no use survives a restart.

A slot begins at the end of everything that was visible when it was created. Capture returns that
position with the versions of the tables: an exact snapshot.

Source: src/backend/replication/slot.c, slotfuncs.c, logicalfuncs.c; reference 4.1.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from wal2lake.catalog import Catalog, ReplicationSlot
from wal2lake.errors import UndefinedObjectError, UsageError
from wal2lake.model import Lsn
from wal2lake.publish.capture.requests import Point
from wal2lake.publish.capture.worker import Capture
from wal2lake.publish.statistics import Statistics

_NAME: Final = re.compile(r"[a-z0-9_]+")
_NAME_BYTES: Final = 63


@dataclass(frozen=True, slots=True)
class SlotUse:
    """A slot and its user."""

    slot: ReplicationSlot
    session: int | None
    """Session that uses the slot, if any."""
    left_at: float
    """Unix time of the end of the last use, or of the engine's start."""


def refuse_invalidated(slot: ReplicationSlot) -> None:
    """Raise 55000 if the slot is invalidated: the log may lack what it needs."""
    if slot.invalidation is not None:
        raise UsageError(
            f'can no longer access replication slot "{slot.name}"',
            sqlstate="55000",
            detail="This replication slot has been invalidated due to"
            f' "{slot.invalidation}".',
        )


class SlotManager:
    """Replication slots of one node. Thread-safe."""

    def __init__(
        self,
        catalog: Catalog,
        capture: Capture,
        most: Callable[[], int],
        released: Callable[[], None],
        statistics: Statistics,
    ) -> None:
        """``most`` returns max_replication_slots. ``released`` is called when less of the log may
        be needed. ``statistics`` of dropped slots are forgotten."""
        self._statistics = statistics
        self._catalog = catalog
        self._capture = capture
        self._most = most
        self._released = released
        self._lock = threading.Lock()
        self._users: dict[str, int] = {}
        self._started = time.time()
        self._left: dict[str, float] = {}
        """End of the last use of each slot since the engine's start."""

    def create(
        self,
        name: str,
        plugin: str,
        *,
        session: int,
        temporary: bool = False,
        two_phase: bool = False,
        failover: bool = False,
    ) -> tuple[ReplicationSlot, Point]:
        """Create a slot. Return it with the state of all tables at its consistent point."""
        begun = ReplicationSlot(
            name,
            plugin,
            Lsn(0),
            Lsn(0),
            session if temporary else 0,
            two_phase,
            failover,
        )
        with self._making(begun, session):
            point = self._capture.catch_up_for_long()
            self._catalog.confirm_slot(name, point.lsn)
            if two_phase:
                self._catalog.alter_slot(name, two_phase_at=point.lsn)
        return self.need(name), point

    def copy(
        self,
        source: str,
        name: str,
        *,
        session: int,
        temporary: bool | None = None,
        plugin: str | None = None,
    ) -> ReplicationSlot:
        """Copy a slot with its position. ``temporary`` and ``plugin``: None to copy the value."""
        source_slot = self.need(source)
        if temporary is None:
            temporary = bool(source_slot.temporary)
        begun = ReplicationSlot(
            name,
            plugin or source_slot.plugin,
            Lsn(0),
            Lsn(0),
            session if temporary else 0,
        )
        with self._making(begun, session):
            # Read again, now that the new slot keeps the log from being trimmed.
            source_slot = self.need(source)
            if source_slot.invalidation is not None:
                raise UsageError(
                    f'cannot copy invalidated replication slot "{source}"',
                    sqlstate="55000",
                )
            if not source_slot.confirmed_lsn:
                raise UsageError(
                    f'cannot copy unfinished logical replication slot "{source}"',
                    sqlstate="55000",
                    hint="Retry when the source replication slot's confirmed_flush_lsn is"
                    " valid.",
                )
            self._catalog.confirm_slot(name, source_slot.confirmed_lsn)
        return self.need(name)

    @contextmanager
    def _making(self, begun: ReplicationSlot, session: int) -> Iterator[None]:
        """Create a slot, and drop it if the body fails. Until the body gives it a position, the
        slot holds the whole log and cannot be used by others."""
        name = begun.name
        check_name(name)
        if begun.failover:
            _check_failover(begun)
        with self._lock:
            if self._catalog.slot(name) is not None:
                raise UsageError(
                    f'replication slot "{name}" already exists', sqlstate="42710"
                )
            if len(self._catalog.slots()) >= self._most():
                raise UsageError(
                    "all replication slots are in use",
                    sqlstate="53400",
                    hint='Free one or increase "max_replication_slots".',
                )
            self._statistics.forget(name)
            self._catalog.create_slot(begun)
            self._users[name] = session
        try:
            yield
        except BaseException:
            self._catalog.drop_slot(name)
            raise
        finally:
            self._release(name)

    def drop(self, name: str, session: int, *, wait: Callable[[], None] | None) -> None:
        """Drop a slot. ``wait`` is called repeatedly while another session uses the slot; if it is
        None, that is an error."""
        with self.using(name, session, wait=wait, invalid=True):
            self._catalog.drop_slot(name)
        with self._lock:
            self._left.pop(name, None)
        self._released()

    def alter(
        self,
        name: str,
        session: int,
        *,
        failover: bool | None = None,
        two_phase: bool | None = None,
    ) -> None:
        """Carry out ALTER_REPLICATION_SLOT."""
        with self.using(name, session) as slot:
            if failover:
                _check_failover(slot)
            self._catalog.alter_slot(
                name,
                failover=failover,
                two_phase=two_phase,
                two_phase_at=slot.confirmed_lsn if two_phase else None,
            )

    def advance(self, name: str, session: int, to: Lsn) -> Lsn:
        """Carry out pg_replication_slot_advance. Return the new position."""
        if not to:
            raise UsageError("invalid target WAL LSN", sqlstate="22023")
        with self.using(name, session) as slot:
            if to < slot.confirmed_lsn:
                raise UsageError(
                    f"cannot advance replication slot to {to}, minimum is"
                    f" {slot.confirmed_lsn}",
                    sqlstate="55000",
                )
            reached = min(to, self._capture.catch_up_for_long().lsn)
            self._catalog.confirm_slot(name, reached)
        self._released()
        return reached

    def confirm(self, name: str, lsn: Lsn) -> None:
        """Record that the slot's client has everything below ``lsn``."""
        self._catalog.confirm_slot(name, lsn)
        self._released()

    def begin_two_phase(self, name: str, lsn: Lsn) -> None:
        """Enable two_phase for a slot from ``lsn`` on."""
        self._catalog.begin_two_phase(name, lsn)

    def all(self) -> list[ReplicationSlot]:
        """Return all slots."""
        return self._catalog.slots()

    def in_use(self) -> list[SlotUse]:
        """Return all slots with their present users."""
        slots = self._catalog.slots()
        with self._lock:
            return [
                SlotUse(
                    slot,
                    self._users.get(slot.name),
                    self._left.get(slot.name, self._started),
                )
                for slot in slots
            ]

    def invalidate(self, use: SlotUse, reason: str) -> bool:
        """Invalidate a slot if its position and its user are still those of ``use``. Return whether
        it was invalidated."""
        name = use.slot.name
        with self._lock:
            return self._users.get(name) == use.session and (
                self._catalog.invalidate_slot(name, reason, use.slot.restart_lsn)
            )

    def released(self) -> None:
        """Report that less of the log may be needed."""
        self._released()

    def need(self, name: str) -> ReplicationSlot:
        """Return a slot. Raises 42704 if it does not exist."""
        slot = self._catalog.slot(name)
        if slot is None:
            raise UndefinedObjectError(
                f'replication slot "{name}" does not exist', sqlstate="42704"
            )
        return slot

    def user_of(self, name: str) -> int | None:
        """Return the session that uses a slot, if any."""
        with self._lock:
            return self._users.get(name)

    @contextmanager
    def using(
        self,
        name: str,
        session: int,
        *,
        wait: Callable[[], None] | None = None,
        invalid: bool = False,
    ) -> Iterator[ReplicationSlot]:
        """Acquire a slot for the time of the context. Raises 55006 if another session uses it.
        ``invalid``: whether the slot may be invalidated."""
        while True:
            with self._lock:
                slot = self.need(name)
                user = self._users.get(name)
                if user is None and slot.temporary and slot.temporary != session:
                    user = slot.temporary
                if user is None or user == session:
                    self._users[name] = session
                    break
            if wait is None:
                raise UsageError(
                    f'replication slot "{name}" is active for PID {user}',
                    sqlstate="55006",
                )
            wait()
        try:
            if not invalid:
                refuse_invalidated(slot)
            yield slot
        finally:
            self._release(name)

    def drop_temporary(self, session: int) -> None:
        """Drop the temporary slots of a session that ends, or whose statement has failed."""
        if any(slot.temporary == session for slot in self._catalog.slots()):
            self._catalog.drop_temporary_slots(session)
            self._released()

    def _release(self, name: str) -> None:
        with self._lock:
            self._users.pop(name, None)
            self._left[name] = time.time()


def check_name(name: str) -> None:
    """Raise 42602 or 42622 if PostgreSQL would not accept the name."""
    if not name:
        raise UsageError('replication slot name "" is too short', sqlstate="42602")
    if len(name.encode()) > _NAME_BYTES:
        raise UsageError(
            f'replication slot name "{name}" is too long', sqlstate="42622"
        )
    if not _NAME.fullmatch(name):
        raise UsageError(
            f'replication slot name "{name}" contains invalid character',
            sqlstate="42602",
            hint="Replication slot names may only contain lower case letters, numbers,"
            " and the underscore character.",
        )


def _check_failover(slot: ReplicationSlot) -> None:
    """Raise 0A000 if the slot is temporary."""
    if slot.temporary:
        raise UsageError(
            "cannot enable failover for a temporary replication slot", sqlstate="0A000"
        )
