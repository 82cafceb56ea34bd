"""Reads prepared transactions: the checkpoints of a log directory, and their rows.

A prepared transaction shows once it has outlived a seal (``log.segment_interval_ms``); one whose
end comes sooner never does. For a reader in any process.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from wal2lake.changelog import files
from wal2lake.changelog.manifest import RowsFile
from wal2lake.changelog.spool import checkpoint
from wal2lake.changelog.spool.spool import Spool
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


@dataclass(frozen=True, slots=True)
class PreparedSpool:
    """A prepared transaction and where its rows are."""

    transaction: PreparedTransaction
    end_lsn: Lsn
    """Behind its PREPARE."""
    changes: int
    """How many ordinals it has used."""
    _checkpoint: Path
    _spool: Spool

    def exists(self) -> bool:
        """It has not been seen to end. Its checkpoint goes before anything is sealed that comes
        behind its ROLLBACK PREPARED, and behind the segment that has it, if it commits."""
        return self._checkpoint.exists()

    @property
    def has_rows(self) -> bool:
        """Anything is in it."""
        return bool(self._spool.pieces)

    def rows(self) -> list[RowsFile]:
        """Return the rows as files of a segment in which the transaction commits where it is
        prepared."""
        return self._spool.attached(self.transaction.prepare_lsn)


def prepared_transactions(directory: Path) -> list[PreparedTransaction]:
    """All in the log of ``directory``, which need not exist, oldest first.

    Raises CorruptLogError, StorageError, ConfigurationError.
    """
    return [one.transaction for one in prepared_spools(directory)]


def prepared_spools(directory: Path) -> list[PreparedSpool]:
    """The same, with their rows."""
    found = _spools(directory) if directory.exists() else ()
    return sorted(found, key=lambda one: one.transaction.prepare_lsn)


def _spools(directory: Path) -> Iterator[PreparedSpool]:
    for number in files.checkpoint_numbers(directory):
        path = directory / files.checkpoint_name(number)
        try:
            spool = checkpoint.load(path)
        except FileNotFoundError:
            # It has ended since the listing.
            continue
        if spool.prepared is not None:
            facts, stream = spool.prepared, spool.stream
            transaction = PreparedTransaction(
                stream.xid, facts.gid, facts.prepare_lsn, facts.prepare_time
            )
            yield PreparedSpool(
                transaction, facts.end_lsn, stream.next_ordinal, path, spool
            )
