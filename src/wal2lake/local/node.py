"""The engine's parts, and the session that runs a command."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Final, TypeVar

from wal2lake.apply.launcher import ApplyLauncher
from wal2lake.catalog import Catalog, Namespace, Role, Subscription, TableDef
from wal2lake.errors import UndefinedObjectError, UsageError
from wal2lake.lake import Expressions, TablePort
from wal2lake.lake.compaction import Compactor
from wal2lake.lake.iceberg import IcebergMirror
from wal2lake.lake.retention import AgeClock
from wal2lake.lake.spark import Branches, BranchKeys, Queries
from wal2lake.local.concurrency.activeorigins import (
    ActiveOrigins,
    SessionOrigin,
)
from wal2lake.local.concurrency.blocks import OpenBlock
from wal2lake.local.concurrency.heldtables import HeldTables
from wal2lake.local.concurrency.sequencevalues import (
    SequenceLocks,
    SessionSequences,
)
from wal2lake.local.concurrency.snapshots import Snapshots
from wal2lake.local.concurrency.turns import NodeTurns, Turns, Waiter
from wal2lake.local.concurrency.vacuumturns import VacuumTurns
from wal2lake.local.ports import HasCatalog
from wal2lake.model import ObjectKind, Oid
from wal2lake.observe import KeyedLocks, LockRank, OrderedLock
from wal2lake.observe.telemetry import Telemetry
from wal2lake.pg import Check
from wal2lake.pgtypes.keywords import quote_identifier
from wal2lake.publish.capture.worker import CATCH_UP_SECONDS
from wal2lake.publish.service import Publishing
from wal2lake.settings import Settings
from wal2lake.sql.backend import Notice
from wal2lake.tablesync.worker import TableSync

PERMISSION_DENIED: Final = "42501"

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class EngineParts:
    """The engine's parts, shared by all sessions: every port of ``ports``, which describes them."""

    catalog: Catalog
    settings: Settings
    tables: TablePort
    queries: Queries
    apply: ApplyLauncher
    sync: TableSync
    locks: KeyedLocks[Oid]
    branches: Branches
    keys: BranchKeys
    compactor: Compactor
    mirrors: IcebergMirror
    changed: Callable[[], None]
    batch_reads: Callable[[str], list[int]] = lambda location: []
    vacuums: VacuumTurns = field(default_factory=VacuumTurns)
    ages: AgeClock = field(default_factory=AgeClock)
    telemetry: Telemetry = field(default_factory=Telemetry)
    publishing: Publishing | None = None
    committed: Callable[[], None] = lambda: None
    expressions: Expressions | None = None
    origins: ActiveOrigins = field(default_factory=ActiveOrigins)
    sequences: SequenceLocks = field(default_factory=SequenceLocks)
    prepared: HeldTables = field(default_factory=HeldTables)
    snapshots: Snapshots = field(default_factory=Snapshots)
    ddl_lock: OrderedLock = field(
        default_factory=lambda: OrderedLock(LockRank.DEFINITIONS)
    )
    turns: NodeTurns = field(default_factory=NodeTurns)
    unfinished: set[str] = field(default_factory=set)

    def reload(self, settings: Settings) -> None:
        """Use these settings from now on."""
        self.settings = settings

    def capture_before(self, check: Check) -> None:
        """Capture all that readers see, as ``ports.Definitions`` says."""
        if self.publishing is not None and self.publishing.slots.all():
            self.publishing.capture.catch_up(CATCH_UP_SECONDS, check)


@dataclass(frozen=True, slots=True)
class Caller:
    """The session that runs a command, with the means to answer and interrupt it."""

    role: Role
    notice: Callable[[Notice], None]
    search_path: tuple[str, ...] = ("public",)
    in_block: bool = False
    """True between BEGIN and COMMIT."""
    session: Role | None = None
    """The session's own role, if SET ROLE has changed ``role``."""
    zone: str = "UTC"
    """The session's TimeZone."""
    decoding_work_mem: Callable[[], int] = lambda: 64 << 20
    """The session's logical_decoding_work_mem, in bytes."""
    check: Check = lambda: None
    """Raises 57014 if the statement is cancelled; called during waits."""
    pid: int = 0
    """The session's process number, as pg_backend_pid() has it."""
    origin: SessionOrigin | None = None
    """Replication origins that the session has set up."""
    sequences: SessionSequences | None = None
    """Sequence values that the session has taken."""
    job_group: str = "command"
    """Spark's job group for the command's jobs."""
    block: OpenBlock | None = None
    """The open block with definitions, whose end the command's steps wait for; else None."""
    lock_timeout_ms: Callable[[], int] = lambda: 0
    """The session's lock_timeout."""
    number: Callable[[bool], int | None] = lambda assign: None
    """Returns the transaction's number; None if it has none and ``assign`` is False."""
    holds_snapshot: Callable[[], bool] = lambda: False
    """Returns True if later statements of the transaction see the state of an earlier one."""

    def turn(self, turns: Turns[K], key: K) -> AbstractContextManager[None]:
        """Wait for a turn. In a block it is held to the block's end."""
        waiter = Waiter(self.check, self.pid, self.lock_timeout_ms())
        if self.block is None:
            return turns.hold(key, waiter)
        self.block.keep(turns, key, waiter)
        return nullcontext()

    @property
    def session_role(self) -> Role:
        """Return session_user."""
        return self.session or self.role


def need_subscription(node: HasCatalog, name: str) -> Subscription:
    """Return a subscription by its name; 42704 if it does not exist."""
    subscription = node.catalog.subscription_named(name)
    if subscription is None:
        raise UndefinedObjectError(f'subscription "{name}" does not exist')
    return subscription


def find_table(
    catalog: Catalog, caller: Caller, schema: str | None, name: str
) -> TableDef | None:
    """Return a table by its name, through the search path if the name is not qualified.

    42501 if the caller may not use the named schema. Such schemas in the path are skipped."""
    candidates = (schema,) if schema is not None else caller.search_path
    if not caller.role.superuser:
        closed = _closed(catalog, caller, candidates)
        if schema is not None and closed:
            raise UsageError(
                f"permission denied for schema {schema}", sqlstate=PERMISSION_DENIED
            )
        candidates = tuple(c for c in candidates if c not in closed)
    for candidate in candidates:
        table = catalog.table(candidate, name)
        if table is not None:
            return table
    return None


def described(table: TableDef, search_path: Collection[str]) -> str:
    """Describe a table as messages about dependencies do.

    Source: getRelationDescription() in objectaddress.c."""
    name = quote_identifier(table.name)
    if table.namespace in search_path:
        return name
    return f"{quote_identifier(table.namespace)}.{name}"


def _closed(catalog: Catalog, caller: Caller, schemas: Collection[str]) -> set[str]:
    """Return the existing schemas that the caller may not use."""
    authority = catalog.authority()
    return {
        n.name
        for n in catalog.namespaces()
        if n.name in schemas
        and "U"
        not in authority.letters(caller.role.oid, ObjectKind.SCHEMA, n.owner, n.acl)
    }


def need_table(
    catalog: Catalog, caller: Caller, schema: str | None, name: str
) -> TableDef:
    """Return a table by its name, like ``find_table``; 42P01 if it does not exist."""
    table = find_table(catalog, caller, schema, name)
    if table is None:
        shown = name if schema is None else f"{schema}.{name}"
        raise UndefinedObjectError(
            f'relation "{shown}" does not exist', sqlstate="42P01"
        )
    return table


def need_schema(catalog: Catalog, name: str) -> Namespace:
    """Return a schema by its name; 3F000 if it does not exist."""
    for schema in catalog.namespaces():
        if schema.name == name:
            return schema
    raise UndefinedObjectError(f'schema "{name}" does not exist', sqlstate="3F000")


def target_schema(catalog: Catalog, caller: Caller, schema: str | None) -> str:
    """Return the schema for a new table; 3F000 if it does not exist."""
    usable = {n.name for n in catalog.namespaces()}
    if schema is not None:
        if schema not in usable:
            raise UndefinedObjectError(
                f'schema "{schema}" does not exist', sqlstate="3F000"
            )
        return schema
    if not caller.role.superuser:
        usable -= _closed(catalog, caller, caller.search_path)
    for candidate in caller.search_path:
        if candidate in usable:
            return candidate
    raise UndefinedObjectError(
        "no schema has been selected to create in", sqlstate="3F000"
    )
