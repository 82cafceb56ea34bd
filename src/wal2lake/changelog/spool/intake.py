"""Passes decoded events on to the segment writer or to a spool.

In: events of wire.columnar's StreamDecoder, with the journal files of their messages. Out:
nothing; the writer and the spools are changed. The writer gets committed transactions in the order
of the stream:

    a transaction that was sent whole    its rows
    a transaction with a small spool     its rows, from memory and pieces, as if it had been
                                         sent whole: many of them make one segment
    any other transaction                its pieces, attached as a segment of their own

Events that a StorageError delays stay here and are handled first at the next call, so that the
order never changes. A commit below the log's end is skipped: the log has the transaction.

Called by log on the seal thread, and by recovery.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from wal2lake.changelog.journal.journal import JournalPlace
from wal2lake.changelog.segments import SegmentWriter
from wal2lake.changelog.spool.spool import Spool
from wal2lake.changelog.spool.spools import PreparedKey, Spools
from wal2lake.errors import RESTORE_HINT, CorruptLogError
from wal2lake.model import Lsn
from wal2lake.observe import get_logger
from wal2lake.wire.columnar import (
    TRANSACTIONS_SCHEMA,
    Decoded,
    Event,
    PreparedCommitted,
    PreparedRolledBack,
    StreamAborted,
    StreamCommitted,
    Streamed,
    StreamPrepared,
    no_messages,
)


class Intake:
    """Passes on the events of one connection by the rules of the module."""

    def __init__(
        self,
        segments: SegmentWriter,
        spools: Spools,
        *,
        rejoin_bytes: int,
        memory_bytes: int,
    ) -> None:
        """Spools whose pieces have at most ``rejoin_bytes`` are read back at their commit, if
        their rows need at most ``memory_bytes``."""
        self._segments = segments
        self._spools = spools
        self._rejoin_bytes = rejoin_bytes
        self._memory_bytes = memory_bytes
        self._waiting: deque[tuple[Event, int]] = deque()
        self._lost: set[PreparedKey] = set()
        """Transactions that were streamed before the journal begins and prepared in it."""
        self._gone: list[Spool] = []
        self.place: JournalPlace | None = None
        """The last journal record all of whose events have been handled."""
        self._reached: JournalPlace | None = None

    def add(self, events: Iterable[Event], file: int, place: JournalPlace) -> None:
        """Queue the events of the journal records from ``file`` up to the one at ``place``."""
        self._waiting.extend((event, file) for event in events)
        self._reached = place

    def work(self) -> None:
        """Handle all queued events; on StorageError call again."""
        while self._gone:
            self._spools.discard(self._gone[-1])
            self._gone.pop()
        while self._waiting:
            self._segments.relieve()
            self._spools.relieve()
            event, file = self._waiting[0]
            self._take(event, file)
            self._waiting.popleft()
            while self._gone:
                self._spools.discard(self._gone[-1])
                self._gone.pop()
        self.place = self._reached
        self._segments.relieve()
        self._spools.relieve()

    def _take(self, event: Event, file: int) -> None:
        match event:
            case Decoded():
                self._segments.add(event)
            case Streamed():
                self._spools.take(event, file)
            case StreamAborted():
                self._remove(self._spools.abort(event, file))
            case StreamCommitted():
                self._stream_committed(event)
            case StreamPrepared():
                self._remove(self._spools.prepare(event, file))
                if event.stream is None:
                    self._lost.add((event.xid, event.gid))
                self._segments.reach(event.end_lsn)
            case PreparedCommitted():
                self._prepared_committed(event)
            case PreparedRolledBack():
                self._remove(self._ending(event))
                self._segments.reach(event.end_lsn)

    def _remove(self, spool: Spool | None) -> None:
        if spool is not None:
            self._gone.append(spool)

    def _ending(self, event: PreparedRolledBack | PreparedCommitted) -> Spool | None:
        """Forget and return the spool of a prepared transaction that ends without rows."""
        spool = self._spools.committing(event.xid, event.gid)
        if spool is not None:
            self._spools.forget(spool)
        return spool

    def _stream_committed(self, event: StreamCommitted) -> None:
        spool = self._spools.committing(event.xid, None)
        if event.commit_lsn < self._segments.complete_lsn:
            if spool is not None:
                self._spools.forget(spool)
                self._remove(spool)
            return
        if event.stream is None:
            raise _incomplete(event.commit_lsn)
        if spool is not None:
            spool.stream = event.stream
        changes, origin = event.stream.next_ordinal, event.stream.origin
        self._commit(spool, event, changes, origin)

    def _prepared_committed(self, event: PreparedCommitted) -> None:
        if event.commit_lsn < self._segments.complete_lsn:
            self._remove(self._ending(event))
            return
        spool = self._spools.committing(event.xid, event.gid)
        if spool is None:
            if (event.xid, event.gid) in self._lost:
                raise _incomplete(event.commit_lsn)
            get_logger().warning(
                "a prepared transaction commits whose PREPARE was not received:"
                " it is treated as empty",
                gid=event.gid,
                commit_lsn=event.commit_lsn,
            )
            self._commit(None, event, 0, None)
            return
        self._commit(spool, event, spool.stream.next_ordinal, spool.stream.origin)

    def _commit(
        self,
        spool: Spool | None,
        event: StreamCommitted | PreparedCommitted,
        changes: int,
        origin: str | None,
    ) -> None:
        transaction = _transaction(event, changes, origin)
        lsn = event.commit_lsn
        if spool is None:
            self._segments.add(Decoded([], no_messages(), transaction, event.end_lsn))
            return
        if self._is_small(spool):
            messages = list(spool.messages(lsn))
            blocks = spool.rejoined(lsn)
            none = transaction.slice(0, 0)
            for batch in messages:
                self._segments.add(Decoded([], batch, none, None))
            self._segments.add(
                Decoded(blocks, no_messages(), transaction, event.end_lsn)
            )
        else:
            spool.flush()
            spool.secure()
            self._segments.attach(transaction, spool.attached(lsn), spool.messages(lsn))
        self._spools.finish(spool, event.end_lsn)

    def _is_small(self, spool: Spool) -> bool:
        raw = spool.raw_bytes
        return (
            raw is not None
            and raw <= self._memory_bytes
            and spool.piece_bytes <= self._rejoin_bytes
        )


def _transaction(
    event: StreamCommitted | PreparedCommitted, changes: int, origin: str | None
) -> Any:
    """Build the row of the transactions file."""
    return pa.RecordBatch.from_pylist(
        [
            {
                "xid": int(event.xid),
                "commit_lsn": int(event.commit_lsn),
                "end_lsn": int(event.end_lsn),
                "commit_time": event.commit_time,
                "origin": origin,
                # Not known: streams send 0.
                "origin_lsn": None,
                "changes": changes,
            }
        ],
        schema=TRANSACTIONS_SCHEMA,
    )


def _incomplete(commit_lsn: Lsn) -> CorruptLogError:
    return CorruptLogError(
        f"the journal does not have all of the transaction that commits at {commit_lsn}",
        hint=RESTORE_HINT,
    )
