"""One apply worker for each enabled subscription, in the engine.

PostgreSQL's logical replication launcher for threads: it compares what the catalog wants with
what runs, whenever the catalog has changed or a worker has ended. One that was told to stop is
not waited for: should its subscription be enabled meanwhile, another one starts after it. (The
receivers are processes; the supervisor does the same for them.)

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
from wal2lake.apply.worker import ApplyWorker
from wal2lake.catalog import Catalog, ProgressFile
from wal2lake.lake import TablePort
from wal2lake.lake.batch.batchport import BatchPort
from wal2lake.lake.staging.defaults import NO_DEFAULTS, ColumnDefaults
from wal2lake.model import Oid
from wal2lake.observe import get_logger
from wal2lake.settings import Settings

_POLL_SECONDS: Final = 0.05
"""How soon a new subscription is noticed: one indexed read of the catalog."""


@dataclass(slots=True)
class _Running:
    worker: ApplyWorker
    progress: ProgressFile


class ApplyLauncher:
    """Keeps workers in step with the catalog from ``start`` to ``stop``."""

    def __init__(
        self,
        catalog: Catalog,
        settings: Settings,
        tables: TablePort,
        batches: BatchPort,
        commit_lock: Callable[[Oid], threading.RLock],
        alter: TableAlteration,
        defaults: ColumnDefaults = NO_DEFAULTS,
        published: Callable[[], None] = lambda: None,
    ) -> None:
        """``commit_lock`` gives the lock of one subscription's tables; ``alter`` changes a table
        as its publisher has done; ``defaults`` are those of columns that a publisher does not
        send; ``published`` is called when readers see something new."""
        self._defaults = defaults
        self._published = published
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
        """End all workers after the batch in hand, or give up after the time."""
        self._stop.set()
        deadline = time.monotonic() + timeout_seconds
        self._thread.join(timeout_seconds)
        with self._guard:
            running = list(self._running.values())
        for one in running:
            one.worker.request_stop()
        for one in running:
            one.worker.join(max(deadline - time.monotonic(), 0.0))
        with self._guard:
            self._forget_ended()

    def reload(self, settings: Settings) -> None:
        """Obey these from now on."""
        with self._guard:
            self._settings = settings
            for one in self._running.values():
                one.worker.reload(settings)

    def halt(self, subid: Oid, timeout_seconds: float) -> bool:
        """End one worker now (its subscription is disabled); False if it is too busy. It
        ends after its batch then, and starts again if the subscription is enabled."""
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
            except Exception as error:
                get_logger().error("could not follow the catalog", exc_info=error)
                self._stop.wait(1.0)

    def _follow(self) -> None:
        with self._guard:
            # Not before: whoever has disabled one and then halts it wants none to start.
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
                    self._published,
                )
                get_logger().info(
                    "logical replication apply worker for subscription"
                    f' "{wanted[subid].name}" has started'
                )
                worker.start()
                self._running[subid] = _Running(worker, progress)

    def _forget_ended(self) -> bool:
        """Workers whose thread is over, whatever ended it; whether there were any."""
        ended = [s for s, one in self._running.items() if not one.worker.alive]
        for subid in ended:
            progress = self._running.pop(subid).progress
            progress.set(engine_pid=0)
            progress.close()
        return bool(ended)
