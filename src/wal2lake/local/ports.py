"""Ports: what commands and transactions need of the engine.

A function names the smallest port that it and the functions that it calls need, so a reader sees
what it can touch, and a test can give it just that. ``node.EngineParts`` has all of them; only the
engine makes one.

    HasCatalog                      rows of the catalog
    ├── HasSettings
    ├── HasPublishing               the publisher half
    ├── HasTables                   the lake's tables
    │   ├── HasSnapshots            and what sessions read of them
    │   │   └── RetentionParts      and all else that may need a file
    │   ├── HasQueries              and Spark SQL over them
    │   │   └── HasBranches         and tables that a transaction writes before it commits
    │   └── TableLocks              and their locks
    ├── SessionState                what the sessions of a node share
    │
    ├── LocalCommits                commits of transactions
    └── Definitions                 commands that create, alter or drop objects
        └── TableDefinitions        those that touch tables and their rows
            └── SubscriptionCommands    those that start and stop workers
"""

from __future__ import annotations

from typing import Protocol

from wal2lake.apply.launcher import ApplyLauncher
from wal2lake.catalog import Catalog
from wal2lake.lake import Expressions, TablePort
from wal2lake.lake.compaction import Compactor
from wal2lake.lake.iceberg import IcebergMirror
from wal2lake.lake.retention import AgeClock
from wal2lake.lake.spark import Branches, BranchKeys, Queries
from wal2lake.local.concurrency.activeorigins import ActiveOrigins
from wal2lake.local.concurrency.heldtables import HeldTables
from wal2lake.local.concurrency.sequencevalues import SequenceLocks
from wal2lake.local.concurrency.snapshots import Snapshots
from wal2lake.local.concurrency.turns import NodeTurns
from wal2lake.local.concurrency.vacuumturns import VacuumTurns
from wal2lake.model import Oid
from wal2lake.observe import KeyedLocks, OrderedLock
from wal2lake.observe.telemetry import Telemetry
from wal2lake.pg import Check
from wal2lake.publish.service import Publishing
from wal2lake.settings import Settings
from wal2lake.tablesync.worker import TableSync


class HasCatalog(Protocol):
    """The catalog."""

    catalog: Catalog


class HasSettings(HasCatalog, Protocol):
    """The settings in force, which a reload replaces."""

    settings: Settings


class HasTables(HasCatalog, Protocol):
    """The lake's tables."""

    tables: TablePort


class HasSnapshots(HasTables, Protocol):
    """The versions of tables that sessions read."""

    snapshots: Snapshots


class HasQueries(HasTables, Protocol):
    """Spark SQL over the lake's tables."""

    queries: Queries


class HasPublishing(HasCatalog, Protocol):
    """The publisher half."""

    publishing: Publishing | None
    """None: there is none."""


class HasBranches(HasQueries, Protocol):
    """Tables that transactions write before they commit."""

    branches: Branches


class TableLocks(HasTables, Protocol):
    """Holding tables against other writers."""

    locks: KeyedLocks[Oid]
    """A lock for each subscription; changing its tables or its vector needs the lock."""
    prepared: HeldTables
    """Tables that prepared transactions hold."""


class LocalCommits(TableLocks, HasSettings, HasBranches, HasPublishing, Protocol):
    """Commits of transactions that begin here."""

    keys: BranchKeys
    compactor: Compactor
    """Merges small files behind commits."""
    snapshots: Snapshots
    """Views that statements have of commits under way."""
    sequences: SequenceLocks

    def committed(self) -> None:
        """Report that readers see a new version of a table: capture looks at once."""


class Definitions(HasPublishing, Protocol):
    """Commands that create, alter or drop objects."""

    ddl_lock: OrderedLock
    """Held by these commands, so that two do not interleave. Never held while a publisher is
    talked to: one that does not answer must not stop the commands of others."""
    turns: NodeTurns
    """Turns of commands that must not interleave."""

    def changed(self) -> None:
        """Tell the supervisor that subscriptions have changed."""

    def capture_before(self, check: Check) -> None:
        """Capture all that readers see, before published objects change.

        The publisher's log then has the changes with the definitions that they were made under.
        Nothing happens without a slot. ``check``: called during the wait."""


class RetentionParts(HasSettings, HasSnapshots, HasBranches, HasPublishing, Protocol):
    """Everything that may hold a version or a file of a table."""

    compactor: Compactor
    mirrors: IcebergMirror
    vacuums: VacuumTurns
    ages: AgeClock
    telemetry: Telemetry

    def batch_reads(self, location: str, /) -> list[int]:
        """Return the versions of a table that batches read."""


class MirrorParts(HasSettings, HasCatalog, Protocol):
    """Mirrors of tables, and what they show."""

    tables: TablePort
    mirrors: IcebergMirror


class RegisterParts(HasSettings, HasTables, Protocol):
    """The tables, and the settings of the catalog in which they are registered."""


class TableDefinitions(Definitions, TableLocks, HasSettings, HasBranches, Protocol):
    """Commands that create, alter or drop tables."""

    snapshots: Snapshots
    sync: TableSync
    unfinished: set[str]
    """Places, in lower case, of tables that open blocks have made: the catalog does not know them
    yet, and no crash has left them. Added to under the DDL lock."""


class SubscriptionCommands(TableDefinitions, Protocol):
    """Commands that change subscriptions and wait for their workers."""

    apply: ApplyLauncher
    expressions: Expressions | None
    """Checks those of ``conflict_resolution``; None: there is no lake."""
    origins: ActiveOrigins


class SessionState(HasCatalog, Protocol):
    """State that the sessions of a node share."""

    origins: ActiveOrigins
    sequences: SequenceLocks
