"""Commands about subscriptions without a node: a real catalog, no workers, and a publisher that
answers as it is told."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from wal2lake.catalog import (
    Catalog,
    ColumnDef,
    Role,
    Subscription,
    SubscriptionRel,
    TableDef,
)
from wal2lake.commands import roles, subscription
from wal2lake.commands.subscription import refresh
from wal2lake.commands.subscription.targets import Choices, WantedTables
from wal2lake.local.node import Caller, EngineParts
from wal2lake.model import Lsn, Oid, ReplicaIdentity, SyncState
from wal2lake.observe import KeyedLocks, LockRank
from wal2lake.pg import Check, RemoteColumn, RemoteTable
from wal2lake.settings import Settings
from wal2lake.sql.backend import Notice
from wal2lake.sql.grammar import parse

SUB, KEPT, GONE, NEW = Oid(20000), Oid(30000), Oid(30001), Oid(30002)


@dataclass
class Sync:
    """Copies that end at once, or do not."""

    catalog: Catalog
    ends: bool = True
    halted: list[tuple[Subscription | None, Collection[Oid] | None]] = field(
        default_factory=list
    )
    """What the catalog said when they were to end."""

    def halt(
        self,
        *,
        subid: Oid | None = None,
        relids: Collection[Oid] | None = None,
        timeout_seconds: float,
    ) -> bool:
        self.halted.append((self.catalog.subscription(SUB), relids))
        return self.ends


class World:
    """A node without workers, and a publisher that has a table less and one more."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.catalog = Catalog.create(directory / "catalog.sqlite", "me", None)
        self.sync = Sync(self.catalog)
        self.told: list[str] = []
        self.notices: list[Notice] = []
        self.dropped: list[str] = []
        unused: Any = None
        sync: Any = self.sync
        self.versions: defaultdict[str, int] = defaultdict(int)
        """Of tables, by location."""
        self.writing: KeyedLocks[str] = KeyedLocks(LockRank.TABLE)
        tables: Any = SimpleNamespace(
            state=self.state,
            exists=lambda location: False,
            create=lambda *_: None,
            drop=self.dropped.append,
            writing=self.writing.of,
            sync=lambda *_: None,
        )
        self.node = EngineParts(
            catalog=self.catalog,
            settings=Settings(directory=directory),
            tables=tables,
            queries=unused,
            apply=unused,
            sync=sync,
            locks=KeyedLocks(LockRank.SUBSCRIPTION),
            branches=unused,
            keys=unused,
            compactor=unused,
            mirrors=unused,
            changed=lambda: self.told.append("changed"),
        )
        for oid in (KEPT, GONE):
            self.catalog.create_table(table(oid))
        self.catalog.create_subscription(
            Subscription(SUB, "s", Oid(10), True, "host=old", "s", ("p",)),
            [rel(KEPT), rel(GONE)],
            {int(KEPT): 1, int(GONE): 1},
        )

        def ask_wanted(*_: object, **__: object) -> WantedTables:
            published = {("public", f"t{oid}"): remote(oid) for oid in (KEPT, NEW)}
            return WantedTables(published, True, True, Choices.of("", ""), SUB)

        monkeypatch.setattr(refresh, "connect_publisher", lambda *_, **__: Session())
        monkeypatch.setattr(refresh, "ask_wanted", ask_wanted)
        monkeypatch.setattr(refresh, "run_preflight", lambda *_: None)

    def run(
        self, sql: str, *, role: Role | None = None, check: Check = lambda: None
    ) -> str:
        statement = parse(sql)
        role = role or Role(Oid(10), "me", True, None)
        caller = Caller(role, self.notices.append, check=check)
        commands = {**subscription.COMMANDS, **roles.COMMANDS}
        return commands[type(statement)](self.node, caller, statement)

    def state(self, location: str) -> Any:
        """A table that nobody has copied."""
        version = self.versions[location]
        return SimpleNamespace(version=version, cursor=lambda _: None)

    def role(self, name: str) -> Role:
        found = self.catalog.role(name)
        assert found is not None
        return found

    @property
    def now(self) -> Subscription:
        found = self.catalog.subscription(SUB)
        assert found is not None
        return found


class Session:
    """A connection to the publisher; ``unanswered``: nobody knows what became of the last
    statement."""

    unanswered = False
    server_version = 180000

    def __enter__(self) -> Session:
        return self

    def __exit__(self, *_: object) -> None: ...

    def value(self, _: str) -> str:
        """current_database()."""
        return "app"


def table(oid: Oid) -> TableDef:
    return TableDef(
        oid, "public", f"t{oid}", Oid(10), (ColumnDef("id", Oid(23)),), (), f"/t{oid}"
    )


def remote(oid: Oid) -> RemoteTable:
    """What the publisher has: one column, no key."""
    id_ = RemoteColumn(
        "id",
        Oid(23),
        -1,
        "int4",
        "b",
        0,
        not_null=True,
        default=None,
        is_identity_key=False,
        toastable=False,
    )
    return RemoteTable(
        oid,
        "public",
        f"t{oid}",
        "r",
        ReplicaIdentity.DEFAULT,
        (id_,),
        (),
        (),
        (),
        None,
        0,
        None,
        "p",
        row_security=False,
    )


def rel(oid: Oid) -> SubscriptionRel:
    return SubscriptionRel(
        SUB, oid, "public", f"t{oid}", SyncState.READY, Lsn(5), int(oid)
    )
