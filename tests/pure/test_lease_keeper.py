"""The lease's keeper over a store in memory: who is told of a loss, who waits, what is given up."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import obstore
import pytest

from wal2lake.errors import Retry, StorageError
from wal2lake.lake.store import (
    CommandCredentials,
    CredentialsCommandFailed,
    StoreOptions,
)
from wal2lake.lake.store.clients import Bucket
from wal2lake.lake.store.lease import keeper
from wal2lake.lake.store.lease import object as lease_object
from wal2lake.lake.store.lease.bootclock import clock
from wal2lake.lake.store.lease.keeper import HeldLease
from wal2lake.lake.store.lease.object import LeaseObject, StoredLease, WrittenLease
from wal2lake.lake.store.lease.record import LeaseLost, LeaseRecord, parse_lease
from wal2lake.model import WarehouseHolder

if TYPE_CHECKING:
    from obstore import UpdateVersion

ONE = WarehouseHolder(
    node="7001",
    token="t1",
    boot="boot",
    inode="8:1",
    directory="/data/one",
    host="red",
    pid=11,
    since="2026-11-28 03:00:00+00",
)
TWO = replace(ONE, node="7002", token="t2", inode="8:2", directory="/data/two")


class MemoryObject:
    """The lease's object without a store. ``written`` counts its versions."""

    place = "s3://b/w/_wal2lake/lease"
    request_seconds = 30.0

    def __init__(self) -> None:
        self.written = 0
        self.stored: StoredLease | None = None
        self.writes = 0
        self.now = clock
        self.is_down = False
        self.asked = threading.Event()
        self.go_on = threading.Event()

    def parse(self, stored: StoredLease) -> LeaseRecord:
        return parse_lease(stored.content, self.place)

    def read(self) -> StoredLease | None:
        return self.stored

    def write(self, record: LeaseRecord, over: object) -> WrittenLease | None:
        self.writes += 1
        if self.is_down:
            self.asked.set()
            assert self.go_on.wait(10)
            raise StorageError("the store is down", sqlstate="58030")
        version = over.version if isinstance(over, StoredLease) else over
        present = None if self.stored is None else self.stored.version
        if version != present:
            return None
        return WrittenLease(self.put(record), self.now())

    def put(self, record: LeaseRecord) -> UpdateVersion:
        """Write whatever is there."""
        self.written += 1
        version: UpdateVersion = {"e_tag": str(self.written)}
        self.stored = StoredLease(record.render(), version, 0.0)
        return version

    @property
    def record(self) -> LeaseRecord:
        assert self.stored is not None
        return self.parse(self.stored)


class NotedLock:
    """A lock that notes each thread that wants it."""

    def __init__(self) -> None:
        self.wanted = threading.Semaphore(0)
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self.wanted.release()
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def later() -> float:
    """The time when the lease is no longer sure."""
    return clock() + 31


def taken(stored: MemoryObject) -> HeldLease:
    lease = HeldLease("s3://b/w", cast(LeaseObject, stored), ONE)
    lease.take()
    return lease


class NotedBucket(Bucket):
    """A bucket whose command and fence note when they are called."""

    def __init__(self, events: list[str], *, fails: bool = False) -> None:
        def command() -> None:
            events.append("command")
            if fails:
                raise CredentialsCommandFailed("its exit code is 7")

        nothing: Any = None
        noted = cast(CommandCredentials, command)
        super().__init__(nothing, lambda: nothing, StoreOptions(), noted)
        self.fence = lambda: events.append("fence")


# ---- credentials of a command ------------------------------------------------------------


@pytest.mark.parametrize("fails", [False, True])
def test_the_command_runs_before_the_fence_is_asked(fails: bool) -> None:
    events: list[str] = []
    NotedBucket(events, fails=fails).admit()
    assert events == ["command", "fence"]


def test_the_command_runs_before_the_time_of_a_renewal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    events: list[str] = []

    def put(*_: object, **__: object) -> dict[str, Any]:
        events.append("put")
        return {"e_tag": "1", "version": None}

    def look() -> float:
        events.append("clock")
        return 7.0

    monkeypatch.setattr(obstore, "put", put)
    monkeypatch.setattr(lease_object, "clock", look)
    written = LeaseObject("s3://b/w", NotedBucket(events), "w").write(
        LeaseRecord(ONE, 1, 0, 60.0), None
    )
    assert written is not None and events[-3:] == ["command", "clock", "put"]


# ---- a loss ------------------------------------------------------------------------------


def test_whichever_thread_finds_the_loss_tells_it_once() -> None:
    stored = MemoryObject()
    lease = taken(stored)
    losses: list[LeaseLost] = []
    lease.keep(losses.append)
    stored.put(replace(stored.record, holder=TWO, generation=2))
    for _ in range(2):
        with pytest.raises(LeaseLost) as caught:
            lease.renew()
    assert losses == [caught.value]
    # A worker's error of this kind disables no subscription.
    assert caught.value.retry is Retry.LATER


def test_a_lease_that_was_removed() -> None:
    stored = MemoryObject()
    lease = taken(stored)
    stored.stored = None
    with pytest.raises(LeaseLost) as caught:
        lease.renew()
    assert caught.value.message == 'the lease of the warehouse "s3://b/w" is gone'
    assert caught.value.detail == (
        'There is no object "s3://b/w/_wal2lake/lease" any more. Another node may have started'
        " since."
    )
    assert caught.value.hint == (
        "Find out what has removed it, such as a rule of the bucket, exempt it from that, and"
        " start the node again."
    )
    assert stored.stored is None


# ---- a store that is down ----------------------------------------------------------------


def test_writers_that_wait_for_a_renewal_fail_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = MemoryObject()
    lease = taken(stored)
    monkeypatch.setattr(keeper, "clock", later)
    lock = NotedLock()
    monkeypatch.setattr(lease, "_lock", lock)

    def require() -> StorageError:
        with pytest.raises(StorageError) as caught:
            lease.require()
        return caught.value

    stored.is_down, stored.writes = True, 0
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(require)
        assert stored.asked.wait(10)
        others = [pool.submit(require) for _ in range(7)]
        for _ in range(8):
            assert lock.wanted.acquire(timeout=10)
        # Those that came during the first renewal share the second one.
        stored.go_on.set()
        errors = [one.result(10) for one in (first, *others)]
    assert stored.writes == 2
    assert {error.sqlstate for error in errors} == {"58030"}
    assert len({id(error) for error in errors}) == 8
    # A later one asks again.
    stored.is_down = False
    stored.now = later
    lease.require()


def test_a_renewal_that_is_old_when_it_is_known_is_made_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stored = MemoryObject()
    lease = taken(stored)
    monkeypatch.setattr(keeper, "clock", later)
    sent = iter([-20.0, 31.0])
    stored.now = lambda: clock() + next(sent)
    stored.writes = 0
    lease.require()
    assert stored.writes == 2
    lease.require()
    assert stored.writes == 2


# ---- the end of a node -------------------------------------------------------------------


def test_a_lease_is_given_up_after_a_renewal_of_which_no_answer_told() -> None:
    stored = MemoryObject()
    lease = taken(stored)
    stored.put(replace(stored.record, number=1))
    lease.release()
    assert stored.record.is_released and stored.record.number == 2

    stored = MemoryObject()
    lease = taken(stored)
    other = replace(stored.record, holder=TWO, generation=2)
    stored.put(other)
    lease.release()
    assert stored.record == other
