"""The methods by which batches are written, and how often each was used.

Comes in: each batch that was committed. Goes out: totals for ``wal2lake.apply_methods``. Used by
``batches``. Safe for all threads.

No method is an alternative to another one: the batch and its table decide.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Method(StrEnum):
    """Ways to turn a batch into a commit."""

    APPEND = "append"
    """Inserts, in files of their own."""
    UPSERT = "upsert"
    """New rows in files, deletion vectors for old rows."""
    TRUNCATE = "truncate"
    """The same, after all rows of the table have been removed."""


@dataclass(frozen=True, slots=True)
class Total:
    """Batches of one table that were written by one method."""

    batches: int = 0
    rows: int = 0
    seconds: float = 0.0

    def plus(self, rows: int, seconds: float) -> Total:
        """Return the total with one more batch."""
        return Total(self.batches + 1, self.rows + rows, self.seconds + seconds)


class MethodTotals:
    """Totals since the process started."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str], dict[Method, Total]] = {}
        self._lock = threading.Lock()

    def count(
        self, writer: str, location: str, method: Method, rows: int, seconds: float
    ) -> None:
        """Add a batch to the totals of the table at ``location``; ``writer`` as in
        ``Cursor.app_id``."""
        with self._lock:
            totals = self._totals.setdefault((writer, location), {})
            totals[method] = totals.get(method, Total()).plus(rows, seconds)

    def of(self, writer: str, location: str) -> Mapping[Method, Total]:
        """Return the totals of one subscription's batches of a table."""
        with self._lock:
            return dict(self._totals.get((writer, location), {}))
