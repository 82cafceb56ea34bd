"""A session's backend without a node below: a real catalog, queries that answer one thing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace, TracebackType
from typing import Any

import pyarrow as pa
from tests.fakes.catalog_source import session

from wal2lake.catalog import (
    Catalog,
    ColumnDef,
    Subscription,
    TableDef,
)
from wal2lake.engine.session.lakebackend import LakeBackend
from wal2lake.lake import FieldSpec
from wal2lake.local.node import EngineParts
from wal2lake.model import Lsn, Oid
from wal2lake.observe import KeyedLocks, LockRank
from wal2lake.settings import Settings

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


def new_catalog(path: Path) -> Catalog:
    """With a table and a subscription."""
    catalog = Catalog.create(path, "postgres", None)
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


def new_backend(catalog: Catalog, queries: FakeQueries, directory: Path) -> LakeBackend:
    """A superuser's."""
    unused: Any = None
    below: Any = queries
    state = SimpleNamespace(version=3, fields=(FieldSpec("a", "int"),))
    tables: Any = SimpleNamespace(
        state=lambda location: state,
        state_at=lambda location, version: state,
        # Spark's.
        plainly_read=lambda location, version: None,
    )
    workers: Any = SimpleNamespace(halt=lambda *oid, **bounds: True)
    (directory / "run").mkdir()
    node = EngineParts(
        catalog=catalog,
        settings=Settings(directory=directory),
        tables=tables,
        queries=below,
        apply=workers,
        sync=workers,
        locks=KeyedLocks(LockRank.SUBSCRIPTION),
        branches=unused,
        keys=unused,
        compactor=unused,
        mirrors=unused,
        changed=lambda: None,
    )
    system: Any = SimpleNamespace(cancel=lambda pid: None)
    return LakeBackend(node, system, session())


def define(backend: LakeBackend, catalog: Catalog) -> None:
    """Subscriptions that do not run, and a publication."""
    for oid, name, slot in ((20001, "off", "off"), (20002, "without", None)):
        catalog.create_subscription(
            Subscription(Oid(oid), name, Oid(10), False, "host=p", slot, ("p",)), []
        )
    run(backend, "create publication known for table t")


def run(backend: LakeBackend, sql: str) -> str:
    return backend.execute(backend.prepare(sql, ()), (), ()).tag
