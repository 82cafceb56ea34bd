"""Why nothing more is taken off the socket, said once: at its begin and at its end.

In: reasons, from any thread. Out: whether there is one; log lines, and the newest error of the
subscription.
"""

from __future__ import annotations

from wal2lake.catalog import Catalog
from wal2lake.errors import StorageError
from wal2lake.model import Oid
from wal2lake.observe import get_logger


class Pauses:
    """Of one run of a receiver. A reason belongs to one thread."""

    def __init__(self, catalog: Catalog, subid: Oid) -> None:
        self._catalog = catalog
        self._subid = subid
        self._reasons: set[str] = set()
        self._events = get_logger()

    def __bool__(self) -> bool:
        """Is there any?"""
        return bool(self._reasons)

    def begin(self, reason: str, error: StorageError) -> None:
        """Nothing happens if it has begun."""
        if reason not in self._reasons:
            self._reasons.add(reason)
            self._events.error(f"{reason}; receiving is paused", error=error)
            self._catalog.note_error(self._subid, error.describe())

    def end(self, reason: str) -> None:
        """Nothing happens if it has not begun."""
        if reason in self._reasons:
            self._reasons.discard(reason)
            self._events.info(f"no longer: {reason}")
            self._catalog.note_error(self._subid, None)
