"""The hot path: runs of pgoutput messages to Arrow, column by column.

In: ``feed(data, lengths)``, the XLogData payloads of a gulp, in stream order, cut
anywhere between two messages. Out: Decoded: one ChangeBlock per relation version with rows,
rows in stream order, the logical messages, and the transactions that committed. Between feeds
the Decoder keeps what wire/stream.py calls StreamState. A feed that breaks a rule raises
ProtocolViolation and leaves the state as it was.

    data, lengths ─▶ Frames ─▶ class of each message ─▶ Timeline (B C O, vectorised)
                                  │                        │ commit LSN, ordinal
                                  ├─ R Y T, one by one     │
                                  ├─ M ─▶ messages         │
                                  └─ I U D ─▶ relation version of each row ─▶ blocks
                                                                               │
                              Arrow batch ◀─ columns.binary_array ◀─ columns.walk_tuples

No Python runs per row or per transaction: 200,000 single-row transactions cost what one
transaction of 200,000 rows and 400,000 more messages must.

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

(commit_lsn, ordinal) is unique within a relation and ascends. An R that repeats what is
known does not start a new version; one that goes back to an earlier version continues
that version's block.

Transactions that arrive before they commit are streams.py's, which hands everything else to
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
from wal2lake.wire.columnar.messages import no_messages, read_messages
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
    """Contents of one feed."""

    blocks: list[ChangeBlock]
    """Rows of open transactions too. In the order of their first rows."""
    messages: Any
    """pyarrow.RecordBatch of logical messages in stream order (messages.MESSAGES_SCHEMA),
    those of open transactions too. lsn, commit_lsn (null: it is in no transaction),
    transactional, prefix, content."""
    transactions: Any
    """pyarrow.RecordBatch: xid, commit_lsn, end_lsn, commit_time (microseconds since
    2000-01-01 UTC), origin, origin_lsn, changes (how many ordinals it used); one row per
    Commit in the feed."""
    last_end_lsn: Lsn | None
    """End LSN of the last Commit in the feed, or LSN of a later message that belongs to no
    transaction; skipped ones included."""


class Decoder:
    """Decodes the stream of one subscription.

    ``skip_below``: transactions with a lower commit LSN, and their rows, are left out
    (they are already in the log); their descriptions still count. So are their messages,
    and those outside of transactions whose LSN is not above it.
    """

    def __init__(self, *, skip_below: Lsn = INVALID_LSN) -> None:
        self._skip_below = skip_below
        self.start_connection()

    def start_connection(self) -> None:
        """A new START_REPLICATION: an open transaction and all descriptions come again."""
        self._state = StreamState()
        self._known = KnownRelations.of(self._state.relations)

    @property
    def open_transaction(self) -> OpenTransaction | None:
        """The transaction whose Commit has not been fed yet."""
        return self._state.transaction

    @property
    def state(self) -> StreamState:
        """Knowledge of the connection; set it to another object, never change it."""
        return self._state

    @state.setter
    def state(self, state: StreamState) -> None:
        self._state = state

    def reached(self, end: Lsn) -> None:
        """A transaction that was not fed here ends at ``end``."""
        self._state = replace(
            self._state, last_end_lsn=max(end, self._state.last_end_lsn)
        )

    def snapshot(self) -> StreamState:
        """For ``restore``: the state as it is now."""
        return self._state

    def restore(self, state: StreamState) -> None:
        """Forget all feeds since ``snapshot``."""
        self._state = state

    def feed(self, data: bytes, lengths: NDArray[np.uint32]) -> Decoded:
        """Decode a run of payloads; ``lengths`` are theirs.

        The batches own their memory. Raises ProtocolViolation (with the message's name
        and offset, and the LSN of its XLogData) and then keeps the state of before;
        InternalError if ``lengths`` do not fit ``data`` or that is 2 GiB or more.
        """
        if not len(lengths) and not data:
            return Decoded([], no_messages(), no_transactions(), None)
        try:
            return self._feed(Frames(data, lengths))
        except (Suspect, ProtocolViolation):
            state = self._state.copy()
            raise explain(data, lengths, state, self._skip_below) from None

    def feed_frames(self, frames: Frames) -> Decoded:
        """``feed`` for a run, or a part of one, that is framed already."""
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
        # Nothing below fails: the feed is accepted as a whole or not at all.
        last_end = timeline.last_end_lsn
        self._state = StreamState(
            after.relations,
            after.types,
            timeline.open_at_end(just_begun=bool(classes[-1] == BEGIN)),
            state.last_end_lsn if last_end is None else last_end,
        )
        return Decoded(blocks, kept, timeline.finished(skip_below), last_end)
