"""The rule of a rebase, against sets of row numbers; vectors are real files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal2lake.lake.branch.netchange import (
    BranchChange,
    in_branch,
    net_change,
    vector_file,
)
from wal2lake.lake.delta.deletionvectors import read_vector, write_vectors
from wal2lake.lake.spark.branch.branches import Branch
from wal2lake.lake.spark.branch.rebase import Overtaken, rebase, united
from wal2lake.lake.tablefiles import DataFile

ROWS = 6

Taken = set[int] | None
"""Rows of a file that are gone; None: the file is."""


class World:
    """A table of two files, and a branch of it."""

    def __init__(self, directory: str, base: dict[str, set[int]]) -> None:
        self.table, place = f"{directory}/t a", f"{directory}/branch"
        Path(self.table).mkdir()
        Path(place).mkdir()
        self.branch = Branch(place, self.table, "id", 0)
        self.base = {key: self.add(self.table, key, base[key]) for key in base}
        self.newest: dict[str, dict[str, Any]] = dict(self.base)
        self.commits: list[Sequence[dict[str, Any]]] = []

    def add(self, where: str, key: str, gone: set[int]) -> dict[str, Any]:
        stats = {"numRecords": ROWS, "tightBounds": not gone}
        found: dict[str, Any] = {"path": key, "size": 9, "stats": json.dumps(stats)}
        if gone:
            rows = np.array(sorted(gone), np.uint64)
            (found["deletionVector"],) = write_vectors(where, [rows])
        return found

    def others(self, taken: dict[str, Taken]) -> None:
        """They commit: of these files these rows are gone now."""
        commit: list[dict[str, Any]] = []
        for key, gone in taken.items():
            if key in self.newest:
                # In Delta's order.
                removed = {"remove": self.newest.pop(key)}
                if gone is not None:
                    self.newest[key] = self.add(self.table, key, gone)
                    commit.append({"add": self.newest[key]})
                commit.append(removed)
        commit.append({"add": {"path": f"theirs{len(self.commits)}", "size": 1}})
        self.commits.append(commit)

    def ours(self, taken: dict[str, Taken]) -> BranchChange:
        """What the branch has become, with a new file."""
        commit: list[dict[str, Any]] = [{"add": {"path": "new", "size": 1}}]
        for key, gone in taken.items():
            there = in_branch(self.base[key], self.table)
            commit.append({"remove": there})
            if gone is not None:
                made = self.add(self.branch.location, key, gone)
                commit.append({"add": {**made, "path": there["path"]}})
        return net_change([commit], self.table)

    def gone_behind(self, change: BranchChange) -> dict[str, Taken]:
        """By the table's log, if the change is its next commit."""
        now: dict[str, Taken] = {}
        for kind in ("remove", "add"):
            for file in (DataFile(a[kind]) for a in change.actions if kind in a):
                if file.key == "new":
                    continue
                if kind == "remove":
                    # A file is known by its path and its vector.
                    known = DataFile(self.newest[file.key]).vector
                    assert file.vector == known
                    now[file.key] = None
                    continue
                rows = set()
                if file.vector is not None:
                    name = vector_file(file.vector)
                    assert name in change.files
                    rows = set(map(int, read_vector(self.branch.location, file.vector)))
                    assert json.loads(file.action["stats"])["tightBounds"] is False
                now[file.key] = rows
        return now


def some_rows() -> st.SearchStrategy[set[int]]:
    return st.sets(st.integers(0, ROWS - 1), max_size=ROWS)


@given(
    base=st.tuples(some_rows(), some_rows()),
    ours=st.tuples(some_rows() | st.none(), some_rows() | st.none()),
    theirs=st.lists(
        st.dictionaries(st.sampled_from(["one", "two"]), some_rows() | st.none()),
        max_size=3,
    ),
    forward=st.booleans(),
)
def test_what_is_gone_behind_both_is_what_each_has_taken(
    base: tuple[set[int], set[int]],
    ours: tuple[Taken, Taken],
    theirs: list[dict[str, Taken]],
    forward: bool,
) -> None:
    all_rows = set(range(ROWS))
    before = {
        key: rows if len(rows) < ROWS else set()
        for key, rows in zip(("one", "two"), base, strict=True)
    }
    with TemporaryDirectory() as directory:
        world = World(directory, before)
        now: dict[str, Taken] = dict(before)
        touched = set()
        for commit in theirs:
            made: dict[str, Taken] = {}
            for key, rows in commit.items():
                there = now[key]
                if there is None:
                    continue
                # Rows come back with a RESTORE only.
                gone = rows if rows is None or not forward else there | rows
                made[key] = now[key] = None if gone == all_rows else gone
                touched.add(key)
            world.others(made)
        mine: dict[str, Taken] = {}
        for key, taken in zip(("one", "two"), ours, strict=True):
            if taken is None or taken | before[key] == all_rows:
                mine[key] = None
            elif taken - before[key]:
                mine[key] = taken | before[key]
        change = world.ours(mine)

        refused = False
        expected: dict[str, Taken] = {}
        for key, end in mine.items():
            took = (all_rows if end is None else end) - before[key]
            there = now[key]
            if there is None or not before[key] <= there or took & there:
                refused = refused or key in touched
                continue
            left = there | took
            expected[key] = None if left == all_rows else left
        if refused:
            with pytest.raises(Overtaken):
                rebase(world.branch, change, world.commits)
            return
        rebased = rebase(world.branch, change, world.commits)
        assert world.gone_behind(rebased) == expected
        assert (
            rebased.added
            == change.added
            == ({"path": "new", "size": 1, "dataChange": True},)
        )
        assert rebased.touched == change.touched
        # Nothing is carried over that no file needs.
        named = {
            vector_file(a["add"]["deletionVector"])
            for a in rebased.actions
            if a.get("add", {}).get("deletionVector")
        }
        assert set(rebased.files) == {"new", *named}
        if not touched & mine.keys():
            assert rebased is change


def rows(*numbers: int) -> Any:
    return np.array(numbers, np.uint64)


def test_rows_of_each_are_gone_and_those_of_both_are_refused() -> None:
    assert united(rows(1), rows(1, 2), rows(1, 5)).tolist() == [1, 2, 5]
    assert united(rows(), rows(), rows(3)).tolist() == [3]
    with pytest.raises(Overtaken, match="same rows"):
        united(rows(1), rows(1, 2), rows(1, 2))
    with pytest.raises(Overtaken, match="brought back"):
        united(rows(1), rows(2), rows(1, 5))


def test_a_file_keeps_what_others_say_of_it(tmp_path: Path) -> None:
    """Numbers and tags of the newest version, not those of the base."""
    world = World(str(tmp_path), {"one": set()})
    change = world.ours({"one": {1}})
    told = {
        **world.base["one"],
        "baseRowId": 7,
        "tags": {"a": "b"},
        "dataChange": False,
    }
    # Without another vector: what it is called is another thing.
    world.newest["one"] = told
    found = rebase(world.branch, change, [[{"add": told}]])
    added = [a["add"] for a in found.actions if a.get("add", {}).get("path") == "one"]
    assert [(a["baseRowId"], a["tags"], a["dataChange"]) for a in added] == [
        (7, {"a": "b"}, True)
    ]
    assert world.gone_behind(found) == {"one": {1}}
