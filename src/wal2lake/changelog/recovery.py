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
    decoder = StreamDecoder(
        skip_below=writer.complete_lsn, headless=True, streams=spools.streams()
    )
    headless, oldest = True, True
    undecodable: Undecodable | None = None
    for record in journal.recover():
        first, oldest = oldest, False
        if undecodable is not None:
            continue
        place = JournalPlace(record.number, record.offset)
        if record.kind is RecordKind.CONNECT:
            headless = False
            writer.discard_open()
            spools.reconnect(place)
            decoder = StreamDecoder(
                skip_below=writer.complete_lsn, streams=spools.streams()
            )
            continue
        data, lengths = record.data, record.lengths
        if record.kind is RecordKind.DATA and headless:
            data, lengths, begun = drop_headless(data, lengths, inside=decoder.inside)
            headless = not begun
        elif record.kind is RecordKind.PREAMBLE and not first:
            # Definitions of later files are known already.
            continue
        decoder.covered = spools.covered(place)
        refused = _add(decoder, intake, data, lengths, place)
        if refused is not None:
            undecodable = _locate(record, refused, decoder, writer, directory)
    writer.discard_open()
    if undecodable is None:
        spools.reconnect(None)
    return undecodable


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
