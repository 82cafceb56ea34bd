"""All spools of one log: the open and the prepared transactions.

Memory: the rows of all spools together have a bound. Above it the largest spools are flushed until
half is left, so that each of many interleaved transactions writes few pieces. No file is kept open.

Durability: a spool is not durable before a *checkpoint*, because the journal has its changes. A
spool is checkpointed at the first seal after its PREPARE, and when it holds back journal files.
Order: pieces, directory, ``spool-<n>.json`` under its temporary name, rename, directory. A spool is
removed in the opposite order, ``spool-<n>.json`` first; ``open`` removes pieces that no checkpoint
names.

One thread owns a Spools; only this thread may call ``needs``.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

from wal2lake.changelog import files
from wal2lake.changelog.journal.journal import JournalPlace
from wal2lake.changelog.spool import checkpoint
from wal2lake.changelog.spool.spool import PreparedFacts, Spool
from wal2lake.errors import InternalError
from wal2lake.model import Lsn, Xid
from wal2lake.observe import failpoint
from wal2lake.wire.columnar import OpenStream, StreamAborted, Streamed, StreamPrepared

_HELD_FILES: Final = 2
"""Closed journal files that one spool may hold back. There are fewer checkpoints than files, and
an open transaction costs no more disk space than this in addition to its rows."""

PreparedKey = tuple[Xid, str]
"""The publisher's xid and gid."""


class Spools:
    """All spools of one log, as the module describes them. Use ``open``."""

    def __init__(self, directory: Path, *, memory_bytes: int) -> None:
        """Use ``open``."""
        self._directory = directory
        self._memory_bytes = memory_bytes
        self._next = 1
        self._open: dict[Xid, Spool] = {}
        self._prepared: dict[PreparedKey, Spool] = {}
        self._finished: list[tuple[Lsn, Spool]] = []
        """Spools whose rows the segment writer has, with the LSN at which they are sealed."""
        self.moves = 0
        """Number of PREPAREs that were handled, and of ends of prepared transactions."""

    @classmethod
    def open(cls, directory: Path, *, memory_bytes: int) -> Spools:
        """Load the checkpoints of ``directory`` and remove files that a crash has left.

        Raises CorruptLogError, StorageError, ConfigurationError.
        """
        spools = cls(directory, memory_bytes=memory_bytes)
        numbers = files.checkpoint_numbers(directory)
        if numbers:
            # A crash may have prevented the fsync after a checkpoint's rename. From here on the
            # journal is trimmed by these checkpoints, so their names must be durable.
            try:
                files.sync_directory(directory)
            except OSError as error:
                raise files.storage_error("fsync", directory, error) from error
        named: set[str] = set()
        for number in numbers:
            name = files.checkpoint_name(number)
            spool = checkpoint.load(directory / name)
            named |= {name, *spool.file_names()}
            if spool.prepared is None:
                spools._open[spool.stream.xid] = spool
            else:
                spools._prepared[spool.stream.xid, spool.prepared.gid] = spool
        spools._next = numbers[-1] + 1 if numbers else 1
        for entry in list(directory.iterdir()):
            if files.spool_of(entry.name) is not None and entry.name not in named:
                files.remove(entry)
        return spools

    # ------------------------------------------------------------------ contents

    def streams(self) -> dict[Xid, OpenStream]:
        """Return the open streams, for a new decoder."""
        return {xid: spool.stream for xid, spool in self._open.items()}

    def covered(self, place: JournalPlace) -> frozenset[Xid]:
        """Return the open transactions whose checkpoint includes the record at ``place``."""
        return frozenset(
            xid for xid, spool in self._open.items() if _covers(spool, place)
        )

    @property
    def buffered_bytes(self) -> int:
        """Bytes of rows and messages in memory."""
        return sum(spool.buffered for spool in self._all())

    def needs(self) -> int | None:
        """Return the oldest journal file that a spool needs; None: none does."""
        needed = [s.needs for s in self._all() if s.needs is not None]
        return min(needed) if needed else None

    def prepared_at(self, sealed: Lsn) -> list[Spool] | None:
        """Return the transactions that are prepared at the end of the newest segment, ``sealed``,
        without those that have been rolled back since. None: one of them has no checkpoint yet, or
        none any more.

        The publisher sends the end of a transaction that has ended behind ``sealed`` to whoever
        goes on from there."""
        waiting = [s for end, s in self._finished if end > sealed]
        spools = [
            spool
            for spool in (*self._prepared.values(), *waiting)
            if spool.prepared is not None and spool.prepared.end_lsn <= sealed
        ]
        if any(spool.covered is None or spool.needs is not None for spool in spools):
            return None
        return spools

    def _all(self) -> Iterable[Spool]:
        yield from self._open.values()
        yield from self._prepared.values()

    # ------------------------------------------------------------------ events, no I/O

    def take(self, streamed: Streamed, file: int) -> None:
        """Take changes of a transaction from journal file ``file``."""
        spool = self._of(streamed.stream, file)
        spool.half_here = streamed.whole
        spool.take(streamed)

    def _of(self, stream: OpenStream, file: int) -> Spool:
        spool = self._open.get(stream.xid)
        if spool is None:
            spool = Spool(self._directory, self._next, stream)
            self._next += 1
            self._open[stream.xid] = spool
        if spool.needs is None:
            spool.needs = file
        return spool

    def abort(self, event: StreamAborted, file: int) -> Spool | None:
        """Roll back a (sub)transaction; returns a spool that must be removed."""
        if event.subxid == event.xid:
            return self._open.pop(event.xid, None)
        spool = self._open.get(event.xid)
        if spool is not None and event.stream is not None:
            spool.roll_back(event.subxid)
            spool.stream = event.stream
            if spool.needs is None:
                spool.needs = file
        return None

    def prepare(self, event: StreamPrepared, file: int) -> Spool | None:
        """Prepare a transaction. If it was sent a second time, returns its new spool, which must
        be removed."""
        key = event.xid, event.gid
        prepared = self._prepared.get(key)
        if prepared is not None and prepared.prepared is not None:
            if prepared.prepared.prepare_lsn != event.prepare_lsn:
                raise InternalError(f'transaction "{event.gid}" is prepared twice')
            return self._open.pop(event.xid, None)
        if event.stream is None:
            # The journal begins behind the transaction's changes and has its end.
            return None
        spool = self._of(event.stream, file)
        del self._open[event.xid]
        spool.stream = event.stream
        spool.half_here = False
        spool.prepared = PreparedFacts(
            event.gid, event.prepare_lsn, event.end_lsn, event.prepare_time
        )
        self._prepared[key] = spool
        self.moves += 1
        return None

    def committing(self, xid: Xid, gid: str | None) -> Spool | None:
        """Return the spool of a transaction that ends; ``gid`` is set for a prepared one."""
        if gid is not None:
            return self._prepared.get((xid, gid))
        return self._open.get(xid)

    def finish(self, spool: Spool, sealed: Lsn) -> None:
        """Note that the segment writer has a spool's rows. The spool is removed when the log is
        sealed up to ``sealed``."""
        self.forget(spool)
        self._finished.append((sealed, spool))

    def forget(self, spool: Spool) -> None:
        """Forget a spool whose transaction has ended; the caller removes its files."""
        if spool.prepared is not None:
            self._prepared.pop((spool.stream.xid, spool.prepared.gid), None)
            self.moves += 1
        elif self._open.get(spool.stream.xid) is spool:
            del self._open[spool.stream.xid]

    # ------------------------------------------------------------------ disk

    def relieve(self) -> None:
        """Flush spools if memory exceeds its bound. On StorageError nothing is lost: call
        again."""
        held = self.buffered_bytes
        if held <= self._memory_bytes:
            return
        for spool in sorted(self._all(), key=lambda s: s.buffered, reverse=True):
            if held <= self._memory_bytes // 2:
                return
            held -= spool.buffered
            spool.flush()

    def discard(self, spool: Spool) -> None:
        """Remove a spool's files: it was rolled back, or its transaction will be sent again.

        After a StorageError ``open`` may find the spool again, and the journal has its end.
        """
        if spool.covered is not None:
            path = self._directory / files.checkpoint_name(spool.number)
            try:
                path.unlink(missing_ok=True)
                # Durable before the journal is trimmed: recovery must not find it again.
                files.sync_directory(self._directory)
                failpoint("spool.removed")
            except OSError as error:
                raise files.storage_error("remove file", path, error) from error
            spool.covered = None
        for name in spool.file_names():
            files.remove(self._directory / name)

    def reconnect(self, place: JournalPlace | None) -> None:
        """Discard transactions that are not prepared: a new connection sends them again.

        ``place`` is the record of the new connection. A spool stays if its checkpoint includes
        later records."""
        for spool in list(self._open.values()):
            if place is None or not _covers(spool, place):
                self.discard(spool)
                self.forget(spool)

    def clean(self, sealed: Lsn) -> None:
        """Remove finished spools that are in segments up to ``sealed``."""
        while self._finished and self._finished[0][0] <= sealed:
            self.discard(self._finished[0][1])
            del self._finished[0]

    def checkpoint_all_prepared(self, place: JournalPlace) -> None:
        """Make each prepared transaction independent of the journal up to ``place``."""
        for spool in self._prepared.values():
            if spool.needs is not None:
                self._checkpoint(spool, place)

    def checkpoint_holding(self, place: JournalPlace, newest: int) -> None:
        """Checkpoint open transactions that hold back journal files. ``newest`` is the number of
        the newest closed file."""
        for spool in self._open.values():
            if (
                spool.needs is not None
                and not spool.half_here
                and newest - spool.needs >= _HELD_FILES
            ):
                self._checkpoint(spool, place)

    def _checkpoint(self, spool: Spool, place: JournalPlace) -> None:
        spool.flush()
        spool.secure()
        path = self._directory / files.checkpoint_name(spool.number)
        try:
            # The pieces' names become durable first: a checkpoint must never outlive a piece.
            files.sync_directory(self._directory)
        except OSError as error:
            spool.unusable = True
            raise files.storage_error("fsync", self._directory, error) from error
        temporary = files.write_temporary(path, checkpoint.encode(spool, place))
        try:
            failpoint("spool.checkpoint_written")
            temporary.rename(path)
            # From here on the checkpoint must be removed before the spool's pieces.
            spool.covered = place
            failpoint("spool.checkpoint_renamed")
        except OSError as error:
            files.remove(temporary)
            raise files.storage_error("rename file", path, error) from error
        try:
            files.sync_directory(self._directory)
        except OSError as error:
            spool.unusable = True
            raise files.storage_error("fsync", self._directory, error) from error
        spool.needs = None


def _covers(spool: Spool, place: JournalPlace) -> bool:
    covered = spool.covered
    return covered is not None and (covered.number, covered.offset) >= (
        place.number,
        place.offset,
    )
