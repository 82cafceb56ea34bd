"""The durable change log of one subscription.

Takes: raw messages of a publisher, a decoder for them. Gives: the logged LSN; sealed
segments of whole transactions in commit order. Owns: the files of one log directory and
their formats (docs/formats/). Never: converts a value,
talks to a server, depends on the readers of its segments.

    log                          the whole log, as the receiver uses it; start here
    journal/                     raw bytes, durable within milliseconds, and their hand-over
    spool/                       transactions that have not committed
    segments, manifest, parquet  sealed segments of decoded changes
    reader, retention            reading of segments; removal of segments
    sealedmessages               reading of logical messages
    confirmed                    positions above the log that were reported to the publisher
    files                        names of files, and how a file becomes durable
"""

from wal2lake.changelog.log import ChangeLog
from wal2lake.changelog.manifest import (
    CaptureState,
    HandedOn,
    LogFile,
    Manifest,
    MessagesFile,
    RowsFile,
    Step,
    TwoPhase,
)
from wal2lake.changelog.parquet import VersionRows, describe_rows, encode_rows
from wal2lake.changelog.reader import LogReader
from wal2lake.changelog.retention import (
    Held,
    Inventory,
    LimitState,
    LogContents,
    LogSize,
    Retention,
    SegmentFacts,
    check_limit,
    history_bytes,
    log_size,
)
from wal2lake.changelog.sealedmessages import MessageHistory
from wal2lake.changelog.segments import SegmentWriter, open_writer
from wal2lake.changelog.spool.held import (
    HeldSpools,
    HeldTransaction,
    SealedMoment,
)
from wal2lake.changelog.spool.prepared import (
    PreparedSpool,
    PreparedTransaction,
    prepared_spools,
    prepared_transactions,
)

__all__ = [
    "CaptureState",
    "ChangeLog",
    "HandedOn",
    "Held",
    "HeldSpools",
    "HeldTransaction",
    "Inventory",
    "LimitState",
    "LogContents",
    "LogFile",
    "LogReader",
    "LogSize",
    "Manifest",
    "MessageHistory",
    "MessagesFile",
    "PreparedSpool",
    "PreparedTransaction",
    "Retention",
    "RowsFile",
    "SealedMoment",
    "SegmentFacts",
    "SegmentWriter",
    "Step",
    "TwoPhase",
    "VersionRows",
    "check_limit",
    "describe_rows",
    "encode_rows",
    "history_bytes",
    "log_size",
    "open_writer",
    "prepared_spools",
    "prepared_transactions",
]
