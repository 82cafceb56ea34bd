"""One attempt to copy one table.

In: the table to copy, its snapshot and subscription. Out: whether the attempt may still commit. A
command that ends the copy (DROP, DISABLE, REFRESH that removes the table) calls ``end`` from its
own thread. When ``end`` has returned, the attempt commits nothing any more: its threads commit
inside ``writing``, which refuses from then on.

Called by ``worker`` (makes them, ends them) and ``group`` (works for them).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from wal2lake.catalog import Subscription, SubscriptionRel, SyncSnapshot
from wal2lake.errors import PublisherError, description_of
from wal2lake.model import Oid
from wal2lake.pg import RemoteTable
from wal2lake.tablesync.unaltered import SourceChanged

_GAVE_WAY: Final = ("55P03", "57P01")
"""lock_not_available: another session has the lock. admin_shutdown: the snapshot keeper has ended
the reader, because another session waited for its lock. (If the server was shut down, the next
attempt cannot connect and fails with an error.)"""


class Halted(Exception):
    """Raised if the attempt has been ended from outside."""


class SnapshotGone(Exception):
    """Raised if the copy cannot go on under this snapshot."""


@dataclass(frozen=True, slots=True)
class RunningCopy:
    """Progress of one worker, for pg_stat_subscription."""

    relid: Oid
    """OID of the first table of the worker's group that is not copied yet."""
    received_at: datetime | None
    """Time when rows of that table last arrived. None if none have arrived."""


class Attempt:
    """One attempt to copy a table. Only the thread that works for the attempt replaces ``rel``."""

    __slots__ = (
        "_ended",
        "_lock",
        "error",
        "finished",
        "may_be_committed",
        "received_at",
        "rel",
        "remote",
        "snapshot",
        "subscription",
    )

    def __init__(
        self,
        subscription: Subscription,
        rel: SubscriptionRel,
        snapshot: SyncSnapshot,
        remote: RemoteTable | None,
    ) -> None:
        """``remote``: the table at the publisher; None if it does not exist any more."""
        self.subscription = subscription
        self.rel = rel
        self.snapshot = snapshot
        self.remote = remote
        self.error: Exception | None = None
        """Error that the attempt has failed with."""
        self.may_be_committed = rel.lsn is not None
        """Whether this attempt or an earlier one may have committed, as far as the table was
        checked."""
        self.received_at: datetime | None = None
        self.finished = False
        """Whether the table is in state f."""
        self._lock = threading.Lock()
        self._ended = False

    @property
    def name(self) -> str:
        """Name of the table in log messages."""
        return f"{self.rel.remote_namespace}.{self.rel.remote_name}"

    @property
    def over(self) -> bool:
        """Whether the attempt has failed or was ended."""
        return self._ended or self.error is not None

    @property
    def ended(self) -> bool:
        """Whether the attempt was ended from outside."""
        return self._ended

    @property
    def source_changed(self) -> bool:
        """Whether the table differs from the snapshot and needs another snapshot."""
        return isinstance(self.error, SourceChanged)

    @property
    def gave_way(self) -> bool:
        """Whether the attempt yielded to another session of the publisher. It is repeated and does
        not count as a failure."""
        return isinstance(self.error, PublisherError) and (
            self.error.sqlstate in _GAVE_WAY or self.source_changed
        )

    def received(self) -> None:
        """Note that rows have arrived."""
        self.received_at = datetime.now(UTC)

    def take(self, rel: SubscriptionRel) -> None:
        """Set the relation's present state, before the attempt does anything."""
        self.rel = rel
        self.may_be_committed = rel.lsn is not None

    def fail(self, error: Exception) -> None:
        """Note an error. The first error counts."""
        if self.error is None:
            self.error = error

    def describe(self) -> str:
        """Return the error text for the catalog."""
        assert self.error is not None
        return description_of(self.error)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Surround a commit. Raises Halted if the attempt was ended."""
        with self._lock:
            if self._ended:
                raise Halted
            yield

    def end(self, timeout_seconds: float) -> bool:
        """End the attempt, so that no new commit begins. Return False if a running commit does not
        end in time."""
        self._ended = True
        if not self._lock.acquire(timeout=timeout_seconds):
            return False
        self._lock.release()
        return True
