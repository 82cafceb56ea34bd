"""The catalog as a transaction block sees it: the committed catalog with the block's changes.

In: calls of ``Catalog``'s methods. Out: their results. A method marked as a ``change`` is carried
out on the file; its result is kept, its effect is rolled back, and the call is recorded. Each later
call first makes the block's changes again, inside an SQLite transaction that ends with the call. So
the block holds no lock of the file between two statements, and other sessions' commits are neither
hidden nor overwritten. ``commit`` makes all changes in one durable transaction.

A change takes the same OIDs each time. They are taken from the file once, like values of a
sequence, so no other object gets them. Values of sequences that the block has made are kept here;
those of all other sequences are taken from the file.

Called by: ``local.transaction.definitions``, from the session's thread.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from wal2lake.catalog.database import BlockConnection, Database, OidsWanted
from wal2lake.catalog.objects import sequences
from wal2lake.catalog.published import local_commits
from wal2lake.catalog.records import TableChange
from wal2lake.catalog.store import Catalog
from wal2lake.errors import UsageError, Wal2LakeError
from wal2lake.model import Oid

_SERIALIZATION_FAILURE: Final = "40001"

_REFERENCES: Final = (
    ("subscription", "owner", "role", "oid"),
    ("subscription_rel", "relid", "relation", "oid"),
    ("publication", "owner", "role", "oid"),
    ("publication_rel", "relid", "relation", "oid"),
    ("publication_namespace", "nspid", "namespace", "oid"),
)
"""References that must still be valid at the commit. PostgreSQL locks their targets."""


@dataclass(slots=True)
class _Change:
    """A recorded call, which is repeated."""

    method: Callable[..., Any]
    arguments: Sequence[Any]
    named: Mapping[str, Any]
    oids: list[Oid] = field(default_factory=list)


class _BlockDatabase(Database):
    """One SQLite transaction around several of the catalog's methods."""

    def __init__(self, committed: Catalog, prepare: Callable[[], None]) -> None:
        """``prepare`` makes the block's changes at the beginning of each transaction."""
        self._attach(committed.path, committed.warehouse)
        self._prepare = prepare
        self._depth = 0

    @contextmanager
    def joined(self, *, keep: bool = False) -> Iterator[BlockConnection]:
        """Run a transaction with the block's changes, and commit it with ``keep``."""
        with self._translated("write"):
            connection = self.connection()
            connection.execute("begin immediate")
            self._depth += 1
            try:
                self._prepare()
                yield connection
                if keep:
                    connection.execute("commit")
            finally:
                self._depth -= 1
                if connection.in_transaction:
                    connection.execute("rollback")

    @contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        if self._depth:
            yield self.connection()
            return
        with self.joined() as connection:
            yield connection

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        assert self._depth, "not a change that a block can make"
        connection = self.connection()
        yield connection
        connection.execute("update meta set value = value + 1 where key = 'counter'")

    def connection(self) -> BlockConnection:
        """Return the session's connection."""
        connection = self._connection(BlockConnection)
        assert isinstance(connection, BlockConnection)
        return connection


class UncommittedCatalog(Catalog):
    """The catalog as a transaction block sees it. The module describes it."""

    def __init__(self, committed: Catalog) -> None:
        """``committed``: the catalog that other sessions see."""
        self._committed = committed
        self._changes: list[_Change] = []
        self._block = _BlockDatabase(committed, self._replay)
        self._database = self._block
        self._authority = self._feeds = None
        self.xids = committed.xids
        self._values: dict[Oid, tuple[int | None, bool]] = {}
        """For sequences that the block has made: the last or the next value."""

    def new_oids(self, count: int) -> list[Oid]:
        """Return new OIDs, which stay taken even if the block rolls back."""
        return self._committed.new_oids(count)

    def locations(self) -> frozenset[str]:
        """Return the locations of the block's tables and of those that other sessions see."""
        return super().locations() | self._committed.locations()

    def expect_deletes(self, made: Mapping[str, Oid]) -> None:
        """Record places at once, whatever becomes of the block."""
        self._committed.expect_deletes(made)

    def deleted(self, location: str) -> None:
        """Record at once that files are gone."""
        self._committed.deleted(location)

    # ---- sequences --------------------------------------------------------------

    def next_values(self, oid: Oid, count: int) -> int:
        """Take values of a sequence, as ``Catalog`` does."""
        if self._is_committed(oid):
            return self._committed.next_values(oid, count)
        with self._changing(oid) as connection:
            return sequences.take(connection, oid, count)

    def set_value(self, oid: Oid, value: int, *, is_called: bool) -> None:
        """Carry out setval(), as ``Catalog`` does."""
        if self._is_committed(oid):
            self._committed.set_value(oid, value, is_called=is_called)
            return
        with self._changing(oid) as connection:
            sequences.put(connection, oid, value, is_called)

    def restart_sequences(
        self, lasts: Mapping[Oid, int | None], voided: Collection[tuple[Oid, Oid]]
    ) -> None:
        """Set the values of sequences, as ``Catalog`` does, once the block has committed."""
        self._committed.restart_sequences(lasts, voided)

    def _is_committed(self, oid: Oid) -> bool:
        return any(sequence.oid == oid for sequence in self._committed.sequences())

    @contextmanager
    def _changing(self, oid: Oid) -> Iterator[BlockConnection]:
        with self._block.joined() as connection:
            yield connection
            self._values[oid] = sequences.state(connection, oid)

    # ---- the block --------------------------------------------------------------

    def mark(self) -> int:
        """Return a mark for ``back_to``."""
        return len(self._changes)

    def back_to(self, mark: int) -> None:
        """Forget the changes made since the mark."""
        del self._changes[mark:]
        self._authority = self._feeds = None

    def commit(
        self, number: int | None = None, tables: Sequence[TableChange] = ()
    ) -> None:
        """Make all changes durable and visible at once. Raises 40001 if other sessions' commits
        make one of them impossible.

        ``number``: the local commit that is decided with them, of ``tables`` as well."""
        with self._block.joined(keep=True) as connection:
            if _dangling(connection):
                raise _conflict("An object that it refers to has been dropped.")
            if number is not None:
                local_commits.decide(connection, number, tables)

    def _change(
        self, method: Callable[..., Any], arguments: Sequence[Any], named: Any
    ) -> Any:
        if self._block.connection().in_transaction:
            return method(self, *arguments, **named)
        change = _Change(method, arguments, named)
        while True:
            try:
                with self._block.joined():
                    result = self._make(change)
                break
            except OidsWanted:
                change.oids += self._committed.new_oids(len(change.oids) + 1)
        self._changes.append(change)
        return result

    def _make(self, change: _Change) -> Any:
        with self._block.connection().giving(change.oids):
            return change.method(self, *change.arguments, **change.named)

    def _replay(self) -> None:
        for change in self._changes:
            try:
                self._make(change)
            except Wal2LakeError as error:
                raise _conflict(f"{error}.".replace("..", ".")) from error
            except sqlite3.IntegrityError as error:
                raise _conflict(
                    "Another session has committed an object that is in the way."
                ) from error
        connection = self._block.connection()
        for oid, (value, is_called) in self._values.items():
            sequences.restore(connection, oid, value, is_called)


def _dangling(connection: sqlite3.Connection) -> bool:
    return any(
        connection.execute(
            f"select 1 from {table} where {column} not in"
            f" (select {target} from {referred})"
        ).fetchone()
        for table, column, referred, target in _REFERENCES
    )


def _conflict(detail: str) -> UsageError:
    return UsageError(
        "could not serialize access due to concurrent update",
        sqlstate=_SERIALIZATION_FAILURE,
        detail=detail,
        hint="The transaction might succeed if retried.",
    )
