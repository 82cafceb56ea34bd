"""Decoding of runs of pgoutput messages to Arrow, column by column: the hot path.

Takes payloads as received, gives record batches in the log layout (described in ``decoder``; start
there). ``framing`` presents the messages as numbers, ``timeline`` finds the transactions,
``blocks`` the rows of each relation version, ``columns`` their values, ``logicalmessages`` the
logical messages. ``streams``, which the log uses, adds transactions that are sent before they
commit; ``streamedchanges`` reads their changes, and ``streamed`` has their state. Imports NumPy and
pyarrow.
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
