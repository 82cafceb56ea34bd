"""Reads what monitoring needs of the catalog, at one moment, by another process.

In: the path of a catalog. Out: ``Overview``, the rows of one read transaction. The file is opened
read-only, so nothing is created and no writer waits; a reader that finds the change counter of its
last reading returns that reading. A stopped node's file has no write-ahead file beside it, and is
read as it is: SQLite would create one otherwise.

Definitions of columns are not decoded, as they are what costs with 1,000 tables, and the rows of
tables that have not changed keep their records. Called by ``health.reading``.
"""

from __future__ import annotations

import json
import sqlite3
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Generic, TypeVar

from wal2lake.catalog import schema
from wal2lake.catalog.published import snapshot_vectors, verifications
from wal2lake.catalog.published.verifications import Verification
from wal2lake.catalog.records import (
    SnapshotVector,
    Subscription,
    SubscriptionError,
    SubscriptionRel,
    SubscriptionStats,
)
from wal2lake.catalog.replication import subscriptions
from wal2lake.errors import ConfigurationError, StorageError, words_of
from wal2lake.model import Lsn, Oid

T = TypeVar("T")

_TIMEOUT_SECONDS: Final = 2.0
"""Wait for a lock of SQLite's, which readers of a write-ahead file need only for its recovery."""


@dataclass(frozen=True, slots=True)
class TableName:
    """A lake table without its columns."""

    oid: Oid
    namespace: str
    name: str
    partition_of: Oid | None
    parameters: Mapping[str, str]
    """Storage parameters."""


@dataclass(frozen=True, slots=True)
class KnownSlot:
    """A slot of the publisher half."""

    name: str
    plugin: str
    temporary: bool
    confirmed_lsn: Lsn
    restart_lsn: Lsn
    invalidation: str | None


@dataclass(frozen=True, slots=True)
class PreparedTransactionName:
    """A prepared transaction of the node's own sessions."""

    gid: str
    prepared_at: int
    """Microseconds since 2000-01-01 UTC."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The catalog at one moment."""

    change_counter: int
    subscriptions: tuple[Subscription, ...]
    rels: Mapping[Oid, tuple[SubscriptionRel, ...]]
    """Tables of each subscription."""
    errors: Mapping[Oid, tuple[SubscriptionError, ...]]
    stats: Mapping[Oid, SubscriptionStats]
    vectors: Mapping[Oid, SnapshotVector]
    """Newest published state of each subscription."""
    tables: Mapping[Oid, TableName]
    slots: tuple[KnownSlot, ...]
    prepared: tuple[PreparedTransactionName, ...]
    conflicts: Mapping[tuple[Oid, Oid], int]
    """Listed conflicts by subscription and table."""
    coercions: Mapping[tuple[Oid, Oid], int]
    """Values changed by policies, by subscription and table."""
    verifications: Mapping[tuple[Oid, Oid], Verification]
    """Results of VERIFY, by subscription and table."""
    ranges: Mapping[tuple[Oid, Oid], int]
    """Finished ranges of running copies, by subscription and table."""
    local_commits: int
    """Commits to several tables that have begun and not ended."""
    oldest_local_commit: int | None
    """Number of the oldest of them."""


class _Records(Generic[T]):
    """Records of a query's rows, kept for as long as the rows stay as they are."""

    def __init__(self, make: Callable[[sqlite3.Row], T]) -> None:
        self._make = make
        self._known: dict[tuple[object, ...], T] = {}

    def of(self, rows: Iterable[sqlite3.Row]) -> list[T]:
        """Return the records of different rows; others are forgotten."""
        before = self._known
        after: dict[tuple[object, ...], T] = {}
        for row in rows:
            values = tuple(row)
            record = before.get(values)
            after[values] = self._make(row) if record is None else record
        self._known = after
        return list(after.values())


class CatalogReader:
    """Repeated reading of one catalog. For one thread at a time."""

    def __init__(self, path: Path) -> None:
        """Open nothing yet."""
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._last: Overview | None = None
        self._rels = _Records(subscriptions.rel_of_row)
        self._tables = _Records(_table)

    def read(self) -> Overview:
        """Return the present rows. Raises ConfigurationError if the file is missing or has another
        version, StorageError if it cannot be read."""
        try:
            return self._read()
        except sqlite3.DatabaseError:
            # A file that was read as it is has changed meanwhile, because the node has started.
            self.close()
        try:
            return self._read()
        except sqlite3.DatabaseError as error:
            self.close()
            raise StorageError(
                f'could not read catalog "{self._path}": it cannot be opened',
                hint="Check the file system of the node's directory.",
                original=words_of(error),
            ) from error

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    def _read(self) -> Overview:
        connection = self._open()
        try:
            connection.execute("begin")
            counter = _meta(connection, "counter")
            if self._last is None or self._last.change_counter != counter:
                self._check(_meta(connection, "version"))
                self._last = self._overview(connection, counter)
            return self._last
        finally:
            if connection.in_transaction:
                connection.execute("rollback")
            if connection is not self._connection:
                connection.close()

    def _overview(self, connection: sqlite3.Connection, counter: int) -> Overview:
        rels = defaultdict(list)
        for rel in self._rels.of(subscriptions.all_rel_rows(connection)):
            rels[rel.subid].append(rel)
        errors = defaultdict(list)
        for error in subscriptions.errors(connection):
            errors[error.subid].append(error)
        commits = connection.execute(
            "select count(*), min(number) from local_commit"
        ).fetchone()
        return Overview(
            change_counter=counter,
            subscriptions=tuple(subscriptions.all_subscriptions(connection)),
            rels={subid: tuple(values) for subid, values in rels.items()},
            errors={subid: tuple(values) for subid, values in errors.items()},
            stats={stats.subid: stats for stats in subscriptions.stats(connection)},
            vectors=snapshot_vectors.newest_vectors(connection),
            tables={t.oid: t for t in self._tables.of(_table_rows(connection))},
            slots=_slots(connection),
            prepared=tuple(
                PreparedTransactionName(row["gid"], row["prepared_at"])
                for row in connection.execute(
                    "select gid, prepared_at from prepared_commit"
                    " where state <> 'preparing' order by number"
                )
            ),
            conflicts=_counts(
                connection,
                "select subid, relid, sum(count) from conflict where reached is null"
                " group by subid, relid",
            ),
            coercions=_counts(
                connection,
                "select subid, relid, sum(count) from coercion group by subid, relid",
            ),
            verifications={
                (verification.subid, verification.relid): verification
                for verification in verifications.verifications(connection)
            },
            ranges=_counts(
                connection,
                "select subid, relid, count(*) from copy_range group by subid, relid",
            ),
            local_commits=commits[0],
            oldest_local_commit=commits[1],
        )

    def _open(self) -> sqlite3.Connection:
        """Return the open connection, or one that the caller closes."""
        try:
            status = self._path.stat()
        except OSError:
            raise ConfigurationError(
                f'catalog "{self._path}" does not exist',
                hint="Run wal2lake init, or check the directory given with -D.",
            ) from None
        identity = (status.st_dev, status.st_ino)
        if identity != self._identity:
            self.close()
            self._identity, self._last = identity, None
        written = self._path.with_name(self._path.name + "-wal").exists()
        if not written:
            self.close()
            return _connect(f"{self._path.absolute().as_uri()}?mode=ro&immutable=1")
        if self._connection is None:
            self._connection = _connect(f"{self._path.absolute().as_uri()}?mode=ro")
        return self._connection

    def _check(self, version: int) -> None:
        if version > schema.VERSION:
            raise ConfigurationError(
                f"catalog has version {version}, this wal2lake reads up to"
                f" {schema.VERSION}",
                hint="Install the wal2lake version that wrote it, or a later one.",
            )
        if version < schema.VERSION:
            raise ConfigurationError(
                f"catalog has version {version}, this wal2lake writes version"
                f" {schema.VERSION}",
                hint="Stop the node, and start it with this version of wal2lake.",
            )


def _connect(uri: str) -> sqlite3.Connection:
    connection = sqlite3.connect(
        uri,
        uri=True,
        timeout=_TIMEOUT_SECONDS,
        isolation_level=None,
        check_same_thread=False,
    )
    connection.row_factory = sqlite3.Row
    return connection


def _meta(connection: sqlite3.Connection, key: str) -> int:
    row = connection.execute("select value from meta where key = ?", (key,)).fetchone()
    return int(row[0])


def _table_rows(connection: sqlite3.Connection) -> sqlite3.Cursor:
    return connection.execute(
        "select oid, namespace, name, partition_of, parameters from relation"
    )


def _table(row: sqlite3.Row) -> TableName:
    return TableName(
        Oid(row["oid"]),
        row["namespace"],
        row["name"],
        None if row["partition_of"] is None else Oid(row["partition_of"]),
        dict(json.loads(row["parameters"])),
    )


def _slots(connection: sqlite3.Connection) -> tuple[KnownSlot, ...]:
    rows = connection.execute("select * from replication_slot order by name")
    return tuple(
        KnownSlot(
            row["name"],
            row["plugin"],
            bool(row["temporary"]),
            Lsn(row["confirmed_lsn"]),
            Lsn(row["restart_lsn"]),
            row["invalidation"],
        )
        for row in rows
    )


def _counts(
    connection: sqlite3.Connection, query: str
) -> Mapping[tuple[Oid, Oid], int]:
    return {
        (Oid(row[0]), Oid(row[1])): int(row[2]) for row in connection.execute(query)
    }
