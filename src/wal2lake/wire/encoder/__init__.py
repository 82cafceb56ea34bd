"""Encoding of the log layout as pgoutput for the socket, column by column: the hot path out.

Takes: record batches in the log layout (columnar/decoder.py describes it), single messages. Gives:
CopyData frames. Owns: nothing. Never: Python for each row. It is the inverse of wire/columnar.
Imports NumPy and pyarrow.

    rowmessages  the messages of a relation's rows
    payloads     those of transactions, and other messages between rows
    sending      merges them in the order of the stream
"""

from __future__ import annotations

from wal2lake.wire.encoder.payloads import (
    AFTER,
    BEFORE,
    MessagePayloads,
    begins,
    commits,
    messages,
    origins,
    truncates,
)
from wal2lake.wire.encoder.rowmessages import (
    LARGEST_MESSAGE,
    Parts,
    RowsEncoder,
    big_endian,
    offsets_of,
)
from wal2lake.wire.encoder.sending import FRAME_HEADER, MessageSource, frames

__all__ = [
    "AFTER",
    "BEFORE",
    "FRAME_HEADER",
    "LARGEST_MESSAGE",
    "MessagePayloads",
    "MessageSource",
    "Parts",
    "RowsEncoder",
    "begins",
    "big_endian",
    "commits",
    "frames",
    "messages",
    "offsets_of",
    "origins",
    "truncates",
]
