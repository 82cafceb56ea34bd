"""Chooses how a batch is written, by what each method has cost so far.

Comes in: how much work a batch is, how long each batch took. Goes out: the cheapest of the methods
that are possible for a batch, and totals for ``wal2lake.apply_methods``. Used by ``batches``.
Pure, and safe for all threads.

The cost of a batch is estimated from its work by *priors*, measured once on two cores, times a
factor of this process and method. The factor is the ratio of measured to estimated durations,
averaged exponentially, so a machine with fast storage or many cores decides by its own
measurements. The factor of a method that was more expensive than its prior and is not chosen
returns to 1 little by little, so the method is tried again in case the cause is gone. No method is
tried only because it is unknown: a MERGE of a batch that fits into memory takes seconds in which
nothing becomes visible.

Only two methods compete, an upsert in memory and a MERGE by Spark, for a batch that fits into
memory and can meet no conflict. The other methods are never alternatives.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Method(StrEnum):
    """Ways to turn a batch into a commit."""

    APPEND = "append"
    """Inserts, in files of their own."""
    UPSERT = "upsert"
    """In memory: new rows in one file, deletion vectors for old rows."""
    MERGE = "merge"
    """The same by Spark; in a table without deletion vectors it rewrites files."""
    OVERWRITE = "overwrite"
    """All rows rewritten by Spark."""
    TRUNCATE = "truncate"


@dataclass(frozen=True, slots=True)
class Work:
    """Size of a batch's work."""

    rows: int
    """Number of changes."""
    table_bytes: int
    """Bytes on disk of the files that may hold a key of the batch."""


NO_WORK: Final = Work(0, 0)


@dataclass(frozen=True, slots=True)
class Total:
    """Batches of one table that were written by one method."""

    batches: int = 0
    rows: int = 0
    seconds: float = 0.0

    def plus(self, rows: int, seconds: float) -> Total:
        """Return the total with one more batch."""
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
"""Seconds: 100 changes in 2.4, 600,000 in 7.8; each core reads its share of the bytes."""

_SHARE: Final = 0.25
"""Weight of the newest batch in a factor."""

_MOST: Final = math.log(16.0)
"""Largest deviation of one batch from the factor, as a logarithm: a batch that waited for
something else says nothing about its method."""

_FORGETTING: Final = 0.99
"""Multiplier that brings the factor of an expensive method back to 1, at each choice of
another."""


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
        """Estimate the seconds that an upsert or a merge will take."""
        return self._factors[method] * self._priors[method].of(work)

    def choose(self, possible: Collection[Method], work: Work) -> Method:
        """Return the cheapest method; of equal ones the first."""
        with self._lock:
            chosen = min(possible, key=lambda method: self.expected(method, work))
            for method in possible:
                dear = self._factors[method]
                if method is not chosen and dear > 1.0:
                    self._factors[method] = max(1.0, dear * _FORGETTING)
            return chosen

    def took(self, method: Method, work: Work, seconds: float) -> None:
        """Record how long a batch took, from its evaluation to its commit."""
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
        """Add a batch to the totals of the table at ``location``; ``writer`` as in
        ``Cursor.app_id``."""
        with self._lock:
            totals = self._totals.setdefault((writer, location), {})
            totals[method] = totals.get(method, Total()).plus(rows, seconds)

    def totals(self, writer: str, location: str) -> Mapping[Method, Total]:
        """Return the totals since the process started."""
        with self._lock:
            return dict(self._totals.get((writer, location), {}))
