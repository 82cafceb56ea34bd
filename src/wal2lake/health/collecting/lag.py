"""The lag of each stage of a subscription, and of each table, from positions and commit times.

In: the positions of a subscription's stages, the source's last known position, the ring of commit
times, the time. Out: ``StageLag``. Pure, apart from the ring, which is mapped memory.

A stage at position P is behind by the age of the first commit above P. No stage is fresher than the
one before it. A source that cannot be reached may have committed since its last message, so the
time since that message is a lag, too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from wal2lake.catalog import Progress, SnapshotVector, Subscription, SubscriptionRel
from wal2lake.health.facts import StageLag
from wal2lake.model import INVALID_LSN, Lsn, SyncState

_EPOCH = datetime(2000, 1, 1, tzinfo=UTC)

FirstAfter = Callable[[Lsn], int | None]
"""Commit time (microseconds since 2000-01-01 UTC) of the first commit above a position; None if
there is none."""

_NOT_YET_READABLE = (SyncState.INIT, SyncState.DATASYNC)


@dataclass(frozen=True, slots=True)
class StagePositions:
    """How far each stage has come. Each is at or below the one before it."""

    source: Lsn
    received: Lsn
    durable: Lsn
    applied: Lsn
    visible: Lsn


def stage_positions(
    subscription: Subscription,
    progress: Progress | None,
    vector: SnapshotVector | None,
    source: Lsn,
) -> StagePositions:
    """Combine durable and mapped positions. A paused or failed table does not hold the
    subscription's stages: the table has a lag of its own."""
    floor = subscription.floor
    published = floor if vector is None else max(floor, vector.lsn)
    if progress is None:
        applied = durable = received = published
    else:
        applied = max(progress.applied, progress.replay_lsn, published)
        durable = max(progress.logged, applied)
        received = max(progress.received, durable)
    # A vector moves with batches. Above the last one is nothing for any table if the engine has
    # published all that it has applied.
    seen = progress is None or vector is None or published >= progress.applied
    visible = applied if seen else published
    return StagePositions(
        Lsn(max(source, received)),
        Lsn(received),
        Lsn(durable),
        Lsn(applied),
        Lsn(visible),
    )


class LagClock:
    """Turns positions of one subscription into lags at one moment."""

    def __init__(
        self,
        positions: StagePositions,
        first_after: FirstAfter,
        now: datetime,
        silent_seconds: float | None,
    ) -> None:
        """``silent_seconds``: time since the last message of a source that does not send now; 0
        while it does; None if it does not and never sent one."""
        self._positions = positions
        self._first_after = first_after
        self._known: dict[Lsn, float | None] = {}
        self._now = now
        self._silent = silent_seconds

    def stages(self) -> tuple[StageLag, StageLag, StageLag, StageLag]:
        """Return the lags of received, durable, applied and visible."""
        positions = self._positions
        received = self._stage(positions.received, 0.0)
        durable = self._stage(positions.durable, received.behind_seconds)
        applied = self._stage(positions.applied, durable.behind_seconds)
        visible = self._stage(positions.visible, applied.behind_seconds)
        return received, durable, applied, visible

    def _stage(self, lsn: Lsn, before: float | None) -> StageLag:
        bytes_behind = max(0, int(self._positions.source) - int(lsn))
        seconds = self.seconds(lsn)
        if seconds is not None:
            seconds = max(seconds, before or 0.0)
        return StageLag(lsn, bytes_behind, seconds)

    def seconds(self, lsn: Lsn) -> float | None:
        """Return how long what is complete at a position is behind. None if that is not known,
        because the source has sent nothing yet."""
        if lsn not in self._known:
            # Most tables are at one position.
            self._known[lsn] = self._measured(lsn)
        return self._known[lsn]

    def _measured(self, lsn: Lsn) -> float | None:
        first = self._first_after(lsn)
        if first is None:
            return self._silent
        age = (self._now - from_microseconds(first)).total_seconds()
        return max(0.0, age, self._silent or 0.0)

    def table(
        self, rel: SubscriptionRel, vector: SnapshotVector | None
    ) -> tuple[Lsn, float | None]:
        """Return the position of a table, and the seconds that it is behind; None while it is not
        copied."""
        if rel.state in _NOT_YET_READABLE:
            return rel.lsn or INVALID_LSN, None
        apart = None if vector is None else vector.apart.get(int(rel.relid))
        if apart is None and rel.state is SyncState.FINISHEDCOPY:
            apart = rel.lsn
        if apart is None or vector is None or (apart == vector.lsn and not rel.paused):
            return self._positions.visible, self.seconds(self._positions.visible)
        return Lsn(apart), self.seconds(Lsn(apart))


def from_microseconds(value: int) -> datetime:
    """Convert PostgreSQL's time: microseconds since 2000-01-01 UTC."""
    return _EPOCH + timedelta(microseconds=value)
