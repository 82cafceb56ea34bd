"""The lease's keeper over a store in memory: who is told of a loss, who waits, what is given up."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import cast

import pytest

from wal2lake.errors import Retry
from wal2lake.lake.store.lease.bootclock import clock
from wal2lake.lake.store.lease.keeper import HeldLease
from wal2lake.lake.store.lease.object import LeaseObject, StoredLease, WrittenLease
from wal2lake.lake.store.lease.record import LeaseLost, LeaseRecord, parse_lease
from wal2lake.model import WarehouseHolder

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

    def parse(self, stored: StoredLease) -> LeaseRecord:
        return parse_lease(stored.content, self.place)

    def read(self) -> StoredLease | None:
        return self.stored

    def write(self, record: LeaseRecord, over: object) -> WrittenLease | None:
        self.writes += 1
        version = over.version if isinstance(over, StoredLease) else over
        present = None if self.stored is None else self.stored.version
        if version != present:
            return None
        return WrittenLease(self.put(record), clock())

    def put(self, record: LeaseRecord) -> dict[str, str]:
        """Write whatever is there."""
        self.written += 1
        self.stored = StoredLease(record.render(), {"e_tag": str(self.written)}, 0.0)
        return {"e_tag": str(self.written)}

    @property
    def record(self) -> LeaseRecord:
        assert self.stored is not None
        return self.parse(self.stored)


def taken(stored: MemoryObject) -> HeldLease:
    lease = HeldLease("s3://b/w", cast(LeaseObject, stored), ONE)
    lease.take()
    return lease


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
