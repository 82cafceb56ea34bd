"""The changes of one transaction that is received before it commits: rows, messages, relations.

In: a part of a run without marks, from one stream block or from between Begin Prepare and Prepare,
and the state of the transaction before it. Out: a ``Streamed``, decoded column by column like
other rows, with the subtransaction's xid in place of the commit LSN. If bytes break a rule, they
are read message by message to find which one.

Called by streams.py. Pure.

Sources: apply_handle_stream_* in worker.c; reference 4.4, 4.5; traps ("Stream").
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from wal2lake.errors import InternalError, ProtocolViolation
from wal2lake.model import INVALID_LSN, Lsn
from wal2lake.wire.columnar.blocks import (
    KnownRelations,
    change_blocks,
    read_rows,
    read_truncates,
)
from wal2lake.wire.columnar.framing import Frames, require, where
from wal2lake.wire.columnar.logicalmessages import no_messages, read_messages
from wal2lake.wire.columnar.streamed import (
    OpenStream,
    Streamed,
    StreamedDefinition,
)
from wal2lake.wire.columnar.timeline import (
    CLASS_OF_KIND,
    CLASSES,
    DESCRIPTION,
    MESSAGE,
    ROW,
    TRUNCATE,
    one_transaction,
)
from wal2lake.wire.copyboth import XLOGDATA_HEADER
from wal2lake.wire.fields import violation
from wal2lake.wire.pgoutput import (
    message_name,
    read_message,
)
from wal2lake.wire.stream import (
    OpenTransaction,
    StreamReader,
    StreamState,
    read_header,
)

STREAMED_MESSAGES_SCHEMA: Final = pa.schema(
    [
        pa.field("xid", pa.int64(), nullable=False),
        pa.field("lsn", pa.int64(), nullable=False),
        pa.field("prefix", pa.string(), nullable=False),
        pa.field("content", pa.binary(), nullable=False),
    ]
)

_ORIGIN: Final = ord("O")

_LATEST: Final = 64
"""Number of subtransactions of the last changes that are remembered. More are needed only if more
nested savepoints, with a message between them, are all rolled back. Chosen arbitrarily."""


def described(frames: Frames, stream: OpenStream) -> OpenStream:
    """Add the descriptions of a block to the stream."""
    frames = frames.streamed()
    describing = where(CLASS_OF_KIND[frames.kinds] == DESCRIPTION)
    relations = KnownRelations.of(stream.state.relations)
    after, _ = relations.described(frames, describing, stream.state)
    return stream.defined(_definitions(frames, describing.tolist()), after)


def read_changes(
    frames: Frames, stream: OpenStream, caches: StreamState, *, own: bool
) -> Streamed:
    """Read the changes of one transaction, column by column; raises Suspect."""
    classes = CLASS_OF_KIND[frames.kinds]
    present = np.bincount(classes, minlength=CLASSES)
    require(
        present[[ROW, TRUNCATE, DESCRIPTION, MESSAGE]].sum(dtype=np.int64)
        == len(frames)
    )
    timeline = one_transaction(classes, stream.next_ordinal)
    rows = read_rows(frames, where(classes == ROW), timeline, INVALID_LSN)
    if present[TRUNCATE]:
        truncates = where(classes == TRUNCATE)
        rows = rows.merged(read_truncates(frames, truncates, timeline, INVALID_LSN))
    messages = None
    if present[MESSAGE]:
        messages = _messages(frames, where(classes == MESSAGE), classes, stream)
    describing = where(classes == DESCRIPTION)
    after, versions = KnownRelations.of(caches.relations).described(
        frames, describing, caches
    )
    blocks = change_blocks(frames, rows, versions)
    ordinal = stream.next_ordinal + int(present[ROW] + present[TRUNCATE])
    stream = replace(stream, next_ordinal=ordinal)
    if own:
        stream = replace(stream, latest=_latest(frames, classes, stream))
        stream = stream.defined(_definitions(frames, describing.tolist()), after)
    else:
        # The descriptions are the connection's at once; the caller takes them from the state.
        stream = replace(stream, state=after)
    return Streamed(stream, blocks, messages, whole=not own)


def _definitions(frames: Frames, described: list[int]) -> list[StreamedDefinition]:
    xids = frames.xids
    if xids is None:
        return []
    return [
        StreamedDefinition(
            frames.message(number),
            frames.send_time(number),
            frozenset((int(xids[number]),)),
        )
        for number in described
    ]


def _latest(
    frames: Frames, classes: NDArray[np.uint8], stream: OpenStream
) -> tuple[int, ...]:
    """Return the subtransactions of the last changes, up to the end of this run."""
    changes = where((classes == ROW) | (classes == TRUNCATE))
    if frames.xids is None or not len(changes):
        return stream.latest
    xids = frames.xids[changes]
    # The last change of each subtransaction is the first one from the end.
    distinct, first = np.unique(xids[::-1], return_index=True)
    here = distinct[np.argsort(-first)].tolist()
    mine = set(here)
    return (*(x for x in stream.latest if x not in mine), *here)[-_LATEST:]


def _messages(
    frames: Frames,
    numbers: NDArray[np.int64],
    classes: NDArray[np.uint8],
    stream: OpenStream,
) -> Any:
    """Read the messages of a stream and assign them to subtransactions.

    A message has only the top-level xid. It is assigned to the subtransaction of the last change
    before it that is not rolled back: a rollback that undoes the message undoes that change, and
    no later rollback undoes one without the other."""
    messages = read_messages(frames, numbers)
    require(messages.transactional.all())
    if frames.xids is None:
        raise InternalError("messages of a stream have no xid")
    changes = where((classes == ROW) | (classes == TRUNCATE))
    before = stream.latest[-1] if stream.latest else int(stream.xid)
    owners = np.concatenate(([before], frames.xids[changes]))
    own = frames.xids[numbers]
    owner = owners[np.searchsorted(changes, numbers)]
    return pa.RecordBatch.from_arrays(
        [
            pa.array(np.where(own == int(stream.xid), owner, own).astype(np.int64)),
            pa.array(messages.lsn),
            messages.prefix,
            messages.content,
        ],
        schema=STREAMED_MESSAGES_SCHEMA,
    )


def wrong(problem: str, kind: int, offset: int = 0) -> ProtocolViolation:
    return violation(problem, message=message_name(kind), offset=offset)


def located(error: ProtocolViolation, frames: Frames, number: int) -> ProtocolViolation:
    start = read_header(frames.payload(number)).start_lsn
    error.context = f"{error.context}, in XLogData at {start}"
    return error


def explain_changes(
    frames: Frames, stream: OpenStream, caches: StreamState, *, in_stream: bool
) -> ProtocolViolation:
    """Return the violation among suspect changes, found message by message."""
    state = caches.copy()
    state.transaction = OpenTransaction(stream.xid, Lsn(1), 0, None, None, 0, False)
    reader = StreamReader(state)
    for number in range(len(frames)):
        payload = frames.payload(number)
        try:
            if payload[XLOGDATA_HEADER] == _ORIGIN:
                raise wrong("ORIGIN message sent out of order", _ORIGIN)
            if in_stream:
                body = payload[XLOGDATA_HEADER:]
                if stream.lost and body[0] not in b"RY" and any(body[1:5]) and body[4:]:
                    continue  # Only descriptions count.
                read_message(body, in_stream=True)
                payload = payload[: XLOGDATA_HEADER + 1] + body[5:]
            if payload[XLOGDATA_HEADER] not in b"RYIUDTM":
                raise wrong(
                    f"{message_name(payload[XLOGDATA_HEADER])} message inside of a"
                    " prepared transaction",
                    payload[XLOGDATA_HEADER],
                )
            if payload[XLOGDATA_HEADER] == ord("M") and payload[26:27] == b"\0":
                raise wrong(
                    "non-transactional message inside of a transaction", ord("M"), 1
                )
        except ProtocolViolation as error:
            return located(error, frames, number)
        try:
            reader.read(payload)
        except ProtocolViolation as error:
            return error
    raise InternalError("the columnar decoder refuses what the scalar reader accepts")


def as_messages(batch: Any, commit_lsn: Lsn) -> Any:
    """Convert messages of a stream that has committed to MESSAGES_SCHEMA."""
    count = batch.num_rows
    return pa.RecordBatch.from_arrays(
        [
            batch.column("lsn"),
            pa.array(np.full(count, int(commit_lsn), np.int64)),
            pa.array(np.ones(count, np.bool_)),
            batch.column("prefix"),
            batch.column("content"),
        ],
        schema=no_messages().schema,
    )
