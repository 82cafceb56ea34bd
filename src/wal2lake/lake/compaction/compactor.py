"""Compactions of all tables, written beside apply.

Comes in: tables that have just had a commit. Goes out: now and then another one, of a compaction
that was written meanwhile. Called behind the commit of a batch, or of a local transaction, where
nobody else of the node is between two versions of the table: it costs them a commit of a few
milliseconds.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Final, Protocol

from wal2lake.lake.compaction.clustered import Left, cluster, worth_clustering
from wal2lake.lake.compaction.rewrite import (
    Compaction,
    carried,
    compact,
    worth_compacting,
)
from wal2lake.lake.delta.datafile import discard_added
from wal2lake.lake.delta.log.beside import Beside
from wal2lake.lake.port import CommitConflict, Committed, Cursor, TableState
from wal2lake.lake.tablefiles import AddedFile, DataFile, Replaced
from wal2lake.lake.upsert.stored import is_readable
from wal2lake.observe import get_logger

LOOK_EVERY: Final = 16
"""Commits of a table between two looks at its files."""

_MOST_WAITS: Final = 256
"""Commits behind which one that is written waits for open transactions: each leaves a file that
every query opens."""

_MOST_ROWS: Final = 16_000_000
"""Rows of all compactions that wait for a commit: each row's former place takes 8 bytes."""

_LOOKS: Final = 3
"""Between a table's version and its files others may commit."""


class CompactedTables(Protocol):
    """Operations of the tables that compaction needs."""

    def state(self, location: str) -> TableState:
        """Return the newest version, as in TablePort."""
        ...

    def files(self, state: TableState) -> Sequence[DataFile] | None:
        """Return the live files, as in TablePort."""
        ...

    def goes_on_beside(self, work: Beside) -> None:
        """Run work beside, as in DeltaTables."""
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
    """One for all tables of a process; safe for all threads."""

    def __init__(self, tables: CompactedTables) -> None:
        self._tables = tables
        self._lock = threading.Lock()
        self._keys: dict[str, tuple[int, ...]] = {}
        self._written: dict[str, Compaction] = {}
        self._commits: Counter[str] = Counter()
        """By location, since its files were last looked at."""
        self._waits: Counter[str] = Counter()
        """The same, since a compaction might have been committed."""
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
        """Take the compaction that has been written since; the caller commits or discards it."""
        with self._lock:
            return self._written.pop(location, None)

    def behind(
        self,
        state: TableState,
        key: Sequence[int],
        cursor: Cursor,
        *,
        others: bool = False,
    ) -> Committed:
        """A table is at that version, by a commit that has this cursor: commit what has been
        written of it, and now and then look again at its files. ``key`` as in ``ask``. Nothing
        that goes wrong here may say that the caller's commit has not happened, so nothing is
        raised.

        ``others``: there are transactions that cannot commit if a file goes whose rows they have
        changed. They are waited for, as VACUUM does, but not for ever."""
        if self._is_time(state.location):
            self.ask(state.location, key)
        compaction = self._due(state.location, others=others)
        if compaction is None:
            return Committed(state.version)
        try:
            done = self._commit(compaction, state, cursor)
        except CommitConflict:
            # Somebody else writes: another time.
            done = None
        except Exception as error:
            # Perhaps it is committed, so its files stay.
            get_logger().warning("could not commit a compaction", error=error)
            return Committed(state.version)
        if done is None:
            compaction.discard()
        elif state.clustering:
            # A large one is clustered piece by piece.
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
        return self.take(location)

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
