"""The tablesync workers over a real catalog, a lake made of lists and a publisher made of pages."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any
from unittest.mock import MagicMock

import pytest
from structlog.testing import capture_logs
from tests.fakes.altering import never_alter

from wal2lake.catalog import (
    Catalog,
    ColumnDef,
    Subscription,
    SubscriptionRel,
    SyncSnapshot,
    TableDef,
)
from wal2lake.errors import PublisherError
from wal2lake.lake import AddedFile, Committed, Cursor, FieldSpec, TableState
from wal2lake.lake.batch import BatchPort
from wal2lake.model import Lsn, Oid, ReplicaIdentity, SyncState
from wal2lake.observe.telemetry import Telemetry
from wal2lake.pg import RemoteTable
from wal2lake.pg.publishedtables import RemoteColumn
from wal2lake.settings import ApplySettings, LogSettings, Settings, SubscriptionSettings
from wal2lake.tablesync import worker
from wal2lake.tablesync.copy import CopyResult, CopyTask
from wal2lake.tablesync.worker import TableSync
from wal2lake.testing.waits import wait_until

SMALL, MIDDLE, LARGE = 1, 100, 1000
"""Pages: a table that comes with others, one of one range, one of eight."""


@dataclass
class World:
    """A node's catalog, its lake and its publishers; the executors are this process."""

    catalog: Catalog
    settings: Settings
    pages: dict[str, int] = field(default_factory=dict)
    """Tables at the publisher; one that is not here is gone."""
    bad: dict[str, Exception] = field(default_factory=dict)
    """What reading a range of a table ends with."""
    locked: set[str] = field(default_factory=set)
    """Tables that somebody has locked at the publisher."""
    unreachable: bool = False
    versions: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """By location: files and cursor position of each commit."""
    cursors: dict[str, dict[str, int]] = field(default_factory=dict)
    replaced: list[tuple[str, int | None]] = field(default_factory=list)
    """Commits that took the place of all rows: of what, and on which version."""
    taken: set[str] = field(default_factory=set)
    """Locations that have rows of the copied keys."""
    unique: bool = True
    """The publisher's tables have a unique index of their keys, in the snapshot."""
    marks: tuple[str, str] = ("p1", "p1")
    """Of the publications: in a snapshot, and now."""
    in_snapshot: bool = False
    twice: set[str] = field(default_factory=set)
    """Locations whose copied rows have a key twice."""
    compared: list[str] = field(default_factory=list)
    """Locations whose copied rows were looked into for that."""
    reading: Callable[[str], None] = lambda table: None
    checking: Callable[[str], None] = lambda location: None
    committing: Callable[[str], None] = lambda location: None
    committed: Callable[[str], None] = lambda location: None
    tasks: list[tuple[str, ...]] = field(default_factory=list)
    """Tables of each Spark task."""
    snapshots: list[str] = field(default_factory=list)
    """Snapshot of each Spark task."""
    questions: list[int] = field(default_factory=list)
    """How many tables the publisher was asked about at once."""
    log: list[Any] = field(default_factory=list)
    sync: TableSync | None = None
    telemetry: Telemetry = field(default_factory=Telemetry)

    # ---- the publisher

    def connect(self, conninfo: str, **_: object) -> World:
        if self.unreachable:
            raise PublisherError("connection refused")
        return self

    def __enter__(self) -> World:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def execute(self, sql: str) -> str:
        return ""

    def tables(
        self, names: Sequence[tuple[str, str]], publications: tuple[str, ...]
    ) -> dict[tuple[str, str], RemoteTable]:
        self.questions.append(len(names))
        if not self.locked.isdisjoint(name for _, name in names):
            raise PublisherError("lock timeout", sqlstate="55P03")
        return {
            (namespace, name): RemoteTable(
                Oid(1),
                namespace,
                name,
                "r",
                ReplicaIdentity.DEFAULT,
                (
                    RemoteColumn(
                        "id", Oid(23), -1, "int4", "b", 0, True, None, True, False
                    ),
                ),
                ("id",),
                (),
                (),
                None,
                self.pages[name],
                "1",
                "p",
                False,
            )
            for namespace, name in names
            if name in self.pages
        }

    @contextmanager
    def seeing(self, snapshot: str) -> Iterator[None]:
        self.in_snapshot = True
        yield
        self.in_snapshot = False

    def publication_marks(
        self, relids: Sequence[Oid], publications: tuple[str, ...]
    ) -> dict[Oid, str]:
        mark = self.marks[0 if self.in_snapshot else 1]
        return dict.fromkeys(relids, mark)

    def unique_columns(
        self, relids: Sequence[Oid]
    ) -> dict[Oid, tuple[frozenset[str], ...]]:
        if not self.unique:
            return {}
        return {relid: (frozenset({"id"}),) for relid in relids}

    # ---- the executors

    def run(
        self, pool: object, function: object, tasks: tuple[CopyTask, ...]
    ) -> list[Any]:
        self.tasks.append(tuple(task.table for task in tasks))
        self.snapshots += {task.snapshot for task in tasks}
        results: list[Any] = []
        for task in tasks:
            self.reading(task.table)
            error = self.bad.get(task.table)
            results.append(CopyResult(10, (file(),)) if error is None else error)
        return results

    # ---- the lake

    def state(self, location: str) -> TableState:
        return TableState(
            location=location,
            table_id="1",
            version=len(self.versions.get(location, ())),
            cursors=dict(self.cursors.get(location, {})),
            fields=(FieldSpec("id", "int", pg_type_oid=Oid(23)),),
            physical_fields=(),
            column_mapping=False,
            properties={},
        )

    def any_key_taken(self, state: TableState, adds: object, key: object) -> bool:
        self.checking(state.location)
        return state.location in self.taken

    def any_key_twice(self, state: TableState, adds: object, key: object) -> bool:
        self.compared.append(state.location)
        return state.location in self.twice

    def commit_files(
        self,
        location: str,
        adds: Sequence[AddedFile],
        cursor: Cursor,
        *,
        read_version: int | None = None,
        replace: bool = False,
        **_: object,
    ) -> Committed:
        self.committing(location)
        if replace:
            self.replaced.append((location, read_version))
        self.versions.setdefault(location, []).append((len(adds), cursor.version))
        self.cursors.setdefault(location, {})[cursor.app_id] = cursor.version
        self.committed(location)
        return Committed(len(self.versions[location]))

    def writing(self, location: str) -> AbstractContextManager[None]:
        return nullcontext()

    def sync_to(self, location: str, version: int) -> None: ...

    # ---- a test's hands

    def subscribe(
        self, subid: int, tables: dict[int, int], *, enabled: bool = True
    ) -> None:
        """Tables t<relid> of so many pages, all waiting in d."""
        rels = []
        for relid, pages in tables.items():
            name = f"t{relid}"
            self.pages[name] = pages
            if self.catalog.table_by_oid(Oid(relid)) is None:
                self.catalog.create_table(
                    TableDef(
                        Oid(relid),
                        "public",
                        name,
                        Oid(10),
                        (ColumnDef("id", Oid(23)),),
                        ("id",),
                        f"/{name}",
                    )
                )
            rels.append(
                SubscriptionRel(
                    Oid(subid),
                    Oid(relid),
                    "public",
                    name,
                    SyncState.DATASYNC,
                    None,
                    int(self.catalog.new_oid()),
                )
            )
        self.catalog.create_subscription(
            Subscription(
                Oid(subid), f"s{subid}", Oid(10), enabled, "host=x", "s", ("p",)
            ),
            rels,
        )

    def hold(self, subid: int, snapshot: str, lsn: int, *relids: int) -> None:
        found = relids or tuple(int(r.relid) for r in self.catalog.rels(Oid(subid)))
        self.catalog.hold_snapshot(
            SyncSnapshot(Oid(subid), snapshot, Lsn(lsn), "me", found)
        )

    def start(self) -> TableSync:
        self.sync = TableSync(
            self.catalog,
            self.settings,
            _Port(self),  # type: ignore[arg-type]
            MagicMock(spec=BatchPort),
            self,  # type: ignore[arg-type]
            2,
            never_alter,
            telemetry=self.telemetry,
        )
        self.sync.start()
        return self.sync

    def stop(self) -> None:
        if self.sync is not None:
            self.sync.stop()
            self.sync = None

    def rel(self, subid: int, relid: int) -> SubscriptionRel:
        return next(r for r in self.catalog.rels(Oid(subid)) if r.relid == relid)

    def held(self, subid: int) -> tuple[int, ...]:
        found = self.catalog.snapshot_held(Oid(subid))
        return () if found is None else found.relids

    def states(self, subid: int) -> dict[int, str]:
        return {int(r.relid): r.state.value for r in self.catalog.rels(Oid(subid))}

    def reaches(self, subid: int, expected: dict[int, str]) -> None:
        wait_until(
            lambda: self.states(subid) == expected,
            timeout_seconds=20,
            describe=lambda: f"{expected}; it is {self.states(subid)}",
        )

    def fails(self, subid: int, relid: int, text: str) -> None:
        wait_until(
            lambda: text in (self.rel(subid, relid).error or ""),
            timeout_seconds=20,
            describe=lambda: f"{text!r}; it is {self.rel(subid, relid)}",
        )


class _Port:
    """The world's lake, where ``sync`` is a method."""

    def __init__(self, world: World) -> None:
        self.state = world.state
        self.any_key_taken = world.any_key_taken
        self.any_key_twice = world.any_key_twice
        self.commit_files = world.commit_files
        self.sync = world.sync_to
        self.writing = world.writing


def file() -> AddedFile:
    return AddedFile("part-1.parquet", 100, 0, json.dumps({"numRecords": 10}))


@contextmanager
def tablesync_world(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[World]:
    """Its workers are ended with it."""
    settings = Settings(
        directory=directory,
        log=LogSettings(),
        subscription=SubscriptionSettings(
            wal_retrieve_retry_interval_ms=100, copy_range_bytes=1 << 20
        ),
        apply=ApplySettings(),
    )
    made = World(Catalog.create(settings.catalog_file, "boss", None), settings)
    monkeypatch.setattr(worker, "connect", made.connect)
    monkeypatch.setattr(worker, "Publisher", lambda session: session)
    # Not configured, the log would draw each traceback with all its values.
    with capture_logs() as made.log:
        yield made
        made.stop()
