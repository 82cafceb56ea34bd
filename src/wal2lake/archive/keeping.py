"""The engine's thread that keeps the catalog in the store.

Each second it puts an image if what matters has changed: a role, a table, a subscription that no
receiver runs for. Each minute it puts one if anything has changed, so that floors and published
states lag by no more. After an image it removes the logs of dropped subscriptions.

It looks for a newer claim, too. The engine of a directory that is not the node any more ends, and
does not come back: it must not go on writing the tables.

A failure is logged once until it passes, and delays nothing but the images. Receivers make their
own before they count a segment as stored.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from wal2lake.archive.claims import Superseded
from wal2lake.archive.opening import NodeArchive, name_of, open_archive
from wal2lake.catalog import Catalog
from wal2lake.errors import ConfigurationError, Wal2LakeError
from wal2lake.observe import RepeatedErrors, get_logger
from wal2lake.settings import Settings

_LOOK_SECONDS: Final = 1.0
"""Interval between looks. What a session changes is lost with the machine for this long."""

_REFRESH_SECONDS: Final = 60.0
"""Interval of images for floors and published states alone."""

_CHECK_SECONDS: Final = 5.0
"""Interval of looks for a newer claim, each of which is a request."""

_SHARE: Final = 10
"""A thread that puts images all the time, because serial columns count, rests this many times as
long as an image takes."""

_STOP_SECONDS: Final = 1.0
"""Time to wait for the thread. One that waits for the store ends with the process."""


class ArchiveKeeper:
    """Keeps the catalog in the store, from ``start`` to ``stop``. Does nothing without a store."""

    def __init__(
        self,
        settings: Settings,
        catalog: Catalog,
        on_superseded: Callable[[], None] = lambda: None,
    ) -> None:
        """``on_superseded`` is called by the thread, once."""
        self._on_superseded = on_superseded
        self._settings = settings
        self._catalog = catalog
        self._archive: NodeArchive | None = None
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._refreshed = self._checked = time.monotonic()
        self._counter = -1
        self._logs: frozenset[str] | None = None
        self._repeated = RepeatedErrors()

    def start(self) -> None:
        """Look at the claims, then start the thread, if there is a store. Raises Superseded, and
        ConfigurationError if the store is another node's. One that does not answer is asked
        later."""
        try:
            self._archive = open_archive(self._settings, self._catalog)
        except (Superseded, ConfigurationError):
            raise
        except Wal2LakeError as error:
            self._repeated.say(get_logger(), "could not store the catalog", error)
        if self._settings.log_store is not None:
            self._thread = threading.Thread(
                target=self._run, name="archive", daemon=True
            )
            self._thread.start()

    def secure(self) -> None:
        """With ``log.confirm = store``, put an image now. Raises Superseded, and what made it
        fail."""
        if self._settings.log.confirm == "store":
            if self._archive is None:
                self._archive = open_archive(self._settings, self._catalog)
            assert self._archive is not None
            self._archive.catalogs.keep(now=True)

    def stop(self) -> None:
        """Stop the thread, within a time limit."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_STOP_SECONDS)

    def _run(self) -> None:
        events = get_logger()
        pause = 0.0
        while not self._stop.wait(pause):
            begun = time.monotonic()
            try:
                self.step()
                self._repeated.passed(events)
            except Superseded as error:
                events.error("this node ends", error=error)
                self._on_superseded()
                return
            except Wal2LakeError as error:
                self._repeated.say(events, "could not store the catalog", error)
            pause = max(_LOOK_SECONDS, _SHARE * (time.monotonic() - begun))

    def step(self) -> None:
        """Put an image if one is due. Raises Superseded, and what made it fail."""
        if self._archive is None:
            self._archive = open_archive(self._settings, self._catalog)
            assert self._archive is not None
        counter, now = self._catalog.change_counter, time.monotonic()
        if now - self._checked >= _CHECK_SECONDS:
            self._archive.check()
            self._checked = now
        refresh = now - self._refreshed >= _REFRESH_SECONDS
        put = self._archive.catalogs.keep(now=refresh and counter != self._counter)
        if refresh or put:
            self._refreshed, self._counter = now, counter
        logs = frozenset(map(name_of, self._catalog.subscriptions()))
        if logs != self._logs:
            # A machine that slept may have been replaced meanwhile.
            self._archive.check()
            self._archive.remove_dropped(self._catalog)
            self._logs = logs
