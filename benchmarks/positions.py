"""How far a subscriber is, watched as often as one can without being the load itself.

Comes in: a connection and a question whose answer is an LSN. Goes out: the moments at which
the answer moved, hence how long after its commit each transaction was there. It has arrived with
the first look that shows a position beyond its mark: delays are too large by up to the time
between two looks, never too small.
"""

from __future__ import annotations

import bisect
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise

from wal2lake.model import Lsn
from wal2lake.pg.client import Client

Commit = tuple[float, int]
"""The moment at which COMMIT returned, and the transaction's mark."""


@dataclass(slots=True)
class Positions:
    """What a looker saw: moments and positions, both rising."""

    moments: list[float] = field(default_factory=list)
    lsns: list[int] = field(default_factory=list)
    looks: int = 0

    def note(self, moment: float, lsn: int) -> None:
        """One look; kept if something has moved."""
        self.looks += 1
        if not self.lsns or lsn > self.lsns[-1]:
            self.moments.append(moment)
            self.lsns.append(lsn)

    def beyond(self, mark: int) -> bool:
        """The transaction of this mark has arrived."""
        return bool(self.lsns) and self.lsns[-1] > mark

    def seen(self, mark: int) -> float | None:
        """The moment of the first look beyond a mark; None: there was none."""
        index = bisect.bisect_right(self.lsns, mark)
        return None if index == len(self.lsns) else self.moments[index]

    def delay(self, committed: float, mark: int) -> float | None:
        """Seconds from a commit to the first look beyond its mark; None: never seen."""
        seen = self.seen(mark)
        return None if seen is None else max(0.0, seen - committed)

    def longest_standstill(self, since: float) -> float:
        """The most seconds without an advance, from ``since`` to the last advance."""
        moments = [since, *(m for m in self.moments if m > since)]
        return max((after - before for before, after in pairwise(moments)), default=0.0)


@contextmanager
def looking(
    connected: Callable[[], AbstractContextManager[Client]],
    look: Callable[[Client], Lsn],
    *,
    pause_seconds: float,
) -> Iterator[Positions]:
    """What somebody sees who looks again and again."""
    seen, stop = Positions(), threading.Event()

    def run() -> None:
        with connected() as client:
            while not stop.wait(pause_seconds):
                lsn = look(client)
                seen.note(time.perf_counter(), int(lsn))

    thread = threading.Thread(target=run, name="looking", daemon=True)
    thread.start()
    try:
        yield seen
    finally:
        stop.set()
        thread.join()


def reached(client: Client, subscription: str) -> Lsn:
    """The LSN up to which a subscription's tables are complete; the same on both."""
    return _lsn(
        client,
        "select o.remote_lsn from pg_replication_origin_status o"
        " join pg_subscription s on o.external_id = 'pg_' || s.oid"
        f" where s.subname = '{subscription}'",
    )


def flushed(source: Client, subscription: str) -> Lsn:
    """What a subscriber has confirmed, as its publisher knows it."""
    return _replication(source, subscription, "flush_lsn")


def written(source: Client) -> Lsn:
    """How far the source's own log is flushed."""
    return _lsn(source, "select pg_current_wal_flush_lsn()")


def behind(
    written: Positions, seen: Positions, started: float, ended: float
) -> Iterator[float]:
    """Seconds behind at each advance, just before it: the time since the source had gone
    beyond what the subscriber had until then."""
    before: int | None = None
    for moment, lsn in zip(seen.moments, seen.lsns, strict=True):
        if before is not None and started <= moment <= ended:
            gone = written.seen(before)
            if gone is not None:
                yield max(0.0, moment - gone)
        before = lsn


def sent(source: Client, subscription: str) -> Lsn:
    """What the walsender has decoded and given to its socket."""
    return _replication(source, subscription, "sent_lsn")


def _replication(source: Client, subscription: str, column: str) -> Lsn:
    return _lsn(
        source,
        f"select {column} from pg_stat_replication"
        f" where application_name = '{subscription}'",
    )


def _lsn(client: Client, query: str) -> Lsn:
    rows = client.rows(query)
    return Lsn.parse(rows[0][0]) if rows and rows[0][0] else Lsn(0)


def delays(seen: Positions, commits: Sequence[Commit]) -> list[float]:
    """Seconds from each commit until it was seen; those that never were are left out."""
    all_delays = (seen.delay(moment, mark) for moment, mark in commits)
    return [delay for delay in all_delays if delay is not None]
