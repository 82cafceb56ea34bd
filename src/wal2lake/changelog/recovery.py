"""Moves transactions from the journal into the segments when a log is opened.

In: every record of the journal, oldest first. Out: their whole transactions, added to the
segment writer; and the position of a message that cannot be decoded (Undecodable).

A gulp is written to the journal before it is decoded, because the publisher waits for its
durability. So the journal can have a message that breaks the protocol, or that a bug of ours
refuses, and every start would read it again. Decoding therefore ends at the first such message.
All whole transactions before it are kept, also in the same gulp. The next step depends on the
publisher alone:

    its slot confirms        the transaction        the journal
    a position ...           of that message
    not above its commit     is sent again          is dropped; streaming restarts behind the
    LSN                                             last whole transaction
    above                    exists here only       stays as it is; an error names the file
                                                    until a newer decoder can read it

``ChangeLog.ask_again`` gets the slot's position. It must be read when no other process can move
it: while the connection that is about to stream has the slot in use.

Sources: docs/formats/journal.md ("Reading after a crash"); SnapBuildXactNeedsSkip in
src/backend/replication/logical/snapbuild.c (which transactions a slot sends).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from wal2lake.changelog import files
from wal2lake.changelog.journal.format import JournalRecord, RecordKind
from wal2lake.changelog.journal.gulp import Lengths, drop_headless
from wal2lake.changelog.journal.journal import Journal, JournalPlace
from wal2lake.changelog.segments import SegmentWriter
from wal2lake.changelog.spool.intake import Intake
from wal2lake.changelog.spool.spools import Spools
from wal2lake.errors import InternalError, Wal2LakeError
from wal2lake.model import Lsn
from wal2lake.observe import get_logger
from wal2lake.wire.columnar import StreamDecoder
from wal2lake.wire.copyboth import XLOGDATA_HEADER

_COMMIT: Final = b"C"

DECODED_BYTES: Final = 1 << 20
"""Bytes of gulps that are decoded at once. Measured: decoding a backlog gulp by gulp took 5.4
CPU-seconds per million changes, in pieces of this size 0.17."""


@dataclass(frozen=True, slots=True)
class Undecodable:
    """The first message of a journal that the decoder refuses."""

    path: Path
    """The journal file."""
    offset: int
    """Byte position of its record in the file."""
    message: int
    """Number of messages before it in the record."""
    commit_lsn: Lsn
    """The transaction commits at this position, or above it if the position is not known."""
    error: Wal2LakeError
    """The decoder's error."""

    def sent_again(self, confirmed: Lsn) -> bool:
        """Return whether a slot with this confirmed position sends the transaction again."""
        return self.commit_lsn >= confirmed

    def kept(self, confirmed: Lsn) -> Wal2LakeError:
        """Build the error for a transaction that will not be sent again."""
        self.error.detail = (
            f"The message is number {self.message + 1} of the record at byte {self.offset}"
            f' of journal file "{self.path}". Its transaction commits at or above'
            f" {self.commit_lsn} and will not be sent again: the replication slot has"
            f" confirmed {confirmed}."
        )
        self.error.hint = (
            "The journal stays as it is: a version of wal2lake that can decode the message"
            " goes on from here. Otherwise have the tables copied anew: ALTER SUBSCRIPTION ..."
            " REFRESH PUBLICATION WITH (recopy = true)."
        )
        return self.error


def replay(
    journal: Journal,
    writer: SegmentWriter,
    spools: Spools,
    intake: Intake,
    directory: Path,
) -> Undecodable | None:
    """Add the journal's transactions beyond ``writer``'s segments. Open transactions are dropped,
    prepared ones stay in ``spools``. A transaction that is open at an undecodable message may have
    committed behind it: then all spools stay until the publisher's position is known.

    Reads every record, also behind an undecodable message. Raises CorruptLogError,
    StorageError (open the log again), ConfigurationError.
    """
    replayed = _Replay(writer, spools, intake, directory)
    oldest = True
    for record in journal.recover():
        first, oldest = oldest, False
        if replayed.undecodable is not None:
            continue
        if record.kind is RecordKind.CONNECT:
            replayed.connect(_place(record))
        elif record.kind is RecordKind.DATA or first:
            # Definitions of later files are known already.
            replayed.take(record)
    replayed.flush()
    writer.discard_open()
    if replayed.undecodable is None:
        spools.reconnect(None)
    return replayed.undecodable


def _place(record: JournalRecord) -> JournalPlace:
    return JournalPlace(record.number, record.offset)


@dataclass(frozen=True, slots=True)
class _Gulp:
    """A record, without the messages that cannot be used (``drop_headless``)."""

    record: JournalRecord
    data: bytes
    lengths: Lengths


class _Replay:
    """Decodes the records of a journal, many of them at once."""

    def __init__(
        self, writer: SegmentWriter, spools: Spools, intake: Intake, directory: Path
    ) -> None:
        self.undecodable: Undecodable | None = None
        self._writer = writer
        self._spools = spools
        self._intake = intake
        self._directory = directory
        self._headless = True
        self._decoder = self._new_decoder()
        self._waiting: list[_Gulp] = []
        self._waiting_bytes = 0

    def _new_decoder(self) -> StreamDecoder:
        return StreamDecoder(
            skip_below=self._writer.complete_lsn,
            headless=self._headless,
            streams=self._spools.streams(),
        )

    def connect(self, place: JournalPlace) -> None:
        """Drop open transactions: a new connection sends them again."""
        self.flush()
        self._headless = False
        self._writer.discard_open()
        self._spools.reconnect(place)
        self._decoder = self._new_decoder()

    def take(self, record: JournalRecord) -> None:
        """Decode a record, now or with later ones."""
        data, lengths = record.data, record.lengths
        if self._waiting and record.number != self._waiting[0].record.number:
            self.flush()
        if record.kind is RecordKind.DATA and self._headless:
            # Whether a stream block is open is only known when all before it is decoded.
            self.flush()
            data, lengths, begun = drop_headless(
                data, lengths, inside=self._decoder.inside
            )
            self._headless = not begun
        covered = self._spools.covered(_place(record))
        if self._waiting and covered != self._decoder.covered:
            self.flush()
            covered = self._spools.covered(_place(record))
        self._decoder.covered = covered
        self._waiting.append(_Gulp(record, data, lengths))
        self._waiting_bytes += len(data)
        if self._waiting_bytes >= DECODED_BYTES:
            self.flush()

    def flush(self) -> None:
        """Decode the records that wait, up to the first message that is refused."""
        gulps, self._waiting, self._waiting_bytes = self._waiting, [], 0
        if self.undecodable is not None or not gulps or self._add_all(gulps):
            return
        for gulp in gulps:
            refused = _add(
                self._decoder,
                self._intake,
                gulp.data,
                gulp.lengths,
                _place(gulp.record),
            )
            if refused is not None:
                self.undecodable = _locate(
                    gulp.record, refused, self._decoder, self._writer, self._directory
                )
                return

    def _add_all(self, gulps: Sequence[_Gulp]) -> bool:
        """Decode the gulps at once. False: a message is refused, and nothing was decoded."""
        try:
            decoded = self._decoder.feed(
                b"".join(gulp.data for gulp in gulps),
                np.concatenate([gulp.lengths for gulp in gulps]),
            )
        # The decoder does no I/O, so these bytes are the cause of any exception.
        except Exception:
            return False
        self._intake.add(decoded, gulps[0].record.number, _place(gulps[-1].record))
        self._intake.work()
        return True


@dataclass(frozen=True, slots=True)
class _Refused:
    message: int
    kind: bytes
    error: Wal2LakeError


def _add(
    decoder: StreamDecoder,
    intake: Intake,
    data: bytes,
    lengths: Lengths,
    place: JournalPlace,
) -> _Refused | None:
    """Decode a gulp up to the first message that is refused, which is returned.

    A refused feed leaves the decoder unchanged, so bisection finds the message.
    """
    bounds = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64))).tolist()
    total = len(lengths)
    start, end, limit = 0, total, total
    while start < total:
        try:
            decoded = decoder.feed(
                data[bounds[start] : bounds[end]], lengths[start:end]
            )
        # The decoder does no I/O, so these bytes are the cause of any exception.
        except Exception as error:
            if end - start == 1:
                offset = bounds[start] + XLOGDATA_HEADER
                return _Refused(start, data[offset : offset + 1], _ours(error))
            limit, end = end, start + (end - start) // 2
            continue
        intake.add(decoded, place.number, place)
        intake.work()
        start, end = end, limit if end < limit else total
    return None


def _ours(error: Exception) -> Wal2LakeError:
    if isinstance(error, Wal2LakeError):
        return error
    wrapped = InternalError(f"the decoder failed: {error!r}")
    wrapped.__cause__ = error
    return wrapped


def _locate(
    record: JournalRecord,
    refused: _Refused,
    decoder: StreamDecoder,
    writer: SegmentWriter,
    directory: Path,
) -> Undecodable:
    transaction = decoder.open_transaction
    # If a Commit is refused because it contradicts its Begin, either of them may be wrong.
    is_lsn_known = transaction is not None and refused.kind != _COMMIT
    undecodable = Undecodable(
        path=directory / files.journal_name(record.number),
        offset=record.offset,
        message=refused.message,
        commit_lsn=(
            transaction.final_lsn
            if is_lsn_known and transaction is not None
            else writer.complete_lsn
        ),
        error=refused.error,
    )
    get_logger().error(
        "the journal holds a message that cannot be decoded",
        file=str(undecodable.path),
        offset=undecodable.offset,
        commit_lsn=undecodable.commit_lsn,
        error=undecodable.error,
    )
    return undecodable
