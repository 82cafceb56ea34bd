"""Replication slots: who needs which part of the publisher's log.

In: commands and SQL functions. Out: PostgreSQL's answers and errors. A slot is a row of the
catalog; who uses it at the moment is known here, since nobody uses one across a restart.

A slot begins at the end of all that was visible when it was made, which capture gives with the
versions of the tables there: an exact snapshot.

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
    """A slot, and who uses it."""

    slot: ReplicationSlot
    session: int | None
    """None: nobody."""
    left_at: float
    """Unix time: when somebody last did, or the engine's start."""


def refuse_invalidated(slot: ReplicationSlot) -> None:
    """55000 if what it needs of the log may be gone."""
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
        """``most``: max_replication_slots; ``released`` is told that less of the log may be
        needed; ``statistics`` of slots that go are forgotten."""
        self._statistics = statistics
        self._catalog = catalog
        self._capture = capture
        self._most = most
        self._released = released
        self._lock = threading.Lock()
        self._users: dict[str, int] = {}
        self._started = time.time()
        self._left: dict[str, float] = {}
        """When somebody has last used a slot, since the engine's start."""

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
        """A new slot, and the state of all tables at its consistent point."""
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
        """A new slot that stands where ``source`` does; None: as that one is."""
        found = self.need(source)
        if temporary is None:
            temporary = bool(found.temporary)
        begun = ReplicationSlot(
            name,
            plugin or found.plugin,
            Lsn(0),
            Lsn(0),
            session if temporary else 0,
        )
        with self._making(begun, session):
            # Looked at now, when nothing that the new one needs can go any more.
            found = self.need(source)
            if found.invalidation is not None:
                raise UsageError(
                    f'cannot copy invalidated replication slot "{source}"',
                    sqlstate="55000",
                )
            if not found.confirmed_lsn:
                raise UsageError(
                    f'cannot copy unfinished logical replication slot "{source}"',
                    sqlstate="55000",
                    hint="Retry when the source replication slot's confirmed_flush_lsn is"
                    " valid.",
                )
            self._catalog.confirm_slot(name, found.confirmed_lsn)
        return self.need(name)

    @contextmanager
    def _making(self, begun: ReplicationSlot, session: int) -> Iterator[None]:
        """Around what gives a new slot its position: until then it holds the whole log, and
        nobody uses it; it goes if that fails, or with the engine."""
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
        """``wait``, called again and again until nobody uses it any more; None: refuse then."""
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
        """ALTER_REPLICATION_SLOT."""
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
        """pg_replication_slot_advance; where it is then."""
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
        """Confirm that the slot's client has everything below ``lsn``."""
        self._catalog.confirm_slot(name, lsn)
        self._released()

    def begin_two_phase(self, name: str, lsn: Lsn) -> None:
        """Send prepared transactions as such from ``lsn`` on, as the slot's client wants."""
        self._catalog.begin_two_phase(name, lsn)

    def all(self) -> list[ReplicationSlot]:
        """All of them."""
        return self._catalog.slots()

    def in_use(self) -> list[SlotUse]:
        """All of them, and who uses them now."""
        found = self._catalog.slots()
        with self._lock:
            return [
                SlotUse(
                    one,
                    self._users.get(one.name),
                    self._left.get(one.name, self._started),
                )
                for one in found
            ]

    def invalidate(self, use: SlotUse, reason: str) -> bool:
        """It can be used no more, if it still stands where it did and the same session uses it
        (or nobody); whether that was so."""
        name = use.slot.name
        with self._lock:
            return self._users.get(name) == use.session and (
                self._catalog.invalidate_slot(name, reason, use.slot.restart_lsn)
            )

    def released(self) -> None:
        """Less of the log may be needed."""
        self._released()

    def need(self, name: str) -> ReplicationSlot:
        """42704 if there is none."""
        slot = self._catalog.slot(name)
        if slot is None:
            raise UndefinedObjectError(
                f'replication slot "{name}" does not exist', sqlstate="42704"
            )
        return slot

    def user_of(self, name: str) -> int | None:
        """The session that uses it now."""
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
        """Alone, for as long as that lasts; 55006 if somebody else does. ``invalid``: an
        invalidated one will do."""
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
    """42602 if PostgreSQL would not have it."""
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
    """0A000 if it ends with its session."""
    if slot.temporary:
        raise UsageError(
            "cannot enable failover for a temporary replication slot", sqlstate="0A000"
        )
