"""Merging of messages from many sources into one stream of CopyData frames, for ``send``.

In: sources, each of which has the places and sizes of its messages and can write any run of
them. Out: pieces of bounded size, each of whole frames:

    'd'  Int32 length  'w'  Int64 LSN  Int64 LSN  Int64 send time  message

Only the plan (places and sizes) is made for all messages at once. It takes about 60 bytes for each
message and 6 for each value, so the caller limits the number of rows, for example to a row group.
Rows are written piece by piece. Because a source is in ascending order, a piece needs one run of
each source.

Source: PostgreSQL manual 54.4 (XLogData), 54.7 (CopyData).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, Protocol

import numpy as np
import pyarrow as pa

from wal2lake.errors import InternalError
from wal2lake.wire.copyboth import XLOGDATA_HEADER
from wal2lake.wire.encoder.rowmessages import (
    Bytes,
    Ints,
    big_endian,
    fixed_array,
    row_major,
)

_COPY_HEADER: Final = 5
"""Bytes of 'd' and of the length, which counts itself."""
FRAME_HEADER: Final = _COPY_HEADER + XLOGDATA_HEADER
"""Bytes of a frame before its message."""

_LARGEST_PIECE: Final = 1 << 30
"""Arrow's binary arrays have 32-bit offsets."""
_PIECE_BYTES: Final = 1 << 20
"""Fits the processor's cache together with its inputs, and is more than a socket accepts at
once."""


class MessageSource(Protocol):
    """Messages with their places, ascending by (commit_lsn, ordinal); one element per message."""

    @property
    def commit_lsn(self) -> Ints: ...
    @property
    def ordinal(self) -> Ints: ...
    @property
    def lsns(self) -> Ints:
        """Start and end LSN in the XLogData of each message."""

    @property
    def sizes(self) -> Ints:
        """Bytes of each message."""

    def encode(self, first: int, last: int) -> Any:
        """Return messages [first, last) as an Arrow binary array without nulls."""


def frames(
    sources: Sequence[MessageSource], send_time: int, *, piece_bytes: int = _PIECE_BYTES
) -> Iterator[memoryview]:
    """Yield all messages in the order of the stream; at equal places, in the order of the sources.

    ``send_time`` is in microseconds since 2000-01-01 UTC. A piece has at most ``piece_bytes``,
    unless it is a single larger frame.
    """
    sources = [source for source in sources if len(source.ordinal)]
    if not sources:
        return
    piece_bytes = min(piece_bytes, _LARGEST_PIECE)
    of, numbers = _order(sources)
    lsns = np.concatenate([source.lsns for source in sources])
    sizes = np.concatenate([source.sizes for source in sources])
    if of is not None:
        base = np.cumsum([0] + [len(source.ordinal) for source in sources[:-1]])
        everywhere = base[of] + numbers
        lsns, sizes = lsns[everywhere], sizes[everywhere]
    ends = np.cumsum(sizes + FRAME_HEADER)
    first, sent = 0, 0
    while first < len(ends):
        last = int(np.searchsorted(ends, sent + piece_bytes, side="right"))
        last = max(last, first + 1)
        if of is None:
            payloads = sources[0].encode(first, last)
        else:
            payloads = _merged(sources, of[first:last], numbers[first:last])
        headers = _headers(sizes[first:last], lsns[first:last], send_time)
        piece = row_major([fixed_array(headers), payloads], last - first)
        sent_now = int(ends[last - 1]) - sent
        yield memoryview(piece.buffers()[2])[:sent_now]
        first, sent = last, int(ends[last - 1])


def _order(sources: Sequence[MessageSource]) -> tuple[Ints | None, Ints]:
    """Return each message's source (None: there is only one) and its number in the source."""
    for source in sources:
        later = np.diff(source.commit_lsn)
        if ((later < 0) | ((later == 0) & (np.diff(source.ordinal) < 0))).any():
            raise InternalError("messages of a source do not ascend")
    counts = [len(source.ordinal) for source in sources]
    if len(sources) == 1:
        return None, np.arange(counts[0])
    order = np.lexsort(
        (
            np.concatenate([source.ordinal for source in sources]),
            np.concatenate([source.commit_lsn for source in sources]),
        )
    )
    of = np.repeat(np.arange(len(sources)), counts)[order]
    base = np.cumsum([0, *counts[:-1]])
    return of, order - base[of]


def _merged(sources: Sequence[MessageSource], of: Ints, numbers: Ints) -> Any:
    """Merge the messages of a piece, given their sources and numbers."""
    present, inverse, counts = np.unique(of, return_inverse=True, return_counts=True)
    arrays = []
    starts = np.empty(len(present), np.int64)
    filled = 0
    # Numbers ascend within a source, so the first one of each source starts its run.
    firsts = np.empty(len(present), np.int64)
    firsts[inverse[::-1]] = numbers[::-1]
    for i, (source, count) in enumerate(zip(present, counts, strict=True)):
        first = int(firsts[i])
        arrays.append(sources[source].encode(first, first + int(count)))
        starts[i] = filled - first
        filled += int(count)
    if len(arrays) == 1:
        return arrays[0]
    return pa.concat_arrays(arrays).take(pa.array(numbers + starts[inverse]))


def _headers(sizes: Ints, lsns: Ints, send_time: int) -> Bytes:
    headers = np.empty((len(sizes), FRAME_HEADER), np.uint8)
    headers[:, 0] = ord("d")
    headers[:, 1:5] = big_endian(sizes + (FRAME_HEADER - 1), ">i4")
    headers[:, 5] = ord("w")
    headers[:, 6:14] = headers[:, 14:22] = big_endian(lsns, ">u8")
    headers[:, 22:30] = np.frombuffer(
        send_time.to_bytes(8, "big", signed=True), np.uint8
    )
    return headers
