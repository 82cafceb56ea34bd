"""The values that statements take of sequences, those that a session has taken, and what TRUNCATE
... RESTART IDENTITY does.

How many rows an INSERT ... SELECT has is known behind it, so its values are not taken before, and
until then nobody else takes any of that sequence. What a statement has taken is not given back,
nor with a rollback: others may have taken later ones meanwhile.

A restart is its transaction's alone until it commits; then the sequence is where that transaction
has left it. Whoever has taken values before and has not committed cannot any more: they would be
given again. A transaction is told so (40001); a batch of apply meets another version of its table
than the one that it has looked at, for there is no restart without a TRUNCATE; a copy, whose rows
are in files that a crash leaves, begins anew.

Source: PostgreSQL manual, CREATE SEQUENCE, notes; TRUNCATE, notes; ResetSequence() in sequence.c.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final

from wal2lake.catalog import Catalog, ColumnDef, OwnedSequence, TableDef
from wal2lake.errors import UndefinedObjectError
from wal2lake.lake import CommitConflict
from wal2lake.model import Oid
from wal2lake.pg import Check
from wal2lake.sql.query.writes import SequenceRange

_LOOK_SECONDS: Final = 0.05
"""How soon a wait is ended; a guess at what a person does not notice."""


class SequenceLocks:
    """One for each sequence of a node; and how often each was restarted since the engine began,
    which no transaction outlives."""

    def __init__(self) -> None:
        self._locks: defaultdict[Oid, threading.RLock] = defaultdict(threading.RLock)
        self._guard = threading.Lock()
        self.restarts: Counter[Oid] = Counter()
        """Counted behind each, under the lock of the sequence's table."""

    def of(self, oid: Oid) -> threading.RLock:
        """The lock of one."""
        with self._guard:
            return self._locks[oid]


@dataclass(frozen=True, slots=True)
class Restarted:
    """A sequence as its transaction has it."""

    sequence: OwnedSequence
    found: int | None
    """The last value that had been taken of it when it was restarted."""
    last: int | None = None
    """The same, since."""


class TransactionSequences:
    """Sequences as one transaction uses them. For its session's thread."""

    def __init__(
        self,
        catalog: Catalog,
        locks: SequenceLocks,
        copies: Callable[[TableDef], Collection[tuple[Oid, Oid]]],
        check: Check = lambda: None,
    ) -> None:
        """``copies``: those under way into a table, by subscription and table, asked under its
        locks; ``check``, called while somebody else has a sequence, ends the wait."""
        self._catalog = catalog
        self._copies = copies
        self._check = check
        self._tables: dict[Oid, TableDef] = {}
        """Tables whose sequences the transaction has restarted."""
        self.locks = locks
        self._restarted: dict[Oid, Restarted] = {}
        self._taken: dict[Oid, int] = {}
        """Sequences of which values were taken, with how often each had been restarted before."""

    @property
    def has_restarted(self) -> bool:
        """A commit has to set sequences."""
        return bool(self._restarted)

    def restart(
        self, tables: Sequence[TableDef], until_the_commit: ExitStack | None = None
    ) -> None:
        """Restart the tables' sequences for the rest of the transaction. ``until_the_commit``: the
        TRUNCATE is about to commit by itself, and nobody may take values from then until
        ``settled``."""
        owners = {table.oid: table for table in tables}
        for one in self._catalog.sequences():
            if one.relid in owners:
                if until_the_commit is not None:
                    lock = self.locks.of(one.oid)
                    until_the_commit.enter_context(held(lock, self._check))
                self._tables[one.relid] = owners[one.relid]
                known = self._restarted.get(one.oid)
                found = (
                    self._catalog.last_value(one.oid) if known is None else known.found
                )
                self._restarted[one.oid] = Restarted(one, found)

    def take(self, one: OwnedSequence, count: int) -> int:
        """The first of the next values. 2200H if there are not so many."""
        restarted = self._restarted.get(one.oid)
        if restarted is None:
            self._taken.setdefault(one.oid, self.locks.restarts[one.oid])
            return self._catalog.next_values(one.oid, count)
        first, last = one.behind(restarted.last, count)
        self._restarted[one.oid] = replace(restarted, last=last)
        return first

    def peek(self, one: OwnedSequence) -> SequenceRange:
        """Return the values that would be taken next."""
        restarted = self._restarted.get(one.oid)
        if restarted is None:
            # Rows have these values before they are taken.
            self._taken.setdefault(one.oid, self.locks.restarts[one.oid])
            return _next_ones(one, self._catalog.last_value(one.oid))
        return _next_ones(one, restarted.last)

    def mark(self) -> dict[Oid, Restarted]:
        """Return a mark for ``back_to``."""
        return dict(self._restarted)

    def back_to(self, mark: dict[Oid, Restarted]) -> None:
        """ROLLBACK TO. What was taken of a sequence that others see stays taken."""
        self._restarted = dict(mark)

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Around the commit, under the locks of its tables. 40001 if values that were taken are
        given again, or others have taken some of what this has restarted."""
        with ExitStack() as alone:
            # What a batch takes in between would be of before the restart, and its table's version
            # of behind it.
            for oid in sorted(self._restarted):
                alone.enter_context(held(self.locks.of(oid), self._check))
            yield from self._settled()

    def _settled(self) -> Iterator[None]:
        for oid, restarts in self._taken.items():
            if self.locks.restarts[oid] != restarts:
                raise _conflict("A sequence has been restarted since.")
        for oid, one in self._restarted.items():
            if self._catalog.last_value(oid) != one.found:
                raise _conflict(
                    f'Others have taken values of sequence "{one.sequence.name}".'
                )
        yield
        if not self._restarted:
            return
        relids = {one.sequence.relid for one in self._restarted.values()}
        self._catalog.restart_sequences(
            {oid: one.last for oid, one in self._restarted.items()},
            {copy for relid in relids for copy in self._copies(self._tables[relid])},
        )
        # Behind it: who takes a value in between has one too few, and fails.
        self.locks.restarts.update(self._restarted.keys())


def _next_ones(one: OwnedSequence, last: int | None) -> SequenceRange:
    return SequenceRange(
        one.next_of(last), one.increment, one.left(last), one.exhausted
    )


def _conflict(detail: str) -> CommitConflict:
    return CommitConflict(
        "could not serialize access due to concurrent update",
        detail=detail,
        hint="The transaction might succeed if retried.",
    )


@contextmanager
def held(lock: threading.RLock, check: Check) -> Iterator[None]:
    """Have it; ``check``, called while somebody else has it, ends the wait."""
    while not lock.acquire(timeout=_LOOK_SECONDS):
        check()
    try:
        yield
    finally:
        lock.release()


class SessionSequences:
    """Values that a session has taken of sequences, for currval() and lastval()."""

    def __init__(
        self,
        catalog: Catalog,
        locks: SequenceLocks,
        transaction: Callable[[], TransactionSequences],
    ) -> None:
        """``transaction``: the one that it has now."""
        self.catalog = catalog
        self.locks = locks
        self.transaction = transaction
        self.forget()

    def of_statement(self, check: Check) -> StatementSequences:
        """For one statement; ``check``, called while somebody else has a sequence, ends the
        wait."""
        return StatementSequences(self, check)

    def forget(self) -> None:
        """DISCARD SEQUENCES."""
        self.values: dict[Oid, int] = {}
        self.last: Oid | None = None

    def take(self, one: OwnedSequence, count: int) -> int:
        """The first of the next values, by nextval() or an INSERT. 2200H if there are not so
        many."""
        first = self.transaction().take(one, count)
        self.values[one.oid] = first + (count - 1) * one.increment
        self.last = one.oid
        return first

    def was_set(self, oid: Oid, value: int) -> None:
        """By setval(), after which lastval() is still of what was taken last."""
        self.values[oid] = value


class StatementSequences:
    """A context manager around one statement; ``NextValues`` of its translation."""

    def __init__(self, session: SessionSequences, check: Check) -> None:
        self._session = session
        self._check = check
        self._held = ExitStack()
        self._open: dict[Oid, OwnedSequence] = {}
        """Sequences of which as many values are taken as there will be rows."""

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
        """Take values; ``query.writes.NextValues`` explains it."""
        session = self._session
        found = {one.oid: one for one in session.catalog.sequences()}
        assert column.sequence is not None
        one = found.get(column.sequence)
        if one is None:
            # Its column has just been dropped.
            raise UndefinedObjectError(
                f'column "{column.name}" does not exist', sqlstate="42703"
            )
        with ExitStack() as taken:
            taken.enter_context(held(session.locks.of(one.oid), self._check))
            if count is not None:
                first = session.take(one, count)
                return SequenceRange(first, one.increment, count, one.exhausted)
            left = session.transaction().peek(one)
            self._held.enter_context(taken.pop_all())
        self._open[one.oid] = one
        return left

    def finish(self, rows: int) -> None:
        """The statement has written so many, and nothing is committed yet. 2200H if a sequence
        has not so many values."""
        for one in self._open.values() if rows else ():
            self._session.take(one, rows)
        self._open.clear()
