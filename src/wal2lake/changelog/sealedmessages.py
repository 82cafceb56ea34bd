"""The logical messages of the log: how they are sealed and read.

    pg_logical_emit_message ─▶ journal ─▶ seg-<n>-messages-<k>.parquet ─▶ MessageHistory

Messages are sealed with the transactions around them and removed with their segment
(``retention``): after all changes up to the segment have been applied, and after
``log.history_bytes`` no longer keeps it.

The seal thread uses ``take_whole`` and ``last_outside``. A MessageHistory is for a reader in
any process, and for one thread at a time. It remembers which segments have messages, so that a
poll need not read every manifest again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from wal2lake.changelog import files
from wal2lake.changelog.manifest import MessagesFile
from wal2lake.changelog.reader import LogReader
from wal2lake.errors import CorruptLogError, UsageError
from wal2lake.model import INVALID_LSN, Lsn
from wal2lake.wire.columnar import MESSAGES_SCHEMA


def take_whole(batches: Sequence[Any], complete: Lsn) -> tuple[list[Any], list[Any]]:
    """Separate messages of whole transactions, or outside of transactions, from those of the open
    transaction.

    ``complete`` is the end of the last whole transaction: the open one commits above.
    """
    whole, remaining = [], []
    for batch in batches:
        # A message outside of transactions does not wait for a commit.
        commit_lsn = batch.column("commit_lsn").fill_null(0).to_numpy()
        count = int(np.count_nonzero(commit_lsn < int(complete)))
        if count:
            whole.append(batch.slice(0, count))
        if count < batch.num_rows:
            remaining.append(batch.slice(count))
    return whole, remaining


def last_outside(batch: Any) -> Lsn:
    """Return the LSN of the last message outside of transactions; 0: there is none."""
    outside = batch.column("lsn").filter(pc.invert(batch.column("transactional")))
    return Lsn(outside[-1].as_py()) if len(outside) else INVALID_LSN


class MessageHistory:
    """The messages in the present segments of one directory."""

    def __init__(self, directory: Path) -> None:
        """Do no I/O yet; the directory need not exist."""
        self._directory = directory
        self._reader = LogReader(directory)
        self._newest = 0
        self._files: dict[int, tuple[MessagesFile, ...]] = {}

    def read(self, *, limit_bytes: int) -> Any:
        """Return all messages as a pyarrow.Table of MESSAGES_SCHEMA in the log's order.

        Raises UsageError (53400) before any message is read if their contents together are
        larger than ``limit_bytes``; CorruptLogError, ConfigurationError,
        StorageError.
        """
        self._follow()
        size = sum(file.content_bytes for of in self._files.values() for file in of)
        if size > limit_bytes:
            raise UsageError(
                f"the logical messages in the change log take {size} bytes",
                sqlstate="53400",
                detail=f"At most {limit_bytes} bytes are shown.",
                hint="Raise log.messages_view_bytes, or lower log.history_bytes.",
            )
        tables = [MESSAGES_SCHEMA.empty_table()]
        for number, of in self._files.items():
            tables += self._tables(number, of)
        return pa.concat_tables(tables)

    def _tables(self, number: int, of: Sequence[MessagesFile]) -> list[Any]:
        try:
            return [self._reader.read(part.file) for part in of]
        except CorruptLogError:
            # Retention may remove a segment at any time; then its manifest is gone, too.
            if (self._directory / files.manifest_name(number)).exists():
                raise
            return []

    def _follow(self) -> None:
        """Find the segments that were sealed or removed since the last call."""
        if not self._directory.exists():
            self._files.clear()
            return
        numbers = self._reader.numbers()
        oldest = numbers[0] if numbers else self._newest + 1
        for gone in [number for number in self._files if number < oldest]:
            del self._files[gone]
        for manifest in self._reader.load([n for n in numbers if n > self._newest]):
            self._newest = manifest.number
            if manifest.messages_files:
                self._files[manifest.number] = manifest.messages_files
