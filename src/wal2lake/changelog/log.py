"""The change log of one subscription, as the receiver uses it.

    journal's thread                          seal thread
    ----------------                          -----------
    connected(start_lsn)
    append(data, lengths)  ── handover ──▶    absorb(timeout)      decode, collect
    sync() ─▶ logged LSN                      seal() ─▶ manifest   files, then trim journal
                                              (open transactions wait in spool/)
                                              (both repeat)

``open`` recovers the log. It decodes the retained journal files from the oldest on, skips
transactions that are sealed already, and seals the rest at once. So the transactions that were
confirmed to the publisher are durable in files whose fsync succeeded in this process (a journal
whose fsync failed proves nothing), the journal is empty again, and streaming must restart at
``logged``. The open transaction and streamed ones are dropped: the publisher sends them again.
Prepared transactions stay, in durable spools. A message that cannot be decoded ends the recovery
early (``undecodable``): see ``recovery``.

A transaction is skipped if and only if its commit LSN is below the end LSN of the last transaction
in the log (the rule of invariant 2, with the log in place of the table).

    open, ask_again               before the threads start
    connected, append, sync       the journal's thread
    absorb, seal, hold            the seal thread
    logged, sealed, complete      any thread
    backlog, wake                 any thread
    close                         after both threads have ended

After a StorageError from ``append``, ``absorb`` or ``seal`` the same call may be repeated, unless
the error is an UnusableLogError (open the log again). After any other error the log must not be
used. After a failed ``append`` no other gulp may be appended, or the log would have a gap. After a
failed ``sync`` the log must be closed and opened again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from wal2lake.changelog import files, recovery, segments
from wal2lake.changelog.journal.format import JournalRecord
from wal2lake.changelog.journal.gulp import Lengths
from wal2lake.changelog.journal.handover import (
    DEFAULT_MEMORY_BYTES,
    Connected,
    GulpHandover,
    Handover,
)
from wal2lake.changelog.journal.journal import Journal
from wal2lake.changelog.manifest import Manifest
from wal2lake.changelog.recovery import Undecodable
from wal2lake.changelog.retention import journal_file_bytes
from wal2lake.changelog.segments import SegmentWriter
from wal2lake.changelog.spool.held import HeldSpools
from wal2lake.changelog.spool.intake import Intake
from wal2lake.changelog.spool.spools import Spools
from wal2lake.errors import InternalError, LogInUseError
from wal2lake.model import Lsn
from wal2lake.observe import get_logger
from wal2lake.settings import LogSettings
from wal2lake.wire.columnar import StreamDecoder

_REJOIN_PART: Final = 8
"""A spool on disk is read back at its commit if it is smaller than this fraction of a segment on
disk, and smaller than a segment in memory. Chosen arbitrarily."""


class ChangeLog:
    """The change log of one subscription, as the module describes it. Use ``open``."""

    def __init__(
        self,
        directory: Path,
        lock: int,
        settings: LogSettings,
        handover_bytes: int,
    ) -> None:
        """Use ``open``."""
        self._directory = directory
        self._lock = lock
        self._journal_file_bytes = journal_file_bytes(settings)
        self._undecodable: Undecodable | None = None
        self._segments: SegmentWriter = segments.open_writer(
            directory, segment_bytes=settings.segment_bytes
        )
        self._spools = Spools.open(directory, memory_bytes=settings.segment_bytes)
        self._intake = Intake(
            self._segments,
            self._spools,
            rejoin_bytes=settings.segment_bytes // _REJOIN_PART,
            memory_bytes=settings.segment_bytes,
        )
        self._journal = Journal(directory, file_bytes=self._journal_file_bytes)
        self._handover = Handover(handover_bytes)
        self._decoder = self._new_decoder()

    @classmethod
    def open(
        cls,
        directory: Path,
        settings: LogSettings | None = None,
        *,
        handover_bytes: int = DEFAULT_MEMORY_BYTES,
    ) -> ChangeLog:
        """Recover the log of ``directory``, which is created if it is missing.

        Undecoded gulps up to ``handover_bytes`` wait in memory for the seal thread.

        Raises CorruptLogError, StorageError (call again), ConfigurationError (a newer
        format), LogInUseError (another process has the directory). A message that cannot be decoded
        is not an error here: see ``undecodable``.
        """
        lock = _lock(directory)
        try:
            settings = settings or LogSettings()
            log = cls(directory, lock, settings, handover_bytes)
            log._recover()
        except BaseException:
            os.close(lock)
            raise
        return log

    # ------------------------------------------------------------------ recovery

    def _recover(self) -> None:
        """Seal the journal's transactions that are in no segment, and empty the journal."""
        self._undecodable = recovery.replay(
            self._journal, self._segments, self._spools, self._intake, self._directory
        )
        self._segments.seal()
        self._spools.clean(self._segments.sealed_lsn)
        if self._intake.place is not None:
            self._spools.checkpoint_all_prepared(self._intake.place)
        if self._undecodable is None:
            self._journal.clear()

    @property
    def undecodable(self) -> Undecodable | None:
        """A message of the journal that recovery could not decode. If there is one, call
        ``ask_again`` before streaming."""
        return self._undecodable

    def ask_again(self, confirmed: Lsn) -> None:
        """Drop the undecodable message and all later ones, which streaming from ``logged`` sends
        again. Does nothing if there is no such message.

        ``confirmed`` is the position that the publisher's slot has confirmed; no other process
        may move it meanwhile. If the publisher would not send all of the messages again, raises
        the decoder's error (with the file and the remedy) and keeps everything.
        """
        undecodable = self._undecodable
        if undecodable is None:
            return
        if not undecodable.sent_again(confirmed):
            raise undecodable.kept(confirmed)
        self._spools.reconnect(None)
        self._journal.clear()
        # A new object, because the old one's positions include the dropped transactions.
        self._journal = Journal(self._directory, file_bytes=self._journal_file_bytes)
        for _ in self._journal.recover():
            raise InternalError("a journal that was emptied has records")
        self._undecodable = None
        get_logger().warning(
            "dropped from the journal what cannot be decoded;"
            " the publisher sends it again",
            streaming_from=self.logged,
            confirmed=confirmed,
        )

    def _new_decoder(self) -> StreamDecoder:
        return StreamDecoder(skip_below=self._segments.complete_lsn)

    def _reconnect(self) -> None:
        self._segments.discard_open()
        self._spools.reconnect(None)
        self._decoder = self._new_decoder()

    # ------------------------------------------------------------------ any thread

    @property
    def logged(self) -> Lsn:
        """Every transaction that ends at or below this LSN is durable here; 0: none yet."""
        if self._undecodable is not None:
            return self._segments.sealed_lsn
        return max(self._journal.logged, self._segments.sealed_lsn)

    @property
    def sealed(self) -> Lsn:
        """End LSN of the last transaction in a segment; 0: none yet."""
        return self._segments.sealed_lsn

    @property
    def last_segment(self) -> int:
        """Number of the newest segment; 0: none yet."""
        return self._segments.last_number

    @property
    def complete(self) -> Lsn:
        """End LSN of the last whole transaction that was absorbed; 0: none yet."""
        return self._segments.complete_lsn

    @property
    def backlog(self) -> int:
        """Number of gulps that wait to be absorbed."""
        return self._handover.length

    def wake(self) -> None:
        """End a wait of ``absorb``."""
        self._handover.wake()

    # ------------------------------------------------------------------ journal's thread

    def connected(
        self, start: Lsn, *, streaming: bool = False, two_phase: bool = False
    ) -> None:
        """Record that a new connection streams from ``start``; call before its first ``append``.

        Messages of an option are refused unless the option is set. ``start`` must be at or
        below ``logged``: transactions in between would be missing.
        """
        if self._undecodable is not None:
            raise InternalError("streaming begins before ask_again")
        self._handover.put_connected(
            self._journal.append_connect(
                start, streaming=streaming, two_phase=two_phase
            )
        )
        self._journal.sync()
        self._handover.release()

    def append(self, data: bytes, lengths: Lengths) -> None:
        """Write one gulp of payloads to the journal; durable after ``sync``.

        After a failure only the same gulp may follow, or ``close``.
        """
        self._handover.put(self._journal.append(data, lengths), data, lengths)

    def sync(self) -> Lsn:
        """Make all appended gulps durable; returns ``logged``."""
        self._journal.sync()
        self._handover.release()
        return self.logged

    # ------------------------------------------------------------------ seal thread

    def absorb(self, timeout_seconds: float) -> bool:
        """Decode synced gulps; False: none came within the time.

        Waits until there are enough gulps, or for the time, because each call of the decoder
        has a fixed cost. May seal or spill to keep memory bounded.
        """
        self._intake.work()
        waiting = self._handover.peek(
            timeout_seconds, enough_bytes=recovery.DECODED_BYTES
        )
        if waiting is None:
            return False
        if isinstance(waiting, Connected):
            self._reconnect()
            self._handover.done(1)
            return True
        data, lengths = self._content(waiting)
        first, last = waiting[0].place, waiting[-1].place
        self._intake.add(self._decoder.feed(data, lengths), first.number, last)
        self._handover.done(len(waiting))
        # Decoded values are copies, and writing them takes as much memory again.
        del data, waiting
        self._intake.work()
        self._spools.clean(self._segments.sealed_lsn)
        return True

    def _content(self, gulps: Sequence[GulpHandover]) -> tuple[bytes, Lengths]:
        """Join gulps; those whose bytes were not kept are read from the journal."""
        pieces, lengths = [], []
        for gulp in gulps:
            if gulp.data is not None and gulp.lengths is not None:
                pieces.append(gulp.data)
                lengths.append(gulp.lengths)
            else:
                record: JournalRecord = self._journal.read(gulp.place)
                pieces.append(record.data)
                lengths.append(record.lengths)
        if len(pieces) == 1:
            return pieces[0], lengths[0]
        return b"".join(pieces), np.concatenate(lengths)

    @property
    def commit_times(self) -> tuple[int, int] | None:
        """Commit times of the first and the last transaction that was absorbed and is not sealed,
        in microseconds since 2000-01-01 UTC; None: there is none."""
        return self._segments.commit_times

    def seal(self) -> Manifest | None:
        """Seal every whole transaction absorbed so far; None: there is none.

        Also removes journal files that are no longer needed.
        """
        self._intake.work()
        sealed = self._segments.seal()
        self._spools.clean(self._segments.sealed_lsn)
        if self._intake.place is not None:
            self._spools.checkpoint_all_prepared(self._intake.place)
            self._spools.checkpoint_holding(self._intake.place, self._journal.newest)
        # Read first: the checks below do not cover files that are closed later.
        newest = self._journal.newest
        needed = [self._handover.oldest_file(), self._spools.needs()]
        oldest = min(n for n in (*needed, newest + 1) if n is not None)
        self._journal.trim(self._segments.sealed_lsn, keep_from=oldest)
        return sealed

    def hold(self, held: HeldSpools) -> None:
        """Offer the newest segment, with the transactions that are prepared at its end. Does
        nothing while that is not possible: after the next ``seal`` it is. On StorageError call
        again."""
        spools = self._spools.prepared_at(self._segments.sealed_lsn)
        if spools is not None:
            held.offer(self._segments.last_number, self._spools.moves, spools)

    def close(self) -> None:
        """Release the directory. Nothing is written: gulps that were not synced are not logged."""
        self._journal.close()
        os.close(self._lock)


def _lock(directory: Path) -> int:
    """Lock the directory against a second receiver, until the descriptor is closed."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        files.sync_directory(directory.parent)
        descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise files.storage_error("create directory", directory, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise LogInUseError(
            f'change log in "{directory}" is in use by another process',
            hint="Wait for the other receiver of this subscription to end.",
        ) from error
    return descriptor
