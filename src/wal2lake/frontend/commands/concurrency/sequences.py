"""The values that one statement takes of sequences, and those that a session has taken.

How many rows an INSERT ... SELECT has is known behind it, so its values are not taken before, and
until then nobody else takes any of that sequence. What a statement has taken is not given back,
nor with a rollback: others may have taken later ones meanwhile.

Source: PostgreSQL manual, CREATE SEQUENCE, notes.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import TracebackType
from typing import Final

from wal2lake.catalog import Catalog, ColumnDef
from wal2lake.errors import UndefinedObjectError
from wal2lake.model import Oid
from wal2lake.pg import Check

_LOOK_SECONDS: Final = 0.05
"""How soon a wait is ended; a guess at what a person does not notice."""


class SequenceLocks:
    """One for each sequence of a node."""

    def __init__(self) -> None:
        self._locks: defaultdict[Oid, threading.RLock] = defaultdict(threading.RLock)
        self._guard = threading.Lock()

    def of(self, oid: Oid) -> threading.RLock:
        """The lock of one."""
        with self._guard:
            return self._locks[oid]


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
    """What a session has taken of sequences, for currval() and lastval()."""

    def __init__(self, catalog: Catalog, locks: SequenceLocks) -> None:
        self.catalog = catalog
        self.locks = locks
        self.forget()

    def of_statement(self, check: Check) -> StatementSequences:
        """For one statement; ``check``, called while somebody else has a sequence, ends the
        wait."""
        return StatementSequences(self, check)

    def forget(self) -> None:
        """DISCARD SEQUENCES."""
        self.values: dict[Oid, int] = {}
        self.last: Oid | None = None

    def took(self, oid: Oid, value: int) -> None:
        """By nextval(), or by an INSERT."""
        self.values[oid] = value
        self.last = oid

    def was_set(self, oid: Oid, value: int) -> None:
        """By setval(), after which lastval() is still of what was taken last."""
        self.values[oid] = value


class StatementSequences:
    """A context manager around one statement; ``NextValues`` of its translation."""

    def __init__(self, session: SessionSequences, check: Check) -> None:
        self._session = session
        self._catalog = session.catalog
        self._locks = session.locks
        self._check = check
        self._held = ExitStack()
        self._open: dict[Oid, int] = {}
        """The step of each of which as many are taken as there will be rows."""

    def __enter__(self) -> StatementSequences:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._held.close()

    def __call__(self, column: ColumnDef, count: int | None) -> tuple[int, int]:
        """See ``query.writes.NextValues``."""
        found = {one.oid: one for one in self._catalog.sequences()}
        assert column.sequence is not None
        one = found.get(column.sequence)
        if one is None:
            # Its column has just been dropped.
            raise UndefinedObjectError(
                f'column "{column.name}" does not exist', sqlstate="42703"
            )
        with ExitStack() as taken:
            taken.enter_context(held(self._locks.of(one.oid), self._check))
            if count is not None:
                first = self._catalog.next_values(one.oid, count)
                self._session.took(one.oid, first + (count - 1) * one.increment)
                return first, one.increment
            first = self._catalog.next_value(one.oid)
            self._held.enter_context(taken.pop_all())
        self._open[one.oid] = one.increment
        return first, one.increment

    def finish(self, rows: int) -> None:
        """The statement has written so many, and nothing is committed yet. 2200H if a sequence
        has not so many values."""
        for oid, increment in self._open.items() if rows else ():
            first = self._catalog.next_values(oid, rows)
            self._session.took(oid, first + (rows - 1) * increment)
        self._open.clear()
