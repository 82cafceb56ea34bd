"""What a command can reach: the parts of the running engine, in one value."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

from wal2lake.apply.launcher import ApplyLauncher
from wal2lake.catalog import Catalog, Role, Subscription, TableDef
from wal2lake.errors import UndefinedObjectError, UsageError
from wal2lake.frontend.backend import Notice
from wal2lake.lake import TablePort
from wal2lake.lake.query import Queries
from wal2lake.model import Oid
from wal2lake.settings import Settings
from wal2lake.tablesync.worker import TableSync

PERMISSION_DENIED = "42501"


class CommitLocks:
    """One lock per subscription: whoever changes its tables or its vector holds it."""

    def __init__(self) -> None:
        self._locks: defaultdict[Oid, threading.RLock] = defaultdict(threading.RLock)
        self._guard = threading.Lock()

    def of(self, subid: Oid) -> threading.RLock:
        """The lock of one subscription."""
        with self._guard:
            return self._locks[subid]


@dataclass(frozen=True, slots=True)
class Node:
    """The engine's parts. Shared by all sessions."""

    catalog: Catalog
    settings: Settings
    tables: TablePort
    queries: Queries
    apply: ApplyLauncher
    sync: TableSync
    locks: CommitLocks
    changed: Callable[[], None]
    """Tell the supervisor that subscriptions have changed."""
    ddl_lock: threading.RLock = field(default_factory=threading.RLock)
    """Held by commands that create or drop objects, so that two do not interleave."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who runs a command, and how to talk to them meanwhile."""

    role: Role
    notice: Callable[[Notice], None]
    search_path: tuple[str, ...] = ("public",)
    in_block: bool = False
    """Between BEGIN and COMMIT."""
    cancelling: Callable[[Callable[[], None]], AbstractContextManager[None]] = (
        lambda act: nullcontext()
    )
    """``with cancelling(act)``: a cancel of the statement calls ``act`` meanwhile, from
    another thread, maybe again and again."""


def require_superuser(caller: Caller, what: str) -> None:
    """42501 unless the caller is a superuser."""
    if not caller.role.superuser:
        raise UsageError(f"permission denied to {what}", sqlstate=PERMISSION_DENIED)


def need_subscription(node: Node, name: str) -> Subscription:
    """42704 if there is none."""
    found = node.catalog.subscription_named(name)
    if found is None:
        raise UndefinedObjectError(f'subscription "{name}" does not exist')
    return found


def find_table(
    catalog: Catalog, caller: Caller, schema: str | None, name: str
) -> TableDef | None:
    """A table by its name, through the search path if it is not qualified."""
    for candidate in (schema,) if schema is not None else caller.search_path:
        found = catalog.table(candidate, name)
        if found is not None:
            return found
    return None


def need_table(
    catalog: Catalog, caller: Caller, schema: str | None, name: str
) -> TableDef:
    """The same; 42P01 with PostgreSQL's text if there is none."""
    found = find_table(catalog, caller, schema, name)
    if found is None:
        shown = name if schema is None else f"{schema}.{name}"
        raise UndefinedObjectError(
            f'relation "{shown}" does not exist', sqlstate="42P01"
        )
    return found


def target_schema(catalog: Catalog, caller: Caller, schema: str | None) -> str:
    """Where a new table goes; 3F000 if there is no such schema."""
    known = {n.name for n in catalog.namespaces()}
    if schema is not None:
        if schema not in known:
            raise UndefinedObjectError(
                f'schema "{schema}" does not exist', sqlstate="3F000"
            )
        return schema
    for candidate in caller.search_path:
        if candidate in known:
            return candidate
    raise UndefinedObjectError(
        "no schema has been selected to create in", sqlstate="3F000"
    )
