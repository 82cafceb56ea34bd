"""Decoding of runs of pgoutput messages to Arrow, column by column: the hot path.

Takes: payloads as received. Gives: record batches in the log layout. Owns: the transactions that
have not ended. Never: Python for each row, or another result than the scalar reader's. Imports
NumPy and pyarrow.

    decoder          the layout of the log, and the decoder; start here
    framing          the messages as numbers
    timeline         the transactions
    blocks           the rows of each relation version
    columns          their values
    logicalmessages  logical messages
    streams          transactions that are sent before they commit; the log uses this
    streamedchanges  their changes
    streamed         their state
    copybinary       COPY in binary format, by the same means
"""

from __future__ import annotations

from wal2lake.wire.columnar.blocks import ChangeBlock
from wal2lake.wire.columnar.decoder import Decoded, Decoder
from wal2lake.wire.columnar.logicalmessages import MESSAGES_SCHEMA, no_messages
from wal2lake.wire.columnar.streamed import (
    OpenStream,
    PreparedCommitted,
    PreparedRolledBack,
    StreamAborted,
    StreamCommitted,
    Streamed,
    StreamedDefinition,
    StreamPrepared,
    caches,
)
from wal2lake.wire.columnar.streamedchanges import STREAMED_MESSAGES_SCHEMA, as_messages
from wal2lake.wire.columnar.streams import Event, StreamDecoder
from wal2lake.wire.columnar.timeline import TRANSACTIONS_SCHEMA, no_transactions

__all__ = [
    "MESSAGES_SCHEMA",
    "STREAMED_MESSAGES_SCHEMA",
    "TRANSACTIONS_SCHEMA",
    "ChangeBlock",
    "Decoded",
    "Decoder",
    "Event",
    "OpenStream",
    "PreparedCommitted",
    "PreparedRolledBack",
    "StreamAborted",
    "StreamCommitted",
    "StreamDecoder",
    "StreamPrepared",
    "Streamed",
    "StreamedDefinition",
    "as_messages",
    "caches",
    "no_messages",
    "no_transactions",
]
