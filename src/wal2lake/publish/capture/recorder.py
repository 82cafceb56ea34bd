"""Writes transactions of tables' commits to the publisher's log.

    CapturedTransaction ──▶ a subscription's batch? ──▶ its publisher's transactions (``cascading``)
                        ──▶ statements in a file?   ──▶ the changes of each statement
                        ──▶ otherwise               ──▶ the difference that the commits make

In: a transaction (``ordering``), definitions of the tables, the log's writer. Out: the transaction
in the log, or ``UnreadableCommitError`` if a commit can never be read.

Called by ``step``, in the capture thread.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Final

from wal2lake.catalog import Catalog, TableDef
from wal2lake.changelog import TwoPhase
from wal2lake.errors import (
    CorruptLogError,
    Retry,
    StorageError,
    Wal2LakeError,
    words_of,
)
from wal2lake.lake import DataFile, TablePort, TableState
from wal2lake.lake.capture import (
    ComparisonMemory,
    Emitted,
    NotAsSent,
    TableCommit,
    most_changes,
    read_commit,
    row_changes,
)
from wal2lake.lake.upsert import StoredRows
from wal2lake.model import Oid, Relation
from wal2lake.observe import get_logger
from wal2lake.publish.capture.cascading.cascade import Cascade
from wal2lake.publish.capture.cascading.handing import HandingOn, OtherwisePrepared
from wal2lake.publish.capture.ordering import CapturedTransaction
from wal2lake.publish.capture.relations import key_of, relation_of
from wal2lake.publish.capture.requests import Preparation
from wal2lake.publish.capture.statementchanges import Statements, count_of
from wal2lake.publish.capture.writer import Change, PublisherLogWriter

_ATTEMPTS: Final = 3
"""Attempts at a commit that cannot be read for an unexpected reason."""

_EPOCH_MS: Final = 946_684_800_000
"""2000-01-01 UTC, in milliseconds since 1970."""

_GONE: Final = "Its log or its files were removed (VACUUM) before they were read."


class UnreadableCommitError(StorageError):
    """Raised if a commit, or one of its files, was removed or is not as expected."""

    def __init__(
        self, table: TableDef, version: int, detail: str, original: str | None = None
    ) -> None:
        super().__init__(
            f'version {version} of table "{table.qualified}" cannot be captured',
            sqlstate="58P01",
            detail=detail,
            hint="Drop the slots that were invalidated, and copy the tables again.",
            original=original,
        )
        self.table = table


class TransactionRecorder:
    """Writes captured transactions of one node. Used by the capture thread."""

    def __init__(
        self,
        catalog: Catalog,
        tables: TablePort,
        memory: ComparisonMemory,
        statements: Statements,
        cascade: Cascade,
        handing: HandingOn,
    ) -> None:
        self._catalog = catalog
        self._tables = tables
        self._memory = memory
        self._statements = statements
        self._cascade = cascade
        self._handing = handing
        self._failed: Counter[tuple[Oid, int]] = Counter()
        """Failed attempts to read a commit, by table and version."""
        self._used_statements: list[str] = []
        """Files of statements that are not needed once the log is sealed."""
        self._log = get_logger().bind(worker="capture")

    def forget(self) -> None:
        """Forget transactions that were added since the last seal: they are read again."""
        self._used_statements = []

    def drop_used_statements(self) -> None:
        """Remove the files of statements that are in the sealed log, or were never committed."""
        self._statements.drop(self._used_statements)
        self._used_statements = []
        self._statements.drop_left()

    def read_commits(self, table: TableDef, after: int, last: int) -> list[TableCommit]:
        """Read the commits of the versions above ``after`` that change rows."""
        commits = []
        read = self._tables.actions(table.location, after + 1, last)
        for version, actions in enumerate(read, after + 1):
            if not actions:
                raise UnreadableCommitError(table, version, _GONE)
            commit = read_commit(version, actions)
            if commit.changes_rows:
                commits.append(commit)
        return commits

    def record(
        self,
        transaction: CapturedTransaction,
        tables: Mapping[Oid, TableDef],
        writer: PublisherLogWriter,
    ) -> None:
        """Add a transaction to the log."""
        versions = {int(relid): commit.version for relid, commit in transaction.commits}
        if self._cascaded(transaction, tables, writer, versions):
            return
        if transaction.parts:
            # A table that is in two parts has two differences, one after the other.
            for part in transaction.parts:
                self.record(part, tables, writer)
            return
        self._withdraw(writer, [relid for relid, _ in transaction.commits])
        entries = self._by_statement(transaction, tables)
        time_us = transaction.origin_time_us
        if time_us is None:
            time_us = since_2000_us(transaction.time_ms)
        if entries is None:
            messages = transaction.messages
            changes = self._changes(transaction, tables, messages)
            at_most = self._at_most(transaction, tables) + len(messages)
        else:
            changes, at_most = iter(entries), count_of(entries)
        writer.transaction(
            time_us,
            transaction.origin,
            changes,
            at_most,
            versions,
            prepared=transaction.prepared,
            xid=transaction.xid,
        )

    def prepare(
        self,
        preparation: Preparation,
        tables: Mapping[Oid, TableDef],
        writer: PublisherLogWriter,
    ) -> TwoPhase:
        """Add a PREPARE to the log."""
        transaction = CapturedTransaction(
            tuple(c for c in preparation.commits if c[0] in tables), None
        )
        messages = preparation.messages
        return writer.prepare(
            preparation.number,
            preparation.gid,
            preparation.time_us,
            self._changes(transaction, tables, messages),
            self._at_most(transaction, tables) + len(messages),
            preparation.xid,
        )

    def read_statements(
        self,
        name: str,
        tables: Mapping[Oid, TableDef],
        emptied: Collection[Oid] = (),
    ) -> list[Change | Emitted] | None:
        """Return the changes of a transaction's statements, one after the other, from the file
        ``name``. ``emptied``: tables whose commit is a TRUNCATE. None if the file is missing or
        does not agree with the commits."""
        entries = self._statements.read(name) if name else None
        if entries is None:
            return None
        self._used_statements.append(name)
        truncated = {
            entry[0].relid
            for entry in entries
            if not isinstance(entry, Emitted) and isinstance(entry[1], int)
        }
        if not truncated <= set(emptied):
            # The commit was completed after a crash, and the table still has rows that another
            # writer had added meanwhile.
            return None
        return [
            (self.by_partition(tables[entry[0].relid], entry[0]), entry[1])
            if not isinstance(entry, Emitted) and entry[0].relid in tables
            else entry
            for entry in entries
        ]

    def by_partition(self, table: TableDef, relation: Relation) -> Relation:
        """Return the partition's relation for a partitioned table. As in PostgreSQL, the log has
        partitions; publications of the partitioned table are looked up when changes are sent."""
        if table.partition_key is None:
            return relation
        for partition in self._catalog.tables():
            if partition.partition_of == table.oid:
                return replace(
                    relation,
                    relid=partition.oid,
                    namespace=partition.namespace,
                    name=partition.name,
                )
        return relation

    # ---- a subscription's batch ------------------------------------------------------

    def _cascaded(
        self,
        transaction: CapturedTransaction,
        tables: Mapping[Oid, TableDef],
        writer: PublisherLogWriter,
        versions: Mapping[int, int],
    ) -> bool:
        """Add a subscription's batch as its publisher's transactions. Return False if that is not
        possible."""
        try:
            batch = self._cascade.read(transaction, tables, self.by_partition)
            if batch is None or transaction.origin is None:
                return False
            name, source = transaction.origin[0], transaction.source
            assert source is not None
            self._withdraw(
                writer, [relid for relid, _ in transaction.commits], source.subid
            )
            ends, batch = self._handing.ending(writer, source.subid, source.end, batch)
            writer.replay(batch.transactions, name, batch.changes, versions, ends)
        except OtherwisePrepared as different:
            for handed_on in different.transactions:
                writer.withdraw(handed_on, since_2000_us())
            return self._cascaded(transaction, tables, writer, versions)
        except NotAsSent as reason:
            self._log.debug("a batch is sent on as one transaction", reason=str(reason))
            return False
        except CorruptLogError as error:
            # The subscription may remove applied segments at any time.
            self._log.debug("a batch is sent on as one transaction", error=error)
            return False
        except Exception as error:
            # The tables are not in doubt, and their difference does not need the failed files.
            reported = error if isinstance(error, Wal2LakeError) else None
            self._log.warning(
                "a batch is sent on as one transaction, because its log cannot be read",
                error=reported,
                exc_info=None if reported else error,
            )
            return False
        return True

    def _withdraw(
        self,
        writer: PublisherLogWriter,
        tables: Sequence[Oid],
        subid: Oid | None = None,
    ) -> None:
        """Roll back what other subscriptions than ``subid`` have handed on for the tables."""
        for handed_on in self._handing.in_the_way(writer, tables, subid):
            writer.withdraw(handed_on, since_2000_us())

    # ---- statements, or the difference -----------------------------------------------

    def _by_statement(
        self, transaction: CapturedTransaction, tables: Mapping[Oid, TableDef]
    ) -> list[Change | Emitted] | None:
        """Return the changes of the transaction's statements, if they were written to a file."""
        names = (commit.remarks.statements for _, commit in transaction.commits)
        emptied = {relid for relid, commit in transaction.commits if commit.truncates}
        name = next((name for name in names if name), "")
        return self.read_statements(name, tables, emptied)

    def _changes(
        self,
        transaction: CapturedTransaction,
        tables: Mapping[Oid, TableDef],
        messages: Sequence[Emitted],
    ) -> Iterator[Change | Emitted]:
        """Yield the difference that a transaction makes. Messages come first, because their place
        among the changes is not known."""
        yield from messages
        parts, truncated = [], []
        for relid, commit in transaction.commits:
            table = self._catalog.table_at(tables[relid], commit.version)
            with self._reading(table, commit):
                state = self._tables.state_at(table.location, commit.version)
            relation = self.by_partition(table, relation_of(table, state))
            if commit.truncates:
                truncated.append((relation, commit.remarks.truncate_options))
            parts.append((table, commit, state, relation))
        # TRUNCATEs of all tables come first: those with equal options are one for subscribers.
        yield from sorted(truncated, key=lambda truncation: truncation[1])
        for table, commit, state, relation in parts:
            key = key_of(table, relation)
            with self._reading(table, commit):
                for batch in row_changes(state, commit, relation, key, self._memory):
                    yield relation, batch

    def _at_most(
        self, transaction: CapturedTransaction, tables: Mapping[Oid, TableDef]
    ) -> int:
        """Return the maximum number of changes of a transaction."""
        count = 0
        for relid, commit in transaction.commits:
            table = self._catalog.table_at(tables[relid], commit.version)
            with self._reading(table, commit):
                state = self._tables.state_at(table.location, commit.version)
                count += most_changes(commit, partial(_count, state))
        return count

    @contextmanager
    def _reading(self, table: TableDef, commit: TableCommit) -> Iterator[None]:
        """Surround the reading of a commit. Raises UnreadableCommitError if a retry cannot succeed.

        An unexpected error (a foreign writer's types, a bug) is retried a few times, because one
        table must not hold up all others for good."""
        try:
            yield
        except Exception as error:
            if is_gone(error):
                raise UnreadableCommitError(table, commit.version, _GONE) from error
            if isinstance(error, OSError | MemoryError):
                raise
            if isinstance(error, Wal2LakeError) and error.retry is Retry.LATER:
                raise
            key = table.oid, commit.version
            self._failed[key] += 1
            if self._failed[key] < _ATTEMPTS:
                raise
            is_ours = isinstance(error, Wal2LakeError)
            detail = f"Reading it failed {_ATTEMPTS} times"
            raise UnreadableCommitError(
                table,
                commit.version,
                f"{detail}: {error}." if is_ours else f"{detail}.",
                words_of(error),
            ) from error


def since_2000_us(time_ms: int | None = None) -> int:
    """Convert milliseconds since 1970 to microseconds since 2000-01-01 UTC; None: now."""
    if time_ms is None:
        time_ms = int(time.time() * 1000)
    return (time_ms - _EPOCH_MS) * 1000


def _count(state: TableState, file: DataFile) -> int:
    return StoredRows(state, [file]).count()


def is_gone(error: BaseException | None) -> bool:
    """Whether an error says that a file was removed, not that it is out of reach for now."""
    while error is not None:
        if isinstance(error, FileNotFoundError):
            return True
        if isinstance(error, StorageError) and error.sqlstate == "58P01":
            return True
        error = error.__cause__
    return False
