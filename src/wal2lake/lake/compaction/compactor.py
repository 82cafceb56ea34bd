"""Compactions of all tables, written beside apply.

Comes in: locations of tables that have had many commits. Goes out: compactions that are written and
only have to be committed. Called by ``batches.py`` behind the commit of a batch, where nobody
else of the node is between two versions of the table: one from here costs it a commit of a few
milliseconds.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from wal2lake.lake.compaction.clustered import Left, cluster, worth_clustering
from wal2lake.lake.compaction.rewrite import Compaction, compact, worth_compacting
from wal2lake.lake.delta.log.beside import Beside
from wal2lake.lake.port import TableState
from wal2lake.lake.tablefiles import DataFile
from wal2lake.lake.upsert.stored import is_readable

_MOST_ROWS: Final = 16_000_000
"""Of all compactions that wait for a commit: where they were takes 8 bytes each."""

_LOOKS: Final = 3
"""Between a table's version and its files others may commit."""


class Tables(Protocol):
    """What is asked of the tables."""

    def state(self, location: str) -> TableState:
        """See TablePort."""
        ...

    def files(self, state: TableState) -> Sequence[DataFile] | None:
        """See TablePort."""
        ...

    def goes_on_beside(self, work: Beside) -> None:
        """See DeltaTables."""
        ...


class Compactor:
    """One for all tables of a process; safe for all threads."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._lock = threading.Lock()
        self._keys: dict[str, tuple[int, ...]] = {}
        self._written: dict[str, Compaction] = {}
        self._beside = Beside("compact small files", self._write)
        tables.goes_on_beside(self._beside)

    def ask(self, location: str, key: Sequence[int]) -> None:
        """Look at the table's files, some time from now. ``key``: positions of the columns by which
        rows are ordered, unless the table is clustered by others. Nothing happens while a
        compaction of it waits."""
        with self._lock:
            if location in self._written:
                return
            self._keys[location] = tuple(key)
        self._beside.ask(location)

    def take(self, location: str) -> Compaction | None:
        """What has been written since; the caller commits it or discards it."""
        with self._lock:
            return self._written.pop(location, None)

    def wait(self) -> None:
        """Until all that was asked for is written."""
        self._beside.wait()

    def _write(self, location: str) -> None:
        with self._lock:
            key = self._keys.pop(location, ())
            if location in self._written:
                # It was asked for while that was written.
                return
        for _ in range(_LOOKS):
            state = self._tables.state(location)
            if not is_readable(state):
                return
            files = self._tables.files(state)
            if files is not None:
                break
        else:
            return
        if state.clustering:
            chosen = worth_clustering(files, state.clustering)
            if chosen:
                with suppress(Left):
                    left = partial(self._beside.is_left, location)
                    self._keep(cluster(state, chosen, left))
            return
        chosen = worth_compacting(files)
        if chosen:
            self._keep(compact(state, chosen, key))

    def _keep(self, compaction: Compaction) -> None:
        """Until somebody takes it; those that have waited longest make room for it."""
        given_up = []
        with self._lock:
            self._written[compaction.state.location] = compaction
            while (
                len(self._written) > 1
                and sum(one.rows for one in self._written.values()) > _MOST_ROWS
            ):
                given_up.append(self._written.pop(next(iter(self._written))))
        for one in given_up:
            one.discard()
