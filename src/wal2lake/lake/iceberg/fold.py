"""Folds versions of a Delta table into one change of the mirror. Pure.

Comes in: the actions of the versions since the mirrored one, or all files of a version. Goes out:
the files that are added and removed, and the deletion vectors that files have from now on. Called
by ``mirror``.

Two ways lead to the same change. ``fold`` costs as much as the versions have changed, but needs
each of their commits. ``difference`` needs all files of the version and of the mirror: for the
first snapshot, and when the log no longer has a commit. It cannot tell whether a vector has
changed, so it writes each again.

Source: Delta transaction log protocol, "Action Reconciliation".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from wal2lake.lake.tablefiles import DataFile

Commits = Sequence[Sequence[Mapping[str, Any]]]
"""The actions of each version, oldest first."""

_REDEFINES: Final = ("metaData", "protocol")


@dataclass(frozen=True, slots=True)
class FoldedChange:
    """The way from the mirrored version to a later one."""

    added: Mapping[str, DataFile]
    """New files by their places (``DataFile.place``)."""
    removed: frozenset[str]
    """Places of mirrored files that the version does not have."""
    vectors: Mapping[str, DataFile]
    """Mirrored files that stay and whose deletion vector may be another one now, or none."""
    changes_data: bool = True
    """False if the same rows are in other files now (a compaction)."""


def fold(
    location: str, commits: Commits, mirrored: Collection[str]
) -> FoldedChange | None:
    """Fold commits that follow the mirrored version, which has the files ``mirrored``.

    None: a commit is missing (its actions are empty).
    """
    last: dict[str, DataFile | None] = {}
    changes_data = False
    for actions in commits:
        if not actions:
            return None
        adds = []
        for action in actions:
            if "add" in action:
                adds.append(action["add"])
            elif "remove" in action:
                remove = action["remove"]
                last[DataFile(remove).place(location)] = None
                changes_data |= bool(remove.get("dataChange", True))
        # A commit that gives a file another vector removes the file and adds it again.
        for add in adds:
            file = DataFile(add)
            last[file.place(location)] = file
            changes_data |= bool(add.get("dataChange", True))
    return FoldedChange(
        {
            path: file
            for path, file in last.items()
            if file is not None and path not in mirrored
        },
        frozenset(
            path for path, file in last.items() if file is None and path in mirrored
        ),
        {
            path: file
            for path, file in last.items()
            if file is not None and path in mirrored
        },
        changes_data,
    )


def difference(
    location: str, files: Iterable[DataFile], mirrored: Collection[str]
) -> FoldedChange:
    """Return the change from the mirrored files to these, which are all files of a version."""
    live = {file.place(location): file for file in files}
    return FoldedChange(
        {path: file for path, file in live.items() if path not in mirrored},
        frozenset(path for path in mirrored if path not in live),
        {path: file for path, file in live.items() if path in mirrored},
    )


def redefines(commits: Commits) -> bool:
    """Whether one of the commits may have changed the columns."""
    return any(
        name in action
        for actions in commits
        for action in actions
        for name in _REDEFINES
    )
