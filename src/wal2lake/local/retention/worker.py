"""Vacuums all tables now and then, in the background.

Takes the node; gives lines in the log. A round begins every ``lake.vacuum_interval_ms``. It waits
while apply is busy, but for a limited time, and pauses between files. It ends at once
when the engine stops, between two files. A table that cannot be vacuumed now is left for the next
round.

Called by the engine.
"""

from __future__ import annotations

import threading
import time
from typing import Final

from wal2lake.catalog import ProgressFile
from wal2lake.catalog.mapped.progress import progress_path
from wal2lake.local.ports import RetentionParts
from wal2lake.local.retention.branchplaces import remove_branch, unknown_branches
from wal2lake.local.retention.holders import TablePlace, places_of
from wal2lake.local.retention.vacuuming import (
    Skipped,
    Vacuum,
    VacuumReport,
    VacuumRequest,
)
from wal2lake.observe import RepeatedErrors, get_logger
from wal2lake.settings import Settings

_FIRST_SECONDS: Final = 60.0
"""Time after the start for what is more urgent."""

_MANY: Final = 64
"""Files between two pauses."""

_PAUSE_SECONDS: Final = 0.1
"""Removing 64 files takes milliseconds, so the disk belongs to others for most of the time."""

_READ_SECONDS: Final = 0.05
"""Work, such as reading commits, between two pauses of the same length."""

_BUSY_SECONDS: Final = 0.5
"""Interval of looks whether apply is busy."""

_PATIENCE_SECONDS: Final = 300.0
"""Longest wait of a round for apply: a node that is always busy has its files removed, too."""


class _Stopping(Exception):
    """Raised when the engine stops."""


class RetentionWorker:
    """The background thread, from ``start`` to ``stop``."""

    def __init__(self, node: RetentionParts, vacuum: Vacuum) -> None:
        self._node = node
        self._vacuum = vacuum
        self._changed = threading.Condition()
        self._stopping = False
        self._waited = 0.0
        self._files = 0
        self._since = 0.0
        self._repeated: dict[str, RepeatedErrors] = {}
        self._log = get_logger().bind(worker="retention")
        self._thread = threading.Thread(target=self._run, name="retention", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self, timeout_seconds: float = 5.0) -> None:
        """End between two files."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._thread.join(timeout_seconds)

    def reload(self, settings: Settings) -> None:
        """Look at the settings, which the node has already."""
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        due = time.monotonic() + min(_FIRST_SECONDS, self._interval or _FIRST_SECONDS)
        while True:
            with self._changed:
                interval = self._interval
                left = due - time.monotonic() if interval else None
                if not self._stopping and (left is None or left > 0):
                    self._changed.wait(left)
                if self._stopping:
                    return
                if not interval or time.monotonic() < due:
                    due = min(due, time.monotonic() + (self._interval or 1e9))
                    continue
            try:
                self.round()
            except _Stopping:
                return
            except Exception as error:
                self._log.error("retention stopped", error=error)
            due = time.monotonic() + interval

    @property
    def _interval(self) -> float:
        return self._node.settings.lake.vacuum_interval_ms / 1000

    def round(self) -> None:
        """Vacuum each table once."""
        self._waited = 0.0
        request = VacuumRequest(check=self._check, pace=self._pace)
        for place in places_of(self._node.catalog):
            self._give_way()
            try:
                report = self._vacuum.run(place, request)
            except Skipped as error:
                self._log.debug(
                    "a table was not vacuumed", table=place.shown, reason=str(error)
                )
                continue
            except _Stopping:
                raise
            except Exception as error:
                # The other tables' files must go all the same.
                repeated = self._repeated.setdefault(place.location, RepeatedErrors())
                repeated.say(self._log, "a table could not be vacuumed", error)
                continue
            self._tell(place, report)
        for branch in unknown_branches(self._node, self._check):
            remove_branch(self._node, branch)
            self._log.info(
                "branch removed",
                branch=branch.name,
                files=branch.files,
                bytes=branch.bytes,
            )

    def _tell(self, place: TablePlace, report: VacuumReport) -> None:
        self._repeated.pop(place.location, None)
        if report.count or report.states:
            self._log.info(
                "table vacuumed",
                table=place.shown,
                files=report.count,
                bytes=report.size,
                orphans=report.orphans,
                states=report.states,
                oldest_version=report.oldest,
            )

    def _check(self) -> None:
        """End when the engine stops; pause now and then."""
        if self._stopping:
            raise _Stopping
        now = time.monotonic()
        if now - self._since > _READ_SECONDS:
            self._sleep(_READ_SECONDS)
            self._since = time.monotonic()

    def _pace(self) -> None:
        self._files += 1
        if self._files % _MANY == 0:
            self._sleep(_PAUSE_SECONDS)
            self._give_way()

    def _give_way(self) -> None:
        """Wait while apply is busy."""
        while self._waited < _PATIENCE_SECONDS and self._is_busy():
            self._sleep(_BUSY_SECONDS)
            self._waited += _BUSY_SECONDS

    def _is_busy(self) -> bool:
        """Whether a subscription has sealed transactions that are not applied."""
        directory = self._node.settings.run_directory
        for subscription in self._node.catalog.subscriptions():
            if not progress_path(directory, subscription.oid).exists():
                continue
            with ProgressFile(directory, subscription.oid) as progress:
                positions = progress.read()
            if positions.engine_pid and positions.applied < positions.sealed:
                return True
        return False

    def _sleep(self, seconds: float) -> None:
        with self._changed:
            if not self._stopping:
                self._changed.wait(seconds)
            if self._stopping:
                raise _Stopping
