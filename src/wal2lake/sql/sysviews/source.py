"""The port through which the system views read the node.

Comes in: an implementation. Goes out: nothing; this module has types only. The methods are called
under the lock of the engine, in the session's thread, so an implementation reads memory, SQLite or
files of the change log, and never waits for a publisher or Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from wal2lake.catalog import (
    Catalog,
    CoercionTotal,
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
from wal2lake.changelog import (
    Held,
    Inventory,
    LogContents,
    PreparedTransaction,
    SegmentFacts,
)
from wal2lake.health import Problem
from wal2lake.lake.batch import Method, Total
from wal2lake.model import Acl, Lsn, Oid
from wal2lake.publish.limits import Room
from wal2lake.publish.slots import SlotUse
from wal2lake.publish.statistics import Statistics
from wal2lake.publish.synchronous import Standbys
from wal2lake.publish.walsender.page import WalsenderPositions
from wal2lake.settings import LogSettings
from wal2lake.tablesync.attempt import RunningCopy


@dataclass(frozen=True, slots=True)
class LoggedMessage:
    """A message of pg_logical_emit_message."""

    lsn: Lsn
    commit_lsn: Lsn | None
    """Commit LSN of the transaction; None: the message is not transactional."""
    prefix: str
    content: bytes


@dataclass(frozen=True, slots=True)
class LogReading:
    """The contents of a change log's directory at one moment, and its inventory."""

    contents: LogContents
    inventory: Inventory

    def above(self, lsn: Lsn) -> Held:
        """Return the segments that a reader that is complete below ``lsn`` needs."""
        return self.inventory.above(self.contents, lsn)

    def facts(self, numbers: Sequence[int]) -> list[SegmentFacts]:
        """Return facts about these segments."""
        return self.inventory.facts(self.contents, numbers)


class EncryptedSession(Protocol):
    """Facts that pg_stat_ssl shows; ``encryption.Encrypted`` is one."""

    @property
    def version(self) -> str: ...
    @property
    def cipher(self) -> str: ...
    @property
    def bits(self) -> int: ...
    @property
    def subject(self) -> str | None: ...


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
    @property
    def query(self) -> str: ...
    @property
    def encrypted(self) -> EncryptedSession | None: ...


class CatalogSource(Protocol):
    """The durable facts (those of ``Catalog``), and facts that change without its commits."""

    @property
    def change_counter(self) -> int:
        """Counter that grows when a durable fact changes; equal numbers mean equal facts."""
        ...

    def over(self, catalog: Catalog) -> CatalogSource:
        """Return a source with the durable facts of a transaction block's catalog."""
        ...

    @property
    def system_identifier(self) -> int:
        """The node's system identifier."""
        ...

    def roles(self) -> Sequence[Role]:
        """All roles."""
        ...

    def role_members(self) -> Sequence[RoleMember]:
        """All memberships of roles in roles."""
        ...

    def database_acl(self) -> Acl | None:
        """Acl of the one database; None: the defaults."""
        ...

    def namespaces(self) -> Sequence[Namespace]:
        """The schemas of lake tables, ``public`` among them."""
        ...

    def tables(self) -> Sequence[TableDef]:
        """All lake tables."""
        ...

    def origins(self) -> Sequence[ReplicationOrigin]:
        """Replication origins that were created; each subscription has one besides."""
        ...

    def applied_ends(self) -> Mapping[Oid, Lsn]:
        """Return the end of the last transaction that all tables have, by subscription."""
        ...

    def local_ends(self) -> Mapping[str, Lsn]:
        """Return the end of the last transaction in the node's own log, by replication origin."""
        ...

    def origin_numbers(self) -> Mapping[str, int]:
        """Numbers of all replication origins by name, those of subscriptions among them."""
        ...

    def prepared_commits(self) -> Sequence[PreparedCommit]:
        """Transactions of the front door that are prepared, or about to end."""
        ...

    def publications(self) -> Sequence[Publication]:
        """All publications."""
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

    def schema_history(self) -> Sequence[NotedSchemaChange]:
        """Changes of tables at their publishers that were followed."""
        ...

    def conflicts(self) -> Sequence[NotedConflict]:
        """Conflicts that are listed, oldest first."""
        ...

    def coercions(self) -> Sequence[CoercionTotal]:
        """Values that policies have changed in published states."""
        ...

    def verifications(self) -> Sequence[Verification]:
        """The results of the last comparison of each table with its source."""
        ...

    def differences(self) -> Sequence[NotedDifference]:
        """Differences that are listed, table by table."""
        ...

    def errors(self) -> Sequence[SubscriptionError]:
        """Present errors of subscriptions, by worker; those of single tables are in ``rels``."""
        ...

    def stats(self) -> Sequence[SubscriptionStats]:
        """Return the error counts of subscriptions."""
        ...

    def reset_stats(self, subid: Oid | None) -> None:
        """Set the error counts of a subscription to zero; None: of all subscriptions."""
        ...

    def reload_settings(self) -> bool:
        """Make all processes read the settings again; False: the supervisor was not notified."""
        ...

    def indexes(self) -> Sequence[TableIndex]:
        """Indexes that statements have made."""
        ...

    def sequences(self) -> Sequence[OwnedSequence]:
        """Sequences of serial and identity columns."""
        ...

    def last_values(self) -> Mapping[Oid, int]:
        """Return the last values of the sequences that were used."""
        ...

    def comments(self) -> Sequence[Comment]:
        """Comments on objects."""
        ...

    def progress(self, subid: Oid) -> Progress | None:
        """Return the positions of a subscription's workers; None: it never ran."""
        ...

    def copies(self, subid: Oid) -> Sequence[RunningCopy]:
        """Return the present copies of a subscription's workers."""
        ...

    def methods(self, rel: SubscriptionRel, location: str) -> Mapping[Method, Total]:
        """Return the methods by which batches of a table were written since the engine started."""
        ...

    def messages(self, subid: Oid) -> Iterable[LoggedMessage]:
        """Return the logical messages of a subscription's change log, in its order; raises an
        error if they are too large to be shown."""
        ...

    def log(self, subid: Oid) -> LogReading | None:
        """Return a reading of a subscription's change log; None: it has none."""
        ...

    def log_directory(self, subid: Oid | None) -> Path:
        """Return the directory of a subscription's log; None for the publisher's log."""
        ...

    @property
    def log_settings(self) -> LogSettings:
        """The settings of the logs' limits."""
        ...

    def snapshot_held(self, subid: Oid) -> SyncSnapshot | None:
        """Return the snapshot that a subscription's copies use, if one is held."""
        ...

    def prepared(self, subid: Oid) -> Sequence[PreparedTransaction]:
        """Return the transactions that a subscription's publisher has prepared."""
        ...

    def sessions(self) -> Sequence[ActiveSession]:
        """Return the sessions of connected clients."""
        ...

    def signal(self, pid: int, *, terminate: bool) -> bool:
        """Cancel a session's query, or end the session; False: there is no such session."""
        ...

    def slots(self) -> Sequence[tuple[SlotUse, Room]]:
        """Return all replication slots with their users, and the room to their limit."""
        ...

    @property
    def slot_statistics(self) -> Statistics:
        """Decoding statistics of the slots."""
        ...

    def walsenders(self) -> Sequence[tuple[int, str, WalsenderPositions]]:
        """Present walsenders: session, slot, positions."""
        ...

    def problems(self) -> Sequence[Problem]:
        """Return the present problems of the node, the worst first."""
        ...

    def registered(self) -> Sequence[tuple[str, RegisteredTable]]:
        """Return the tables that are registered in catalogs of others, by name, each with what
        readers find there: delta or iceberg."""
        ...

    def standbys(self) -> Standbys | None:
        """Return the standbys that commits wait for; None: commits do not wait."""
        ...

    def table_bytes(self, relid: Oid) -> int | None:
        """Return the bytes of a table's current files; None: only Spark knows them."""
        ...

    @property
    def engine_pid(self) -> int:
        """The process that copies tables."""
        ...

    @property
    def started_at(self) -> datetime:
        """The start time of the node, with a time zone."""
        ...
