"""The table port: what the rest of the node may ask of a lakehouse table.

Comes in: locations (a URL or an absolute path), column definitions, lists of Parquet
files that already lie in the table's directory. Goes out: versions, cursors, schemas.
Called by apply, tablesync, local and commands; implemented for Delta in ``delta.py``. No Spark
here: executor functions and pure code import these values freely.

Why this way. A table gets new content in exactly two ways: files that somebody wrote
into its directory become visible together in one commit (``commit_files``), or Spark SQL
writes (MERGE, DML). Both carry a *cursor*, the idempotence token of that commit: after
any crash, who reads the table also reads how far it is. ``read_version`` is the
requirement of a commit, as in Iceberg's and Delta's own protocols: (updates,
requirements), and a failed requirement says what was expected and what was found.

Sources: Delta transaction log protocol, sections "Add File and Remove File",
"Transaction Identifiers", "Column Mapping".
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
    Delta does not read as NULL, and nothing is equal to another value."""
    return _PARTITIONING.fullmatch(spark_ddl.lower()) is not None


INDEXED_COLUMNS: Final = 32
"""delta.dataSkippingNumIndexedCols' default: Delta reads no statistics beyond these."""

_CLUSTERING: Final = re.compile(
    r"(smallint|int|bigint|date|timestamp|timestamp_ntz|decimal\(.*\)|string)"
)


def can_cluster(spark_ddl: str) -> bool:
    """Whether a table can be clustered by such a column: files say the bounds of its values."""
    return _CLUSTERING.fullmatch(spark_ddl.lower()) is not None


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """One column of a lake table, with the PostgreSQL type that it stands for."""

    name: str
    spark_ddl: str
    """Spark's name of the type: ``bigint``, ``decimal(10,2)``, ``array<string>`` ..."""
    nullable: bool = True
    """Nullability that an existing table declares. ``create`` makes every column nullable: NOT NULL
    belongs to our catalog, where an ALTER costs no commit and readers need no support."""
    pg_type_oid: Oid = INVALID_OID
    """0: the table was not made by a node."""
    pg_typmod: int = -1
    pg_type_name: str | None = None
    """The publisher's name of a type that we keep as text."""
    pg_domain: Domain | None = None
    """The domain that the publisher's column is declared with."""
    is_generated: bool = False
    """Delta computes it from other columns."""


@dataclass(frozen=True, slots=True)
class NextField:
    """A column of the next version."""

    field: FieldSpec
    source: str | None
    """The column's name in this version; None: the column is new."""
    anew: bool = False
    """True if the values are rewritten because the type is another one."""


@dataclass(frozen=True, slots=True)
class PhysicalField:
    """How a column is called inside the table's Parquet files.

    Without column mapping that is its own name and no field id. With it a writer must
    use both, and file statistics are keyed by ``physical_name``.
    """

    name: str
    physical_name: str
    field_id: int | None
    spark_ddl: str
    is_partition: bool = False
    """Not in the files: all rows of one have the same value, which the log has."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The idempotence token of a commit (Delta's ``txn`` action)."""

    app_id: str
    """``wal2lake:<node>:<subid>:<epoch>``."""
    version: int
    """The *next* position: transactions with commit LSN >= it are still to come."""


@dataclass(frozen=True, slots=True)
class TableState:
    """One version of a table, as its own log tells it."""

    location: str
    table_id: str
    """Changes when the table is dropped and created again."""
    version: int
    cursors: Mapping[str, int]
    """The version last committed, by application id."""
    fields: tuple[FieldSpec, ...]
    physical_fields: tuple[PhysicalField, ...]
    """Same order as ``fields``; what an executor's Parquet writer needs."""
    column_mapping: bool
    properties: Mapping[str, str]
    partition_columns: tuple[str, ...] = ()
    clustering: tuple[str, ...] = ()
    """Columns by which rows that are near each other are kept in the same files."""

    @property
    def has_vectors(self) -> bool:
        """A commit may delete rows by deletion vectors."""
        return self.properties.get("delta.enableDeletionVectors") == "true"

    @property
    def is_plain(self) -> bool:
        """Rows may join it as files of ours, without a look at what else it asks of a
        writer: CHECK constraints, generated columns, row tracking, partitions by a type
        that ``can_partition`` does not know."""
        return self.asks_more is None

    @property
    def asks_more(self) -> str | None:
        """Return a sentence about one thing that keeps the table from being plain, or None."""
        for part in self.physical_fields:
            if part.is_partition and not can_partition(part.spark_ddl):
                return f'It is partitioned by column "{part.name}" of type {part.spark_ddl}.'
        if self.properties.get(_ROW_TRACKING) == "true":
            return f'Its property "{_ROW_TRACKING}" is true.'
        for name in self.properties:
            if name.startswith(_CONSTRAINT):
                return f'It has the property "{name}".'
        for field in self.fields:
            if field.is_generated:
                return f'Delta Lake generates its column "{field.name}".'
        return None

    def cursor(self, app_id: str) -> int | None:
        """The cursor of one application; None: it has never committed here."""
        return self.cursors.get(app_id)


@dataclass(frozen=True, slots=True)
class Committed:
    """The answer of ``commit_files``."""

    version: int
    """The version that now holds the files: this commit's, or, when
    ``already_done``, the table's newest."""
    already_done: bool = False
    """The table's cursor was already at or past ours; nothing was written."""
    interlopers: tuple[int, ...] = ()
    """Versions committed by others between ``read_version`` and ours. They did not
    change the data (a compaction, another application's cursor): anything else would
    have been a CommitConflict."""


class CommitConflict(StorageError):
    """Another writer changed the table first; nothing was committed (40001)."""

    sqlstate = "40001"
    retry = Retry.LATER


def expect_version(
    location: str, expected: int, found: int, *, same_table: bool = True
) -> None:
    """CommitConflict unless the table is where the commit was prepared."""
    if found != expected or not same_table:
        raise CommitConflict(
            "could not serialize access due to concurrent update",
            detail=f'Table at "{location}" is at version {found}, expected {expected}.',
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
        """Make an empty table; DuplicateObjectError (42P07) if there is one. ``clustering``:
        columns by which its rows are kept together, as ``can_cluster`` allows.

        Durable when it returns (local storage).
        """
        ...

    def drop(self, location: str) -> None:
        """Remove the table and its files. No table: nothing happens.

        Safe to repeat after a crash: the log goes last.
        """
        ...

    def exists(self, location: str) -> bool:
        """Is there a table (not merely a directory)?"""
        ...

    def state(self, location: str) -> TableState:
        """The newest version, read from storage now."""
        ...

    def goes_beyond(self, location: str, version: int) -> bool:
        """There is a newer version. For a local table a look at one name."""
        ...

    def state_at(self, location: str, version: int) -> TableState:
        """An earlier version's definition, without cursors. StorageError if the log does not have
        it any more."""
        ...

    def version_at(self, location: str, time: datetime) -> int | None:
        """The newest version at ``time`` (with an offset); None: there was none yet, or it is
        not kept any more."""
        ...

    def writers(self, location: str, first: int, last: int) -> list[frozenset[str]]:
        """For each version, the applications whose cursor its commit carries."""
        ...

    def actions(
        self, location: str, first: int, last: int
    ) -> list[list[dict[str, Any]]]:
        """Return the actions of each version's commit, as Delta's JSON objects; an empty list for a
        commit that the log does not have any more."""
        ...

    def files(self, state: TableState) -> Sequence[DataFile] | None:
        """The data files of the newest version, which ``state`` describes.

        None: that version is not the newest any more, or has too many files to list.
        """
        ...

    def plainly_read(
        self, location: str, version: int | None
    ) -> tuple[TableState, Sequence[DataFile]] | None:
        """A version (None: the newest) whose rows are those of these Parquet files on this machine,
        less what their deletion vectors say.

        None: only Spark can read it, or knows what it is: it is not on this machine, asks
        something of readers, or has too many files to list.
        """
        ...

    def any_key_taken(
        self, state: TableState, adds: Sequence[AddedFile], key: Sequence[str]
    ) -> bool:
        """Whether files that would be added have the key of a row that is there.

        Good for the version that ``state`` describes: commit on ``read_version``.
        """
        ...

    def any_key_twice(
        self, state: TableState, adds: Sequence[AddedFile], key: Sequence[str]
    ) -> bool:
        """Whether two rows of files that would be added have one key, whatever is there."""
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

        Fsyncs the files before and the commit after (local storage), so it is durable
        when it returns. ``replace`` removes everything that the table held (TRUNCATE,
        re-copy); ``replaced`` takes single files, or rows of them, away. ``adds`` may be
        empty. ``rearranges``: the same rows in other files (a compaction); it repeats the
        cursor that the table has. A cursor that is already at or past ours means
        that this commit happened before a crash: ``already_done``. With
        ``read_version`` the commit happens only if nobody has changed the data since
        that version. ``operation`` is a word for people who read the table's history.
        Raises CommitConflict; then nothing was written.
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
        """The same with Delta's ``add`` and ``remove`` actions as they are, on exactly
        ``read_version``; their files are there, durably."""
        ...

    def prepare_columns(self, location: str, fields: Sequence[NextField]) -> TableState:
        """Before the table is to have these columns: give columns names in files that need not
        be those that readers use, if one goes or is renamed, and name what new types ask of
        readers. A commit without rows, if any; durable. Gives the newest version. 0A000 for
        a table whose columns mean something to Delta."""
        ...

    def metadata(self, location: str, fields: Sequence[NextField]) -> Mapping[str, Any]:
        """Return the newest version's metadata with these columns; nothing is written."""
        ...

    def create_like(self, location: str, metadata: Mapping[str, Any]) -> None:
        """A table without rows whose files may join one of that metadata. Not durable."""
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
        """Other columns, on exactly ``read_version``. ``rows``: Delta's ``add`` actions that take
        the place of all files; None: they stay. Otherwise as ``commit_changes``."""
        ...

    def writing(self, location: str) -> OrderedLock:
        """Return the table's lock (``LockRank.TABLE``).

        A caller that commits to the table in another way (Spark's MERGE and DML) holds it
        meanwhile, so that ``commit_files`` of other threads waits."""
        ...

    def sync(self, location: str, version: int) -> None:
        """Make everything up to ``version`` survive a power loss (local storage).

        For commits that Spark SQL made (MERGE, DML): only then do they count.
        """
        ...

    def recover(self, location: str, synced_version: int) -> tuple[int, ...]:
        """Undo what a power loss left torn above a version known to be durable.

        At start, before the table is used. Returns the versions that were removed:
        nobody was ever told of them. No table: nothing happens.
        """
        ...
