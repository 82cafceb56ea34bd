"""Caches tables' versions and live files.

In: locations, versions as they are committed. Out: each table's newest version, and the live
files of one version. Both are valid as long as that version's commit is the same file. Its number
alone does not prove that, because another writer may reuse the number of a commit that was
undone.

A table in a store that ``lake.store`` does not know has no commit file to check: its listing is
valid for its version's number, and only Delta knows its newest version. Safe for all threads.

A commit whose answer was lost may still appear after the store said that there is none. Whoever
asks for the newest version then would decide too early. So the name of such a version is taken
first, by an empty commit, unless the lost one has it by then. From then on a cursor that the table
does not have never appears.

Called by ``spark.delta.deltatables``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.errors import Wal2LakeError
from wal2lake.lake.delta.log.commit import (
    Change,
    NextVersion,
    WrittenVersion,
    files_after,
    write_next,
)
from wal2lake.lake.delta.log.place import commit_key
from wal2lake.lake.delta.log.version import Version, is_newest, read_newest
from wal2lake.lake.delta.versions.replay import continued, newest_of, replay
from wal2lake.lake.port import TableSize, TableState
from wal2lake.lake.store import Stamp, Store, store_at
from wal2lake.lake.tablefiles import DataFile

KEPT_FILES: Final = 50_000
"""Most files that are kept in memory for all tables together, at about a kilobyte each. The files
of a table with more are read from its log whenever they are needed."""

_TAKES_THE_NAME: Final = "end the doubt about a commit"
"""Operation of an empty commit in place of one that may still appear."""

Files = dict[str, DataFile]
"""Files by their keys."""


@dataclass(frozen=True, slots=True)
class _Listing:
    """Live files of one version."""

    table_id: str
    version: int
    stamp: Stamp | None
    files: Files


class KnownVersions:
    """Known versions of the tables that one process uses."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._versions: dict[str, Version] = {}
        self._listings: dict[str, _Listing] = {}
        self._doubtful: dict[str, Version] = {}
        """By location, the version above which a commit may still appear."""

    def doubt(self, before: Version) -> None:
        """Note that it is not known whether the version above ``before`` has been written."""
        with self._lock:
            self._doubtful[before.state.location] = before

    def _settle(self, location: str, store: Store) -> None:
        """Take the name of a version that may still appear. StorageError if that fails, too."""
        with self._lock:
            before = self._doubtful.get(location)
        if before is None:
            return
        number = before.state.version + 1
        if store.stamp(commit_key(number)) is None:
            files = self.files(before.state)
            write_next(store, before, files, NextVersion((), None, _TAKES_THE_NAME))
        with self._lock:
            if self._doubtful.get(location) is before:
                del self._doubtful[location]

    def newest(self, location: str) -> Version | None:
        """Return the newest version; None if only Delta can read the table's store.

        UndefinedObjectError (42P01) if there is no table.
        """
        store = store_at(location)
        if store is None:
            return None
        self._settle(location, store)
        with self._lock:
            cached = self._versions.get(location)
            listing = self._listings.get(location)
        if cached is not None and is_newest(store, cached):
            return cached
        before = None
        if (
            cached is not None
            and listing is not None
            and _describes(listing, cached.state, cached.stamp)
        ):
            before = cached, listing.files
        try:
            version, files = _read(location, store, before)
        except Wal2LakeError:
            with self._lock:
                self._versions.pop(location, None)
            raise
        with self._lock:
            self._versions[location] = version
            listing, state = self._listings.get(location), version.state
            if files is not None and (
                listing is None or not _describes(listing, state, version.stamp)
            ):
                self._keep(
                    location,
                    _Listing(state.table_id, state.version, version.stamp, files),
                )
        return version

    def files(self, state: TableState) -> Files | None:
        """Return the live files of a version if they are cached."""
        with self._lock:
            listing = self._listings.get(state.location)
        if listing is None or not _describes(
            listing, state, stamp(state.location, state.version)
        ):
            return None
        return listing.files

    def size(self, location: str) -> TableSize | None:
        """Return the size of the newest version that this process has met; None if it has met none.
        Looks at nothing: another writer's version is not seen before somebody reads the table."""
        with self._lock:
            version = self._versions.get(location)
            listing = self._listings.get(location)
        if listing is not None and (
            version is None or listing.version >= version.state.version
        ):
            files = listing.files.values()
            return TableSize(
                listing.version,
                len(files),
                sum(file.size for file in files),
                sum(file.vector is not None for file in files),
            )
        return None if version is None else version.size

    def known_version(self, location: str) -> int | None:
        """Return the number of the version that ``size`` would describe."""
        with self._lock:
            version = self._versions.get(location)
            listing = self._listings.get(location)
        numbers = [-1]
        if version is not None:
            numbers.append(version.state.version)
        if listing is not None:
            numbers.append(listing.version)
        return None if max(numbers) < 0 else max(numbers)

    def list_files(
        self, state: TableState, read_from: Stamp | None, files: Files
    ) -> None:
        """Cache the files of a version, if its commit still has the stamp ``read_from``, which
        was taken before the files were read."""
        if stamp(state.location, state.version) != read_from:
            return
        with self._lock:
            self._keep(
                state.location,
                _Listing(state.table_id, state.version, read_from, files),
            )

    def written(self, before: TableState, written: WrittenVersion) -> None:
        """Cache the version above ``before``, which this process wrote itself."""
        location, version = before.location, written.version
        with self._lock:
            self._forget(location)
            if version is not None:
                self._versions[location] = version
                if written.files is not None:
                    self._keep(
                        location,
                        _Listing(
                            before.table_id,
                            version.state.version,
                            version.stamp,
                            written.files,
                        ),
                    )

    def committed(
        self,
        read: TableState,
        read_from: Stamp | None,
        version: int,
        changes: Sequence[Change],
        *,
        replaces: bool,
    ) -> None:
        """Carry the listing over a commit of Delta's: ``changes`` on ``read``, whose commit had
        the stamp ``read_from``."""
        location = read.location
        with self._lock:
            listing = self._listings.pop(location, None)
            if (
                listing is None
                or not _describes(listing, read, read_from)
                or version != read.version + 1
            ):
                return
            files = files_after({} if replaces else listing.files, changes)
            self._keep(
                location,
                _Listing(listing.table_id, version, stamp(location, version), files),
            )

    def forget(self, location: str) -> None:
        """Drop everything cached for a table."""
        with self._lock:
            self._forget(location)
            self._doubtful.pop(location, None)

    def _forget(self, location: str) -> None:
        self._listings.pop(location, None)
        self._versions.pop(location, None)

    def _keep(self, location: str, listing: _Listing) -> None:
        """Cache a listing; the listings that were stored longest ago are dropped to make room."""
        self._listings.pop(location, None)
        if len(listing.files) > KEPT_FILES:
            return
        self._listings[location] = listing
        held = sum(len(kept.files) for kept in self._listings.values())
        while held > KEPT_FILES:
            oldest = next(iter(self._listings))
            held -= len(self._listings.pop(oldest).files)


def _read(
    location: str, store: Store, before: tuple[Version, Files] | None
) -> tuple[Version, Files | None]:
    """Read the newest version, and its files if that costs nothing more. ``before``: the version
    that this process has met last."""
    newest = read_newest(location, store)
    if newest is not None:
        return newest
    number = newest_of(location, store)
    replayed = None
    if before is not None:
        replayed = continued(store, *before, number)
    if replayed is None:
        replayed = replay(location, store, number)
    return replayed.version(location, store, number), replayed.files


def stamp(location: str, version: int) -> Stamp | None:
    """Return the stamp of a version's commit; None if it is not there, or in a store that this
    process cannot look at."""
    store = store_at(location)
    return None if store is None else store.stamp(commit_key(version))


def _describes(listing: _Listing, state: TableState, commit: Stamp | None) -> bool:
    identity = (state.table_id, state.version, commit)
    return (listing.table_id, listing.version, listing.stamp) == identity
