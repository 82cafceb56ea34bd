"""Rebases a branch onto a table that has gone on since. The rule:

    a branch has taken       others meanwhile          then
    ---------------------    ----------------------    -------------------------------------------
    rows of a file           nothing of the file       the branch's vector
    rows of a file           other rows of it          all are gone: of the base, theirs and ours
    rows of a file           one of the same           overtaken: both have changed a row
    a whole file             nothing of the file       it goes
    a whole file             rows of it                overtaken, likewise
    any of its rows          the file is gone          overtaken: its rows may be elsewhere now
    any of its rows          rows have come back       overtaken (a RESTORE)

An UPDATE takes a row away and brings another, so a row that both have updated is one that both
have taken away. A row is its number in its file, which never changes while the file is there. New
files of both sides stay; whether they bring the same key is looked at by ``keys``.

So it is snapshot isolation by row: who commits first wins. The actions are those of the newest
version: from its vectors to the united ones, so what its log says of the commit, and what capture
reads from it, is what the branch has changed, once, and nothing of the others.

Called by the commit of a transaction, under the table's locks. Sources: Delta transaction log
protocol, "Deletion Vectors"; PostgreSQL manual, 13.2.2.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import numpy as np

from wal2lake.lake.branch.changes import Action, BranchChange, vector_file
from wal2lake.lake.delta.deletionvectors import Rows, read_vector, write_vectors
from wal2lake.lake.spark.branch.branches import Branch
from wal2lake.lake.tablefiles import DataFile, Replaced

_NONE: Rows = np.zeros(0, np.uint64)


class Overtaken(Exception):
    """Others have changed what the branch has changed. Its text says what, as a sentence."""


def rebase(
    branch: Branch, change: BranchChange, commits: Iterable[Sequence[Action]]
) -> BranchChange:
    """``change`` on the version that others' ``commits``, all since the branch's base, have made.
    New vectors are files of the branch, as all of ``BranchChange.files``; not synced.

    Raises Overtaken, and StorageError for a vector that cannot be read or written."""
    theirs = _others_files(commits, change.touched)
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
            raise Overtaken("Others have written the same files anew.")
        before = _gone(branch, DataFile(base[path]), own)
        there = _gone(branch, file, own)
        if path not in ours:
            if not np.array_equal(before, there):
                raise Overtaken("Others have changed the same rows.")
            whole.append(file)
            continue
        gone = united(before, there, _gone(branch, DataFile(ours[path]), own))
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
    return _with(change, replaced)


def united(base: Rows, theirs: Rows, ours: Rows) -> Rows:
    """Rows of a file that are gone behind both, of those that were at the base and are behind each
    alone; Overtaken if there can be no such file."""
    if np.setdiff1d(base, theirs).size:
        raise Overtaken("Others have brought back rows of the same files.")
    taken = np.setdiff1d(ours, base)
    if np.intersect1d(taken, theirs).size:
        raise Overtaken("Others have changed the same rows.")
    return np.union1d(theirs, taken)


def _others_files(
    commits: Iterable[Sequence[Action]], touched: frozenset[str]
) -> dict[str, DataFile | None]:
    """Return those of ``touched`` that others have touched, too, as they are now; None: the file is
    gone."""
    found: dict[str, DataFile | None] = {}
    for commit in commits:
        for kind in ("remove", "add"):
            for file in (DataFile(a[kind]) for a in commit if kind in a):
                if file.key in touched:
                    found[file.key] = file if kind == "add" else None
    return found


def _gone(branch: Branch, file: DataFile, own: frozenset[str]) -> Rows:
    """Row numbers. ``own``: files that the branch has, and its table not yet."""
    if file.vector is None:
        return _NONE
    where = branch.location if vector_file(file.vector) in own else branch.table
    return read_vector(where, file.vector)


def _with(change: BranchChange, replaced: Sequence[Replaced]) -> BranchChange:
    """The change with other actions of these files."""
    paths = {one.file.key for one in replaced}
    now = time.time_ns() // 1_000_000
    actions = [
        action
        for action in change.actions
        if not {one["path"] for one in action.values()} & paths
    ]
    for one in replaced:
        actions.append({"remove": one.remove(now, data_change=True)})
        add = one.add(data_change=True)
        if add is not None:
            actions.append({"add": add})
    return BranchChange(tuple(actions), _files(change, actions))


def _files(change: BranchChange, actions: Sequence[Action]) -> tuple[str, ...]:
    """Without vectors that no file has any more, and with those that are new."""
    used = _vectors(actions)
    left = _vectors(change.actions) - used
    new = sorted(used - _vectors(change.actions))
    return (*(file for file in change.files if file not in left), *new)


def _vectors(actions: Sequence[Action]) -> set[str]:
    added = (DataFile(a["add"]).vector for a in actions if "add" in a)
    found = (vector_file(vector) for vector in added if vector is not None)
    return {name for name in found if name is not None}
