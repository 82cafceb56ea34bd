"""Takes the lease of a warehouse, renews it, gives it up, and stands before each write.

    node's start    take: refused while another node has it     (engine.storetrial, a short process)
    engine          take: goes on with the lease of its start
                    a thread renews it every 10 seconds          one request
                    before each write: is it surely mine?        no request, as a rule
    node's end      give up

A lease is valid for ``seconds`` after it was written, by the store's clock. The holder counts from
the moment *before* it sent the request, by a clock that goes on while the machine sleeps, and
writes without asking only as long as a request that it sends then has ended before the lease does.
Later it renews first, and that request decides: it is carried out only if the object is still the
one that this start has written. So a node that was stopped for minutes, or that could not reach the
store, goes on if nobody has taken the warehouse meanwhile, and otherwise never writes again.

What this does not cover: a process that is stopped between the look at its clock and the request,
for as long as the lease lasts, while another node starts. Its request may then make the next
version of a table if the other node has not yet made one.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from wal2lake.errors import StorageError
from wal2lake.lake.store.lease.bootclock import clock
from wal2lake.lake.store.lease.record import (
    Claim,
    LeaseLost,
    LeaseRecord,
    WarehouseInUse,
    is_free_for,
    judge,
)
from wal2lake.model import WarehouseHolder
from wal2lake.observe import RepeatedErrors, get_logger

if TYPE_CHECKING:
    from obstore import UpdateVersion

    from wal2lake.lake.store.lease.object import LeaseObject, StoredLease

LEASE_SECONDS: Final = 60.0
"""Least validity of a lease: several renewals may fail, and a node that was killed together with
its machine keeps its next start elsewhere waiting for a minute. Chosen arbitrarily."""

_RENEWALS: Final = 6
"""Renewals within the validity."""

_LOOK_SECONDS: Final = 2.0
"""Pause between two looks at the lease of the same node elsewhere. Chosen arbitrarily."""

_RELEASE_SECONDS: Final = 5.0
"""Most time that a node's end takes for giving up the lease. Another node waits instead."""


class HeldLease:
    """The lease of one warehouse, held by one start of a node. Thread-safe."""

    def __init__(
        self,
        location: str,
        lease: LeaseObject,
        start: WarehouseHolder,
        seconds: float | None = None,
    ) -> None:
        """``seconds``: the validity, for tests."""
        self._location = location
        self._object = lease
        self._start = start
        request = lease.request_seconds
        self._seconds = max(LEASE_SECONDS, 2 * request) if seconds is None else seconds
        self._sure_seconds = max(self._seconds - request, self._seconds / 2)
        self._lock = threading.Lock()
        """Held while the object is written."""
        self._record: LeaseRecord | None = None
        self._version: UpdateVersion | None = None
        self._sent_at = 0.0
        self._loss: LeaseLost | None = None
        self._on_loss: Callable[[LeaseLost], None] | None = None
        self._begun = 0
        """Number of renewals so far, the one that is under way among them."""
        self._failure: StorageError | None = None
        """Why the last renewal failed."""
        self._ended = threading.Event()

    # ---- taking ---------------------------------------------------------------------

    def take(self, on_wait: Callable[[str], None] | None = None) -> None:
        """Take the lease. WarehouseInUse if another node has it, or the same node somewhere else
        and renews it.

        ``on_wait`` is told once, in a sentence, what is waited for; None: do not wait."""
        first: StoredLease | None = None
        while True:
            stored = self._object.read()
            record = None if stored is None else self._object.parse(stored)
            if stored is not None and record is not None:
                age = None
                claim = Claim.TAKE
                if not is_free_for(record, self._start):
                    age = self._object.age_of(stored)
                    claim = judge(record, self._start, age)
                renewed = first is not None and stored.version != first.version
                if claim is Claim.WAIT and on_wait is not None and not renewed:
                    if first is None:
                        first = stored
                        on_wait(record.holder.describe())
                    time.sleep(_LOOK_SECONDS)
                    continue
                if claim is not Claim.TAKE:
                    raise self._in_use(record)
            if self._write(self._taken_after(record), stored):
                return

    def _taken_after(self, record: LeaseRecord | None) -> LeaseRecord:
        if record is None:
            return LeaseRecord(self._start, 1, 0, self._seconds)
        if record.holder.token == self._start.token and not record.is_released:
            generation, number = record.generation, record.number + 1
        else:
            generation, number = record.generation + 1, 0
        return LeaseRecord(self._start, generation, number, self._seconds)

    def _in_use(self, record: LeaseRecord) -> WarehouseInUse:
        return WarehouseInUse(
            f'the warehouse "{self._location}" is in use by another node',
            detail=record.holder.describe(),
            hint=f'Stop that node, or set "warehouse" of [spark] to a place of its own for each'
            f" node. If that node has been killed, wait {record.seconds:g} seconds and start"
            " this one again.",
        )

    def prove(self) -> None:
        """Require that the store obeys the conditions that a lease needs (0A000)."""
        self._object.prove()

    # ---- keeping --------------------------------------------------------------------

    @property
    def generation(self) -> int:
        """Number of the taking; 0 before it."""
        return 0 if self._record is None else self._record.generation

    def keep(self, on_loss: Callable[[LeaseLost], None]) -> None:
        """Renew the lease in a thread until it is released. ``on_loss`` is called once if another
        node has it, by the thread that finds out, and must not use the lease: whatever this process
        still does is in vain."""
        self._on_loss = on_loss
        threading.Thread(target=self._renew_often, name="lease", daemon=True).start()

    def _renew_often(self) -> None:
        errors = RepeatedErrors()
        while not self._ended.wait(self._seconds / _RENEWALS):
            try:
                self.renew()
                errors.passed(get_logger())
            except LeaseLost:
                return
            except Exception as error:
                # After a bug of ours, too: the next write needs the lease.
                errors.say(
                    get_logger(), "could not renew the lease of the warehouse", error
                )

    def fence(self) -> None:
        """Let no request of this process change something in the bucket that ``require`` does not
        allow."""
        self._object.bucket.fence = self.require

    def require(self) -> None:
        """Return if this start surely has the lease for as long as a request takes that is sent
        now; renew it first if that is not sure. LeaseLost, or StorageError if the store gives no
        answer: then nothing may be written."""
        while self._loss is not None or not self._is_sure():
            # A renewal that was found by reading counts from its first attempt, and may be too old.
            self.renew(only_if_due=True)

    def _is_sure(self) -> bool:
        return clock() - self._sent_at < self._sure_seconds

    def renew(self, *, only_if_due: bool = False) -> None:
        """Write the lease anew. LeaseLost if somebody else has written it. StorageError if the
        store gives no answer, or gave none to a renewal that began and ended while this one
        waited: threads that wait together fail together."""
        begun = self._begun
        with self._lock:
            if self._loss is not None:
                raise self._loss
            if only_if_due and self._is_sure():
                return
            if self._ended.is_set():
                raise LeaseLost(f'the lease of "{self._location}" was given up')
            if self._failure is not None and self._begun > begun:
                # Of its own: whoever catches an error may add to it.
                raise copy(self._failure) from self._failure
            self._begun += 1
            try:
                self._renew()
            except StorageError as error:
                self._failure = error
                raise
            self._failure = None

    def _renew(self) -> None:
        assert self._record is not None
        record, version = self._record, self._version
        while True:
            number = record.number + 1
            record = LeaseRecord(self._start, record.generation, number, self._seconds)
            if self._write(record, version):
                return
            stored = self._object.read()
            current = None if stored is None else self._object.parse(stored)
            if current is None or not self._is_ours(current):
                self._loss = self._lost(current)
                if self._on_loss is not None:
                    self._on_loss(self._loss)
                raise self._loss
            # An earlier renewal, of which no answer told.
            assert stored is not None
            record, version = current, stored.version

    def _lost(self, record: LeaseRecord | None) -> LeaseLost:
        if record is None:
            return LeaseLost(
                f'the lease of the warehouse "{self._location}" is gone',
                detail=f'There is no object "{self._object.place}" any more. Another node may have'
                " started since.",
                hint="Find out what has removed it, such as a rule of the bucket, exempt it from"
                " that, and start the node again.",
            )
        return LeaseLost(
            f'another node has taken the warehouse "{self._location}"',
            detail=record.holder.describe(),
            hint="This node has written nothing since. Stop one of the two nodes, or set"
            ' "warehouse" of [spark] to a place of its own for each.',
        )

    def release(self) -> None:
        """Give the lease up, so that another node may start at once. A store that does not answer
        costs the end of a node few seconds."""
        self._ended.set()
        thread = threading.Thread(target=self._release, name="lease", daemon=True)
        thread.start()
        thread.join(_RELEASE_SECONDS)

    def _release(self) -> None:
        with self._lock:
            if self._loss is not None or self._record is None:
                return
            # From now on nothing is written.
            self._sent_at = float("-inf")
            try:
                if self._give_up(self._record, self._version):
                    return
                # An earlier renewal, of which no answer told, has replaced the object.
                stored = self._object.read()
                current = None if stored is None else self._object.parse(stored)
                if (
                    stored is not None
                    and current is not None
                    and self._is_ours(current)
                ):
                    self._give_up(current, stored.version)
            except StorageError as error:
                get_logger().warning(
                    "could not give up the lease of the warehouse", error=error
                )

    def _give_up(self, record: LeaseRecord, version: UpdateVersion | None) -> bool:
        released = replace(record, number=record.number + 1, is_released=True)
        return self._object.write(released, version) is not None

    def _is_ours(self, record: LeaseRecord) -> bool:
        return (
            self._record is not None
            and record.holder.token == self._start.token
            and record.generation == self._record.generation
        )

    def _write(
        self, record: LeaseRecord, over: StoredLease | UpdateVersion | None
    ) -> bool:
        written = self._object.write(record, over)
        if written is None:
            return False
        self._record, self._version = record, written.version
        self._sent_at = written.sent_at
        return True
