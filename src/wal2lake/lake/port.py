"""The table port: the operations of a lakehouse table for the rest of the node.

Comes in: locations (a URL or an absolute path), column definitions, lists of Parquet files that
already are in the table's directory. Goes out: versions, cursors, schemas. Called by apply,
tablesync, local and commands; implemented for Delta in ``spark.delta``. No Spark here: executor
functions and pure code import these values freely.

Why this way. A table gets new content in exactly two ways: files that were written into its
directory become visible together in one commit (``commit_files``), or Spark SQL writes (DML).
Both carry a *cursor*, the idempotence token of that commit: after any crash, a reader of the
table also reads its position. ``read_version`` is the requirement of a commit, as in Iceberg's and
Delta's own protocols: (updates, requirements), and a failed requirement reports the expected and
the actual version.

Sources: Delta transaction log protocol, sections "Add File and Remove File", "Transaction
Identifiers", "Column Mapping".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

from wal2lake.errors import Retry, StorageError
from wal2lake.lake.tablefiles import AddedFile, DataFile, Replaced
from wal2lake.model import INVALID_OID, Domain, Oid
from wal2lake.observe import OrderedLock

_ROW_TRACKING: Final = "delta.enableRowTracking"
_CONSTRAINT: Final = "delta.constraints."

_PARTITIONING: Final = re.compile(
    r"(smallint|int|bigint|boolean|date|timestamp|timestamp_ntz|decimal\(.*\))"
)


def can_partition(spark_ddl: str) -> bool:
    """Whether a table can be partitioned by such a column: each value has a text of its own that
    Delta does not read as NULL, and no two values are equal."""
    return _PARTITIONING.fullmatch(spark_ddl.lower()) is not None


INDEXED_COLUMNS: Final = 32
"""Default of delta.dataSkippingNumIndexedCols: Delta reads no statistics of further columns."""

_CLUSTERING: Final = re.compile(
    r"(smallint|int|bigint|date|timestamp|timestamp_ntz|decimal\(.*\)|string)"
)


def has_partition_text(spark_ddl: str) -> bool:
    """Whether the node writes partitions by such a column, if another engine has made the table. An
    empty text is refused, since Delta reads it as NULL."""
    return spark_ddl.lower() == "string" or can_partition(spark_ddl)


def can_cluster(spark_ddl: str) -> bool:
    """Whether a table can be clustered by such a column: files have bounds of its values."""
    return _CLUSTERING.fullmatch(spark_ddl.lower()) is not None


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One column of a lake table, with its PostgreSQL type."""

    name: str
    spark_ddl: str
    """Spark's name of the type: ``bigint``, ``decimal(10,2)``, ``array<string>`` ..."""
    nullable: bool = True
    """Nullability that an existing table declares. ``create`` makes every column nullable: NOT NULL
    belongs to our catalog, where an ALTER costs no commit and readers need no support."""
    pg_type_oid: Oid = INVALID_OID
    """0: the table was not created by a node."""
    pg_typmod: int = -1
    pg_type_name: str | None = None
    """The publisher's name of a type that is stored as text."""
    pg_domain: Domain | None = None
    """The domain with which the publisher's column is declared."""
    generation: str | None = None
    """Spark's expression from which Delta demands that each writer compute the column."""
    invariant: str | None = None
    """Spark's expression of a condition that Delta has for the column's values."""


@dataclass(frozen=True, slots=True)
class NextField:
    """A column of the next version."""

    field: FieldSpec
    source: str | None
    """The column's name in this version; None: the column is new."""
    anew: bool = False
    """True if the values are rewritten because the type changes."""


@dataclass(frozen=True, slots=True)
class PhysicalField:
    """A column's name and id inside the table's Parquet files.

    Without column mapping it has its own name and no field id. With column mapping a writer must
    use both, and file statistics are keyed by ``physical_name``.
    """

    name: str
    physical_name: str
    field_id: int | None
    spark_ddl: str
    is_partition: bool = False
    """True if the column is not in the files: all rows of a file have the same value, which the
    log has."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The idempotence token of a commit (Delta's ``txn`` action)."""

    app_id: str
    """``wal2lake:<node>:<subid>:<epoch>``."""
    version: int
    """The *next* position: transactions with commit LSN >= it are still to come."""


@dataclass(frozen=True, slots=True)
class TableState:
    """One version of a table, as its own log describes it."""

    location: str
    table_id: str
    """Changes when the table is dropped and created again."""
    version: int
    cursors: Mapping[str, int]
    """The version last committed, by application id."""
    fields: tuple[FieldSpec, ...]
    physical_fields: tuple[PhysicalField, ...]
    """In the order of ``fields``; needed by an executor's Parquet writer."""
    column_mapping: bool
    properties: Mapping[str, str]
    partition_columns: tuple[str, ...] = ()
    clustering: tuple[str, ...] = ()
    """Columns by which rows that are near each other are stored in the same files."""

    @property
    def has_vectors(self) -> bool:
        """Whether a commit may delete rows by deletion vectors."""
        return self.properties.get("delta.enableDeletionVectors") == "true"

    @property
    def is_plain(self) -> bool:
        """Whether files that this node wrote may join the table without further checks. If not,
        Delta demands that a writer check or compute values of the rows (``demands``)."""
        return not self.constraints and not any(
            field.generation or field.invariant for field in self.fields
        )

    @property
    def constraints(self) -> Mapping[str, str]:
        """Delta's own CHECK constraints: Spark's expressions by name."""
        return {
            name.removeprefix(_CONSTRAINT): text
            for name, text in self.properties.items()
            if name.startswith(_CONSTRAINT)
        }

    @property
    def tracks_rows(self) -> bool:
        """Whether each row has a number that it should keep."""
        return self.properties.get(_ROW_TRACKING) == "true"

    def cursor(self, app_id: str) -> int | None:
        """Return the cursor of one application; None if it has never committed here."""
        return self.cursors.get(app_id)


@dataclass(frozen=True, slots=True)
class TableSize:
    """Size of one version of a table."""

    version: int
    files: int
    size: int
    """Bytes of all files together, deleted rows included."""
    vectors: int | None
    """Number of files with a deletion vector; None: not known."""


@dataclass(frozen=True, slots=True)
class Committed:
    """The result of ``commit_files``."""

    version: int
    """The version that now holds the files: this commit's, or, when ``already_done``, the table's
    newest."""
    already_done: bool = False
    """True if the table's cursor was already at or past ours; nothing was written."""
    interlopers: tuple[int, ...] = ()
    """Versions committed by other writers between ``read_version`` and ours. They change nothing of
    the table but, for instance, another application's cursor: anything else, a compaction too,
    would have been a CommitConflict."""
    method: str | None = None
    """How a batch was written (``batch.Method``); None if it was no batch, or nothing was to be
    written."""


class CommitConflict(StorageError):
    """Another writer changed the table first; nothing was committed (40001)."""

    sqlstate = "40001"
    retry = Retry.LATER


def expect_version(location: str, expected: int, actual: int) -> None:
    """Raise CommitConflict unless the table is at the version for which the commit was
    prepared."""
    if actual != expected:
        raise CommitConflict(
            "could not serialize access due to concurrent update",
            detail=f'Table at "{location}" is at version {actual}, expected {expected}.',
        )


class TablePort(Protocol):
    """A table format. Every method may be called from any thread.

    Raises StorageError and its kin; UndefinedObjectError (42P01) when there is no table.
    """

    def create(
        self,
        location: str,
        fields: Sequence[FieldSpec],
        properties: Mapping[str, str] | None = None,
        partition_columns: Sequence[str] = (),
        clustering: Sequence[str] = (),
    ) -> TableState:
        """Create an empty table; DuplicateObjectError (42P07) if there is one. ``clustering``:
        columns by which its rows are stored together, as ``can_cluster`` allows.

        Durable on return (local storage).
        """
        ...

    def drop(self, location: str) -> None:
        """Remove the table and its files; does nothing if there is no table.

        Safe to repeat after a crash, because the log is removed last.
        """
        ...

    def exists(self, location: str) -> bool:
        """Whether there is a table (not merely a directory)."""
        ...

    def state(self, location: str) -> TableState:
        """Return the newest version, read from storage now."""
        ...

    def goes_beyond(self, location: str, version: int) -> bool:
        """Whether there is a newer version. For a local table this checks for one file."""
        ...

    def state_at(self, location: str, version: int) -> TableState:
        """Return an earlier version's definition, without cursors. StorageError if the log no
        longer has it."""
        ...

    def version_at(self, location: str, time: datetime) -> int | None:
        """Return the newest version at ``time`` (with an offset); None if there was none yet, or
        it is no longer kept."""
        ...

    def writers(self, location: str, first: int, last: int) -> list[frozenset[str]]:
        """Return, for each version, the applications whose cursor its commit carries."""
        ...

    def actions(
        self, location: str, first: int, last: int
    ) -> list[list[dict[str, Any]]]:
        """Return the actions of each version's commit, as Delta's JSON objects; an empty list for
        a commit that the log no longer has."""
        ...

    def files(self, state: TableState) -> Sequence[DataFile] | None:
        """Return the data files of the newest version, which ``state`` describes; None if that
        version is no longer the newest."""
        ...

    def plainly_read(
        self, location: str, version: int | None
    ) -> tuple[TableState, Sequence[DataFile]] | None:
        """Return a version (None: the newest) whose rows are those of these Parquet files, minus
        the rows in their deletion vectors.

        None: only Spark can read it. It is in a storage that ``store`` does not know, requires
        more of readers, or has too many files to list.
        """
        ...

    def any_key_taken(
        self, state: TableState, adds: Sequence[AddedFile], key: Sequence[str]
    ) -> bool:
        """Whether files to be added have the key of a stored row.

        Valid for the version that ``state`` describes: commit with ``read_version``.
        """
        ...

    def any_key_twice(
        self, state: TableState, adds: Sequence[AddedFile], key: Sequence[str]
    ) -> bool:
        """Whether two rows of files to be added have the same key, whatever the table holds."""
        ...

    def commit_files(
        self,
        location: str,
        adds: Sequence[AddedFile],
        cursor: Cursor,
        *,
        read_version: int | None = None,
        replace: bool = False,
        replaced: Sequence[Replaced] = (),
        rearranges: bool = False,
        operation: str = "append",
    ) -> Committed:
        """Make files part of the table, with the cursor, in ONE commit.

        Fsyncs the files before and the commit after (local storage), so it is durable on return.
        ``replace`` removes all rows of the table (TRUNCATE, re-copy); ``replaced`` removes single
        files, or rows of them. ``adds`` may be empty. ``rearranges``: the same rows in other files
        (a compaction); it repeats the table's present cursor. A cursor that is already at or past
        ours means that this commit happened before a crash: ``already_done``. With
        ``read_version`` the commit happens only if no writer has changed the data since that
        version. ``operation`` is a word for readers of the table's history. Raises CommitConflict;
        then nothing was written.
        """
        ...

    def commit_changes(
        self,
        location: str,
        changes: Sequence[Mapping[str, Mapping[str, Any]]],
        cursor: Cursor,
        *,
        read_version: int,
        operation: str,
    ) -> Committed:
        """Commit Delta's ``add`` and ``remove`` actions unchanged, on exactly ``read_version``;
        their files are durable. Everything else is as in ``commit_files``."""
        ...

    def prepare_columns(self, location: str, fields: Sequence[NextField]) -> TableState:
        """Prepare a table for these columns. If a column is dropped or renamed, give columns
        physical names that may differ from their own; name the reader features that new types
        require.

        This is a durable commit without rows, if one is needed. Returns the newest version. 0A000
        for a table whose constraints or generated columns depend on its columns.
        """
        ...

    def metadata(self, location: str, fields: Sequence[NextField]) -> Mapping[str, Any]:
        """Return the newest version's metadata with these columns; nothing is written."""
        ...

    def create_like(self, location: str, metadata: Mapping[str, Any]) -> None:
        """Create an empty table whose files may join a table with that metadata. Not durable."""
        ...

    def commit_metadata(
        self,
        location: str,
        metadata: Mapping[str, Any],
        cursor: Cursor,
        *,
        read_version: int,
        rows: Sequence[Mapping[str, Mapping[str, Any]]] | None,
        operation: str,
    ) -> Committed:
        """Commit other columns, on exactly ``read_version``. ``rows``: Delta's ``add`` actions
        that replace all files; None: the files stay. Everything else is as in
        ``commit_changes``."""
        ...

    def writing(self, location: str) -> OrderedLock:
        """Return the table's lock (``LockRank.TABLE``).

        A caller that commits to the table in another way (Spark's DML) holds it
        meanwhile, so that ``commit_files`` of other threads waits."""
        ...

    def sync(self, location: str, version: int) -> None:
        """Make everything up to ``version`` survive a power loss (local storage).

        For commits that Spark SQL made (DML): they count only after this.
        """
        ...

    def recover(self, location: str, synced_version: int) -> tuple[int, ...]:
        """Remove torn versions above a version known to be durable, which a power loss may leave.

        Called at start, before the table is used. Returns the removed versions, which were never
        reported to a client. Does nothing if there is no table.
        """
        ...
