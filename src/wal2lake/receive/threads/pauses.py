"""Reasons why the receiver does not read its socket, each reported at its begin and end.

In: reasons, from any thread. Out: whether a reason holds; log lines; the receiver's error in the
catalog, which is the newest reason that still holds. A full disk raises no error here: a failure to
write to the catalog must not delay the log's writer, so the catalog is updated later (``settle``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from wal2lake.catalog import Catalog, WorkerKind
from wal2lake.errors import StorageError
from wal2lake.model import Oid
from wal2lake.observe import get_logger


class Pauses:
    """Reasons why one run of a receiver pauses. Each reason belongs to one thread."""

    def __init__(
        self,
        catalog: Catalog,
        subid: Oid,
        count: Callable[[StorageError], None] = lambda error: None,
    ) -> None:
        """``count`` is called with the error of each pause that begins."""
        self._catalog = catalog
        self._subid = subid
        self._count = count
        self._reasons: dict[str, StorageError] = {}
        self._owed = False
        """Whether the catalog shows an error that no longer holds."""
        self._guard = threading.Lock()
        self._events = get_logger()

    def __bool__(self) -> bool:
        """Whether a reason holds."""
        return bool(self._reasons)

    def begin(self, reason: str, error: StorageError) -> None:
        """Begin a pause, unless the reason holds already."""
        if reason not in self._reasons:
            self._events.error(f"{reason}; receiving is paused", error=error)
            self._count(error)
            with self._guard:
                self._reasons[reason] = error
                self._write()

    def end(self, reason: str) -> None:
        """End a pause, if the reason holds."""
        if reason in self._reasons:
            self._events.info(f"no longer: {reason}")
            with self._guard:
                del self._reasons[reason]
                self._write()

    def record(self) -> None:
        """Write the reason that still holds to the catalog, after another error of the receiver has
        passed."""
        with self._guard:
            self._write()

    def settle(self) -> None:
        """Repeat a failed write to the catalog. Called at intervals."""
        if self._owed:
            self.record()

    def _write(self) -> None:
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
