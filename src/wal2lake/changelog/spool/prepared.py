"""Reads prepared transactions: the checkpoints of a log directory, and their rows.

A prepared transaction becomes visible at the next seal (``log.segment_interval_ms``); one that ends
sooner never does. A reader may be in any process.
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
    """A prepared transaction that has not ended. All facts are the publisher's."""

    xid: Xid
    """The publisher's transaction ID."""
    gid: str
    prepare_lsn: Lsn
    prepare_time: int
    """Microseconds since 2000-01-01 UTC."""


@dataclass(frozen=True, slots=True)
class PreparedSpool:
    """A prepared transaction and its rows."""

    transaction: PreparedTransaction
    end_lsn: Lsn
    """End LSN of its PREPARE."""
    changes: int
    """Number of ordinals that it has used."""
    _checkpoint: Path
    _spool: Spool

    def exists(self) -> bool:
        """Return whether the end of the transaction has not been handled yet.

        At ROLLBACK PREPARED its checkpoint is removed before any later change is sealed; if it
        commits, after the segment that has it was sealed."""
        return self._checkpoint.exists()

    @property
    def has_rows(self) -> bool:
        """True if the transaction has rows."""
        return bool(self._spool.pieces)

    def rows(self) -> list[RowsFile]:
        """Return the rows as files of a segment in which the transaction commits at the LSN of its
        PREPARE."""
        return self._spool.attached(self.transaction.prepare_lsn)


def prepared_transactions(directory: Path) -> list[PreparedTransaction]:
    """Return all in the log of ``directory``, which need not exist, oldest first.

    Raises CorruptLogError, StorageError, ConfigurationError.
    """
    return [spool.transaction for spool in prepared_spools(directory)]


def prepared_spools(directory: Path) -> list[PreparedSpool]:
    """Return the same as ``prepared_transactions``, with their rows."""
    spools = _spools(directory) if directory.exists() else ()
    return sorted(spools, key=lambda spool: spool.transaction.prepare_lsn)


def _spools(directory: Path) -> Iterator[PreparedSpool]:
    for number in files.checkpoint_numbers(directory):
        path = directory / files.checkpoint_name(number)
        try:
            spool = checkpoint.load(path)
        except FileNotFoundError:
            # The transaction has ended since the listing.
            continue
        if spool.prepared is not None:
            facts, stream = spool.prepared, spool.stream
            transaction = PreparedTransaction(
                stream.xid, facts.gid, facts.prepare_lsn, facts.prepare_time
            )
            yield PreparedSpool(
                transaction, facts.end_lsn, stream.next_ordinal, path, spool
            )
