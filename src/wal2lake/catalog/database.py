"""The SQLite file: connections, transactions, the counter of changes, new OIDs.

In: a path. Out: a connection of the calling thread to read from, or a transaction on it that is
durable when it has ended (synchronous=FULL) and has moved the counter. A connection belongs to
the thread that made it and never crosses a fork. Called by ``store`` only.

Here SQLite's errors become ``StorageError``: 53100 if the disk is full, 58030 for the rest, all of
which may pass by themselves. A statement that is wrong, or that breaks a constraint nobody has
asked for, is our own bug and keeps SQLite's class. A number beyond 64 bits with a sign can only be
an LSN that somebody has made up: 22003.
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

_BUSY_TIMEOUT_SECONDS: Final = 30.0

_PRIMARY: Final = 0xFF
"""SQLite's extended result codes have the primary one in the lowest byte."""


class OidsWanted(Exception):
    """A change of a transaction block needs one more OID than it has been given."""


class BlockConnection(places.PlacedConnection):
    """Connection of a transaction block, whose changes are made several times with the same
    OIDs."""

    _oids: Iterator[Oid] = iter(())

    @contextmanager
    def giving(self, oids: Iterable[Oid]) -> Iterator[None]:
        """Within, these are what ``take_oid`` takes."""
        self._oids = iter(oids)
        try:
            yield
        finally:
            self._oids = iter(())

    def take_oid(self) -> Oid:
        """The next one; raises OidsWanted."""
        found = next(self._oids, None)
        if found is None:
            raise OidsWanted
        return found


class Database:
    """One catalog file, as one process uses it."""

    def __init__(
        self, path: Path, warehouse: str | None = None, *, migrate: bool = False
    ) -> None:
        """Open an existing file; ConfigurationError if missing or of another version. An
        older one becomes today's if the caller may ``migrate`` it: nobody else has it open.

        ``warehouse``: what locations are relative to, a path or a URL without a slash at its
        end; None: ``warehouse`` beside the file, where a node has it by default."""
        self._attach(path, warehouse or str(path.absolute().parent / "warehouse"))
        if not path.exists():
            raise ConfigurationError(
                f'catalog "{path}" does not exist',
                hint="Run wal2lake init, or check the directory given with -D.",
            )
        found = self.meta("version")
        if int(found) > schema.VERSION:
            raise ConfigurationError(
                f"catalog has version {found}, this wal2lake reads up to"
                f" {schema.VERSION}",
                hint="Install the wal2lake version that wrote it, or a later one.",
            )
        if int(found) < schema.VERSION:
            if not migrate:
                raise ConfigurationError(
                    f"catalog has version {found}, this wal2lake writes version"
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
        """Where tables are."""
        return self._warehouse

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """This thread's connection, for a query."""
        with self._translated("read"):
            yield self._connection()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """One transaction: all of it is durable at the end, or none of it happened."""
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
                # SQLite has rolled back already after some errors, a full disk among them.
                if connection.in_transaction:
                    connection.execute("rollback")
                raise

    @property
    def written(self) -> int:
        """How many transactions this thread has committed."""
        return int(getattr(self._local, "written", 0))

    def meta(self, key: str) -> str:
        """One fact about the catalog itself."""
        with self.reading() as connection:
            found = connection.execute("select value from meta where key = ?", (key,))
            return str(found.fetchone()[0])

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
                timeout=_BUSY_TIMEOUT_SECONDS,
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
        found: sqlite3.Connection = self._local.connection
        return found

    def _migrate(self) -> None:
        """To today's version, in one transaction; another process may have come first."""
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
    """The operating system's text for the error code of the embedded database."""
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
    """Make a new file with its tables, its first role and schema public."""
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
    """Statements, inside the transaction that is open (executescript would end it)."""
    for statement in script.split(";"):
        if statement.strip():
            connection.execute(statement)


def take_oid(connection: sqlite3.Connection) -> Oid:
    """A number that no object of this node had before; part of a transaction."""
    if isinstance(connection, BlockConnection):
        return connection.take_oid()
    row = connection.execute(
        "update meta set value = value + 1 where key = 'next_oid' returning value - 1"
    ).fetchone()
    return Oid(int(row[0]))


def _new_system_identifier() -> int:
    # As PostgreSQL's BootStrapXLOG: seconds, microseconds and the process id, so
    # that two nodes made in the same second still differ.
    now = datetime.now(UTC)
    return int(now.timestamp()) << 32 | now.microsecond << 12 | os.getpid() & 0xFFF
