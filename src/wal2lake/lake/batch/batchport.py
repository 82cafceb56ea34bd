"""The batch port: what apply asks of the lake for one table of one batch.

Two steps, because a batch is first evaluated whole, for all its tables, and cut below the
first transaction that fails; only then does any table change. ``batches`` implements
this on Spark and Delta; tests of the worker give it a table made of a dict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from wal2lake.lake.origins import BatchCommits
from wal2lake.lake.port import Committed, Cursor, TableState
from wal2lake.lake.staging.changes import RowConflict, RowFailure
from wal2lake.lake.staging.convert import NO_RULES, ConversionRules
from wal2lake.lake.staging.defaults import Fills
from wal2lake.lake.staging.logrows import LogSource, LsnRange
from wal2lake.model import Coercion
from wal2lake.pgtypes import DEFAULT_RESOLUTIONS, RemoteTypes, Resolutions


@dataclass(frozen=True, slots=True)
class StageRequest:
    """One table's part of a batch."""

    namespace: str
    name: str
    state: TableState
    """The table as it is now: what will be written on."""
    key: tuple[str, ...]
    """Primary key columns; empty: none."""
    constraint: str
    """The primary key's name, for messages."""
    sources: Sequence[LogSource]
    span: LsnRange
    append: bool
    """Insert-only, and no insert can meet an existing row: stage into the table's
    directory, to be added as it is."""
    trusted: bool
    """Nobody but the subscription has written the table since its copy, and the publisher has its
    key, too."""
    types: RemoteTypes = field(default_factory=dict)
    """The publisher's types that are not built in, for values in binary format."""
    rules: ConversionRules = NO_RULES
    """Policies for values that the table's columns cannot hold."""
    fills: Fills = field(default_factory=dict)
    """Defaults of columns that are not sent."""
    shows_rows: bool = False
    """Conflicts are wanted with the texts of the rows."""
    resolutions: Resolutions = DEFAULT_RESOLUTIONS
    """Resolutions of conflicts; with any that are not PostgreSQL's, MERGE is not possible."""
    nulls: frozenset[str] = frozenset()
    """Columns without a default that may be null: what an UPDATE of a row that is not there may
    leave out if it inserts the row."""
    commits: BatchCommits | None = None
    """Transactions of the batch, if the writers of rows are kept."""
    deferrable: bool = False
    """The primary key is judged at the end of each transaction."""
    counted: tuple[str, ...] = ()
    """Columns of such a key, of a batch that is evaluated without it: no two rows may share one."""
    has_their_rows: bool = False
    """The table's rows are the publisher's: nobody else has written it, and nothing was resolved
    in another way."""


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
        """Conflicts that did not stop the batch, in log order; nothing where MERGE applies them."""


class BatchPort(Protocol):
    """Any thread; one call at a time for a table."""

    def stage(self, request: StageRequest) -> Staged:
        """Convert and write. Raises CorruptLogError, StorageError."""

    def commit(self, staged: Staged, cursor: Cursor) -> Committed:
        """ONE durable commit with the cursor; which version the table then has.

        No commit if nothing of the batch concerns the table. Raises CommitConflict when
        another writer came first (stage again), StorageError.
        """

    def discard(self, staged: Staged) -> None:
        """Remove what was staged and will not be committed."""
