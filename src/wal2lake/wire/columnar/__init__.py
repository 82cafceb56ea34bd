"""Runs of pgoutput messages to Arrow, column by column: the hot path.

Takes payloads as received, gives record batches in the log layout (described in decoder,
where to start). framing sees the messages as numbers, timeline finds the transactions,
blocks the rows of each relation version, columns their values. Imports NumPy and pyarrow.
"""

from __future__ import annotations

from wal2lake.wire.columnar.blocks import ChangeBlock
from wal2lake.wire.columnar.decoder import Decoded, Decoder
from wal2lake.wire.columnar.framing import Boundaries, boundaries

__all__ = ["Boundaries", "ChangeBlock", "Decoded", "Decoder", "boundaries"]
