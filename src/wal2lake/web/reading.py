"""Readings of the node that all surfaces of the web process share.

Takes the settings in force; returns the node's facts, problems and measurements of one moment. One
thread reads, at most once a second however many ask: a reading is a few hundred small files and one
look at the catalog. If nobody asks, it reads every five seconds: problems are followed from their
beginning to their end, and their times are written to ``run/problems.json``. Nobody waits for the
engine; a file system that hangs holds up this thread, and no other.

Called by: the routes. Used in the event loop (``submit``) and in other threads (``read``).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final, TypeVar

from wal2lake.errors import Wal2LakeError
from wal2lake.health import (
    FactReader,
    NodeFacts,
    Problem,
    ProblemClock,
    load_seen,
    problems,
    save_seen,
)
from wal2lake.observe import get_logger
from wal2lake.observe.telemetry import ProcessTelemetry
from wal2lake.settings import Settings

T = TypeVar("T")

FRESH_SECONDS: Final = 1.0
"""A reading is used again for this time."""

FOLLOW_SECONDS: Final = 5.0
"""Longest time between two readings."""


@dataclass(frozen=True, slots=True, eq=False)
class NodeReading:
    """The node at one moment."""

    facts: NodeFacts
    problems: tuple[Problem, ...]
    telemetry: tuple[ProcessTelemetry, ...]
    took_seconds: float


class NodeReadings:
    """Makes readings in a thread of its own."""

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], float] = time.monotonic,
        observe: Callable[[NodeFacts, tuple[Problem, ...]], None] = lambda f, p: None,
    ) -> None:
        """``observe`` is called with each reading."""
        self._settings = settings
        self._reader = FactReader(settings)
        self._observe = observe
        self._clock = clock
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="readings")
        self._latest: tuple[float, NodeReading] | None = None
        self._problems = ProblemClock(
            load_seen(settings.run_directory, datetime.now(UTC))
        )

    def reload(self, settings: Settings) -> None:
        """Use new settings from now on."""
        self._settings = settings
        self._reader.reload(settings)

    def submit(self, use: Callable[[NodeReading], T]) -> Future[T]:
        """Have the thread read, if the last reading is too old, and call ``use`` with it.

        The future raises ConfigurationError or StorageError if the node cannot be read."""
        return self._thread.submit(lambda: use(self._fresh()))

    def read(self) -> NodeReading:
        """Return a reading; waits for the thread. Raises as ``submit`` does."""
        return self.submit(lambda reading: reading).result()

    async def follow(self) -> None:
        """Read every few seconds until cancelled; a failure is logged once."""
        failure = ""
        while True:
            try:
                # The page's readings will do, if it has made one.
                await asyncio.wrap_future(
                    self._thread.submit(self._fresh, FOLLOW_SECONDS)
                )
                failure = ""
            except Wal2LakeError as error:
                if error.message != failure:
                    get_logger().error("could not read the node's state", error=error)
                failure = error.message
            except Exception as error:
                # A bug in a rule must not end the looking, which alerts depend on.
                if str(error) != failure:
                    get_logger().error("internal error", exc_info=error)
                failure = str(error)
            await asyncio.sleep(FOLLOW_SECONDS)

    def close(self) -> None:
        """End the thread, without waiting for what it does."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _fresh(self, age_seconds: float = FRESH_SECONDS) -> NodeReading:
        began = self._clock()
        if self._latest is not None and began - self._latest[0] < age_seconds:
            return self._latest[1]
        now = datetime.now(UTC)
        facts = self._reader.read(now)
        reading = NodeReading(
            facts=facts,
            problems=self._problems.follow(problems(facts, now), now),
            telemetry=self._reader.read_reports(),
            took_seconds=self._clock() - began,
        )
        self._latest = began, reading
        self._observe(reading.facts, reading.problems)
        # For others, who look only now and then. A full disk must not end the looking.
        with contextlib.suppress(OSError):
            save_seen(self._settings.run_directory, self._problems.seen)
        return reading
