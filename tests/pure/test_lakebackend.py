"""A query's result ends below however it ends above; what a block refuses."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

import pyarrow as pa
import pytest
from tests.fakes.catalog_source import session

from wal2lake.catalog import (
    Catalog,
    ColumnDef,
    Subscription,
    SubscriptionRel,
    TableDef,
)
from wal2lake.errors import Wal2LakeError
from wal2lake.frontend.backend import Outcome, TransactionKind
from wal2lake.frontend.commands.node import Node
from wal2lake.frontend.engine.lakebackend import LakeBackend
from wal2lake.frontend.engine.rows import answers
from wal2lake.lake import FieldSpec
from wal2lake.model import Lsn, Oid, PartitionKey, PartitionStrategy, SyncState
from wal2lake.settings import Settings
from wal2lake.wire.frontback import Format

SCHEMA = pa.schema([("a", pa.int32())])


class Running:
    """A statement below: its batches, and whether it was closed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.closed = 0
        self._error = error
        self._left = [
            pa.record_batch([pa.array([i], pa.int32())], SCHEMA) for i in (1, 2)
        ]

    def __iter__(self) -> Running:
        return self

    def __next__(self) -> pa.RecordBatch:
        if self._error is not None:
            raise self._error
        if not self._left:
            raise StopIteration
        return self._left.pop(0)

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closed += 1


class FakeQueries:
    """Gives each query the next ``Running``; notes which job was cancelled."""

    def __init__(self) -> None:
        self.running = Running()
        self.cancelled: list[str] = []
        self.last = ""

    def run(self, sql: str, *, job_group: str) -> Any:
        self.last = sql
        return SimpleNamespace(
            fields=(FieldSpec("a", "int", pg_type_oid=Oid(23)),),
            schema=SCHEMA,
            batches=self.running,
        )

    def cancel(self, job_group: str) -> None:
        self.cancelled.append(job_group)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = Catalog.create(tmp_path / "catalog.sqlite", "postgres", None)
    columns = (ColumnDef("a", Oid(23)),)
    catalog.create_table(
        TableDef(Oid(30000), "public", "t", Oid(10), columns, (), "/t")
    )
    catalog.create_subscription(
        Subscription(
            Oid(20000), "s", Oid(10), True, "host=p", "s", ("p", "q"), floor=Lsn(100)
        ),
        [],
    )
    return catalog


@pytest.fixture
def queries() -> FakeQueries:
    return FakeQueries()


@pytest.fixture
def backend(
    catalog: Catalog, queries: FakeQueries, tmp_path: Path
) -> Iterator[LakeBackend]:
    unused: Any = None
    below: Any = queries
    state = SimpleNamespace(version=3, fields=(FieldSpec("a", "int"),))
    tables: Any = SimpleNamespace(
        state=lambda location: state,
        state_at=lambda location, version: state,
        # Spark's.
        plainly_read=lambda location, version: None,
    )
    node = Node(
        catalog=catalog,
        settings=Settings(directory=tmp_path),
        tables=tables,
        queries=below,
        apply=unused,
        sync=unused,
        locks=unused,
        branches=unused,
        keys=unused,
        compactor=unused,
        changed=lambda: None,
    )
    system: Any = SimpleNamespace(cancel=lambda pid: None)
    yield LakeBackend(node, system, session())


def query(backend: LakeBackend) -> Outcome:
    prepared = backend.prepare("select a from t", ())
    return backend.execute(prepared, (), (Format.TEXT,))


# ---- results ------------------------------------------------------------------------------


def test_a_result_that_is_read_to_its_end_is_closed_below(
    backend: LakeBackend, queries: FakeQueries
) -> None:
    outcome = query(backend)
    assert [batch.columns for batch in outcome.batches] == [([b"1"],), ([b"2"],)]
    assert queries.running.closed == 1
    outcome.close()
    assert queries.running.closed == 1


@pytest.mark.parametrize("taken", [0, 1])
def test_a_result_that_is_closed_early_is_closed_below(
    backend: LakeBackend, queries: FakeQueries, taken: int
) -> None:
    outcome = query(backend)
    for _ in range(taken):
        next(outcome.batches)
    outcome.close()
    assert queries.running.closed == 1
    backend.cancel()
    assert queries.cancelled == [], "nothing runs any more"


def test_a_result_that_fails_is_closed_below(
    backend: LakeBackend, queries: FakeQueries
) -> None:
    queries.running = Running(Wal2LakeError("broken"))
    outcome = query(backend)
    with pytest.raises(Wal2LakeError, match="broken"):
        next(outcome.batches)
    assert queries.running.closed == 1


def test_a_result_whose_columns_cannot_be_told_is_closed_below(
    backend: LakeBackend, queries: FakeQueries, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: object) -> None:
        raise Wal2LakeError("no columns")

    monkeypatch.setattr(answers, "fields_of", fails)
    with pytest.raises(Wal2LakeError, match="no columns"):
        query(backend)
    assert queries.running.closed == 1
    backend.cancel()
    assert queries.cancelled == []


@pytest.mark.parametrize("subscribed", [40000, 40001])
@pytest.mark.parametrize("name", ["root", "rest"])
def test_a_partitioned_table_and_its_partition_are_read_at_one_published_version(
    backend: LakeBackend,
    catalog: Catalog,
    queries: FakeQueries,
    subscribed: int,
    name: str,
) -> None:
    key = PartitionKey(PartitionStrategy.RANGE, ("a",))
    columns = (ColumnDef("a", Oid(23)),)
    root = TableDef(
        Oid(40000), "public", "root", Oid(10), columns, (), "/r", partition_key=key
    )
    rest = replace(
        root, oid=Oid(40001), name="rest", partition_key=None, partition_of=root.oid
    )
    for table in (root, rest):
        catalog.create_table(table)
    assert catalog.table("public", "root") == root
    assert catalog.table("public", "rest") == rest
    assert catalog.sharing(root) == catalog.sharing(rest) == (root.oid, rest.oid)
    relid = Oid(subscribed)
    ready = SyncState.READY
    catalog.add_rels([SubscriptionRel(Oid(20000), relid, "p", "x", ready, None, 1)])
    catalog.publish(Oid(20000), Lsn(200), {subscribed: 7})
    backend.execute(backend.prepare(f"select a from {name}", ()), (), (Format.TEXT,))
    assert "delta.`/r` VERSION AS OF 7" in queries.last


# ---- blocks -------------------------------------------------------------------------------

REFUSED = [
    (
        "create subscription x connection 'host=p' publication p",
        "25001",
        "CREATE SUBSCRIPTION ... WITH (create_slot = true) cannot run inside a"
        " transaction block",
    ),
    (
        "create subscription x connection 'host=p' publication p with (connect = false)",
        "0A000",
        "CREATE SUBSCRIPTION inside a transaction block is not supported by this version",
    ),
    (
        "drop subscription s",
        "25001",
        "DROP SUBSCRIPTION cannot run inside a transaction block",
    ),
    (
        "drop subscription without",
        "0A000",
        "DROP SUBSCRIPTION inside a transaction block is not supported by this version",
    ),
    (
        "alter subscription s refresh publication",
        "25001",
        "ALTER SUBSCRIPTION ... REFRESH cannot run inside a transaction block",
    ),
    *(
        (
            f"alter subscription s {change}",
            "25001",
            "ALTER SUBSCRIPTION with refresh cannot run inside a transaction block",
        )
        for change in (
            "set publication r",
            "add publication r",
            "drop publication p with (copy_data = false)",
        )
    ),
    (
        "alter subscription off set (two_phase = false)",
        "25001",
        "ALTER SUBSCRIPTION ... SET (two_phase) cannot run inside a transaction block",
    ),
    (
        "alter subscription off set (failover = true)",
        "25001",
        "ALTER SUBSCRIPTION ... SET (failover) cannot run inside a transaction block",
    ),
    *(
        (
            f"alter subscription {form}",
            "0A000",
            "ALTER SUBSCRIPTION inside a transaction block is not supported by this"
            " version",
        )
        for form in (
            "s disable",
            "s connection 'host=other'",
            "s add publication r with (refresh = false)",
            "s set (binary = true)",
            "off set (two_phase = true)",
            "s skip (lsn = none)",
            "s rename to t",
        )
    ),
    (
        "comment on subscription s is 'x'",
        "0A000",
        "COMMENT inside a transaction block is not supported by this version",
    ),
    # What PostgreSQL finds first.
    (
        "drop subscription nope",
        "42704",
        'subscription "nope" does not exist',
    ),
    (
        "alter subscription off refresh publication with (nope = 1)",
        "55000",
        "ALTER SUBSCRIPTION ... REFRESH is not allowed for disabled subscriptions",
    ),
]


@pytest.mark.parametrize(("sql", "sqlstate", "message"), REFUSED)
def test_a_block_refuses_what_cannot_be_rolled_back_and_nothing_happens(
    backend: LakeBackend, catalog: Catalog, sql: str, sqlstate: str, message: str
) -> None:
    for oid, name, slot in ((20001, "off", "off"), (20002, "without", None)):
        catalog.create_subscription(
            Subscription(Oid(oid), name, Oid(10), False, "host=p", slot, ("p",)), []
        )
    before = catalog.change_counter
    backend.begin(TransactionKind.BLOCK)
    with pytest.raises(Wal2LakeError) as caught:
        backend.execute(backend.prepare(sql, ()), (), ())
    assert (caught.value.sqlstate, caught.value.message) == (sqlstate, message)
    assert catalog.change_counter == before


# ---- SKIP ---------------------------------------------------------------------------------


def run(backend: LakeBackend, sql: str) -> str:
    return backend.execute(backend.prepare(sql, ()), (), ()).tag


def test_skip_takes_an_lsn_that_is_not_below_the_floor(
    backend: LakeBackend, catalog: Catalog
) -> None:
    def skip() -> tuple[int, bool, int]:
        found = catalog.subscription(Oid(20000))
        assert found is not None
        return int(found.skip_lsn), found.skipping, found.generation

    with pytest.raises(Wal2LakeError) as caught:
        run(backend, "alter subscription s skip (lsn = '0/63')")
    assert (caught.value.sqlstate, caught.value.message) == (
        "22023",
        "skip WAL location (LSN 0/63) must be greater than origin LSN 0/64",
    )
    assert run(backend, "alter subscription s skip (lsn = '0/64')") == (
        "ALTER SUBSCRIPTION"
    )
    assert skip() == (100, False, 0), "the receiver has no part in it"
    run(backend, "alter subscription s skip (lsn = none)")
    assert skip() == (0, False, 0)
    run(backend, "alter subscription s skip (lsn = '0/64')")
    assert catalog.begin_skip(Oid(20000), Lsn(100))
    with pytest.raises(Wal2LakeError) as caught:
        run(backend, "alter subscription s skip (lsn = none)")
    assert caught.value.sqlstate == "55006", "some tables may be beyond it"
    assert skip() == (100, True, 0)
