"""Statements about publications without Spark: a real catalog and the commands, tables without
storage, and the system views over it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.fakes.catalog_source import session

from wal2lake.catalog import Altered, Catalog, ColumnPlan, TableDef
from wal2lake.commands import publication, roles
from wal2lake.commands.publication.dependents import check_writable
from wal2lake.commands.tables import altertable
from wal2lake.commands.tables import table as tables
from wal2lake.engine.viewsource import ViewSource
from wal2lake.errors import Wal2LakeError
from wal2lake.lake.batch import Method, Total
from wal2lake.lake.capture.comparison import ComparisonMemory
from wal2lake.local.node import Caller, EngineParts
from wal2lake.model import Lsn, Oid
from wal2lake.observe import KeyedLocks, LockRank, OrderedLock
from wal2lake.publish.capture.cascading.handing import HandingOn
from wal2lake.publish.capture.worker import Capture
from wal2lake.publish.limits import Room
from wal2lake.publish.slots import SlotUse
from wal2lake.publish.statistics import Statistics
from wal2lake.publish.synchronous import Standbys
from wal2lake.publish.walsender.page import WalsenderPositions
from wal2lake.settings import Settings
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar import parse
from wal2lake.sql.grammar.statements import CommandKind, OtherStatement
from wal2lake.sql.sysviews import ActiveSession, SystemCatalog
from wal2lake.tablesync.attempt import RunningCopy

Answer = tuple[object, ...]
"""Of an error or notice: severity, SQLSTATE, message, detail, hint; of the rest the tag."""


@dataclass
class _Storage:
    """Tables of no rows."""

    locks: KeyedLocks[str] = field(default_factory=lambda: KeyedLocks(LockRank.TABLE))

    def writing(self, location: str) -> OrderedLock:
        return self.locks.of(location)

    def exists(self, location: str) -> bool:
        return False

    def create(self, *_: object) -> None: ...

    def drop(self, location: str) -> None: ...

    def state(self, location: str) -> Any:
        return SimpleNamespace(location=location, version=0, fields=())


@dataclass(frozen=True)
class FakeCaptureHost:
    """Stands in for the engine at capture."""

    tables: Callable[[], Sequence[TableDef]]
    visible: Callable[[Sequence[TableDef]], Mapping[Oid, int]]

    def captured_tables(self) -> Sequence[TableDef]:
        return self.tables()

    def visible_versions(self, tables: Sequence[TableDef]) -> Mapping[Oid, int]:
        return self.visible(tables)

    def log_grown(self) -> None: ...

    def enforce_limits(self) -> None: ...


def capture_of(
    catalog: Catalog,
    directory: Path,
    host: FakeCaptureHost,
    tables: Any = None,
    *,
    statements: Any = None,
    read: Callable[..., object] = lambda *of: None,
) -> Capture:
    """Capture with its log in ``directory / "log"``, over fakes: the logs of ``tables``, the texts
    of ``statements``, and what ``read`` finds in the logs of subscriptions."""
    cascade: Any = SimpleNamespace(read=read)
    noted: Any = statements or SimpleNamespace(
        drop=lambda names: None, drop_left=lambda: None, read=lambda name: None
    )
    memory = ComparisonMemory(64 << 20, directory / "memory")
    return Capture(
        catalog,
        tables,
        host,
        directory / "log",
        memory,
        noted,
        cascade,
        HandingOn(catalog, tables, directory / "logs", memory),
        1 << 20,
    )


class _NothingRuns:
    """An engine without sessions, copies, slots and walsenders."""

    statistics = Statistics()

    def sessions(self) -> Sequence[ActiveSession]:
        return ()

    def copies(self, subid: Oid) -> Sequence[RunningCopy]:
        return ()

    def methods(self, cursor: str, location: str) -> Mapping[Method, Total]:
        return {}

    def slots(self) -> Sequence[tuple[SlotUse, Room]]:
        return ()

    def walsenders(self) -> Sequence[tuple[int, str, WalsenderPositions]]:
        return ()

    def standbys(self) -> Standbys | None:
        return None

    def local_ends(self) -> Mapping[str, Lsn]:
        return {}

    def size_of(self, table: TableDef) -> int | None:
        return None

    def signal(self, pid: int, terminate: bool) -> bool:
        return False


class PublishingNode:
    """A node of which only the catalog is real."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.catalog = Catalog.create(directory / "catalog.sqlite", "postgres", None)
        settings = Settings(directory=directory)
        unused: Any = None
        storage: Any = _Storage()
        sync: Any = SimpleNamespace(halt=lambda **_: True)
        self.node = EngineParts(
            catalog=self.catalog,
            settings=settings,
            tables=storage,
            queries=unused,
            apply=unused,
            sync=sync,
            locks=KeyedLocks(LockRank.SUBSCRIPTION),
            branches=unused,
            keys=unused,
            compactor=unused,
            mirrors=unused,
            changed=lambda: None,
        )
        self.views = SystemCatalog(ViewSource(self.catalog, settings, _NothingRuns()))

        def redefine(
            catalog: Catalog, _: object, plan: ColumnPlan, *__: object, **___: object
        ) -> None:
            renamed = tuple(
                (one.source, one.column.name)
                for one in plan.columns
                if one.source not in (None, one.column.name)
            )
            after = plan.after
            catalog.redefine(
                [
                    Altered(oid, after.columns, after.key, after.key_name, renamed)
                    for oid in catalog.sharing(plan.before)
                ]
            )

        monkeypatch.setattr(altertable, "alter_table", redefine)

    def run(self, sql: str, role: str = "postgres") -> list[Answer]:
        """One statement; what a client would be told."""
        told: list[Answer] = []
        found = self.catalog.role(role)
        assert found is not None, role

        def notice(one: Notice) -> None:
            told.append((one.severity, one.sqlstate, one.message, one.detail, one.hint))

        caller = Caller(found, notice)
        commands = {
            **tables.COMMANDS,
            **altertable.COMMANDS,
            **roles.COMMANDS,
            **publication.COMMANDS,
        }
        try:
            statement = parse(sql)
            if (
                isinstance(statement, OtherStatement)
                and statement.kind is CommandKind.SELECT
            ):
                told.append(tuple(self.rows(sql)))
                return told
            tag = commands[type(statement)](self.node, caller, statement)
            told.append((tag,))
        except Wal2LakeError as error:
            fields = error.sqlstate, error.message, error.detail, error.hint
            told.append(("ERROR", *fields, error.position))
        return told

    def rows(self, sql: str) -> list[tuple[str | None, ...]]:
        """A query of the system views."""
        return self.views.query(sql, (), session())[1]

    def ask(self, sql: str) -> object:
        """A query of the system views: types and rows, or SQLSTATE and message."""
        try:
            fields, rows = self.views.query(sql, (), session())
        except Wal2LakeError as error:
            return error.sqlstate, error.message
        return tuple(int(one.type_oid) for one in fields), sorted(rows, key=repr)

    def write(self, table: str, verb: str) -> Answer:
        """What UPDATE or DELETE of a table is told before a row is looked for."""
        schema, _, name = table.rpartition(".")
        found = self.catalog.table(schema or "public", name)
        assert found is not None
        try:
            check_writable(self.node, found, verb)
        except Wal2LakeError as error:
            return error.sqlstate, error.message, error.detail, error.hint
        return (verb,)
