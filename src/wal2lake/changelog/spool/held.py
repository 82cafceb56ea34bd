"""Keeps the files of prepared transactions until a copy of the log has them.

    seal thread                                   archive thread
    -----------                                   --------------
    offer(segment, moves, spools) ──▶ moment ──▶  sends what the store lacks
        second names (``held-...``)               stored(...): removes those names

In: the spools of the transactions that are prepared at the end of a segment. Out: a *sealed
moment*: the segment, and those transactions with the names of their files.

The files of a spool go as soon as its transaction has ended, which a slow store does not delay. So
until the store has them, they have second names. Nothing here has to survive a crash: the next run
removes these names, and offers what is prepared then.

Only the archive thread removes names, when it works on no moment: a moment that it has taken keeps
its files.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from wal2lake.changelog import files
from wal2lake.changelog.spool.spool import Spool
from wal2lake.model import Lsn


@dataclass(frozen=True, slots=True)
class HeldTransaction:
    """A prepared transaction and its files."""

    end_lsn: Lsn
    """End of its PREPARE, which no other transaction of the log has."""
    names: tuple[str, ...]
    """The pieces, then the checkpoint. Each file is there under its second name."""


@dataclass(frozen=True, slots=True)
class SealedMoment:
    """A segment, and what was prepared at its end and has not been rolled back since."""

    segment: int
    """0: the log has no segment."""
    moves: int
    """Number of PREPAREs, and of their ends, that this run has handled. If it has not changed since
    an earlier moment, all segments between the two have the transactions of the later one."""
    prepared: tuple[HeldTransaction, ...]


class HeldSpools:
    """The sealed moments of one run. Thread-safe."""

    def __init__(self, directory: Path) -> None:
        """``directory`` is the log's. Raises StorageError."""
        self._directory = directory
        self._lock = threading.Lock()
        self._moment: SealedMoment | None = None
        self._names: dict[Lsn, tuple[str, ...]] = {}
        """Transactions that have second names."""
        self._stored: frozenset[Lsn] = frozenset()
        try:
            for path in directory.iterdir():
                if path.name.startswith(files.HELD):
                    path.unlink()
        except OSError as error:
            raise files.storage_error("empty", directory, error) from error

    @property
    def moment(self) -> SealedMoment | None:
        """The newest moment; None: there is none yet."""
        return self._moment

    @property
    def segment(self) -> int:
        """Number of the newest moment's segment; -1: there is no moment yet."""
        return -1 if self._moment is None else self._moment.segment

    def offer(self, segment: int, moves: int, spools: Sequence[Spool]) -> None:
        """Make a moment the newest one. Every spool has a checkpoint. On StorageError call
        again."""
        with self._lock:
            held = tuple(map(self._hold, spools))
            self._moment = SealedMoment(segment, moves, held)

    def _hold(self, spool: Spool) -> HeldTransaction:
        assert spool.prepared is not None
        end = spool.prepared.end_lsn
        names = (*spool.file_names(), files.checkpoint_name(spool.number))
        if end not in self._names and end not in self._stored:
            for name in names:
                path = self._directory / files.held_name(name)
                try:
                    path.unlink(missing_ok=True)
                    path.hardlink_to(self._directory / name)
                except OSError as error:
                    raise files.storage_error("link file", path, error) from error
            self._names[end] = names
        return HeldTransaction(end, names)

    def stored(self, ends: Collection[Lsn]) -> None:
        """Note which transactions the store has, by the ends of their PREPAREs. Their second names
        go, and those of transactions that the newest moment has not."""
        with self._lock:
            self._stored = frozenset(ends)
            prepared = () if self._moment is None else self._moment.prepared
            needed = {transaction.end_lsn for transaction in prepared} - self._stored
            for end in self._names.keys() - needed:
                for name in self._names.pop(end):
                    files.remove(self._directory / files.held_name(name))
