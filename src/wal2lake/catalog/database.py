"""The SQLite file: connections, transactions, the change counter, new OIDs.

In: a path. Out: the calling thread's connection for queries, or a transaction on it. When the
transaction has ended, it is durable (synchronous=FULL), and the counter has grown. A connection
belongs to the thread that made it and never crosses a fork. Called by ``store`` only.

SQLite's errors become ``StorageError``: 53100 if the disk is full, 58030 for other errors, all of
which may be temporary. An invalid statement, or an unexpected violation of a constraint, is a bug
and keeps SQLite's class. A number beyond signed 64 bits can only be an invalid LSN of a user:
22003.
"""

from __future__ import annotations

import errno
import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from wal2lake.catalog import places, schema
from wal2lake.errors import ConfigurationError, StorageError, UsageError, words_of
from wal2lake.model import BOOTSTRAP_SUPERUSER, Oid

BUSY_TIMEOUT_SECONDS: Final = 30.0

_PRIMARY: Final = 0xFF
"""Mask of the primary code in SQLite's extended result codes."""


class OidsWanted(Exception):
    """Raised if a change of a transaction block needs more OIDs than it has."""


class BlockConnection(places.PlacedConnection):
    """Connection of a transaction block, whose changes are repeated with the same OIDs."""

    _oids: Iterator[Oid] = iter(())

    @contextmanager
    def giving(self, oids: Iterable[Oid]) -> Iterator[None]:
        """Let ``take_oid`` return these OIDs while the context is open."""
        self._oids = iter(oids)
        try:
            yield
        finally:
            self._oids = iter(())

    def take_oid(self) -> Oid:
        """Return the next OID. Raises OidsWanted."""
        oid = next(self._oids, None)
        if oid is None:
            raise OidsWanted
        return oid


class Database:
    """One process's access to a catalog file."""

    _busy_timeout_seconds = BUSY_TIMEOUT_SECONDS

    def __init__(
        self,
        path: Path,
        warehouse: str | None = None,
        *,
        migrate: bool = False,
        busy_timeout_seconds: float = BUSY_TIMEOUT_SECONDS,
    ) -> None:
        """Open an existing file. Raises ConfigurationError if it is missing or has another version.
        An older file is upgraded if ``migrate`` is true: then no other process has it open.

        ``warehouse``: base of relative locations, a path or a URL without a trailing slash. None
        for the default, the directory ``warehouse`` beside the file. ``busy_timeout_seconds``: how
        long a method waits for a lock of another process."""
        self._busy_timeout_seconds = busy_timeout_seconds
        self._attach(path, warehouse or str(path.absolute().parent / "warehouse"))
        if not path.exists():
            raise ConfigurationError(
                f'catalog "{path}" does not exist',
                hint="Run wal2lake init, or check the directory given with -D.",
            )
        version = self.meta("version")
        if int(version) > schema.VERSION:
            raise ConfigurationError(
                f"catalog has version {version}, this wal2lake reads up to"
                f" {schema.VERSION}",
                hint="Install the wal2lake version that wrote it, or a later one.",
            )
        if int(version) < schema.VERSION:
            if not migrate:
                raise ConfigurationError(
                    f"catalog has version {version}, this wal2lake writes version"
                    f" {schema.VERSION}",
                    hint="Stop the node, and start it with this version of wal2lake.",
                )
            self._migrate()

    def _attach(self, path: Path, warehouse: str) -> None:
        self._path = path
        self._warehouse = warehouse
        self._local = threading.local()

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._path

    @property
    def warehouse(self) -> str:
        """Path or URL of the warehouse, which has the tables."""
        return self._warehouse

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Yield this thread's connection, for a query."""
        with self._translated("read"):
            yield self._connection()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Run one transaction. At the end all of it is durable, or nothing has changed."""
        with self._translated("write"):
            connection = self._connection()
            connection.execute("begin immediate")
            try:
                yield connection
                connection.execute(
                    "update meta set value = value + 1 where key = 'counter'"
                )
                connection.execute("commit")
                self._local.written = self.written + 1
            except BaseException:
                # SQLite has rolled back already after some errors, for instance a full disk.
                if connection.in_transaction:
                    connection.execute("rollback")
                raise

    @contextmanager
    def copied_to(self, target: Path) -> Iterator[None]:
        """Copy the file to ``target``, durably, and keep everybody from writing while the block
        runs: until its end the copy is the catalog as it is."""
        with self._translated("copy"):
            # SQLite would make it with the umask's mode.
            target.touch(0o600)
            holder = self._connection()
            holder.execute("begin immediate")
            try:
                source = sqlite3.connect(self._path, timeout=BUSY_TIMEOUT_SECONDS)
                copy = sqlite3.connect(target)
                try:
                    # Readers of a file in WAL mode do not wait for its writer.
                    source.backup(copy)
                finally:
                    copy.close()
                    source.close()
                yield
            finally:
                holder.execute("rollback")

    @property
    def written(self) -> int:
        """Number of transactions that this thread has committed."""
        return int(getattr(self._local, "written", 0))

    def meta(self, key: str) -> str:
        """Return a value of the table ``meta``."""
        with self.reading() as connection:
            rows = connection.execute("select value from meta where key = ?", (key,))
            return str(rows.fetchone()[0])

    def close(self) -> None:
        """Close this thread's connection."""
        connection = getattr(self._local, "connection", None)
        if connection is not None:
            connection.close()
            del self._local.connection
            del self._local.owner

    def _connection(
        self, factory: type[places.PlacedConnection] = places.PlacedConnection
    ) -> sqlite3.Connection:
        owner = (os.getpid(), threading.get_ident())
        if getattr(self._local, "owner", None) != owner:
            connection = sqlite3.connect(
                self._path,
                timeout=self._busy_timeout_seconds,
                isolation_level=None,
                check_same_thread=False,
                factory=factory,
            )
            connection.warehouse = self._warehouse
            connection.row_factory = sqlite3.Row
            connection.execute("pragma synchronous = full")
            connection.execute("pragma foreign_keys = on")
            self._local.connection = connection
            self._local.owner = owner
        open_connection: sqlite3.Connection = self._local.connection
        return open_connection

    def _migrate(self) -> None:
        """Upgrade to the present version, in one transaction. Another process may have done it
        already."""
        with self.transaction() as connection:
            for version in range(int(self.meta("version")) + 1, schema.VERSION + 1):
                _run(connection, schema.MIGRATIONS[version])
                if version == places.RELATIVE_SINCE:
                    places.make_relative(connection, self._warehouse)
            connection.execute(
                "update meta set value = ? where key = 'version'",
                (str(schema.VERSION),),
            )

    @contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        try:
            yield
        except OverflowError as error:
            raise UsageError(
                "value is out of range for the node's catalog",
                sqlstate="22003",
                detail="The largest LSN is 7FFFFFFF/FFFFFFFF.",
            ) from error
        except sqlite3.DatabaseError as error:
            code = getattr(error, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & _PRIMARY
            if code in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_CONSTRAINT):
                raise
            full = code == sqlite3.SQLITE_FULL
            raise StorageError(
                f'could not {action} catalog "{self._path}": {_reason(code)}',
                sqlstate="53100" if full else "58030",
                hint="Free space on the file system of the node's directory."
                if full
                else "Check the file system of the node's directory.",
                original=words_of(error),
            ) from error


def _reason(code: int) -> str:
    """Return the operating system's text for SQLite's error code."""
    if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
        return "the file is damaged"
    if code == sqlite3.SQLITE_CANTOPEN:
        return "it cannot be opened"
    return os.strerror(_ERRNO.get(code, errno.EIO))


_ERRNO: Final = {
    sqlite3.SQLITE_BUSY: errno.EBUSY,
    sqlite3.SQLITE_FULL: errno.ENOSPC,
    sqlite3.SQLITE_LOCKED: errno.EBUSY,
    sqlite3.SQLITE_NOMEM: errno.ENOMEM,
    sqlite3.SQLITE_PERM: errno.EACCES,
    sqlite3.SQLITE_READONLY: errno.EROFS,
}


def create_database(path: Path, superuser: str, password: str | None) -> None:
    """Create a file with its tables, its first role and schema public."""
    connection = sqlite3.connect(path, isolation_level=None)
    try:
        path.chmod(0o600)
        connection.execute("pragma journal_mode = wal")
        connection.execute("pragma synchronous = full")
        connection.execute("begin")
        _run(connection, schema.DDL)
        connection.executemany(
            "insert into meta (key, value) values (?, ?)",
            [
                ("version", str(schema.VERSION)),
                ("next_oid", str(schema.FIRST_OID)),
                ("counter", "1"),
                ("system_identifier", str(_new_system_identifier())),
                ("created_at", datetime.now(UTC).isoformat()),
            ],
        )
        connection.execute(
            "insert into role (oid, name, superuser, password) values (?, ?, 1, ?)",
            (BOOTSTRAP_SUPERUSER, superuser, password),
        )
        connection.execute(
            "insert into namespace (oid, name, owner) values (?, 'public', ?)",
            (schema.PUBLIC_OID, BOOTSTRAP_SUPERUSER),
        )
        for script in schema.LATER:
            _run(connection, script)
        connection.execute("commit")
    finally:
        connection.close()


def _run(connection: sqlite3.Connection, script: str) -> None:
    """Run statements inside the open transaction, which executescript would end."""
    for statement in script.split(";"):
        if statement.strip():
            connection.execute(statement)


def take_oid(connection: sqlite3.Connection) -> Oid:
    """Take an OID that no object of this node had before, inside a transaction."""
    if isinstance(connection, BlockConnection):
        return connection.take_oid()
    row = connection.execute(
        "update meta set value = value + 1 where key = 'next_oid' returning value - 1"
    ).fetchone()
    return Oid(int(row[0]))


def _new_system_identifier() -> int:
    # As in PostgreSQL's BootStrapXLOG: seconds, microseconds and the process ID, so that nodes
    # created in the same second differ.
    now = datetime.now(UTC)
    return int(now.timestamp()) << 32 | now.microsecond << 12 | os.getpid() & 0xFFF
