"""The batch port: what apply requires of the lake for one table of one batch.

There are two steps. A batch is first evaluated whole, for all its tables, and cut below the first
transaction that fails; only then does any table change. ``batches`` implements this on Spark and
Delta; tests of the worker use a table made of a dict.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from wal2lake.lake.origins import BatchCommits
from wal2lake.lake.port import Committed, Cursor, TableState
from wal2lake.lake.staging.convert import NO_RULES, ConversionRules
from wal2lake.lake.staging.defaults import Fills
from wal2lake.lake.staging.historyrows import HistoryCommits, HistoryTarget
from wal2lake.lake.staging.layout import RowConflict, RowFailure
from wal2lake.lake.staging.logrows import LogSource, LsnRange
from wal2lake.lake.tablefiles import AddedFile
from wal2lake.model import Coercion
from wal2lake.pgtypes import DEFAULT_RESOLUTIONS, RemoteTypes, Resolutions


@dataclass(frozen=True, slots=True)
class RepairOrigin:
    """Replication origin of rows that are put right."""

    name: str
    lsn: int
    """LSN of the rows there."""
    time_us: int
    """Time of the repair, since 2000-01-01 UTC."""


@dataclass(frozen=True, slots=True)
class StageRequest:
    """One table's part of a batch."""

    namespace: str
    name: str
    state: TableState
    """The table's present version, on which the batch will be written."""
    key: tuple[str, ...]
    """Primary key columns; empty if there is none."""
    constraint: str
    """The primary key's name, for messages."""
    sources: Sequence[LogSource]
    span: LsnRange
    append: bool
    """True if there are only inserts, and none can meet an existing row: they are staged into the
    table's directory, and added as they are."""
    trusted: bool
    """True if no writer but the subscription has written the table since its copy, and the
    publisher has the same key."""
    types: RemoteTypes = field(default_factory=dict)
    """The publisher's types that are not built in, for values in binary format."""
    rules: ConversionRules = NO_RULES
    """Policies for values that the table's columns cannot hold."""
    fills: Fills = field(default_factory=dict)
    """Defaults of columns that are not sent."""
    shows_rows: bool = False
    """True if conflicts are reported with the texts of the rows."""
    resolutions: Resolutions = DEFAULT_RESOLUTIONS
    """Resolutions of conflicts."""
    nulls: frozenset[str] = frozenset()
    """Columns without a default that may be null. An UPDATE may leave them out if it finds no row
    and inserts one."""
    commits: BatchCommits | None = None
    """Transactions of the batch, if the writers of rows are tracked."""
    deferrable: bool = False
    """True if the primary key is checked at the end of each transaction."""
    counted: tuple[str, ...] = ()
    """Columns of a deferrable key, for a batch that is evaluated without it: no two rows may share
    one."""
    history: HistoryTarget | None = None
    """The table that records each change; None if there is none."""
    soft: HistoryCommits | None = None
    """Transactions of the batch, whose commit times mark deleted rows in ``_deleted_at``; None if
    deleted rows are removed."""
    place: Callable[[Sequence[LogSource]], Sequence[LogSource]] | None = None
    """Returns sources as executors find them, once they do. Raises StorageError. None: executors
    find them where the engine does."""
    repairs: RepairOrigin | None = None
    """Origin of the rows, if they are no batch of the log but rows that are put right."""
    has_their_rows: bool = False
    """True if the table's rows are the publisher's: no other writer has written it, and no
    conflict was resolved in another way than the publisher's."""


class Staged(Protocol):
    """A table's part of a batch, converted and on disk, not visible."""

    @property
    def failures(self) -> Sequence[RowFailure]:
        """Empty, or at least the first failure in log order."""

    @property
    def coercions(self) -> Sequence[Coercion]:
        """Values that policies have changed; undefined if there are failures."""

    @property
    def conflicts(self) -> Sequence[RowConflict]:
        """Conflicts that did not stop the batch, in log order."""

    @property
    def history(self) -> Sequence[AddedFile]:
        """Files of the table's history, which belong to no version yet; undefined if there are
        failures."""


class BatchPort(Protocol):
    """May be called by any thread; one call at a time for a table."""

    def stage(self, request: StageRequest) -> Staged:
        """Convert and write. Raises CorruptLogError, StorageError."""

    def commit(self, staged: Staged, cursor: Cursor) -> Committed:
        """Make ONE durable commit with the cursor; return the table's version after it.

        There is no commit if nothing in the batch concerns the table. Raises CommitConflict if
        another writer committed first (stage again), StorageError.
        """

    def record(self, staged: Staged, cursor: Cursor) -> Committed:
        """Append the history of a committed batch to its table, durably, with the same cursor.
        Raises StorageError."""

    def discard(self, staged: Staged) -> None:
        """Remove staged data that will not be committed."""
