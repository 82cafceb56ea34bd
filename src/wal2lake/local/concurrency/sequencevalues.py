"""Sequence values that statements take, values that a session has taken, and TRUNCATE ... RESTART
IDENTITY.

The number of rows of an INSERT ... SELECT is known only afterwards. Its values are taken then, and
until then nobody else takes values of the sequence. Taken values are not returned, not even by a
rollback, because others may have taken later ones.

A restart is visible to its transaction only, until it commits. Then the sequence continues where
the transaction left it. An uncommitted transaction that took values before the restart must not
commit, because they will be given again. A local transaction gets 40001. A batch of apply finds its
table at another version than it read, since a restart implies a TRUNCATE. A copy, whose rows are in
files that survive a crash, starts again.

Source: PostgreSQL manual, CREATE SEQUENCE, notes; TRUNCATE, notes; ResetSequence() in sequence.c.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final

from wal2lake.catalog import Catalog, ColumnDef, OwnedSequence, TableDef
from wal2lake.errors import UndefinedObjectError
from wal2lake.lake import CommitConflict
from wal2lake.model import Oid
from wal2lake.observe import KeyedLocks, LockRank, OrderedLock
from wal2lake.pg import Check
from wal2lake.sql.query.changes.stored import SequenceRange

_LOOK_SECONDS: Final = 0.05
"""How soon a wait notices its end. Chosen arbitrarily, too short for a user to notice."""


class SequenceLocks:
    """The locks of a node's sequences, and the number of restarts of each.

    The numbers count from the engine's start, which no transaction survives."""

    def __init__(self) -> None:
        self._locks: KeyedLocks[Oid] = KeyedLocks(LockRank.SEQUENCE)
        self.restarts: Counter[Oid] = Counter()
        """Increased after each restart, under the lock of the sequence's table."""

    def of(self, oid: Oid) -> OrderedLock:
        """Return the lock of a sequence."""
        return self._locks.of(oid)


@dataclass(frozen=True, slots=True)
class Restarted:
    """The state of a sequence in the transaction that restarted it."""

    sequence: OwnedSequence
    replaced_value: int | None
    """The last value that had been taken before the restart."""
    last: int | None = None
    """The last value taken since the restart."""


class TransactionSequences:
    """The sequences that one transaction uses. Used by its session's thread only."""

    def __init__(
        self,
        catalog: Catalog,
        locks: SequenceLocks,
        copies: Callable[[TableDef], Collection[tuple[Oid, Oid]]],
        check: Check = lambda: None,
    ) -> None:
        """Prepare for one transaction.

        ``copies``: returns the running copies into a table, by subscription and table; needs the
        table's locks. ``check``: called during a wait for a sequence, ends it by raising."""
        self.catalog = catalog
        self._copies = copies
        self._check = check
        self._tables: dict[Oid, TableDef] = {}
        """Tables whose sequences the transaction has restarted."""
        self.locks = locks
        self._restarted: dict[Oid, Restarted] = {}
        self._taken: dict[Oid, int] = {}
        """Sequences whose values were taken, with their number of restarts before."""

    def see(self, catalog: Catalog) -> None:
        """Find sequences in ``catalog`` from now on."""
        self.catalog = catalog

    @property
    def has_restarted(self) -> bool:
        """True if a commit has to set sequences."""
        return bool(self._restarted)

    def restart(
        self, tables: Sequence[TableDef], until_the_commit: ExitStack | None = None
    ) -> None:
        """Restart the tables' sequences for the rest of the transaction.

        ``until_the_commit`` is given if the TRUNCATE commits by itself: it gets the sequences'
        locks, so that nobody takes values before ``settled``."""
        owners = {table.oid: table for table in tables}
        for sequence in self.catalog.sequences():
            if sequence.relid in owners:
                if until_the_commit is not None:
                    lock = self.locks.of(sequence.oid)
                    until_the_commit.enter_context(held(lock, self._check))
                self._tables[sequence.relid] = owners[sequence.relid]
                earlier = self._restarted.get(sequence.oid)
                last_value = (
                    self.catalog.last_value(sequence.oid)
                    if earlier is None
                    else earlier.replaced_value
                )
                self._restarted[sequence.oid] = Restarted(sequence, last_value)

    def take(self, sequence: OwnedSequence, count: int) -> int:
        """Take values and return the first; 2200H if there are not enough."""
        restarted = self._restarted.get(sequence.oid)
        if restarted is None:
            self._taken.setdefault(sequence.oid, self.locks.restarts[sequence.oid])
            return self.catalog.next_values(sequence.oid, count)
        first, last = sequence.behind(restarted.last, count)
        self._restarted[sequence.oid] = replace(restarted, last=last)
        return first

    def peek(self, sequence: OwnedSequence) -> SequenceRange:
        """Return the values that would be taken next."""
        restarted = self._restarted.get(sequence.oid)
        if restarted is None:
            # Rows get these values before they are taken.
            self._taken.setdefault(sequence.oid, self.locks.restarts[sequence.oid])
            return _next_ones(sequence, self.catalog.last_value(sequence.oid))
        return _next_ones(sequence, restarted.last)

    def mark(self) -> dict[Oid, Restarted]:
        """Return a mark for ``back_to``."""
        return dict(self._restarted)

    def back_to(self, mark: dict[Oid, Restarted]) -> None:
        """Undo restarts for ROLLBACK TO. Values taken from other sequences stay taken."""
        self._restarted = dict(mark)

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Check and set the sequences around the commit, under the locks of its tables.

        40001 if taken values will be given again, or if others have taken values of a sequence that
        this transaction has restarted."""
        with ExitStack() as alone:
            # A value that a batch takes in between would be from before the restart, while the
            # table's version would be from after it.
            for oid in sorted(self._restarted):
                alone.enter_context(held(self.locks.of(oid), self._check))
            yield from self._settled()

    def _settled(self) -> Iterator[None]:
        for oid, restarts in self._taken.items():
            if self.locks.restarts[oid] != restarts:
                raise _conflict("A sequence has been restarted since.")
        for oid, restarted in self._restarted.items():
            if self.catalog.last_value(oid) != restarted.replaced_value:
                raise _conflict(
                    f'Others have taken values of sequence "{restarted.sequence.name}".'
                )
        yield
        if not self._restarted:
            return
        relids = {restarted.sequence.relid for restarted in self._restarted.values()}
        self.catalog.restart_sequences(
            {oid: restarted.last for oid, restarted in self._restarted.items()},
            {copy for relid in relids for copy in self._copies(self._tables[relid])},
        )
        # Counted last: a transaction that takes a value in between sees the old count and fails.
        self.locks.restarts.update(self._restarted.keys())


def _next_ones(sequence: OwnedSequence, last: int | None) -> SequenceRange:
    return SequenceRange(
        sequence.next_of(last),
        sequence.increment,
        sequence.left(last),
        sequence.exhausted,
    )


def _conflict(detail: str) -> CommitConflict:
    return CommitConflict(
        "could not serialize access due to concurrent update",
        detail=detail,
        hint="The transaction might succeed if retried.",
    )


@contextmanager
def held(lock: OrderedLock, check: Check) -> Iterator[None]:
    """Hold a lock; ``check`` is called during the wait, and ends it by raising."""
    while not lock.acquire(timeout=_LOOK_SECONDS):
        check()
    try:
        yield
    finally:
        lock.release()


class SessionSequences:
    """Values that a session has taken of sequences, for currval() and lastval()."""

    def __init__(
        self, locks: SequenceLocks, transaction: Callable[[], TransactionSequences]
    ) -> None:
        """``transaction``: returns the session's present transaction."""
        self.locks = locks
        self.transaction = transaction
        self.forget()

    def of_statement(self, check: Check) -> StatementSequences:
        """Return the sequences for one statement.

        ``check`` is called during a wait for a sequence, and ends it by raising."""
        return StatementSequences(self, check)

    def forget(self) -> None:
        """Forget all values, for DISCARD SEQUENCES."""
        self.values: dict[Oid, int] = {}
        self.last: Oid | None = None

    def take(self, sequence: OwnedSequence, count: int) -> int:
        """Take values for nextval() or an INSERT, and return the first.

        2200H if there are not enough."""
        first = self.transaction().take(sequence, count)
        self.values[sequence.oid] = first + (count - 1) * sequence.increment
        self.last = sequence.oid
        return first

    def was_set(self, oid: Oid, value: int) -> None:
        """Note a setval(). lastval() still returns the value taken last."""
        self.values[oid] = value


class StatementSequences:
    """A context manager around one statement, and the ``NextValues`` of its translation."""

    def __init__(self, session: SessionSequences, check: Check) -> None:
        self._session = session
        self._check = check
        self._held = ExitStack()
        self._open: dict[Oid, OwnedSequence] = {}
        """Sequences of which one value is taken for each row, at the end."""

    def __enter__(self) -> StatementSequences:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held.close()

    def __call__(self, column: ColumnDef, count: int | None) -> SequenceRange:
        """Take values, as ``query.writes.NextValues`` specifies."""
        session = self._session
        catalog = session.transaction().catalog
        sequences = {sequence.oid: sequence for sequence in catalog.sequences()}
        assert column.sequence is not None
        sequence = sequences.get(column.sequence)
        if sequence is None:
            # The column has just been dropped.
            raise UndefinedObjectError(
                f'column "{column.name}" does not exist', sqlstate="42703"
            )
        with ExitStack() as taken:
            taken.enter_context(held(session.locks.of(sequence.oid), self._check))
            if count is not None:
                first = session.take(sequence, count)
                return SequenceRange(
                    first, sequence.increment, count, sequence.exhausted
                )
            values = session.transaction().peek(sequence)
            self._held.enter_context(taken.pop_all())
        self._open[sequence.oid] = sequence
        return values

    def finish(self, rows: int) -> None:
        """Take the values of the rows that the statement writes, before its commit.

        2200H if a sequence has not enough values. Later calls do nothing."""
        for sequence in self._open.values() if rows else ():
            self._session.take(sequence, rows)
        self._open.clear()
        self._held.close()
