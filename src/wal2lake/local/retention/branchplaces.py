"""Branches without an owner: files of ended transactions whose removal has failed.

Takes the node; removes the directories of such branches from the place of its branches. A start
removes all branches (``recovery``); this module removes those whose removal has failed since.
Branches of other nodes that use the same warehouse are never touched.

Called by ``worker`` and the statement VACUUM.
"""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from wal2lake.lake.delta import local_path
from wal2lake.lake.retention import FileKind
from wal2lake.lake.spark import place_of_branches
from wal2lake.local.ports import RetentionParts
from wal2lake.local.retention.vacuuming import count_removed, young_since


def unknown_branches(
    node: RetentionParts, check: Callable[[], None]
) -> Iterator[tuple[Path, int, int]]:
    """Yield the directories of branches that have no owner and are older than the safe age,
    each with its files and bytes."""
    place = place_of_branches(node.settings.warehouse, node.catalog.system_identifier)
    root = local_path(place)
    if root is None or not root.is_dir():
        return
    too_young = young_since(node)
    for folder in sorted(root.iterdir()):
        check()
        # A branch registers before it makes its directory.
        owned = {*node.branches.places(), *node.batch_places()}
        if any(local_path(branch) == folder for branch in owned):
            continue
        files, size, changed = _extent(folder)
        if changed < too_young:
            yield folder, files, size


def remove_branch(node: RetentionParts, folder: Path, files: int, size: int) -> None:
    """Remove the directory of a branch, with so many files and bytes."""
    shutil.rmtree(folder, ignore_errors=True)
    count_removed(node, FileKind.BRANCH, files, size)


def _extent(folder: Path) -> tuple[int, int, float]:
    """Return files and bytes below a directory, and when something there has changed last."""
    files, size, changed = 0, 0, 0.0
    for here, _, names in os.walk(folder):
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
