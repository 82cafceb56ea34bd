"""The lease of a warehouse in an object store: who may take it, and who may write.

On S3, Google Cloud Storage and Azure, with a proxy that loses answers and lies. A clock that is
ahead stands for a process that was stopped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import cast
from uuid import uuid4

import pytest
from tests.fakes.objectstores import Server, azure_server, gcs_server
from tests.fakes.storeproxy import Fault, Planned, StoreProxy

from wal2lake.errors import StorageError
from wal2lake.lake.store import (
    CommandCredentials,
    HeldLease,
    LeaseLost,
    NoPutIfAbsent,
    Store,
    UnknownOutcome,
    WarehouseInUse,
    clients,
    lease_of,
    store_at,
)
from wal2lake.lake.store.lease import KEY, bootclock, keeper
from wal2lake.lake.store.lease import object as lease_object
from wal2lake.lake.store.lease.record import Claim, LeaseRecord, judge, parse_lease
from wal2lake.lake.store.objects import ObjectStore
from wal2lake.model import WarehouseHolder

SERVERS = {"gs": gcs_server, "az": azure_server}

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
TWO = replace(
    ONE, node="7002", token="t2", inode="8:2", directory="/data/two", host="blue"
)


@pytest.fixture(
    scope="module", params=["s3", "gs", pytest.param("az", marks=pytest.mark.slow)]
)
def kind(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server."""
    if request.param == "s3":
        yield request.getfixturevalue("s3")
    else:
        with SERVERS[request.param]() as server:
            yield server


@pytest.fixture(autouse=True)
def processes() -> Iterator[None]:
    """Clients of their own for each test: a fence stays on a client."""
    clients._bucket.cache_clear()
    yield
    clients._bucket.cache_clear()


def at(
    server: Server,
    place: str,
    start: WarehouseHolder,
    port: int | None = None,
    seconds: float | None = None,
    **more: float,
) -> HeldLease:
    """The lease as a process of its own has it."""
    clients._bucket.cache_clear()
    return lease_of(
        f"{server.url}/{place}", start, server.options(port, **more), seconds
    )


def later(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """This process was stopped for so long."""
    whole = bootclock.clock
    for module in (keeper, lease_object):
        monkeypatch.setattr(module, "clock", lambda: whole() + seconds)


# ---- the rule ----------------------------------------------------------------------------


def test_who_may_take_a_lease() -> None:
    held = LeaseRecord(ONE, 3, 7, 60.0)
    assert judge(held, TWO, 61.9) is Claim.REFUSE
    assert judge(held, TWO, 62.0) is Claim.TAKE
    assert judge(replace(held, is_released=True), TWO, 0.0) is Claim.TAKE
    # An engine that was restarted.
    assert judge(held, ONE, 0.0) is Claim.TAKE
    # A later start, after a kill -9.
    again = replace(ONE, token="t9", pid=12)
    assert judge(held, again, 0.0) is Claim.TAKE
    assert judge(held, replace(again, directory="/moved"), 0.0) is Claim.TAKE
    # A copy of the directory, here or on another machine.
    assert judge(held, replace(again, inode="8:3"), 0.0) is Claim.WAIT
    assert judge(held, replace(again, boot="other"), 61.9) is Claim.WAIT
    assert judge(held, replace(again, boot="other"), 62.0) is Claim.TAKE
    no_kernel = replace(held, holder=replace(ONE, boot=""))
    assert judge(no_kernel, replace(again, boot=""), 0.0) is Claim.WAIT
    # Another node in a directory that has the number of a removed one.
    assert judge(held, replace(again, node="7002"), 0.0) is Claim.REFUSE


def test_a_lease_is_read_as_it_was_written() -> None:
    record = LeaseRecord(ONE, 3, 7, 60.0, is_released=True)
    assert parse_lease(record.render(), "p") == record
    for content in (b"", b"[]", b"{}", b'{"holder": 1}', b"\xff"):
        with pytest.raises(StorageError) as caught:
            parse_lease(content, "s3://b/_wal2lake/lease")
        assert caught.value.sqlstate == "XX001"
        assert caught.value.hint == (
            "Make sure that no node uses the warehouse, remove this object, and start the"
            " node again."
        )


# ---- in each store -----------------------------------------------------------------------


def test_one_node_at_a_time(kind: Server) -> None:
    place = f"{uuid4().hex}/w%2F ü"
    one, two = at(kind, place, ONE), at(kind, place, TWO)
    one.prove()
    one.take()
    for _ in range(2):
        with pytest.raises(WarehouseInUse) as caught:
            two.take()
        one.renew()
    error = caught.value
    assert error.sqlstate == "55006"
    assert error.message == (
        f'the warehouse "{kind.url}/{place}" is in use by another node'
    )
    assert error.detail == (
        'The node in directory "/data/one" on host "red" (PID 11, system identifier 7001)'
        " has it since 2026-11-28 03:00:00+00."
    )
    assert error.hint == (
        'Stop that node, or set "warehouse" of [spark] to a place of its own for each node.'
        " If that node has been killed, wait 60 seconds and start this one again."
    )
    one.release()
    two.take()
    assert (one.generation, two.generation) == (1, 2)
    with pytest.raises(LeaseLost):
        one.renew()
    two.release()
    store = store_at(f"{kind.url}/{place}", kind.options())
    assert store is not None
    assert list(store.list_below("", lambda _: True)) == [KEY]


def test_of_many_starts_at_once_one_has_the_lease(kind: Server) -> None:
    place = uuid4().hex
    leases = [
        at(kind, place, replace(ONE, node=str(n), token=str(n), inode=str(n)))
        for n in range(6)
    ]
    begin = threading.Barrier(len(leases))

    def take(lease: HeldLease) -> bool:
        begin.wait(10)
        try:
            lease.take()
        except WarehouseInUse:
            return False
        return True

    with ThreadPoolExecutor(len(leases)) as pool:
        assert sum(pool.map(take, leases)) == 1


def test_a_killed_node_goes_on_at_once_and_its_copy_does_not(kind: Server) -> None:
    place = uuid4().hex
    one = at(kind, place, ONE)
    one.take()
    again = at(kind, place, replace(ONE, token="t9"))
    again.take()
    assert again.generation == 2
    again.take()
    assert again.generation == 2
    with pytest.raises(LeaseLost):
        one.renew()

    copied = at(kind, place, replace(ONE, token="t5", inode="8:5"))
    waited: list[str] = []

    def renewing(sentence: str) -> None:
        waited.append(sentence)
        again.renew()

    with pytest.raises(WarehouseInUse):
        copied.take(renewing)
    assert waited == [ONE.describe()]
    with pytest.raises(WarehouseInUse):
        copied.take()


def test_a_lease_that_is_not_renewed_ends_by_the_stores_clock(kind: Server) -> None:
    place = uuid4().hex
    one = at(kind, place, ONE, seconds=0.1)
    one.take()
    moved = at(kind, place, replace(ONE, token="t5", boot="other"))
    waited: list[str] = []
    moved.take(waited.append)
    assert moved.generation == 2
    with pytest.raises(LeaseLost) as caught:
        one.renew()
    assert caught.value.hint == (
        "This node has written nothing since. Stop one of the two nodes, or set"
        ' "warehouse" of [spark] to a place of its own for each.'
    )


# ---- a fence before each write -----------------------------------------------------------


def held(server: Server, port: int | None = None) -> tuple[HeldLease, Store, str]:
    """A lease that stands before the writes of its store."""
    place = uuid4().hex
    lease = at(server, place, ONE, port, attempts_seconds=0.5)
    lease.take()
    lease.fence()
    store = store_at(
        f"{server.url}/{place}", server.options(port, attempts_seconds=0.5)
    )
    assert store is not None
    return lease, store, place


WRITES: dict[str, Callable[[Store], object]] = {
    "put_if_absent": lambda store: store.put_if_absent("t/1", b"1"),
    "put": lambda store: store.put("t/1", b"1"),
    "delete": lambda store: store.delete("t/0"),
    "delete_all": lambda store: store.delete_all(["t/0"]),
    "copy": lambda store: store.copy("t/1", store, "t/0"),
    "parts": lambda store: store.open_writer("t/1").sink.write(bytes(9 << 20)),
}


@pytest.mark.parametrize("write", WRITES)
def test_nothing_is_written_after_the_lease_is_lost(
    kind: Server, write: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, store, place = held(kind)
    store.put("t/0", b"0")
    store.put_if_absent("t/probed", b"")
    store.read("t/0")
    taken = at(kind, place, TWO)
    monkeypatch.setattr(keeper, "judge", lambda *_: Claim.TAKE)
    taken.take()
    later(monkeypatch, 31)
    for _ in range(2):
        with pytest.raises(LeaseLost) as caught:
            WRITES[write](store)
    assert caught.value.sqlstate == "55006"
    assert "another node has taken the warehouse" in caught.value.message
    assert caught.value.detail == TWO.describe()
    assert store.list_after("t") == ["0", "probed"]


def test_parts_are_not_made_an_object_after_the_lease_is_lost(
    kind: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease, store, _ = held(kind)
    writer = store.open_writer("t/1")
    writer.sink.write(bytes(9 << 20))
    writer.sink.write(bytes(9 << 20))
    assert isinstance(store, ObjectStore)
    calls = 0

    def fence() -> None:
        nonlocal calls
        calls += 1
        if calls == 2:
            raise LeaseLost("another node has taken the warehouse")

    store._bucket.fence = fence
    with pytest.raises(LeaseLost):
        writer.finish()
    assert calls == 2 and store.list_after("t") == []
    lease.release()


@pytest.mark.parametrize("write", WRITES)
def test_credentials_are_there_before_the_lease_is_asked(
    s3: Server, write: str
) -> None:
    _, store, _ = held(s3)
    assert isinstance(store, ObjectStore)
    store.put("t/0", b"0")
    store.put_if_absent("t/probed", b"")
    events: list[str] = []
    bucket = store._bucket
    bucket.command = cast(CommandCredentials, lambda: events.append("command"))
    bucket.fence = lambda: events.append("fence")
    WRITES[write](store)
    assert events == ["command", "fence"]


def test_a_node_that_was_stopped_goes_on_if_nobody_took_its_place(
    kind: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StoreProxy(kind.port) as proxy:
        lease, store, place = held(kind, proxy.port)
        for _ in range(5):
            store.put("t/0", b"0")
        lease_requests = f"/{place}/_wal2lake/lease"
        assert proxy.count("PUT", lease_requests) == 1
        assert proxy.count("GET", lease_requests) == 1
        later(monkeypatch, 600)
        assert store.put_if_absent("t/1", b"1") is not None
        assert proxy.count("PUT", lease_requests) >= 2
        assert lease.generation == 1


def test_nothing_is_written_while_the_store_does_not_say_who_has_the_lease(
    kind: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with StoreProxy(kind.port) as proxy:
        _, store, _ = held(kind, proxy.port)
        store.put_if_absent("t/probed", b"")
        down = [Planned(Fault.REFUSE, 503)] * 500
        proxy.plan("PUT", "_wal2lake/lease", *down)
        later(monkeypatch, 31)
        with pytest.raises(StorageError) as caught:
            store.put_if_absent("t/1", b"1")
        assert not isinstance(caught.value, LeaseLost | UnknownOutcome)
        # A commit whose first attempt may have been carried out stays in doubt.
        monkeypatch.undo()
        proxy.plans.clear()
        proxy.plan("PUT", "/t/2", Planned(Fault.REFUSE_DONE, 500))
        proxy.plan("PUT", "_wal2lake/lease", *down)
        times = iter([0.0, 600.0])
        whole = bootclock.clock
        monkeypatch.setattr(keeper, "clock", lambda: whole() + next(times, 600.0))
        monkeypatch.setattr(lease_object, "clock", lambda: whole() + 600.0)
        with pytest.raises(UnknownOutcome):
            store.put_if_absent("t/2", b"2")
        proxy.plans.clear()
        assert store.put_if_absent("t/3", b"3") is not None


# ---- faults ------------------------------------------------------------------------------

FAULTS = {
    "a request is cut": Planned(Fault.CUT_REQUEST),
    "an answer is cut": Planned(Fault.CUT_ANSWER),
    "an answer is lost": Planned(Fault.LOSE_ANSWER),
    "an answer is late": Planned(Fault.DELAY, seconds=0.2),
    "refused, as full": Planned(Fault.REFUSE, 503, "SlowDown"),
    "done, and 500": Planned(Fault.REFUSE_DONE, 500),
    "not done, and 409": Planned(Fault.REFUSE, 409, "ConditionalRequestConflict"),
    "done, and 409": Planned(Fault.REFUSE_DONE, 409, "ConditionalRequestConflict"),
    "not done, and 412": Planned(Fault.REFUSE, 412, "PreconditionFailed"),
    "done, and 412": Planned(Fault.REFUSE_DONE, 412, "PreconditionFailed"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_answers_that_are_lost_or_wrong(kind: Server, fault: str) -> None:
    place = uuid4().hex
    planned = FAULTS[fault]
    with StoreProxy(kind.port) as proxy:
        one = at(kind, place, ONE, proxy.port)
        for method in ("GET", "PUT"):
            if method == "PUT" or planned.status not in (409, 412):
                proxy.plan(method, KEY, planned, planned)
        one.take()
        for _ in range(3):
            proxy.plan("PUT", KEY, planned, planned)
            one.renew()
        assert one.generation == 1
        two = at(kind, place, TWO)
        with pytest.raises(WarehouseInUse):
            two.take()
        proxy.plan("PUT", KEY, planned)
        one.release()
        two.take()
        assert two.generation == 2


def test_a_renewal_of_which_no_answer_told_is_found_by_the_next(kind: Server) -> None:
    place = uuid4().hex
    with StoreProxy(kind.port) as proxy:
        one = at(kind, place, ONE, proxy.port, attempts_seconds=0.2)
        one.take()
        lost = [Planned(Fault.LOSE_ANSWER)] * 500
        proxy.plan("PUT", KEY, *lost)
        proxy.plan("GET", KEY, *lost)
        with pytest.raises(StorageError):
            one.renew()
        proxy.plans.clear()
        one.renew()
        one.renew()


@pytest.mark.parametrize("kind", ["s3", "gs"], indirect=True)
def test_a_store_that_ignores_if_match_is_refused(kind: Server) -> None:
    conditions = ("If-Match", "x-goog-if-generation-match")
    with StoreProxy(kind.port, ignored=conditions) as proxy:
        lease = at(kind, uuid4().hex, ONE, proxy.port)
        with pytest.raises(NoPutIfAbsent) as caught:
            lease.prove()
    assert caught.value.sqlstate == "0A000"
    assert caught.value.hint == (
        "Use a store, or a version of it, that supports conditional writes with If-Match."
    )


def test_a_thread_renews_until_another_node_has_the_lease(
    s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = uuid4().hex
    one = at(s3, place, ONE, seconds=0.3)
    one.take()
    losses: list[LeaseLost] = []
    lost = threading.Event()

    def note(loss: LeaseLost) -> None:
        losses.append(loss)
        lost.set()

    one.keep(note)
    time.sleep(0.3)
    two = at(s3, place, TWO)
    monkeypatch.setattr(keeper, "judge", lambda *_: Claim.TAKE)
    while True:
        two.take()
        if lost.wait(1):
            break
    assert [loss.detail for loss in losses] == [TWO.describe()]


def test_the_end_of_a_node_does_not_wait_for_its_store(
    s3: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "_RELEASE_SECONDS", 0.2)
    with StoreProxy(s3.port) as proxy:
        one = at(s3, uuid4().hex, ONE, proxy.port)
        one.take()
        slow, others = (Planned(Fault.NO_ANSWER, seconds=s) for s in (3.0, 0.1))
        proxy.plan("PUT", KEY, slow, *[others] * 8)
        begin = time.monotonic()
        one.release()
        assert time.monotonic() - begin < 2.0
        with pytest.raises(LeaseLost):
            one.require()
