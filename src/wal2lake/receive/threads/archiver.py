"""The archive thread: puts sealed segments and the catalog into the log's store.

    a sealed moment ─▶ what is prepared then, segments ─▶ file ``confirmed``, once a run ─▶ catalog
                    ─▶ is this directory still the node? ─▶ ``position``

In: sealed moments, which the seal thread offers; the log's directory; the catalog. Out:
``position``, the end of the last transaction up to which the store has everything that a new
directory of this node needs; a byte into the reader's pipe. With ``log.confirm = store`` the reader
confirms no more than that.

The order is the rule. A segment may need definitions that the receiver has recorded before the
segment's changes were logged, so the catalog is stored after the segment and before the position
counts. A prepared transaction is in the store before the segment that reaches its PREPARE.

    failure                          reaction
    -------                          --------
    the store does not answer        logged once, an error of the subscription's archiver; repeated
                                     each second. Receiving goes on, segments stay on disk
    another directory is the node    ends the run
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from wal2lake.archive import NodeArchive, SegmentArchive, Superseded, open_archive
from wal2lake.catalog import Catalog, Subscription, WorkerKind
from wal2lake.changelog import HeldSpools
from wal2lake.changelog.confirmed import ConfirmedFile
from wal2lake.errors import Retry, StorageError, Wal2LakeError
from wal2lake.model import INVALID_LSN, Lsn
from wal2lake.observe import RepeatedErrors, get_logger
from wal2lake.settings import Settings

_LOOK_SECONDS: Final = 0.02
"""Interval between looks for a new segment; it adds to the latency of a confirmed position."""

_CATALOG_SECONDS: Final = 1.0
"""Interval between looks at the catalog while there is no new segment."""

_UPKEEP_SECONDS: Final = 60.0
"""Interval between removals from the store. Each needs an image of the catalog."""

_RETRY_SECONDS: Final = 1.0


class Archiver:
    """Puts the log of one connection into the store. The walreceiver starts and joins the
    thread."""

    def __init__(
        self,
        catalog: Catalog,
        subscription: Subscription,
        settings: Settings,
        held: HeldSpools,
        confirmed: ConfirmedFile,
        *,
        stop: threading.Event,
        wake: Callable[[], None],
    ) -> None:
        self._catalog = catalog
        self._subscription = subscription
        self._settings = settings
        self._held = held
        self._confirmed = confirmed
        self._stop = stop
        self._wake = wake
        self._archive: NodeArchive | None = None
        self._segments: SegmentArchive | None = None
        self._position: Lsn | None = None
        self._upkeep_at = time.monotonic() + _UPKEEP_SECONDS
        self._failing = True
        """Whether the catalog may show an error: of the run before, at first."""
        self._repeated = RepeatedErrors()

    @property
    def position(self) -> Lsn | None:
        """End of the last transaction up to which the store has everything; None: not known yet."""
        return self._position

    def removable(self, applied: Lsn) -> Lsn:
        """Return the position below which segments may leave the disk."""
        return min(applied, self._position or INVALID_LSN)

    def work(self) -> None:
        """Run the thread. Raises errors that must end the run."""
        looked = -_CATALOG_SECONDS
        while not self._stop.is_set():
            now = time.monotonic()
            stored = 0 if self._segments is None else self._segments.newest
            if self._held.segment <= stored and now - looked < _CATALOG_SECONDS:
                self._stop.wait(_LOOK_SECONDS)
                continue
            try:
                self.step()
            except Wal2LakeError as error:
                self._failed(error)
                if error.retry is Retry.NEVER or isinstance(error, Superseded):
                    raise
                self._stop.wait(_RETRY_SECONDS)
            else:
                looked = now
                self._passed()

    def step(self) -> None:
        """Store what is new, then let the position count."""
        segments, archive = self._opened()
        moment, end = self._held.moment, self._position
        if moment is not None:
            end = segments.put(moment, self._stop.is_set)
            self._held.stored(segments.transactions)
        if self._position is None:
            segments.put_confirmed(self._confirmed.content())
        archive.catalogs.keep()
        if end is not None and (self._position is None or end > self._position):
            archive.check()
            self._position = end
            self._wake()
        if time.monotonic() >= self._upkeep_at:
            self._trim(segments, archive)
            self._upkeep_at = time.monotonic() + _UPKEEP_SECONDS

    def record(self, slot_name: str, position: Lsn) -> None:
        """Record a position in the file ``confirmed``, here and in the store. Called by the
        verifier's thread."""
        self._confirmed.record(slot_name, position)
        segments, archive = self._segments, self._archive
        if segments is None or archive is None or self._position is None:
            raise StorageError("the log's store has not answered yet")
        segments.put_confirmed(self._confirmed.content())
        archive.check()

    def _opened(self) -> tuple[SegmentArchive, NodeArchive]:
        if self._archive is None:
            self._archive = open_archive(self._settings, self._catalog)
            assert self._archive is not None
        if self._segments is None:
            self._segments = self._archive.segments(self._subscription)
        return self._segments, self._archive

    def _trim(self, segments: SegmentArchive, archive: NodeArchive) -> None:
        oldest = segments.oldest_on_disk()
        if segments.has_left(oldest):
            # The image is made after the look at the disk: its floor is above what has gone.
            archive.catalogs.keep(now=True)
            # A machine that slept may have been replaced meanwhile.
            archive.check()
            segments.trim(oldest)

    def _failed(self, error: Wal2LakeError) -> None:
        self._failing = True
        self._repeated.say(get_logger(), "could not store the log", error)
        self._note(error.describe(), error.sqlstate)

    def _passed(self) -> None:
        if self._failing:
            self._failing = False
            self._repeated.passed(get_logger())
            self._note(None, None)

    def _note(self, text: str | None, sqlstate: str | None) -> None:
        try:
            self._catalog.note_error(
                self._subscription.oid, WorkerKind.ARCHIVER, text, sqlstate
            )
        except StorageError as error:
            # The next step writes it.
            self._failing = True
            get_logger().error("could not record an error of the archiver", error=error)
