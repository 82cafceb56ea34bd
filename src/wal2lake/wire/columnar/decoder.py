"""The hot path: decoding of runs of pgoutput messages to Arrow, column by column.

In: ``feed(data, lengths)``, the XLogData payloads of a gulp, in stream order, divided
anywhere between two messages. Out: Decoded, which has one ChangeBlock per relation version with
rows, rows in stream order, the logical messages, and the transactions that committed. Between feeds
the Decoder keeps the StreamState of wire/stream.py. A feed that breaks a rule raises
ProtocolViolation and does not change the state.

    data, lengths ─▶ Frames ─▶ class of each message ─▶ Timeline (B C O, vectorised)
                                  │                        │ commit LSN, ordinal
                                  ├─ R Y T, one by one     │
                                  ├─ M ─▶ messages         │
                                  └─ I U D ─▶ relation version of each row ─▶ blocks
                                                                               │
                              Arrow batch ◀─ columns.binary_array ◀─ columns.walk_tuples

No Python runs per row or per transaction: 200,000 single-row transactions cost no more than one
transaction of 200,000 rows and 400,000 other messages.

**Log layout** of a block's batch, which is also that of the log's Parquet files:

    commit_lsn  int64   final LSN of the transaction's Begin
    ordinal     int64   0-based position among the changes of its transaction, over all
                        relations; the relations of one TRUNCATE share theirs
    op          uint8   ASCII I, U, D, T
    old         uint8   0, or ASCII K (old key) or O (old row)
    options     uint8   only if not 0 anywhere: a TRUNCATE's bits (1 CASCADE, 2 RESTART
                        IDENTITY)
    c<i>        binary  column i of the new tuple as sent; null: NULL, not sent (u<i>),
                        or a row without new tuple (D, T)
    u<i>        bool    only if true anywhere: c<i> is unchanged TOAST and not sent
    b<i>        bool    only if true anywhere: c<i> is in binary form, not text
    o<i>        binary  column i of the old tuple; only if some row has an old tuple, and
                        for columns outside the key only if some row has the whole old
                        row (or, against the manual, a value there in an old key)
    ob<i>       bool    only if true anywhere: o<i> is in binary form

(commit_lsn, ordinal) is unique within a relation and ascends. An R that repeats the current
description does not start a new version; an R that returns to an earlier version continues
that version's block.

streams.py decodes transactions that are sent before they commit, and passes everything else to
``feed_frames``. Not thread-safe.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from wal2lake.errors import ProtocolViolation
from wal2lake.model import INVALID_LSN, Lsn
from wal2lake.wire.columnar.blocks import (
    ChangeBlock,
    KnownRelations,
    change_blocks,
    read_rows,
    read_truncates,
)
from wal2lake.wire.columnar.framing import (
    Frames,
    Suspect,
    explain,
    require,
    where,
)
from wal2lake.wire.columnar.logicalmessages import no_messages, read_messages
from wal2lake.wire.columnar.timeline import (
    BEGIN,
    CLASS_OF_KIND,
    CLASSES,
    DESCRIPTION,
    MESSAGE,
    ROW,
    TRUNCATE,
    no_transactions,
    read_timeline,
)
from wal2lake.wire.stream import OpenTransaction, StreamState

_NOWHERE: Final = (np.zeros(0, np.int64), np.zeros(0, np.int64))


@dataclass(frozen=True, slots=True)
class Decoded:
    """The decoded content of one feed."""

    blocks: list[ChangeBlock]
    """Blocks in the order of their first rows, including rows of open transactions."""
    messages: Any
    """pyarrow.RecordBatch of logical messages in stream order (messages.MESSAGES_SCHEMA),
    including those of open transactions: lsn, commit_lsn (null outside of transactions),
    transactional, prefix, content."""
    transactions: Any
    """pyarrow.RecordBatch with one row per Commit in the feed: xid, commit_lsn, end_lsn,
    commit_time (microseconds since 2000-01-01 UTC), origin, origin_lsn, changes (number of
    ordinals)."""
    last_end_lsn: Lsn | None
    """End LSN of the last Commit in the feed, or LSN of a later message outside of
    transactions, including skipped ones."""


class Decoder:
    """Decodes the stream of one subscription.

    ``skip_below``: transactions with a lower commit LSN, with their rows and messages, are skipped
    because the log has them; their descriptions still count. Messages outside of transactions
    are skipped if their LSN is not above it.
    """

    def __init__(self, *, skip_below: Lsn = INVALID_LSN) -> None:
        self._skip_below = skip_below
        self.start_connection()

    def start_connection(self) -> None:
        """Reset the state at a new START_REPLICATION: the publisher sends an open transaction and
        all descriptions again."""
        self._state = StreamState()
        self._known = KnownRelations.of(self._state.relations)

    @property
    def open_transaction(self) -> OpenTransaction | None:
        """The transaction whose Commit has not been fed yet."""
        return self._state.transaction

    @property
    def state(self) -> StreamState:
        """State of the connection. Assign another object; never change this one."""
        return self._state

    @state.setter
    def state(self, state: StreamState) -> None:
        self._state = state

    def reached(self, end: Lsn) -> None:
        """Note that a transaction which was not fed here ends at ``end``."""
        self._state = replace(
            self._state, last_end_lsn=max(end, self._state.last_end_lsn)
        )

    def snapshot(self) -> StreamState:
        """Return the current state, for ``restore``."""
        return self._state

    def restore(self, state: StreamState) -> None:
        """Undo all feeds since ``snapshot``."""
        self._state = state

    def feed(self, data: bytes, lengths: NDArray[np.uint32]) -> Decoded:
        """Decode a run of payloads with these lengths.

        The batches own their memory. Raises ProtocolViolation (with the message's name
        and offset, and the LSN of its XLogData) without changing the state;
        InternalError if ``lengths`` do not fit ``data`` or ``data`` has 2 GiB or more.
        """
        if not len(lengths) and not data:
            return Decoded([], no_messages(), no_transactions(), None)
        try:
            return self._feed(Frames(data, lengths))
        except (Suspect, ProtocolViolation):
            state = self._state.copy()
            raise explain(data, lengths, state, self._skip_below) from None

    def feed_frames(self, frames: Frames) -> Decoded:
        """Decode a run, or a part of one, that is framed already, like ``feed``."""
        try:
            return self._feed(frames)
        except (Suspect, ProtocolViolation):
            data = frames.data[int(frames.starts[0]) : int(frames.ends[-1])]
            lengths = (frames.ends - frames.starts).astype(np.uint32)
            state = self._state.copy()
            raise explain(data, lengths, state, self._skip_below) from None

    def _feed(self, frames: Frames) -> Decoded:
        state, skip_below = self._state, self._skip_below
        classes = CLASS_OF_KIND[frames.kinds]
        present = np.bincount(classes, minlength=CLASSES)
        require(present[0] == 0)
        messages = None
        outside = _NOWHERE
        if present[MESSAGE]:
            messages = read_messages(frames, where(classes == MESSAGE))
            outside = messages.outside()
        timeline = read_timeline(frames, classes, state, outside)
        kept = messages.kept(timeline, skip_below) if messages else no_messages()
        rows = read_rows(frames, where(classes == ROW), timeline, skip_below)
        if present[TRUNCATE]:
            truncates = where(classes == TRUNCATE)
            rows = rows.merged(read_truncates(frames, truncates, timeline, skip_below))
        if self._known.source is not state.relations:
            self._known = KnownRelations.of(state.relations)
        described = where(classes == DESCRIPTION)
        after, versions = self._known.described(frames, described, state)
        blocks = change_blocks(frames, rows, versions)
        # The code below cannot fail: a feed is accepted as a whole or not at all.
        last_end = timeline.last_end_lsn
        self._state = StreamState(
            after.relations,
            after.types,
            timeline.open_at_end(just_begun=bool(classes[-1] == BEGIN)),
            state.last_end_lsn if last_end is None else last_end,
        )
        return Decoded(blocks, kept, timeline.finished(skip_below), last_end)
