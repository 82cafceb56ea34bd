"""Why nothing more is taken off the socket, said once: at its begin and at its end.

In: reasons, from any thread. Out: whether there is one; log lines, and the receiver's error in
the catalog, which is the newest reason that still holds. None of it raises for a full disk: what
the catalog could not be told yet holds up nobody who writes the log, and is told later
(``settle``).
"""

from __future__ import annotations

import threading

from wal2lake.catalog import Catalog, WorkerKind
from wal2lake.errors import StorageError
from wal2lake.model import Oid
from wal2lake.observe import get_logger


class Pauses:
    """Reasons for which one run of a receiver pauses. A reason belongs to one thread."""

    def __init__(self, catalog: Catalog, subid: Oid) -> None:
        self._catalog = catalog
        self._subid = subid
        self._reasons: dict[str, StorageError] = {}
        self._owed = False
        """The catalog has an error that no longer holds."""
        self._guard = threading.Lock()
        self._events = get_logger()

    def __bool__(self) -> bool:
        """Is there any?"""
        return bool(self._reasons)

    def begin(self, reason: str, error: StorageError) -> None:
        """Nothing happens if it has begun."""
        if reason not in self._reasons:
            self._events.error(f"{reason}; receiving is paused", error=error)
            with self._guard:
                self._reasons[reason] = error
                self._note()

    def end(self, reason: str) -> None:
        """Nothing happens if it has not begun."""
        if reason in self._reasons:
            self._events.info(f"no longer: {reason}")
            with self._guard:
                del self._reasons[reason]
                self._note()

    def note(self) -> None:
        """Another error of the receiver has passed: say again what holds still."""
        with self._guard:
            self._note()

    def settle(self) -> None:
        """Tell the catalog what it could not be told; called now and then."""
        if self._owed:
            self.note()

    def _note(self) -> None:
        last = next(reversed(self._reasons.values()), None)
        text = None if last is None else last.describe()
        sqlstate = None if last is None else last.sqlstate
        try:
            self._catalog.note_error(self._subid, WorkerKind.RECEIVER, text, sqlstate)
        except StorageError as error:
            if not self._owed:
                self._events.error("could not clear an error", error=error)
            self._owed = True
        else:
            self._owed = False
