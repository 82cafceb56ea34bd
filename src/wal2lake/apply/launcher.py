"""Runs one apply worker for each enabled subscription, in the engine.

PostgreSQL's logical replication launcher, for threads. Whenever the catalog changes or a worker
ends, it compares the enabled subscriptions with the running workers. It does not wait for a worker
that it stops: if the subscription is enabled again meanwhile, a new worker starts after the old one
has ended. (Receivers are processes; the supervisor launches them in the same way.)

Source: src/backend/replication/logical/launcher.c (ApplyLauncherMain).
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from wal2lake.apply.schema.follow import TableAlteration
from wal2lake.apply.step.statemarks import StateMark
from wal2lake.apply.step.visiblepositions import VisiblePositions
from wal2lake.apply.worker import ApplyWorker
from wal2lake.catalog import Catalog, ProgressFile
from wal2lake.lake import TablePort
from wal2lake.lake.batch import BatchPort
from wal2lake.lake.staging import NO_DEFAULTS, ColumnDefaults
from wal2lake.model import Lsn, Oid
from wal2lake.observe import OrderedLock, get_logger
from wal2lake.observe.telemetry import Telemetry
from wal2lake.settings import Settings

_POLL_SECONDS: Final = 0.05
"""Interval between looks at the catalog. A look is one indexed read."""


@dataclass(slots=True)
class _Running:
    worker: ApplyWorker
    progress: ProgressFile


class ApplyLauncher:
    """Starts and stops workers as the catalog demands, from ``start`` to ``stop``."""

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        tables: TablePort,
        batches: BatchPort,
        commit_lock: Callable[[Oid], OrderedLock],
        alter: TableAlteration,
        defaults: ColumnDefaults = NO_DEFAULTS,
        published: Callable[[], None] = lambda: None,
        telemetry: Telemetry | None = None,
    ) -> None:
        """``commit_lock`` returns the lock of one subscription's tables. ``alter`` alters a table
        as its publisher did. ``defaults`` are the defaults of columns that a publisher does not
        send. ``published`` is called when readers see a new version."""
        self._defaults = defaults
        self._published = published
        self.positions = VisiblePositions()
        """Positions that readers see, for sessions that wait for one."""
        self._telemetry = telemetry
        self._catalog = catalog
        self._settings = settings
        self._port = tables
        self._batches = batches
        self._commit_lock = commit_lock
        self._alter = alter
        self._running: dict[Oid, _Running] = {}
        self._guard = threading.Lock()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="apply", daemon=True)

    def start(self) -> None:
        """Begin to follow the catalog."""
        self._thread.start()

    def stop(self, timeout_seconds: float) -> None:
        """End each worker after its current batch, or give up after the time limit."""
        self._stop.set()
        deadline = time.monotonic() + timeout_seconds
        self._thread.join(timeout_seconds)
        with self._guard:
            running = list(self._running.values())
        for entry in running:
            entry.worker.request_stop()
        for entry in running:
            entry.worker.join(max(deadline - time.monotonic(), 0.0))
        with self._guard:
            self._forget_ended()

    def reload(self, settings: Settings) -> None:
        """Use these settings from now on."""
        with self._guard:
            self._settings = settings
            for entry in self._running.values():
                entry.worker.reload(settings)

    def mark(self, subid: Oid, lsn: Lsn, *, holds: bool = False) -> StateMark | None:
        """Have the worker publish exactly the state of ``lsn``. None: no worker runs. ``holds``:
        have it wait there for a repair."""
        with self._guard:
            running = self._running.get(subid)
        if running is None:
            return None
        mark = StateMark(lsn, holds=holds)
        running.worker.marks.add(mark)
        return mark

    def unmark(self, subid: Oid, mark: StateMark) -> None:
        """Forget a mark that nobody waits for any more."""
        with self._guard:
            running = self._running.get(subid)
        if running is not None:
            running.worker.marks.remove(mark)

    def halt(self, subid: Oid, timeout_seconds: float) -> bool:
        """End the worker of a disabled subscription. Return False on a time-out: the worker then
        ends after its batch, and a new one starts if the subscription is enabled."""
        with self._guard:
            running = self._running.get(subid)
        if running is None:
            return True
        running.worker.request_stop()
        ended = running.worker.join(timeout_seconds)
        with self._guard:
            self._forget_ended()
        return ended

    def _run(self) -> None:
        seen = -1
        while not self._stop.wait(_POLL_SECONDS):
            try:
                counter = self._catalog.change_counter
                with self._guard:
                    ended = self._forget_ended()
                if ended or counter != seen:
                    self._follow()
                    seen = counter
                    self.positions.announce()
            except Exception as error:
                get_logger().error("could not follow the catalog", exc_info=error)
                self._stop.wait(1.0)

    def _follow(self) -> None:
        with self._guard:
            # Read under the guard: a command that disables a subscription and then
            # calls halt() relies on no worker starting afterwards.
            wanted = {s.oid: s for s in self._catalog.subscriptions() if s.runs}
            for subid in self._running.keys() - wanted.keys():
                self._running[subid].worker.request_stop()
            for subid in wanted.keys() - self._running.keys():
                progress = ProgressFile(self._settings.run_directory, subid)
                progress.set(applied=wanted[subid].floor, engine_pid=os.getpid())
                worker = ApplyWorker(
                    self._catalog,
                    self._settings,
                    subid,
                    self._port,
                    self._batches,
                    progress,
                    self._commit_lock(subid),
                    self._alter,
                    self._defaults,
                    self._say_published,
                    self._telemetry,
                    self.positions,
                )
                get_logger().info(
                    "logical replication apply worker for subscription"
                    f' "{wanted[subid].name}" has started'
                )
                worker.start()
                self._running[subid] = _Running(worker, progress)

    def _say_published(self) -> None:
        self.positions.announce()
        self._published()

    def _forget_ended(self) -> bool:
        """Remove workers whose thread has ended, for any reason. Return True if there were any."""
        ended = [s for s, entry in self._running.items() if not entry.worker.alive]
        for subid in ended:
            entry = self._running.pop(subid)
            # The next worker does not know them.
            entry.worker.marks.end()
            self.positions.forget(subid)
            progress = entry.progress
            progress.set(engine_pid=0)
            progress.close()
        return bool(ended)
