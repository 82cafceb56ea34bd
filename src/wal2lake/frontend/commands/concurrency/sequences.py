"""The values that one statement takes of sequences.

How many rows an INSERT ... SELECT has is known behind it, so its values are not taken before, and
until then nobody else takes any of that sequence. What a statement has taken is not given back,
nor with a rollback: others may have taken later ones meanwhile.

Source: PostgreSQL manual, CREATE SEQUENCE, notes.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from contextlib import ExitStack
from types import TracebackType
from typing import Final

from wal2lake.catalog import Catalog, ColumnDef
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


class StatementSequences:
    """A context manager around one statement; ``NextValues`` of its translation."""

    def __init__(self, catalog: Catalog, locks: SequenceLocks, check: Check) -> None:
        """``check``, called while somebody else has a sequence, ends the wait."""
        self._catalog = catalog
        self._locks = locks
        self._check = check
        self._held = ExitStack()
        self._open: set[Oid] = set()

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
        one = found[column.sequence]
        lock = self._locks.of(one.oid)
        while not lock.acquire(timeout=_LOOK_SECONDS):
            self._check()
        with ExitStack() as taken:
            taken.callback(lock.release)
            if count is not None:
                return self._catalog.next_values(one.oid, count), one.increment
            first = self._catalog.next_value(one.oid)
            self._held.enter_context(taken.pop_all())
        self._open.add(one.oid)
        return first, one.increment

    def finish(self, rows: int) -> None:
        """The statement has written so many, and nothing is committed yet. 2200H if a sequence
        has not so many values."""
        for oid in self._open if rows else ():
            self._catalog.next_values(oid, rows)
        self._open.clear()
