"""Values of a batch while it is evaluated and committed. Used by ``applier`` alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from wal2lake.apply.batch import Batch, TableChanges
from wal2lake.apply.conflicts import FoundConflict, Transactions
from wal2lake.apply.skipping import Skip
from wal2lake.apply.step.restarts import Restart
from wal2lake.apply.step.sources import PlacedSources
from wal2lake.catalog import Subscription, TableDef
from wal2lake.lake import BatchCommits
from wal2lake.lake.batch import Staged
from wal2lake.lake.staging import HistoryCommits
from wal2lake.model import Lsn, Oid
from wal2lake.pgtypes import ConflictResolutions, RemoteTypes, ValuePolicies


@dataclass(frozen=True, slots=True)
class BatchPart:
    """Changes of one table that become one commit."""

    changes: TableChanges
    until: Lsn | None
    """First transaction that the part leaves out. None if it has all changes."""

    def reaches(self, lsn: Lsn) -> bool:
        """Whether a row of the part may belong to the transaction at ``lsn`` or a later one."""
        return any(f.max_commit_lsn >= lsn for f in self.changes.files)

    @property
    def order(self) -> tuple[bool, int]:
        """Sort key by which the parts that take longest come first: those whose stored values are
        read, because UPDATEs leave them out, then the largest."""
        files = self.changes.files
        return not any(f.has_unchanged for f in files), -sum(f.file.size for f in files)


@dataclass(slots=True)
class BatchWork:
    """One batch and its progress."""

    subscription: Subscription
    batch: Batch
    skip: Skip | None
    follows: bool
    """Whether tables may be altered within the batch."""
    transactions: Transactions
    staged: dict[Oid, tuple[BatchPart, Staged]] = field(default_factory=dict)
    """Staged changes that wait for their commit."""
    altered: set[Oid] = field(default_factory=set)
    """Tables altered within the batch. Their changes must be divided again with the new columns."""
    restarts: Mapping[Oid, Restart] = field(default_factory=dict)
    """Restarts of sequences, by table."""
    unpublished: list[FoundConflict] = field(default_factory=list)
    """Conflicts of commits that are not published yet."""
    to_log: list[FoundConflict] = field(default_factory=list)
    """Published conflicts, for the server log."""
    began: float = field(default_factory=time.monotonic)
    """Monotonic time of its begin."""


@dataclass(frozen=True, slots=True)
class StagingContext:
    """Facts of the subscription and the batch that the staging of each table needs."""

    types: RemoteTypes
    policies: ValuePolicies
    resolutions: ConflictResolutions
    commits: BatchCommits | None
    """Transactions of the batch, if the writers of rows are recorded."""
    quotes: Callable[[TableDef], bool]
    """Whether reports of conflicts may quote a table's rows."""
    follows: bool
    """Whether the subscription follows the publisher's schema."""
    recorded: HistoryCommits | None
    """Transactions of the batch, if a table has a history or keeps deleted rows."""
    keeps_deleted: bool
    """Whether deleted rows are marked, not removed."""
    placed: PlacedSources | None
    """The log as executors find it in the store."""
