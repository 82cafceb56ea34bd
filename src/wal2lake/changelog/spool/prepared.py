"""What is prepared, for those who look: the checkpoints of a log directory.

A prepared transaction shows once it has outlived a seal (``log.segment_interval_ms``); one whose
end comes sooner never does. For a reader in any process.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from wal2lake.changelog import files
from wal2lake.changelog.spool import checkpoint
from wal2lake.model import Lsn, Xid


@dataclass(frozen=True, slots=True)
class PreparedTransaction:
    """A transaction whose COMMIT PREPARED or ROLLBACK PREPARED is to come."""

    xid: Xid
    """The publisher's, like all that follows."""
    gid: str
    prepare_lsn: Lsn
    prepare_time: int
    """Microseconds since 2000-01-01 UTC."""


def prepared_transactions(directory: Path) -> list[PreparedTransaction]:
    """All in the log of ``directory``, which need not exist, oldest first.

    Raises CorruptLogError, StorageError, ConfigurationError.
    """
    if not directory.exists():
        return []
    found = []
    for number in files.checkpoint_numbers(directory):
        path = directory / files.checkpoint_name(number)
        try:
            spool = checkpoint.load(path)
        except FileNotFoundError:
            # It has ended since the listing.
            continue
        if spool.prepared is not None:
            facts = spool.prepared
            found.append(
                PreparedTransaction(
                    spool.stream.xid, facts.gid, facts.prepare_lsn, facts.prepare_time
                )
            )
    return sorted(found, key=lambda one: one.prepare_lsn)
