"""Finds segments of a running node in its store, where executors of a cluster read them.

Comes in: names of a segment's files. Goes out: their URLs, once the receiver's archive thread has
put the segment there. Called by apply before it gives a batch to executors.

A segment is in the folder of the generation that has put it. What a former generation has put late
has a number that this node gives to another segment, so a stored segment counts only if its
manifest is the one on disk, which has the checksums of all files.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Collection
from typing import Final

from wal2lake.archive import layout
from wal2lake.archive.claims import Claims
from wal2lake.archive.opening import name_of, store_of_log
from wal2lake.catalog import Subscription
from wal2lake.changelog import files
from wal2lake.errors import StorageError
from wal2lake.lake.store import LocalStore, MissingFileError, Store
from wal2lake.settings import Settings

_LOOK_SECONDS: Final = 0.05
"""Interval between looks for a segment. Most have been put long before they are needed."""

_PATIENCE_SECONDS: Final = 60.0
"""Most time in which a segment is waited for. Then the batch fails, and is tried again."""


class StoredLog:
    """The log of one subscription in the store. Thread-safe."""

    def __init__(self, settings: Settings, subscription: Subscription) -> None:
        """The settings name a store."""
        location = settings.log_store
        assert location is not None
        self._store: Store = store_of_log(location)
        directory = settings.log_directory / str(int(subscription.oid))
        self._disk = LocalStore(directory)
        self._log = name_of(subscription)
        self._folders: dict[int, str] = {}
        self._lock = threading.Lock()

    def urls(self, names: Collection[str]) -> dict[str, str]:
        """Return the URL of each file, once its segment is in the store. Raises StorageError."""
        numbers = {name: files.segment_number(name) for name in names}
        wanted = {number for number in numbers.values() if number is not None}
        with self._lock:
            # Batches go on in the log: what is below is not needed again.
            first = min(wanted, default=0)
            self._folders = {n: f for n, f in self._folders.items() if n >= first}
            for number in sorted(wanted - self._folders.keys()):
                self._folders[number] = self._find(number)
            folders = dict(self._folders)
        return {
            name: f"{self._store.location}/{folders[number]}/{name}"
            for name, number in numbers.items()
            if number is not None
        }

    def _find(self, number: int) -> str:
        manifest = files.manifest_name(number)
        content = self._disk.read(manifest)
        generations = Claims(self._store).generations()
        until = time.monotonic() + _PATIENCE_SECONDS
        while True:
            for generation in reversed(generations):
                folder = layout.log_folder(self._log, generation)
                try:
                    if self._store.read(f"{folder}/{manifest}") == content:
                        return folder
                except MissingFileError:
                    continue
            if time.monotonic() > until:
                raise StorageError(
                    f"segment {number} of the log is not in its store",
                    sqlstate="58030",
                    detail=f'Executors of a cluster read it in "{self._store.location}".',
                )
            time.sleep(_LOOK_SECONDS)


def staging_url(store: str | None) -> str | None:
    """Return where executors put staged changes in a store; None: there is no store."""
    return None if store is None else f"{store}/{layout.STAGING}"
