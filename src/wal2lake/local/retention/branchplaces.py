"""Branches without an owner: files of ended transactions whose removal has failed.

Takes the node; removes the files of such branches from the place of its branches. A start removes
all branches (``recovery``); this module removes those whose removal has failed since. Branches of
nodes that had the warehouse before are elsewhere in it, and never touched.

Called by ``worker`` and the statement VACUUM.
"""

from __future__ import annotations

import math
import os
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from wal2lake.lake.retention import FileKind
from wal2lake.lake.spark import place_of_branches
from wal2lake.lake.store import PROBE, Entry, LocalStore, Store, local_path, store_at
from wal2lake.local.ports import RetentionParts
from wal2lake.local.retention.vacuuming import count_removed, young_since


@dataclass(frozen=True, slots=True)
class LeftBranch:
    """A branch that has no owner, or an object that was made to try the store."""

    name: str
    files: int
    bytes: int


def unknown_branches(
    node: RetentionParts, check: Callable[[], None]
) -> Iterator[LeftBranch]:
    """Yield the branches that have no owner and are older than the safe age."""
    place = _place(node)
    store = store_at(place)
    if store is None:
        return
    extents = _directories if isinstance(store, LocalStore) else _prefixes
    too_young: float | None = None
    for branch, changed in extents(store, check):
        check()
        # A branch registers before it makes its first file.
        owned = map(_plain, node.branches.places())
        if f"{store.location}/{branch.name}" in owned:
            continue
        if too_young is None:
            too_young = young_since(node) + store.seconds_ahead()
        if changed < too_young:
            yield branch


def remove_branch(node: RetentionParts, branch: LeftBranch) -> None:
    """Remove the files of a branch."""
    store = store_at(_place(node))
    if isinstance(store, LocalStore):
        shutil.rmtree(store.root / branch.name, ignore_errors=True)
    elif store is not None and branch.name.startswith(PROBE):
        store.delete(branch.name)
    elif store is not None:
        store.delete_all([*store.list_below(branch.name, lambda folder: True)])
    count_removed(node, FileKind.BRANCH, branch.files, branch.bytes)


def _place(node: RetentionParts) -> str:
    return place_of_branches(node.settings.warehouse, node.catalog.system_identifier)


def _plain(location: str) -> str:
    return str(local_path(location) or location)


def _directories(
    store: Store, check: Callable[[], None]
) -> Iterator[tuple[LeftBranch, float]]:
    """Yield the branches of a directory, with the time of the last change in each."""
    assert isinstance(store, LocalStore)
    if not store.root.is_dir():
        return
    for folder in sorted(store.root.iterdir()):
        if not folder.is_dir():
            continue
        files, size, changed = _extent(folder, check)
        yield LeftBranch(folder.name, files, size), changed


def _extent(folder: Path, check: Callable[[], None]) -> tuple[int, int, float]:
    """Return files and bytes below a directory, and when something there has changed last."""
    files, size, changed = 0, 0, 0.0
    for here, _, names in os.walk(folder):
        check()
        for path in (Path(here), *(Path(here) / name for name in names)):
            try:
                status = path.lstat()
            except FileNotFoundError:
                # Its owner is at work there.
                return files, size, math.inf
            changed = max(changed, status.st_mtime, status.st_ctime)
            if path != Path(here):
                files, size = files + 1, size + status.st_size
    return files, size, changed


def _prefixes(
    store: Store, check: Callable[[], None]
) -> Iterator[tuple[LeftBranch, float]]:
    """Yield the branches of an object store, with the time of the newest object of each. A probe
    whose removal has failed is yielded, too; other objects outside of folders are not ours."""
    branches: defaultdict[str, list[Entry]] = defaultdict(list)
    for key, entry in store.list_below("", lambda folder: True, check).items():
        name, slash, _ = key.partition("/")
        if slash or name.startswith(PROBE):
            branches[name].append(entry)
    for name, entries in branches.items():
        size = sum(entry.size for entry in entries)
        changed = max(entry.changed for entry in entries)
        yield LeftBranch(name, len(entries), size), changed
