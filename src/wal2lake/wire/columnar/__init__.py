"""Runs of pgoutput messages to Arrow, column by column: the hot path.

Takes payloads as received, gives record batches in the log layout (described in decoder,
where to start). framing sees the messages as numbers, timeline finds the transactions,
blocks the rows of each relation version, columns their values, messages the logical
messages. Imports NumPy and pyarrow.
"""

from __future__ import annotations

from wal2lake.wire.columnar.blocks import ChangeBlock
from wal2lake.wire.columnar.decoder import Decoded, Decoder
from wal2lake.wire.columnar.framing import Boundaries, boundaries
from wal2lake.wire.columnar.messages import MESSAGES_SCHEMA, no_messages
from wal2lake.wire.columnar.timeline import no_transactions

__all__ = [
    "MESSAGES_SCHEMA",
    "Boundaries",
    "ChangeBlock",
    "Decoded",
    "Decoder",
    "boundaries",
    "no_messages",
    "no_transactions",
]
