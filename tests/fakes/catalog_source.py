"""A node's catalog as the recorded queries saw PostgreSQL's, for tests of the system views."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from wal2lake.catalog import (
    Catalog,
    CoercionTotal,
    ColumnDef,
    Comment,
    Namespace,
    NotedConflict,
    NotedDifference,
    NotedSchemaChange,
    OwnedSequence,
    PreparedCommit,
    Progress,
    Publication,
    RegisteredTable,
    ReplicationOrigin,
    Role,
    RoleMember,
    SnapshotVector,
    Subscription,
    SubscriptionError,
    SubscriptionRel,
    SubscriptionStats,
    SyncSnapshot,
    TableDef,
    TableIndex,
    Verification,
)
from wal2lake.changelog import Inventory, PreparedTransaction
from wal2lake.health import Problem
from wal2lake.lake.batch.methods import Method, Total
from wal2lake.model import Acl, Lsn, Oid, SyncState
from wal2lake.publish.limits import Room
from wal2lake.publish.slots import SlotUse
from wal2lake.publish.statistics import Statistics
from wal2lake.publish.synchronous import Standbys
from wal2lake.publish.walsender.page import WalsenderPositions
from wal2lake.settings import LogSettings
from wal2lake.sql.backend import SessionContext
from wal2lake.sql.grammar import parse
from wal2lake.sql.grammar.statements import CreateTable
from wal2lake.sql.parameters import Parameters
from wal2lake.sql.sysviews import (
    ActiveSession,
    CatalogSource,
    LoggedMessage,
    LogReading,
)
from wal2lake.sql.sysviews.source import EncryptedSession
from wal2lake.tablesync.attempt import RunningCopy

RECORDED: dict[str, Any] = json.loads(
    Path(__file__)
    .parents[1]
    .joinpath("pure", "fixtures", "catalog_queries.json")
    .read_text()
)
OBJECTS: dict[str, int] = RECORDED["objects"]

OWNER = Oid(10)

_TABLES = (
    """create table public.customers (
        id integer primary key, name text not null default 'it''s'::text,
        balance numeric(10,2) default 0,
        created timestamp(3) with time zone default now(), tags text[],
        code character(4), note character varying(20), kind "char", doc jsonb,
        at time without time zone)""",
    """create table sales.orders (
        customer integer not null, "Line No" bigint not null, price double precision,
        flags bit(3), ok boolean default false,
        constraint "Orders key" primary key ("Line No", customer))""",
    'create table public."Odd ""Name" (a integer, b uuid)',
    "create table sales.log (t text)",
)


def table(sql: str, oid: int) -> TableDef:
    """A table's definition from its CREATE TABLE."""
    statement = parse(sql)
    assert isinstance(statement, CreateTable)
    columns = tuple(
        ColumnDef(c.name, c.type_oid, c.typmod, None, c.not_null, c.default)
        for c in statement.columns
    )
    name = statement.table
    return TableDef(
        Oid(oid),
        name.schema or "public",
        name.name,
        OWNER,
        columns,
        statement.key,
        f"/warehouse/{name.schema}/{name.name}",
        statement.key_name,
    )


@dataclass
class FakeSession:
    """One row of pg_stat_activity."""

    pid: int = 7
    user: str = "postgres"
    application_name: str = "psql"
    client_host: str = "127.0.0.1"
    client_port: int = 5555
    started_at: float = 1_000_000_000.0
    state: str = "active"
    query: str = "select 1"
    encrypted: EncryptedSession | None = None


@dataclass
class FakeSource:
    """A CatalogSource in memory."""

    change_counter: int = 1
    system_identifier: int = 7_000_000_000_000_000_000
    started_at: datetime = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    role_list: list[Role] = field(
        default_factory=lambda: [
            Role(
                OWNER,
                "postgres",
                True,
                "SCRAM-SHA-256$x",
                createrole=True,
                createdb=True,
                replication=True,
                bypassrls=True,
            )
        ]
    )
    member_list: list[RoleMember] = field(default_factory=list)
    acl_of_database: Acl | None = None
    publication_list: list[Publication] = field(default_factory=list)
    namespace_list: list[Namespace] = field(
        default_factory=lambda: [
            Namespace(Oid(2200), "public", OWNER),
            Namespace(Oid(OBJECTS["schema sales"]), "sales", OWNER),
        ]
    )
    table_list: list[TableDef] = field(
        default_factory=lambda: [
            table(sql, OBJECTS[name])
            for sql, name in zip(
                _TABLES,
                ("public.customers", "sales.orders", 'public.Odd "Name', "sales.log"),
                strict=True,
            )
        ]
    )
    subscription_list: list[Subscription] = field(
        default_factory=lambda: [
            Subscription(
                oid=Oid(OBJECTS["subscription sub"]),
                name="sub",
                owner=OWNER,
                enabled=False,
                conninfo="host=127.0.0.1 port=1 dbname=x password=secret",
                slot_name="sub",
                publications=("p", "Q"),
                floor=Lsn.parse("0/1000"),
            )
        ]
    )
    rel_list: list[SubscriptionRel] = field(default_factory=list)
    sequence_list: list[OwnedSequence] = field(default_factory=list)
    index_list: list[TableIndex] = field(default_factory=list)
    taken: dict[Oid, int] = field(default_factory=dict)
    vector_list: list[SnapshotVector] = field(default_factory=list)
    coercion_list: list[CoercionTotal] = field(default_factory=list)
    error_list: list[SubscriptionError] = field(default_factory=list)
    stats_list: list[SubscriptionStats] = field(default_factory=list)
    resets: list[Oid | None] = field(default_factory=list)
    reloads: int = 0
    comment_list: list[Comment] = field(default_factory=list)
    methods_by_place: dict[str, dict[Method, Total]] = field(default_factory=dict)
    copies_by_sub: dict[Oid, list[RunningCopy]] = field(default_factory=dict)
    progress_by_sub: dict[int, Progress] = field(default_factory=dict)
    messages_by_sub: dict[int, list[LoggedMessage]] = field(default_factory=dict)
    log_by_sub: dict[int, Path] = field(default_factory=dict)
    snapshot_by_sub: dict[int, SyncSnapshot] = field(default_factory=dict)
    log_settings: LogSettings = field(default_factory=LogSettings)
    prepared_by_sub: dict[int, list[PreparedTransaction]] = field(default_factory=dict)
    sizes: dict[int, int] = field(default_factory=dict)
    problem_list: list[Problem] = field(default_factory=list)
    registered_list: list[RegisteredTable] = field(default_factory=list)
    reads: int = 0
    """How often the tables were asked for."""

    def roles(self) -> list[Role]:
        return self.role_list

    def role_members(self) -> list[RoleMember]:
        return self.member_list

    def database_acl(self) -> Acl | None:
        return self.acl_of_database

    def namespaces(self) -> list[Namespace]:
        return self.namespace_list

    def tables(self) -> list[TableDef]:
        self.reads += 1
        return self.table_list

    def indexes(self) -> list[TableIndex]:
        return self.index_list

    def sequences(self) -> list[OwnedSequence]:
        return self.sequence_list

    def last_values(self) -> dict[Oid, int]:
        return self.taken

    def origins(self) -> list[ReplicationOrigin]:
        return []

    def applied_ends(self) -> Mapping[Oid, Lsn]:
        return {one.oid: Lsn(one.floor - 8) for one in self.subscription_list}

    def local_ends(self) -> Mapping[str, Lsn]:
        return {f"pg_{OBJECTS['subscription sub']}": Lsn(0x88)}

    def origin_numbers(self) -> dict[str, int]:
        return {f"pg_{s.oid}": n for n, s in enumerate(self.subscriptions(), 1)}

    def prepared_commits(self) -> list[PreparedCommit]:
        return []

    def publications(self) -> list[Publication]:
        return self.publication_list

    def subscriptions(self) -> list[Subscription]:
        return self.subscription_list

    def rels(self) -> list[SubscriptionRel]:
        return self.rel_list

    def vectors(self) -> list[SnapshotVector]:
        return self.vector_list

    def schema_history(self) -> list[NotedSchemaChange]:
        return []

    def conflicts(self) -> list[NotedConflict]:
        return []

    def coercions(self) -> list[CoercionTotal]:
        return self.coercion_list

    def verifications(self) -> list[Verification]:
        return []

    def differences(self) -> list[NotedDifference]:
        return []

    def errors(self) -> list[SubscriptionError]:
        return self.error_list

    def stats(self) -> list[SubscriptionStats]:
        return self.stats_list

    def reset_stats(self, subid: Oid | None) -> None:
        self.resets.append(subid)

    def reload_settings(self) -> bool:
        self.reloads += 1
        return True

    def comments(self) -> list[Comment]:
        return self.comment_list

    def progress(self, subid: Oid) -> Progress | None:
        return self.progress_by_sub.get(subid)

    engine_pid = 11

    def copies(self, subid: Oid) -> list[RunningCopy]:
        return self.copies_by_sub.get(subid, [])

    def methods(self, rel: SubscriptionRel, location: str) -> Mapping[Method, Total]:
        return self.methods_by_place.get(location, {})

    def prepared(self, subid: Oid) -> list[PreparedTransaction]:
        return self.prepared_by_sub.get(subid, [])

    def messages(self, subid: Oid) -> list[LoggedMessage]:
        return self.messages_by_sub.get(subid, [])

    def log(self, subid: Oid) -> LogReading | None:
        directory = self.log_by_sub.get(subid)
        if directory is None:
            return None
        inventory = Inventory(directory)
        contents = inventory.read()
        return None if contents is None else LogReading(contents, inventory)

    def log_directory(self, subid: Oid | None) -> Path:
        name = "publish" if subid is None else str(int(subid))
        return Path("/node/log") / name

    def snapshot_held(self, subid: Oid) -> SyncSnapshot | None:
        return self.snapshot_by_sub.get(subid)

    def over(self, catalog: Catalog) -> CatalogSource:
        raise NotImplementedError

    def sessions(self) -> Sequence[ActiveSession]:
        return [FakeSession()]

    def signal(self, pid: int, *, terminate: bool) -> bool:
        return False

    def slots(self) -> Sequence[tuple[SlotUse, Room]]:
        return ()

    slot_statistics = Statistics()

    def problems(self) -> Sequence[Problem]:
        return self.problem_list

    def registered(self) -> Sequence[tuple[str, RegisteredTable]]:
        return [("delta", table) for table in self.registered_list]

    def standbys(self) -> Standbys | None:
        return None

    def walsenders(self) -> Sequence[tuple[int, str, WalsenderPositions]]:
        return ()

    def table_bytes(self, relid: Oid) -> int | None:
        return self.sizes.get(relid)


def session(**parameters: str) -> SessionContext:
    """A superuser's session."""
    values = Parameters()
    for name, value in parameters.items():
        values.set(name, value)
    return SessionContext(
        pid=7,
        user="postgres",
        database="lake",
        parameters=values,
        notice=lambda notice: None,
        client_host="127.0.0.1",
        client_port=5555,
    )


def rel(name: str, state: SyncState, lsn: str | None, **more: Any) -> SubscriptionRel:
    """One table of the fake subscription."""
    schema, _, table_name = name.partition(".")
    return SubscriptionRel(
        subid=Oid(OBJECTS["subscription sub"]),
        relid=Oid(OBJECTS[name]),
        remote_namespace=schema,
        remote_name=table_name,
        state=state,
        lsn=None if lsn is None else Lsn.parse(lsn),
        epoch=1,
        **more,
    )
