"""Compacts all tables, beside apply.

Comes in: tables that have just had a commit. Goes out: now and then another commit, of a
compaction that was written meanwhile. Called after the commit of a batch or of a local
transaction, when no other writer of the node is between two versions of the table. The caller pays
for a commit of a few milliseconds.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from wal2lake.lake.compaction.clustered import Abandoned, cluster, worth_clustering
from wal2lake.lake.compaction.rewrite import (
    Compaction,
    carried,
    compact,
    worth_compacting,
)
from wal2lake.lake.delta.datafile import discard_added
from wal2lake.lake.delta.log.background import BackgroundWork
from wal2lake.lake.port import CommitConflict, Committed, Cursor, TableState
from wal2lake.lake.tablefiles import AddedFile, DataFile, Replaced
from wal2lake.lake.upsert.stored import is_readable
from wal2lake.observe import get_logger

LOOK_EVERY: Final = 16
"""Commits of a table between two checks of its files."""

_MOST_WAITS: Final = 256
"""Commits for which a written compaction waits for open transactions: each commit leaves a file
that every query opens."""

_MOST_ROWS: Final = 16_000_000
"""Most rows of all compactions that wait for a commit: each row's old position takes 8 bytes."""

_LOOKS: Final = 3
"""Attempts to read a table's version and its files together: another writer may commit in
between."""


class CompactedTables(Protocol):
    """Operations of the tables that compaction needs."""

    def state(self, location: str) -> TableState:
        """Return the newest version, as in TablePort."""
        ...

    def files(self, state: TableState) -> Sequence[DataFile] | None:
        """Return the live files, as in TablePort."""
        ...

    def register_background(self, work: BackgroundWork) -> None:
        """Register background work, as in DeltaTables."""
        ...

    def commit_files(
        self,
        location: str,
        adds: Sequence[AddedFile],
        cursor: Cursor,
        *,
        read_version: int | None,
        replaced: Sequence[Replaced],
        rearranges: bool,
        operation: str,
    ) -> Committed:
        """Commit files, as in TablePort."""
        ...


class Compactor:
    """Compacts the tables of a process; safe for all threads."""

    def __init__(self, tables: CompactedTables) -> None:
        self._tables = tables
        self._lock = threading.Lock()
        self._keys: dict[str, tuple[int, ...]] = {}
        self._written: dict[str, Compaction] = {}
        self._taken: dict[str, Compaction] = {}
        """Compactions that are being committed."""
        self._reading: dict[str, int] = {}
        """Versions whose files are being rewritten."""
        self._commits: Counter[str] = Counter()
        """Commits by location since its files were last checked."""
        self._waits: Counter[str] = Counter()
        """Commits by location since its compaction could have been committed."""
        self._background = BackgroundWork("compact small files", self._write)
        tables.register_background(self._background)

    def ask(self, location: str, key: Sequence[int]) -> None:
        """Queue a check of the table's files. Nothing happens while a compaction of the table
        waits.

        ``key``: positions of the columns by which rows are ordered, unless the table is clustered
        by other columns.
        """
        with self._lock:
            if location in self._written:
                return
            self._keys[location] = tuple(key)
        self._background.ask(location)

    def take(self, location: str) -> Compaction | None:
        """Return the compaction that has been written meanwhile; the caller commits or discards
        it."""
        with self._lock:
            return self._written.pop(location, None)

    def held(self, location: str) -> tuple[list[int], set[str]]:
        """Return the versions of a table that compactions read, and the names of the files that
        they have written and not committed."""
        with self._lock:
            waiting = [
                compactions[location]
                for compactions in (self._written, self._taken)
                if location in compactions
            ]
            versions = [compaction.state.version for compaction in waiting]
            if location in self._reading:
                versions.append(self._reading[location])
        names = {file.added.path for compaction in waiting for file in compaction.files}
        return versions, names

    def behind(
        self,
        state: TableState,
        key: Sequence[int],
        cursor: Cursor,
        *,
        others: bool = False,
    ) -> Committed:
        """Commit a written compaction of a table that is at version ``state`` by a commit with
        this cursor, and now and then check its files again. ``key`` as in ``ask``. Raises nothing,
        because no failure here may suggest that the caller's commit has failed.

        ``others``: there are open transactions that cannot commit if a file is removed whose rows
        they have changed. As in VACUUM, the compaction waits for them, but only up to a limit.
        """
        if self._is_time(state.location):
            self.ask(state.location, key)
        compaction = self._due(state.location, others=others)
        if compaction is None:
            return Committed(state.version)
        try:
            return self._end(compaction, state, key, cursor)
        finally:
            with self._lock:
                self._taken.pop(state.location, None)

    def _end(
        self,
        compaction: Compaction,
        state: TableState,
        key: Sequence[int],
        cursor: Cursor,
    ) -> Committed:
        """Commit a written compaction, or discard it."""
        try:
            done = self._commit(compaction, state, cursor)
        except CommitConflict:
            # Another writer was first; the next check tries again.
            done = None
        except Exception as error:
            # The commit may have succeeded, so the files stay.
            get_logger().warning("could not commit a compaction", error=error)
            return Committed(state.version)
        if done is None:
            compaction.discard()
        elif state.clustering:
            # A large table is clustered piece by piece.
            self.ask(state.location, key)
        return done or Committed(state.version)

    def _is_time(self, location: str) -> bool:
        with self._lock:
            self._commits[location] += 1
            if self._commits[location] < LOOK_EVERY:
                return False
            del self._commits[location]
            return True

    def _due(self, location: str, *, others: bool) -> Compaction | None:
        with self._lock:
            if others and location in self._written:
                self._waits[location] += 1
                if self._waits[location] <= _MOST_WAITS:
                    return None
            self._waits.pop(location, None)
            compaction = self._written.pop(location, None)
            if compaction is not None:
                self._taken[location] = compaction
            return compaction

    def _commit(
        self, compaction: Compaction, state: TableState, cursor: Cursor
    ) -> Committed | None:
        files = self._tables.files(state)
        if files is None:
            return None
        now = carried(compaction, state, {file.key: file for file in files})
        if now is None:
            return None
        done = self._tables.commit_files(
            state.location,
            now.adds,
            cursor,
            read_version=state.version,
            replaced=now.replaced,
            rearranges=True,
            operation="compaction",
        )
        discard_added(state.location, now.emptied)
        return done

    def wait(self) -> None:
        """Wait until all queued compactions are written."""
        self._background.wait()

    def _write(self, location: str) -> None:
        with self._lock:
            key = self._keys.pop(location, ())
            if location in self._written:
                # It was queued while that compaction was written.
                return
        try:
            self._rewrite(location, key)
        finally:
            with self._lock:
                self._reading.pop(location, None)

    def _rewrite(self, location: str, key: tuple[int, ...]) -> None:
        for _ in range(_LOOKS):
            state = self._tables.state(location)
            with self._lock:
                self._reading[location] = state.version
            # Rows would get other numbers.
            if state.tracks_rows or not is_readable(state):
                return
            files = self._tables.files(state)
            if files is not None:
                break
        else:
            return
        if state.clustering:
            chosen = worth_clustering(files, state.clustering)
            if chosen:
                with suppress(Abandoned):
                    left = partial(self._background.is_left, location)
                    self._keep(cluster(state, chosen, left))
            return
        chosen = worth_compacting(files)
        if chosen:
            self._keep(compact(state, chosen, key))

    def _keep(self, compaction: Compaction) -> None:
        """Keep a compaction until a caller takes it; the compactions that have waited longest are
        dropped to make room."""
        given_up = []
        with self._lock:
            self._written[compaction.state.location] = compaction
            while (
                len(self._written) > 1
                and sum(kept.rows for kept in self._written.values()) > _MOST_ROWS
            ):
                given_up.append(self._written.pop(next(iter(self._written))))
        for dropped in given_up:
            dropped.discard()
