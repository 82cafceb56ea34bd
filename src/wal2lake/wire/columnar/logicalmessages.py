"""Logical messages (pg_logical_emit_message) of a run, as one Arrow batch.

In: the Message messages of a run; then, once its transactions are known, the Timeline.
Out: a batch of MESSAGES_SCHEMA, in stream order, without messages that the log already has.

A transactional message belongs to its transaction and is skipped with it. The publisher sends
other messages when it reads their WAL, whatever the outcome of the transaction that wrote them.
Their LSN is the end of their WAL record, so the log treats it like a transaction's end: everything
up to it has arrived, and streaming that starts there does not send the message again.

Bytes that break a rule of wire/stream.py raise Suspect.

Source: logicalmsg_decode() in src/backend/replication/logical/decode.c (which LSN is sent,
when a message is skipped).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from wal2lake.model import Lsn
from wal2lake.wire.columnar.columns import binary_array
from wal2lake.wire.columnar.framing import Bools, Frames, Ints, Suspect, require
from wal2lake.wire.columnar.timeline import Timeline
from wal2lake.wire.stream import LSN_LIMIT

MESSAGES_SCHEMA: Final = pa.schema(
    [
        pa.field("lsn", pa.int64(), nullable=False),
        pa.field("commit_lsn", pa.int64()),
        pa.field("transactional", pa.bool_(), nullable=False),
        pa.field("prefix", pa.string(), nullable=False),
        pa.field("content", pa.binary(), nullable=False),
    ]
)

_SHORTEST: Final = 15
"""Bytes of kind, flags, LSN, the NUL of an empty prefix, and the length of the content."""
_PREFIX: Final = 9
"""Bytes from the first field to the prefix."""


@cache
def no_messages() -> Any:
    """Return an empty batch, which most feeds have."""
    return pa.RecordBatch.from_pylist([], schema=MESSAGES_SCHEMA)


@dataclass(frozen=True, slots=True)
class Messages:
    """The messages of one run; all arrays have one element per message."""

    number: Ints
    """Number of each message among all messages of the run."""
    transactional: Bools
    lsn: Ints
    prefix: Any
    content: Any

    def outside(self) -> tuple[Ints, Ints]:
        """Return number and LSN of the messages outside of transactions."""
        outside = ~self.transactional
        return self.number[outside], self.lsn[outside]

    def kept(self, timeline: Timeline, skip_below: Lsn) -> Any:
        """Return the batch; raises Suspect if a transactional message is in no transaction."""
        require(timeline.inside(self.number[self.transactional]))
        # The slot of a message that is not transactional is meaningless, and masked below.
        commit_lsn = timeline.final_lsn[timeline.slot[self.number]]
        keep = np.where(
            self.transactional, commit_lsn >= skip_below, self.lsn > skip_below
        )
        batch = pa.RecordBatch.from_arrays(
            [
                pa.array(self.lsn),
                pa.array(commit_lsn, mask=~self.transactional),
                pa.array(self.transactional),
                self.prefix,
                self.content,
            ],
            schema=MESSAGES_SCHEMA,
        )
        return batch if keep.all() else batch.filter(pa.array(keep))


def read_messages(frames: Frames, numbers: Ints) -> Messages:
    """Read the fields of these messages; raises Suspect."""
    require((frames.lengths(numbers) >= _SHORTEST).all())
    fields, ends = frames.fields[numbers], frames.ends[numbers]
    flags = frames.bytes[fields]
    require((flags <= 1).all())
    lsn = frames.words(fields + 1)
    require((lsn < np.uint64(LSN_LIMIT)).all())
    # The only step per message: NumPy would search for NULs in all contents, too.
    find = frames.data.find
    prefix = fields + _PREFIX
    nul = np.array(
        [
            find(b"\0", a, b)
            for a, b in zip(prefix.tolist(), ends.tolist(), strict=True)
        ],
        np.int64,
    )
    content = nul + 5
    require(((nul >= 0) & (content <= ends)).all())
    # The word that ends with the length; its other half is from prefix and LSN.
    length = frames.words(nul - 3) & np.uint64(0xFFFFFFFF)
    require((content + length.view(np.int64) == ends).all())
    try:
        names = binary_array(frames.data, prefix, nul).cast(pa.string())
    except pa.ArrowInvalid:
        raise Suspect from None
    return Messages(
        number=numbers,
        transactional=flags == 1,
        lsn=lsn.view(np.int64),
        prefix=names,
        content=binary_array(frames.data, content, ends),
    )
