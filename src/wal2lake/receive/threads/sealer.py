"""The seal thread: decodes the journal, seals segments, trims the log, watches its size.

In: the change log, the applied position. Out: segments, which are offered to the archive thread;
the word ``sealed``; a pause while the log is at its size limit. On a full disk the thread retries.
A message that cannot be decoded ends the run.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from wal2lake.catalog import Catalog, ProgressFile, Subscription, WorkerKind
from wal2lake.changelog import (
    ChangeLog,
    HeldSpools,
    LimitState,
    Retention,
    check_limit,
    history_bytes,
    log_size,
)
from wal2lake.errors import StorageError, UnusableLogError
from wal2lake.model import Lsn
from wal2lake.observe import RepeatedErrors, get_logger
from wal2lake.receive.threads.catchup import (
    LAST_SECONDS,
    LOOK_SECONDS,
    Arrival,
    CatchUp,
)
from wal2lake.receive.threads.logwriter import STORAGE_RETRY_SECONDS
from wal2lake.receive.threads.pace import Pace
from wal2lake.receive.threads.pauses import Pauses
from wal2lake.settings import LogSettings

_UPKEEP_SECONDS: Final = 1.0
"""Interval between trims of the log and checks of its size."""

_LIMIT_REACHED: Final = "the change log has reached its size limit"


class Sealer:
    """Seals segments of one connection. The walreceiver starts and joins the thread."""

    def __init__(
        self,
        log: ChangeLog,
        directory: Path,
        settings: LogSettings,
        catalog: Catalog,
        subscription: Subscription,
        progress: ProgressFile,
        pauses: Pauses,
        *,
        applied: Callable[[], Lsn],
        stop: threading.Event,
        removable: Callable[[Lsn], Lsn] = lambda applied: applied,
        held: HeldSpools | None = None,
    ) -> None:
        """``directory`` is the log's. ``applied`` returns the position below which all tables have
        everything; ``removable``, called with it, that below which segments may be removed.
        ``held`` gets each segment, for the log's store; None: there is no store."""
        self._log = log
        self._directory = directory
        self._settings = settings
        self._catalog = catalog
        self._subscription = subscription
        self._progress = progress
        self._pauses = pauses
        self._applied = applied
        self._removable = removable
        self._stop = stop
        self._held = held
        self._retention = Retention(directory, history_bytes=history_bytes(settings))
        self._noticed = log.last_segment
        self._limit_state = LimitState.BELOW
        """State of the log's size at the last check."""
        self._events = get_logger()
        self._repeated = RepeatedErrors()
        self.arrival = Arrival()
        """Positions of the stream. Set by the reader."""

    def work(self) -> None:
        """Run the thread. Raises errors that must end the run."""
        interval = self._settings.segment_interval_ms / 1000
        pace = Pace(interval)
        last_seal = last_upkeep = time.monotonic()
        catch_up = CatchUp(last_seal)
        unsealed = False
        while not self._stop.is_set():
            try:
                self._offer()
                came = self._log.absorb(self._wait(catch_up, interval))
                now = time.monotonic()
                pace.adapt(self._applied(), now)
                # The journal's thread may still have changes that have come.
                is_level = self._log.complete >= self.arrival.received
                catch_up.look(
                    self._log.commit_times,
                    now,
                    came=came or not is_level,
                    behind=self.arrival.is_behind,
                )
                if is_level and self.arrival.is_whole:
                    catch_up.end()
                if catch_up.is_due(now - last_seal, pace.seconds):
                    if self._log.seal() is None:
                        pace.nothing_to_seal()
                    catch_up.sealed(now)
                    last_seal = now
                self._notice(pace)
                if now - last_upkeep >= _UPKEEP_SECONDS:
                    self._retention.trim(self._removable(self._applied()))
                    self._compare_with_limit()
                    self._pauses.settle()
                    last_upkeep = now
            except UnusableLogError:
                # Recovery at the next start decides which part of the journal is valid.
                raise
            except StorageError as error:
                self._repeated.say(self._events, "could not seal a segment", error)
                self._catalog.note_error(
                    self._subscription.oid,
                    WorkerKind.RECEIVER,
                    error.describe(),
                    error.sqlstate,
                )
                unsealed = True
                self._stop.wait(STORAGE_RETRY_SECONDS)
            else:
                if unsealed:
                    unsealed = False
                    self._repeated.passed(self._events)
                    self._pauses.record()

    def _wait(self, catch_up: CatchUp, interval: float) -> float:
        """Return how long to wait for more changes, in seconds."""
        if not catch_up.is_on:
            return interval
        return min(interval, LAST_SECONDS if self.arrival.is_whole else LOOK_SECONDS)

    def _notice(self, pace: Pace) -> None:
        """Note new segments. Not only ``seal`` makes them: a large transaction is sealed when it
        commits."""
        if self._log.last_segment > self._noticed:
            self._noticed = self._log.last_segment
            self._progress.set(sealed=self._log.sealed)
            pace.sealed(self._log.sealed, time.monotonic())

    def _offer(self) -> None:
        """Offer the newest segment to the archive thread, if it has not been offered."""
        if self._held is not None and self._held.segment < self._log.last_segment:
            self._log.hold(self._held)

    def _compare_with_limit(self) -> None:
        limit = self._settings.size_limit_bytes
        if not limit:
            return
        size = log_size(self._directory)
        state = check_limit(size, self._settings)
        if state is LimitState.REACHED:
            self._pauses.begin(
                _LIMIT_REACHED,
                StorageError(
                    f"change log has {size.limited_bytes} bytes, limit is {limit}",
                    hint="See wal2lake.subscription_errors for what holds apply up,"
                    " or raise log.size_limit_bytes.",
                ),
            )
        else:
            self._pauses.end(_LIMIT_REACHED)
        if state is LimitState.NEAR and self._limit_state is LimitState.BELOW:
            # Warn once, not at every check.
            near = StorageError(
                f'the change log of subscription "{self._subscription.name}" is near its'
                f" size limit: {size.limited_bytes} of {limit} bytes",
                hint="At the limit receiving is paused, and the publisher keeps its WAL."
                " See wal2lake.log_readers for who needs the log, and"
                " wal2lake.subscription_errors for why.",
            )
            self._events.warning(near.message, error=near)
        self._limit_state = state
