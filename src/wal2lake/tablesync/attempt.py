"""One attempt to copy one table, as long as it is in somebody's hands.

In: what it is about to copy. Out: whether it may still write. A command that ends the copy
(DROP, DISABLE, REFRESH that removes the table) calls ``end`` from its own thread and knows when
it returns that nothing of the attempt will ever be committed; whoever works for the attempt
commits inside ``writing``, which refuses from then on.

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
"""lock_not_available: somebody else has the lock; admin_shutdown: the snapshot keeper has ended
the reader, because somebody waited for its lock. (If the server is shut down, the next attempt
cannot connect, and has an error then.)"""


class Halted(Exception):
    """The attempt has been ended from outside."""


class SnapshotGone(Exception):
    """The copy cannot go on under this snapshot."""


@dataclass(frozen=True, slots=True)
class RunningCopy:
    """Progress of one worker, for pg_stat_subscription."""

    relid: Oid
    """OID of the first table of the worker's group that is not copied yet."""
    received_at: datetime | None
    """When rows of that table last came; None: not yet."""


class Attempt:
    """One attempt to copy a table; the module describes it. ``rel`` is replaced by the thread that
    works for the attempt."""

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
        """``remote``: the table at the publisher; None: it is not there any more."""
        self.subscription = subscription
        self.rel = rel
        self.snapshot = snapshot
        self.remote = remote
        self.error: Exception | None = None
        """Why it has failed."""
        self.may_be_committed = rel.lsn is not None
        """By this attempt or an earlier one, as far as the table was looked at."""
        self.received_at: datetime | None = None
        self.finished = False
        """The table is in state f."""
        self._lock = threading.Lock()
        self._ended = False

    @property
    def name(self) -> str:
        """The table's, as the log shows it."""
        return f"{self.rel.remote_namespace}.{self.rel.remote_name}"

    @property
    def over(self) -> bool:
        """There is nothing more to do for it."""
        return self._ended or self.error is not None

    @property
    def ended(self) -> bool:
        """From outside."""
        return self._ended

    @property
    def source_changed(self) -> bool:
        """The table is not any more what the snapshot has: it needs another one."""
        return isinstance(self.error, SourceChanged)

    @property
    def gave_way(self) -> bool:
        """It has ended for somebody at the publisher, and comes again: no failure."""
        return isinstance(self.error, PublisherError) and (
            self.error.sqlstate in _GAVE_WAY or self.source_changed
        )

    def received(self) -> None:
        """Rows have come."""
        self.received_at = datetime.now(UTC)

    def take(self, rel: SubscriptionRel) -> None:
        """The relation as it is now, before anything is done."""
        self.rel = rel
        self.may_be_committed = rel.lsn is not None

    def fail(self, error: Exception) -> None:
        """The first error counts."""
        if self.error is None:
            self.error = error

    def describe(self) -> str:
        """The error, as the catalog keeps it."""
        assert self.error is not None
        return description_of(self.error)

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Around a commit. Raises Halted."""
        with self._lock:
            if self._ended:
                raise Halted
            yield

    def end(self, timeout_seconds: float) -> bool:
        """Let it write no more; False if a commit that has begun does not end in time. It is
        the last one then, too."""
        self._ended = True
        if not self._lock.acquire(timeout=timeout_seconds):
            return False
        self._lock.release()
        return True
