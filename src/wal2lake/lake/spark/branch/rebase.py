"""Rebases a branch onto a table that other writers have changed since. The rule:

    the branch has removed   other writers             then
    ---------------------    ----------------------    -------------------------------------------
    rows of a file           nothing of the file       the branch's vector
    rows of a file           other rows of it          the base's, theirs and ours are removed
    rows of a file           one of the same           overtaken: both have changed a row
    a whole file             nothing of the file       the file is removed
    a whole file             rows of it                overtaken, likewise
    any of its rows          removed the file          overtaken: its rows may be elsewhere now
    any of its rows          brought rows back         overtaken (a RESTORE)

An UPDATE removes a row and adds another, so a row that both have updated is a row that both have
removed. A row is identified by its number in its file, which never changes while the file exists.
New files of both sides stay; ``keys`` checks whether they have a key in common.

So this is snapshot isolation by row: the first committer wins. The actions lead from the newest
version's vectors to the united ones. The log of the commit, and what capture reads from it, is
therefore the branch's change alone.

Called by the commit of a transaction, under the table's locks. Sources: Delta transaction log
protocol, "Deletion Vectors"; PostgreSQL manual, 13.2.2.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np

from wal2lake.lake.branch.netchange import Action, BranchChange, vector_file
from wal2lake.lake.delta.deletionvectors import (
    Rows,
    read_vector,
    rows_without,
    united_rows,
    write_vectors,
)
from wal2lake.lake.spark.branch.branches import Branch
from wal2lake.lake.tablefiles import DataFile, Replaced

_NONE: Rows = np.zeros(0, np.uint64)


class Overtaken(Exception):
    """Another writer has changed the same data. The text says in a sentence what was changed."""


def rebase(
    branch: Branch, change: BranchChange, commits: Iterable[Sequence[Action]]
) -> BranchChange:
    """Rebase ``change`` on the version made by other writers' ``commits``, all since the branch's
    base. New vectors are files of the branch, like all of ``BranchChange.files``; they are not
    synced.

    Raises Overtaken, and StorageError for a vector that cannot be read or written.
    """
    theirs = _files_of_others(commits, change.touched)
    if not theirs:
        return change
    base = {a["remove"]["path"]: a["remove"] for a in change.actions if "remove" in a}
    ours = {a["add"]["path"]: a["add"] for a in change.actions if "add" in a}
    own = frozenset(change.files)
    whole: list[DataFile] = []
    partly: list[DataFile] = []
    vectors: list[Rows] = []
    for path, file in theirs.items():
        if file is None or not file.is_plain:
            raise Overtaken("Another transaction has rewritten the same files.")
        at_base = _deleted_rows(branch, DataFile(base[path]), own)
        at_newest = _deleted_rows(branch, file, own)
        if path not in ours:
            if not np.array_equal(at_base, at_newest):
                raise Overtaken("Another transaction has changed the same rows.")
            whole.append(file)
            continue
        gone = united(
            at_base, at_newest, _deleted_rows(branch, DataFile(ours[path]), own)
        )
        if len(gone) == file.rows:
            whole.append(file)
        else:
            partly.append(file)
            vectors.append(gone)
    written = write_vectors(branch.location, vectors) if vectors else []
    replaced = [
        *(Replaced(file, None) for file in whole),
        *(Replaced(file, vector) for file, vector in zip(partly, written, strict=True)),
    ]
    return _replace_actions(change, replaced)


def united(base: Rows, theirs: Rows, ours: Rows) -> Rows:
    """Return the rows of a file that are deleted after both changes, from those deleted at the
    base and after each change alone. Raises Overtaken if the changes conflict."""
    if rows_without(base, theirs).size:
        raise Overtaken("Another transaction has brought back rows of the same files.")
    taken = rows_without(ours, base)
    if np.intersect1d(taken, theirs, assume_unique=True).size:
        raise Overtaken("Another transaction has changed the same rows.")
    return united_rows(theirs, taken)


def _files_of_others(
    commits: Iterable[Sequence[Action]], touched: frozenset[str]
) -> dict[str, DataFile | None]:
    """Return the newest state of files in ``touched`` that other writers have touched, too; None
    for a file that they removed."""
    files: dict[str, DataFile | None] = {}
    for commit in commits:
        for kind in ("remove", "add"):
            for file in (DataFile(a[kind]) for a in commit if kind in a):
                if file.key in touched:
                    files[file.key] = file if kind == "add" else None
    return files


def _deleted_rows(branch: Branch, file: DataFile, own: frozenset[str]) -> Rows:
    """Return the numbers of a file's deleted rows. ``own``: files that only the branch has so
    far."""
    if file.vector is None:
        return _NONE
    where = branch.location if vector_file(file.vector) in own else branch.table
    return read_vector(where, file.vector)


def _replace_actions(
    change: BranchChange, replaced: Sequence[Replaced]
) -> BranchChange:
    """Replace the actions of these files in the change."""
    paths = {entry.file.key for entry in replaced}
    now = time.time_ns() // 1_000_000
    actions = [
        action
        for action in change.actions
        if not {entry["path"] for entry in action.values()} & paths
    ]
    for entry in replaced:
        actions.append({"remove": entry.remove(now, data_change=True)})
        add = entry.add(data_change=True)
        if add is not None:
            actions.append({"add": add})
    return BranchChange(tuple(actions), _files_after(change, actions))


def _files_after(change: BranchChange, actions: Sequence[Action]) -> tuple[str, ...]:
    """Return the change's files without vectors that no file uses any more, and with the new
    ones."""
    used = _vectors(actions)
    left = _vectors(change.actions) - used
    new = sorted(used - _vectors(change.actions))
    return (*(file for file in change.files if file not in left), *new)


def _vectors(actions: Sequence[Action]) -> set[str]:
    added = (DataFile(a["add"]).vector for a in actions if "add" in a)
    files = (vector_file(vector) for vector in added if vector is not None)
    return {name for name in files if name is not None}
