"""What the system views need to know, as ports: the node's durable facts, and its moving ones.

Comes in: an implementation of each. Goes out: nothing; this module is types. ``Catalog``
satisfies ``CatalogSource`` as it is. Everything is asked for under the lock of the engine,
from the thread of the session that asks, so answers should come from memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from wal2lake.catalog import (
    Namespace,
    Progress,
    Role,
    SnapshotVector,
    Subscription,
    SubscriptionRel,
    TableDef,
)
from wal2lake.frontend.parameters import Parameters
from wal2lake.model import Oid


class CatalogSource(Protocol):
    """The durable facts; ``change_counter`` grows whenever any of the others changes."""

    @property
    def change_counter(self) -> int:
        """Equal numbers mean that nothing has changed."""
        ...

    @property
    def system_identifier(self) -> int:
        """The node's own."""
        ...

    def roles(self) -> Sequence[Role]:
        """All roles."""
        ...

    def namespaces(self) -> Sequence[Namespace]:
        """The schemas of lake tables, ``public`` among them."""
        ...

    def tables(self) -> Sequence[TableDef]:
        """All lake tables."""
        ...

    def subscriptions(self) -> Sequence[Subscription]:
        """All subscriptions."""
        ...

    def rels(self, subid: Oid | None = None) -> Sequence[SubscriptionRel]:
        """The tables of one or of all subscriptions."""
        ...

    def vectors(self) -> Sequence[SnapshotVector]:
        """The published consistent states, oldest first."""
        ...


@dataclass(frozen=True, slots=True)
class ActiveSession:
    """One row of pg_stat_activity: a client's session."""

    pid: int
    user: str
    application_name: str
    client_host: str | None
    client_port: int | None
    backend_start: datetime
    state: str
    """active, idle, idle in transaction ..."""
    query: str
    query_start: datetime | None = None
    transaction_start: datetime | None = None
    state_change: datetime | None = None


class LiveSource(Protocol):
    """What moves without a commit of the catalog."""

    def progress(self, subid: Oid) -> Progress | None:
        """Positions of a subscription's workers; None: it never ran."""
        ...

    def sessions(self) -> Sequence[ActiveSession]:
        """The clients connected now."""
        ...

    def table_bytes(self, relid: Oid) -> int | None:
        """Size of a table's current files; None: not known."""
        ...

    @property
    def started_at(self) -> datetime:
        """When the node started, with a time zone."""
        ...


@dataclass(frozen=True, slots=True)
class QueryContext:
    """The session on whose behalf a query runs."""

    pid: int
    user: str
    database: str
    parameters: Parameters
    """Used, and set by set_config(), from the calling thread only."""
    now: datetime
    """Start of the transaction: what now() says; with a time zone."""
    session_user: str | None = None
    """None: the same as ``user``."""
    client_host: str | None = None
    client_port: int | None = None
    server_host: str | None = None
    server_port: int | None = None
    statement_start: datetime | None = None
    """None: ``now``."""
