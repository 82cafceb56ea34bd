"""Measures how long a client takes to write, flush and apply: PostgreSQL's LagTracker.

In: positions with the time at which they were sent, and positions that the client reports. Out: the
time between the two, in microseconds. Pure: the caller passes the time.

The time of a reported position between two samples is interpolated. A client that has everything is
not measured: a lag from before an idle hour would be misleading.

Source: LagTrackerWrite(), LagTrackerRead(), WalSndUpdateProgress() and
ProcessStandbyReplyMessage() in walsender.c.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from wal2lake.model import Lsn

_SAMPLES: Final = 8192
"""LAG_TRACKER_BUFFER_SIZE: more than two hours of one sample a second."""

_BETWEEN_US: Final = 1_000_000
"""WALSND_LOGICAL_LAG_TRACK_INTERVAL_MS."""

Sample = tuple[Lsn, int]
"""A position and the time at which it was sent."""


@dataclass(slots=True)
class _Head:
    """One kind of position that the client reports."""

    unread: deque[Sample] = field(default_factory=lambda: deque(maxlen=_SAMPLES))
    last: Sample | None = None
    """Newest sample that the client has reached. None if no lag was measured since the client had
    everything."""
    lag_us: int | None = None
    """Last measured lag."""

    def read(self, lsn: Lsn, now_us: int) -> int | None:
        """Measure the lag of a reported position; None if there is nothing new to measure."""
        reached = None
        while self.unread and self.unread[0][0] <= lsn:
            reached = self.last = self.unread.popleft()
        if not self.unread:
            self.last = None
        if reached is not None:
            sent_us = reached[1]
        elif self.unread and self.last is not None and lsn >= self.last[0]:
            (before, then_us), (after, later_us) = self.last, self.unread[0]
            fraction = (lsn - before) / (after - before)
            sent_us = int(then_us + (later_us - then_us) * fraction)
        else:
            return None
        return None if sent_us > now_us else now_us - sent_us


class LagTracker:
    """Measures the lag of one client."""

    def __init__(self) -> None:
        """Create a tracker without samples."""
        self._heads = (_Head(), _Head(), _Head())
        self._newest: Sample | None = None
        self._had_all = False

    def sent(self, lsn: Lsn, now_us: int) -> None:
        """Note that everything below ``lsn`` was sent. One sample per second is kept."""
        newest = self._newest
        if newest is not None and (
            lsn <= newest[0] or now_us - newest[1] < _BETWEEN_US
        ):
            return
        self._newest = lsn, now_us
        for head in self._heads:
            if len(head.unread) == _SAMPLES:
                # As in PostgreSQL, the newest sample is dropped, because the oldest one
                # determines the lag.
                head.unread.pop()
            head.unread.append(self._newest)

    def reported(
        self, write: Lsn, flush: Lsn, apply: Lsn, sent: Lsn, now_us: int
    ) -> None:
        """Note positions that the client has reported. If the client reports twice that it has
        applied everything up to ``sent``, lags without a new measurement are cleared."""
        has_all = apply >= sent
        forget = has_all and self._had_all
        self._had_all = has_all
        for head, lsn in zip(self._heads, (write, flush, apply), strict=True):
            lag_us = head.read(lsn, now_us)
            if lag_us is not None or forget:
                head.lag_us = lag_us

    @property
    def lags_us(self) -> tuple[int | None, int | None, int | None]:
        """Return the lags of writing, flushing and applying."""
        write, flush, apply = (head.lag_us for head in self._heads)
        return write, flush, apply
