"""Which way a batch is written: what each has cost so far, and which one will be the cheapest.

Comes in: how much work a batch is, how long each took. Goes out: the cheapest of the methods that
are possible for a batch, and totals for ``wal2lake.apply_methods``. Used by ``batches``. Pure, and
safe for all threads.

What a batch costs is estimated from its work by *priors*, measured once on two cores, times a
factor of this process and method: the ratio of what its batches took to what was estimated,
averaged exponentially. So a machine with fast storage or many cores decides by what it has seen. A
method that was dearer than its prior and is not chosen comes back to it little by little: it is
tried again, for what made it dear may be gone. None is tried because it is unknown: a MERGE that
memory would have done is seconds in which nothing becomes visible.

Only two methods compete, an upsert in memory and a MERGE by Spark, for a batch that fits into
memory and can meet no conflict; what the others are for leaves no choice.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Method(StrEnum):
    """How a batch became a commit."""

    APPEND = "append"
    """Inserts, as files of their own."""
    UPSERT = "upsert"
    """In memory: new rows in one file, deletion vectors for old ones."""
    MERGE = "merge"
    """The same by Spark; in a table that wants no deletion vectors it writes files anew."""
    OVERWRITE = "overwrite"
    """All rows anew, by Spark."""
    TRUNCATE = "truncate"


@dataclass(frozen=True, slots=True)
class Work:
    """Size of a batch's work."""

    rows: int
    """Changes."""
    table_bytes: int
    """Bytes of the files that may hold a key of the batch, as they lie on the disk."""


NO_WORK: Final = Work(0, 0)


@dataclass(frozen=True, slots=True)
class Total:
    """Batches of one table that went one way."""

    batches: int = 0
    rows: int = 0
    seconds: float = 0.0

    def plus(self, rows: int, seconds: float) -> Total:
        """With one more."""
        return Total(self.batches + 1, self.rows + rows, self.seconds + seconds)


@dataclass(frozen=True, slots=True)
class _Prior:
    batch: float
    row: float
    byte: float

    def of(self, work: Work) -> float:
        return self.batch + self.row * work.rows + self.byte * work.table_bytes


_UPSERT: Final = _Prior(0.03, 1.4e-6, 2e-9)
"""Seconds: 600,000 changes of a table of a million rows in 0.8, keys read at 300 MB/s."""

_MERGE: Final = _Prior(2.4, 9e-6, 4e-9)
"""100 changes in 2.4, 600,000 in 7.8; its bytes are read by each core."""

_SHARE: Final = 0.25
"""Share of the newest batch in a factor."""

_MOST: Final = math.log(16.0)
"""A batch that waited for something else says nothing of its method."""

_FORGETTING: Final = 0.99


class Costs:
    """Costs that one process has measured."""

    def __init__(self, cores: int) -> None:
        merge = _Prior(_MERGE.batch, _MERGE.row, _MERGE.byte / max(1, cores))
        self._priors: Mapping[Method, _Prior] = {
            Method.UPSERT: _UPSERT,
            Method.MERGE: merge,
        }
        self._factors = dict.fromkeys(self._priors, 1.0)
        self._totals: dict[tuple[str, str], dict[Method, Total]] = {}
        self._lock = threading.Lock()

    def expected(self, method: Method, work: Work) -> float:
        """Seconds that such a batch will take; of an upsert or a merge."""
        return self._factors[method] * self._priors[method].of(work)

    def choose(self, possible: Collection[Method], work: Work) -> Method:
        """The cheapest; of equal ones the first."""
        with self._lock:
            chosen = min(possible, key=lambda method: self.expected(method, work))
            for method in possible:
                dear = self._factors[method]
                if method is not chosen and dear > 1.0:
                    self._factors[method] = max(1.0, dear * _FORGETTING)
            return chosen

    def took(self, method: Method, work: Work, seconds: float) -> None:
        """A batch has been written, from its evaluation to its commit."""
        prior = self._priors.get(method)
        if prior is None or seconds <= 0:
            return
        with self._lock:
            now = math.log(self._factors[method])
            seen = math.log(seconds / prior.of(work))
            seen = min(max(seen, now - _MOST), now + _MOST)
            self._factors[method] = math.exp(now + _SHARE * (seen - now))

    def count(
        self, writer: str, location: str, method: Method, rows: int, seconds: float
    ) -> None:
        """For the totals of the table at ``location``; ``writer``: as in ``Cursor.app_id``."""
        with self._lock:
            totals = self._totals.setdefault((writer, location), {})
            totals[method] = totals.get(method, Total()).plus(rows, seconds)

    def totals(self, writer: str, location: str) -> Mapping[Method, Total]:
        """Since the process started."""
        with self._lock:
            return dict(self._totals.get((writer, location), {}))
