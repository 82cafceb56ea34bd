"""Rows and bytes per second, from counters of successive looks. Pure.

Processes write their counters about once a second, so a rate is that of the last few seconds. A
counter that went back is that of a new process: the looks before it are forgotten.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from wal2lake.health import NodeFacts, SubscriptionFacts, TableFacts
from wal2lake.model import Oid

WINDOW_SECONDS: Final = 10.0
"""Time that a rate is an average of. Chosen arbitrarily."""

_NO_ROWS: Final = "truncated"

_Key = tuple[Oid, Oid]


@dataclass(frozen=True, slots=True)
class _Sample:
    """Counters of one look."""

    taken_at: datetime
    rows: Mapping[_Key, int]
    received: Mapping[Oid, int]


class RecentRates:
    """Rates between the looks of the last seconds. A rate is None while there is one look."""

    def __init__(self) -> None:
        self._samples: deque[_Sample] = deque()

    def add(self, facts: NodeFacts) -> None:
        """Take another look in."""
        sample = _Sample(
            facts.taken_at,
            {(s.oid, t.oid): _rows(t) for s in facts.subscriptions for t in s.tables},
            {s.oid: int(s.received.lsn) for s in facts.subscriptions},
        )
        if self._samples and self._has_restarted(sample):
            self._samples.clear()
        self._samples.append(sample)
        while len(self._samples) > 2 and self._seconds() > WINDOW_SECONDS:
            self._samples.popleft()

    def table(self, subscription: SubscriptionFacts, table: TableFacts) -> float | None:
        """Return rows per second that were written to a table."""
        key = (subscription.oid, table.oid)
        before = self._samples[0].rows.get(key) if self._samples else None
        now = self._samples[-1].rows.get(key) if self._samples else None
        return self._rate(before, now)

    def rows(self, subscription: SubscriptionFacts) -> float | None:
        """Return rows per second of all tables of a subscription."""
        rates = [self.table(subscription, table) for table in subscription.tables]
        known_rates = [rate for rate in rates if rate is not None]
        return sum(known_rates) if known_rates else None

    def received(self, subscription: SubscriptionFacts) -> float | None:
        """Return bytes of WAL per second by which the received position moves."""
        before = (
            self._samples[0].received.get(subscription.oid) if self._samples else None
        )
        now = (
            self._samples[-1].received.get(subscription.oid) if self._samples else None
        )
        return self._rate(before, now)

    def _rate(self, before: int | None, now: int | None) -> float | None:
        seconds = self._seconds()
        if before is None or now is None or seconds <= 0:
            return None
        return max(now - before, 0) / seconds

    def _seconds(self) -> float:
        if not self._samples:
            return 0.0
        return (self._samples[-1].taken_at - self._samples[0].taken_at).total_seconds()

    def _has_restarted(self, sample: _Sample) -> bool:
        last = self._samples[-1].rows
        return any(count < last.get(key, 0) for key, count in sample.rows.items())


def _rows(table: TableFacts) -> int:
    return sum(count for kind, count in table.rows.items() if kind != _NO_ROWS)
