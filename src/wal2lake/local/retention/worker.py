"""Vacuums all tables now and then, in the background.

Takes the node; gives lines in the log. A round begins every ``lake.vacuum_interval_ms``. It waits
while apply is busy, but for a limited time, and pauses between files. It ends at once
when the engine stops, between two files. A table that cannot be vacuumed now is left for the next
round.

Called by the engine.
"""

from __future__ import annotations

import time
from typing import Final

from wal2lake.catalog import ProgressFile
from wal2lake.catalog.mapped.progress import progress_path
from wal2lake.local.concurrency.rounds import Rounds, RoundsEnd
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


class RetentionWorker:
    """The background work, from ``start`` to ``stop``, which ends it between two files."""

    def __init__(self, node: RetentionParts, vacuum: Vacuum) -> None:
        self._node = node
        self._vacuum = vacuum
        self._waited = 0.0
        self._files = 0
        self._since = 0.0
        self._repeated: dict[str, RepeatedErrors] = {}
        self._log = get_logger().bind(worker="retention")
        self._rounds = Rounds(
            "retention",
            self.round,
            lambda: self._interval,
            self._log,
            first_seconds=_FIRST_SECONDS,
        )
        self.start = self._rounds.start
        self.stop = self._rounds.stop
        self.reload = self._rounds.reload

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
            except RoundsEnd:
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
        self._rounds.check()
        now = time.monotonic()
        if now - self._since > _READ_SECONDS:
            self._rounds.sleep(_READ_SECONDS)
            self._since = time.monotonic()

    def _pace(self) -> None:
        self._files += 1
        if self._files % _MANY == 0:
            self._rounds.sleep(_PAUSE_SECONDS)
            self._give_way()

    def _give_way(self) -> None:
        """Wait while apply is busy."""
        while self._waited < _PATIENCE_SECONDS and self._is_busy():
            self._rounds.sleep(_BUSY_SECONDS)
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
