"""What the system views need to know of the node, as a port.

Comes in: an implementation. Goes out: nothing; this module is types. Everything is asked for
under the lock of the engine, from the thread of the session that asks, so answers should come
from memory, from SQLite or from files of the change log, never from a publisher or Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
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
from wal2lake.changelog import PreparedTransaction
from wal2lake.model import Lsn, Oid


@dataclass(frozen=True, slots=True)
class LoggedMessage:
    """What pg_logical_emit_message has sent."""

    lsn: Lsn
    commit_lsn: Lsn | None
    """Of its transaction; None: it is not transactional."""
    prefix: str
    content: bytes


class ActiveSession(Protocol):
    """A client's session, for pg_stat_activity; ``connections.SessionInfo`` is one."""

    @property
    def pid(self) -> int: ...
    @property
    def user(self) -> str: ...
    @property
    def application_name(self) -> str: ...
    @property
    def client_host(self) -> str: ...
    @property
    def client_port(self) -> int: ...
    @property
    def started_at(self) -> float: ...
    @property
    def state(self) -> str: ...


class CatalogSource(Protocol):
    """The durable facts (those of ``Catalog``), and what moves without a commit of it."""

    @property
    def change_counter(self) -> int:
        """Grows whenever a durable fact changes; equal numbers mean equal facts."""
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

    def rels(self) -> Sequence[SubscriptionRel]:
        """The tables of all subscriptions."""
        ...

    def vectors(self) -> Sequence[SnapshotVector]:
        """The published consistent states, oldest first."""
        ...

    def progress(self, subid: Oid) -> Progress | None:
        """Positions of a subscription's workers; None: it never ran."""
        ...

    def messages(self, subid: Oid) -> Iterable[LoggedMessage]:
        """The logical messages in a subscription's change log, in its order; an error if
        they are too large to be shown."""
        ...

    def prepared(self, subid: Oid) -> Sequence[PreparedTransaction]:
        """Transactions of a subscription that the publisher has prepared."""
        ...

    def sessions(self) -> Sequence[ActiveSession]:
        """The clients connected now."""
        ...

    def table_bytes(self, relid: Oid) -> int | None:
        """Size of a table's current files; None: not known without asking Spark."""
        ...

    @property
    def started_at(self) -> datetime:
        """When the node started, with a time zone."""
        ...
