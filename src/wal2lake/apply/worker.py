"""The apply worker of one subscription turns sealed segments into table commits.

    segments ─▶ choose ─▶ divide by table ─▶ stage ─▶ (cut?) ─▶ commit ─▶ publish
    ──────── step.nextbatch ──────────────   ──── step.applier ──────   step.publishing

This module has the thread, its schedule and its errors; ``step`` has the steps. The worker loops
over batches. After a crash it recovers from durable facts alone: each table's cursor is in the
table's last commit, the floor in the catalog, the changes in the log. A table that committed before
the crash has a cursor above the floor and skips the changes below the cursor. Its vector was not
published, so no reader saw the table alone. Its version is published with the others' once they
have caught up.

Errors. If a value, constraint or mapping fails, the failure is located (commit LSN, ordinal) and
the batch is cut below its transaction. The changes before it are applied, and the error is reported
with PostgreSQL's context and the finish LSN. The worker tries again after
wal_retrieve_retry_interval. Each subscription has a worker of its own.

Source: DESIGN 6 (Apply), invariants 1, 2, 6; worker.c.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from wal2lake.apply.schema.follow import TableAlteration
from wal2lake.apply.step.nextbatch import ApplyStep
from wal2lake.apply.step.statemarks import StateMarks
from wal2lake.apply.step.visiblepositions import VisiblePositions
from wal2lake.catalog import (
    Catalog,
    ProgressFile,
    WorkerKind,
)
from wal2lake.errors import Retry, Wal2LakeError, description_of, sqlstate_of
from wal2lake.lake import CommitConflict, TablePort
from wal2lake.lake.batch import BatchPort
from wal2lake.lake.staging import NO_DEFAULTS, ColumnDefaults
from wal2lake.model import Oid
from wal2lake.observe import OrderedLock, RepeatedErrors, get_logger
from wal2lake.observe.telemetry import Telemetry
from wal2lake.settings import Settings

_POLL_SECONDS: Final = 0.02
"""Interval between looks for new segments; small beside the 200 ms of a table commit."""

_ATTEMPTS: Final = 3
"""Attempts at a batch while other writers commit to its tables first; then it is an error. Each
attempt halves the limits of the batch, and thereby the time in which others can commit."""


class ApplyWorker:
    """Applies batches in a thread of its own from ``start`` until it is stopped."""

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        subid: Oid,
        tables: TablePort,
        batches: BatchPort,
        progress: ProgressFile,
        commit_lock: OrderedLock,
        alter: TableAlteration,
        defaults: ColumnDefaults = NO_DEFAULTS,
        published: Callable[[], None] = lambda: None,
        telemetry: Telemetry | None = None,
        positions: VisiblePositions | None = None,
    ) -> None:
        """``commit_lock`` is held while tables commit and the vector is published. Sessions that
        write hold it, too, so that a vector is never torn. ``defaults``: defaults of columns that
        the publisher does not send. ``published`` is called when readers see a new version.
        ``positions`` is told what the worker has reached whenever it is idle."""
        self._catalog = catalog
        self._settings = settings
        self._subid = subid
        self._step = ApplyStep(
            catalog,
            settings,
            subid,
            tables,
            batches,
            progress,
            commit_lock,
            alter,
            defaults,
            published,
            telemetry or Telemetry(),
            positions or VisiblePositions(),
        )
        self._overtaken = 0
        """Attempts that another writer's commit has ended, less the batches applied since."""
        self._stop = threading.Event()
        self._wake = threading.Event()
        """Set to retry without waiting for the interval."""
        self._events = get_logger()
        self._repeated = RepeatedErrors()
        self._thread = threading.Thread(
            target=self._run, name=f"apply-{int(subid)}", daemon=True
        )

    # ---- life ------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def request_stop(self) -> None:
        """Ask the worker to end after its current batch."""
        self._stop.set()
        self._step.marks.worker_stops = True
        self._wake.set()

    def reload(self, settings: Settings) -> None:
        """Use these settings from now on."""
        self._settings = settings
        self._step.reload(settings)
        self._wake.set()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for the thread to end. Return False on a time-out."""
        self._thread.join(timeout_seconds)
        return not self.alive

    @property
    def marks(self) -> StateMarks:
        """Positions whose state sessions wait for."""
        return self._step.marks

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    @property
    def is_idle(self) -> bool:
        """Whether the last step had nothing to do."""
        return self._step.is_idle

    def _run(self) -> None:
        try:
            while not self._stop.is_set():
                self._wake.clear()
                try:
                    if self._step.run(self._overtaken):
                        self._overtaken = max(0, self._overtaken - 1)
                        self._repeated.passed(self._events)
                    else:
                        self._stop.wait(_POLL_SECONDS)
                except Exception as error:
                    if self._stop.is_set():
                        # Other parts of the engine are shutting down, so the error says nothing
                        # about the batch.
                        self._events.info("apply ended", reason=str(error))
                        break
                    self._step.forget()
                    if self._is_overtaken(error):
                        continue
                    self._report(error)
                    if not self._stop.is_set():
                        retry = self._settings.subscription
                        self._wake.wait(retry.wal_retrieve_retry_interval_ms / 1000)
        finally:
            self._step.close()

    def _is_overtaken(self, error: Exception) -> bool:
        """Whether to retry at once, because another writer of a table was faster."""
        if not isinstance(error, CommitConflict):
            return False
        if self._overtaken < _ATTEMPTS:
            self._overtaken += 1
            self._events.info(
                "a batch is evaluated again: a table has changed meanwhile",
                reason=str(error.__cause__ or error).split("\n")[0],
            )
            return True
        if error.hint is None:
            error.hint = (
                "Another writer commits to the table more often than a batch can be applied:"
                ' let that job wait, or lower "batch_rows" under [apply] in wal2lake.toml'
                " and restart the node."
            )
        return False

    def _report(self, error: Exception) -> None:
        """Report an error in the server log and, if possible, in the catalog."""
        is_ours = isinstance(error, Wal2LakeError)
        self._step.measures.failed(error)
        if isinstance(error, Wal2LakeError) and error.retry is Retry.NEVER:
            self._step.marks.stop(error)
        self._repeated.say(
            self._events, str(error) if is_ours else "apply failed", error
        )
        try:
            self._catalog.note_error(
                self._subid, WorkerKind.APPLY, description_of(error), sqlstate_of(error)
            )
            self._catalog.disable_if_asked(self._subid, self._step.generation, error)
        except Exception as unwritten:
            self._events.error("could not record an error", exc_info=unwritten)
