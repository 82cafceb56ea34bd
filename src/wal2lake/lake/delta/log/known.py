"""Caches tables' versions and live files on this machine.

In: locations, versions as they are committed. Out: each table's newest version, and the live files
of one version. Both are good as long as that version's commit is the same file: its number alone
does not say so, for a commit that was undone may be made again, by others.

What is not on this machine has no commit to look at: its files are known by the number, and its
newest version is Delta's to say. Safe for all threads.

Called by ``tables``.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from wal2lake.lake.delta.durability import local_path
from wal2lake.lake.delta.log.commit import Change, WrittenVersion, files_after
from wal2lake.lake.delta.log.version import (
    Stamp,
    Version,
    commit_file,
    is_newest,
    read_newest,
    stamp_of,
)
from wal2lake.lake.port import TableState
from wal2lake.lake.tablefiles import DataFile

LISTED_FILES: Final = 10_000
"""Files of a table that are kept in memory, at about a kilobyte each. A table of more is
Spark's to plan."""

KEPT_FILES: Final = 50_000
"""The same for all tables together."""

Files = dict[str, DataFile]
"""By their keys."""


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

    def newest(self, location: str) -> Version | None:
        """The newest version; None: Delta must be asked."""
        root = local_path(location)
        if root is None:
            return None
        with self._lock:
            known = self._versions.get(location)
        if known is not None and is_newest(root, known):
            return known
        found = read_newest(location, root)
        with self._lock:
            if found is None:
                self._versions.pop(location, None)
                return None
            version, files = found
            self._versions[location] = version
            state, listing = version.state, self._listings.get(location)
            if files is not None and (
                listing is None or not _is_of(listing, state, version.stamp)
            ):
                self._keep(
                    location,
                    _Listing(state.table_id, state.version, version.stamp, files),
                )
        return version

    def files(self, state: TableState) -> Files | None:
        """The live files of that version, if they are known."""
        with self._lock:
            listing = self._listings.get(state.location)
        if listing is None or not _is_of(
            listing, state, stamp(state.location, state.version)
        ):
            return None
        return listing.files

    def list_files(
        self, state: TableState, read_from: Stamp | None, files: Files
    ) -> None:
        """They are those of that version, if its commit was ``read_from`` before they were read
        and is it now."""
        if stamp(state.location, state.version) != read_from:
            return
        with self._lock:
            self._keep(
                state.location,
                _Listing(state.table_id, state.version, read_from, files),
            )

    def written(self, before: TableState, written: WrittenVersion) -> None:
        """The version above ``before`` was made here."""
        location, version = before.location, written.version
        with self._lock:
            self._forget(location)
            if version is not None:
                self._versions[location] = version
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
        """Delta has committed ``changes`` on ``read``, whose commit was ``read_from``: carry the
        listing over."""
        location = read.location
        with self._lock:
            known = self._listings.pop(location, None)
            if (
                known is None
                or not _is_of(known, read, read_from)
                or version != read.version + 1
            ):
                return
            files = files_after({} if replaces else known.files, changes)
            self._keep(
                location,
                _Listing(known.table_id, version, stamp(location, version), files),
            )

    def forget(self, location: str) -> None:
        """All of a table."""
        with self._lock:
            self._forget(location)

    def _forget(self, location: str) -> None:
        self._listings.pop(location, None)
        self._versions.pop(location, None)

    def _keep(self, location: str, listing: _Listing) -> None:
        """Remember a listing; those that were used longest ago make room for it."""
        self._listings.pop(location, None)
        if len(listing.files) > LISTED_FILES:
            return
        self._listings[location] = listing
        held = sum(len(known.files) for known in self._listings.values())
        while held > KEPT_FILES:
            oldest = next(iter(self._listings))
            held -= len(self._listings.pop(oldest).files)


def stamp(location: str, version: int) -> Stamp | None:
    """Return the stamp of a version's commit; None if it is not on this machine, or not there."""
    root = local_path(location)
    if root is None:
        return None
    try:
        return stamp_of(commit_file(root, version).stat())
    except OSError:
        return None


def _is_of(listing: _Listing, state: TableState, commit: Stamp | None) -> bool:
    found = (state.table_id, state.version, commit)
    return (listing.table_id, listing.version, listing.stamp) == found
