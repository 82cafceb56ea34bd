"""Commits whose answers were lost: each writer keeps its files, and the cursor decides later.

A fault ends with ``UnknownOutcome``: the request was carried out ("made"), it never will be
("never"), or it is carried out after the writer has given up ("late").
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pytest
from tests.fakes.objectstores import Server
from tests.fakes.storeproxy import Fault, Planned, StoreProxy

from wal2lake.catalog import TableChange, local_writer
from wal2lake.errors import StorageError
from wal2lake.lake import AddedFile, CommitConflict, Cursor, FieldSpec
from wal2lake.lake.compaction.compactor import Compactor
from wal2lake.lake.delta import TableWriter
from wal2lake.lake.plain import FoundRows, PlainChange
from wal2lake.lake.spark.branch.branches import Branches, place_of_branches
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.delta.jvm import DeltaJvm
from wal2lake.lake.store import UnknownOutcome, clients, objects, places, store_at
from wal2lake.lake.tablefiles import add_action
from wal2lake.local.commits.commit import commit_one, finish, is_done
from wal2lake.model import Oid

APP = "wal2lake:1:2:3"
NODE = 4711

OUTCOMES = ["made", "never", "late"]


class Lost:
    """A store whose answer to one commit is lost, and whose other answers come too late."""

    def __init__(self, proxy: StoreProxy, monkeypatch: pytest.MonkeyPatch) -> None:
        self.proxy = proxy
        self.contents: list[tuple[Any, str, bytes]] = []
        create = objects.ObjectStore._create

        def recording(store: Any, key: str, content: bytes) -> Any:
            self.contents.append((store, key, content))
            return create(store, key, content)

        monkeypatch.setattr(objects.ObjectStore, "_create", recording)

    def lose(self, location: str, version: int, outcome: str) -> None:
        """Lose the answer to the commit of a version."""
        part = f"{location.rpartition('/')[2]}/_delta_log/{version:020}.json"
        fault = Fault.LOSE_ANSWER if outcome == "made" else Fault.CUT_REQUEST
        refused = [Planned(Fault.REFUSE, 503, "SlowDown")] * 200
        self.proxy.plan("PUT", part, Planned(fault), *refused)

    def end(self) -> None:
        """The store answers again."""
        self.proxy.plans.clear()

    def arrive(self, location: str, version: int) -> bool:
        """The lost request reaches the store now; False if it is refused."""
        wanted = f"_delta_log/{version:020}.json"
        store, key, content = next(
            one
            for one in self.contents
            if one[1] == wanted and one[0].location == location
        )
        return store.put_if_absent(key, content) is not None


@pytest.fixture
def lost(s3: Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lost]:
    with StoreProxy(s3.port) as proxy:
        options = s3.options(proxy.port, attempts_seconds=0.3)
        monkeypatch.setattr(places, "process_options", lambda: options)
        clients._bucket.cache_clear()
        yield Lost(proxy, monkeypatch)
    clients._bucket.cache_clear()


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> DeltaTables:
    """Tables without a JVM, which object stores do not need."""
    monkeypatch.setattr(DeltaJvm, "defaults", lambda self: {})
    return DeltaTables(MagicMock())


@pytest.fixture
def location(s3: Server, lost: Lost, tables: DeltaTables) -> str:
    return new_table(s3, tables)


def new_table(s3: Server, tables: DeltaTables) -> str:
    found = f"{s3.url}/{uuid4().hex}"
    tables.create(found, [FieldSpec("id", "bigint")])
    return found


def write(tables: DeltaTables, location: str, *ids: int) -> AddedFile:
    """Write a file, which is not yet one of the table."""
    with TableWriter(location, tables.state(location).physical_fields) as writer:
        writer.write(pa.table({"id": pa.array(ids, pa.int64())}))
        (added,) = writer.finish()
    return added


def is_stored(location: str, added: AddedFile) -> bool:
    store = store_at(location)
    assert store is not None
    return store.stamp(added.path) is not None


def paths(tables: DeltaTables, location: str) -> list[str]:
    files = tables.files(tables.state(location))
    assert files is not None
    return sorted(file.path for file in files)


def node_of(tables: DeltaTables) -> Any:
    return MagicMock(tables=tables, catalog=MagicMock(system_identifier=NODE))


def change_of(tables: DeltaTables, location: str, added: AddedFile) -> TableChange:
    """A local transaction's change on the newest version."""
    state = tables.state(location)
    cursor = (state.cursor(local_writer(NODE)) or 0) + 1
    actions = ({"add": add_action(added, data_change=True)},)
    return TableChange(Oid(1), location, state.table_id, state.version, cursor, actions)


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_the_cursor_decides_about_a_batch(
    tables: DeltaTables, location: str, lost: Lost, outcome: str
) -> None:
    """Copies and batches: the next attempt has other files and the same cursor."""
    first = write(tables, location, 1, 2)
    lost.lose(location, 1, outcome)
    with pytest.raises(UnknownOutcome):
        tables.commit_files(location, [first], Cursor(APP, 7))
    lost.end()
    assert is_stored(location, first)
    if outcome == "late":
        assert lost.arrive(location, 1)
    is_made = outcome != "never"
    assert tables.state(location).cursor(APP) == (7 if is_made else None)
    again = write(tables, location, 1, 2)
    done = tables.commit_files(location, [again], Cursor(APP, 7))
    assert done.already_done == is_made
    assert paths(tables, location) == [first.path if is_made else again.path]


def test_what_the_table_does_not_have_never_appears(
    tables: DeltaTables, location: str, lost: Lost
) -> None:
    added = write(tables, location, 1)
    lost.lose(location, 1, "late")
    with pytest.raises(UnknownOutcome):
        tables.commit_files(location, [added], Cursor(APP, 7), read_version=0)
    with pytest.raises(StorageError):
        # The store is still down: nobody can say what the newest version is.
        tables.state(location)
    lost.end()
    assert tables.state(location).cursor(APP) is None
    assert not lost.arrive(location, 1)
    assert (tables.state(location).version, paths(tables, location)) == (1, [])
    assert [list(action) for action in tables.actions(location, 1, 1)[0]] == [
        ["commitInfo"]
    ]


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_local_transaction_is_made_or_fails(
    tables: DeltaTables, location: str, lost: Lost, outcome: str
) -> None:
    """The next one has the same number, and is not taken for the lost one."""
    node = node_of(tables)
    first = write(tables, location, 1)
    change = change_of(tables, location, first)
    lost.lose(location, 1, outcome)
    # What has been made is found at once.
    with nullcontext() if outcome == "made" else pytest.raises(UnknownOutcome):
        commit_one(node, change)
    lost.end()
    if outcome == "late":
        assert lost.arrive(location, 1)
    second = write(tables, location, 2)
    after = change_of(tables, location, second)
    assert not is_done(node, after)
    commit_one(node, after)
    expected = [second.path] if outcome == "never" else [first.path, second.path]
    assert paths(tables, location) == sorted(expected)
    assert is_stored(location, first)


@pytest.mark.parametrize("outcome", ["made", "never"])
def test_a_local_transaction_looks_after_it(
    tables: DeltaTables,
    location: str,
    lost: Lost,
    outcome: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The store answers again before the client is told."""
    real = tables._known.doubt

    def doubt(before: Any) -> None:
        real(before)
        lost.end()

    monkeypatch.setattr(tables._known, "doubt", doubt)
    added = write(tables, location, 1)
    change = change_of(tables, location, added)
    lost.lose(location, 1, outcome)
    told = nullcontext() if outcome == "made" else pytest.raises(UnknownOutcome)
    with told:
        commit_one(node_of(tables), change)
    assert paths(tables, location) == ([added.path] if outcome == "made" else [])
    assert lost.arrive(location, 1) == (outcome == "made")
    assert paths(tables, location) == ([added.path] if outcome == "made" else [])


@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("at", [0, 1])
def test_several_tables_have_a_transaction_or_none(
    tables: DeltaTables,
    s3: Server,
    lost: Lost,
    outcome: str,
    at: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node = node_of(tables)
    locations = [new_table(s3, tables) for _ in range(2)]
    added = [write(tables, one, 1) for one in locations]
    changes = [
        change_of(tables, one, file) for one, file in zip(locations, added, strict=True)
    ]
    lost.lose(locations[at], 1, outcome)
    told: list[str] = []

    def end_engine(status: int) -> None:
        raise AssertionError("the engine would end")

    monkeypatch.setattr(os, "_exit", end_engine)
    up = threading.Timer(1.5, lost.end)
    up.start()
    try:
        finish(
            node,
            changes,
            "1",
            lambda: told.append("published"),
            lambda: told.append("taken back"),
        )
    except StorageError:
        assert told == ["taken back"] and at == 0
    up.join()
    is_there = [paths(tables, one) != [] for one in locations]
    assert is_there == [told == ["published"]] * 2
    before = [paths(tables, one) for one in locations]
    lost.arrive(locations[at], 1)
    assert [paths(tables, one) for one in locations] == before
    if at == 1 or outcome == "made":
        assert told == ["published"]


@pytest.mark.parametrize("outcome", OUTCOMES)
def test_a_statement_keeps_its_files(
    tables: DeltaTables, location: str, lost: Lost, outcome: str
) -> None:
    change = PlainChange.adding(tables, location)
    assert change is not None
    rows = pa.table({"id": pa.array([1], pa.int64())})
    lost.lose(location, 1, outcome)
    with pytest.raises(UnknownOutcome):
        change.commit(tables, FoundRows.nothing(), rows, Cursor(APP, 1), "x")
    lost.end()
    if outcome == "late":
        lost.arrive(location, 1)
    store = store_at(location)
    assert store is not None
    stored = [name for name in store.list_after("") if name.endswith(".parquet")]
    assert len(stored) == 1
    assert paths(tables, location) == ([] if outcome == "never" else stored)


@pytest.mark.parametrize("outcome", ["no fault", *OUTCOMES])
def test_a_compaction_keeps_its_files(
    tables: DeltaTables, location: str, lost: Lost, outcome: str
) -> None:
    compactor = Compactor(tables)
    for number in range(1, 31):
        added = write(tables, location, number)
        tables.commit_files(location, [added], Cursor(APP, number))
    state = tables.state(location)
    before = paths(tables, location)
    compactor.ask(location, (0,))
    compactor.wait()
    _, written = compactor.held(location)
    assert written
    if outcome != "no fault":
        lost.lose(location, state.version + 1, outcome)
    compactor.behind(state, (0,), Cursor(APP, 30))
    lost.end()
    if outcome == "late":
        assert lost.arrive(location, state.version + 1)
    after = paths(tables, location)
    assert (
        len(before) == 30 and before == after if outcome == "never" else len(after) == 1
    )
    store = store_at(location)
    assert store is not None
    assert set(after) | written <= set(store.list_after(""))


@pytest.mark.parametrize("outcome", ["no fault", *OUTCOMES])
def test_a_branch_keeps_what_it_has_carried_over(
    tables: DeltaTables, s3: Server, location: str, lost: Lost, outcome: str
) -> None:
    """A transaction writes a branch; its files are copied, and the table commits them."""
    cursor = Cursor(APP, 1)
    kept, gone = write(tables, location, 1, 2, 3), write(tables, location, 4)
    tables.commit_files(location, [kept, gone], cursor)
    branches = Branches(MagicMock(), tables, MagicMock())
    place = f"{place_of_branches(s3.url, NODE)}/{uuid4().hex} ü%"
    branch = branches.open(location, None, place, "x")
    own_fields = tables.state(place).physical_fields
    assert own_fields == tables.state(location).physical_fields
    new = write(tables, place, 5)
    files = tables.files(tables.state(place))
    assert files is not None
    urls = [file.key for file in files]
    assert all(url.startswith(f"{location}/") for url in urls)
    removed = next(file for file in files if gone.path in file.key)
    tables.commit_changes(
        place,
        [
            {
                "remove": {
                    "path": removed.key,
                    "dataChange": True,
                    "deletionTimestamp": 1,
                }
            },
            {"add": add_action(new, data_change=True)},
        ],
        Cursor("x", 1),
        read_version=0,
        operation="x",
    )
    at_savepoint = tables.state(place).version
    tables.commit_files(place, [write(tables, place, 6)], Cursor("x", 2))
    branches.cut_back(branch, at_savepoint)
    assert branches.state(branch).version == at_savepoint
    net = branches.net_change(branch)
    assert net.files == (new.path,)
    for _ in range(2):
        branches.carry_over(branch, net.files)
    if outcome != "no fault":
        lost.lose(location, 2, outcome)
    told = nullcontext() if outcome == "no fault" else pytest.raises(UnknownOutcome)
    with told:
        tables.commit_changes(
            location,
            net.actions,
            Cursor(APP, 2),
            read_version=1,
            operation="x",
        )
    lost.end()
    if outcome == "late":
        assert lost.arrive(location, 2)
    branches.drop(branch)
    own = store_at(place)
    assert own is not None and own.list_below("", lambda folder: True) == {}
    expected = [kept.path, gone.path if outcome == "never" else new.path]
    assert paths(tables, location) == sorted(expected)
    assert is_stored(location, new)
    tables.drop(location)
    assert not tables.exists(location)


def test_a_branch_in_a_directory(tables: DeltaTables, tmp_path: Path) -> None:
    """Its files are linked, and may be carried over twice."""
    location, place = str(tmp_path / "w" / "t"), str(tmp_path / "b 1")
    tables.create(location, [FieldSpec("id", "bigint")])
    kept = write(tables, location, 1, 2, 3)
    tables.commit_files(location, [kept], Cursor(APP, 1))
    branches = Branches(MagicMock(), tables, MagicMock())
    branch = branches.open(location, None, place, "x")
    new = write(tables, place, 5)
    tables.commit_files(place, [new], Cursor("x", 1))
    net = branches.net_change(branch)
    assert net.files == (new.path,)
    for _ in range(2):
        branches.carry_over(branch, net.files)
    assert (Path(place) / new.path).samefile(Path(location) / new.path)
    tables.commit_changes(
        location, net.actions, Cursor(APP, 2), read_version=1, operation="x"
    )
    assert paths(tables, location) == sorted([kept.path, new.path])
    branches.take_back(branch, net.files)
    assert not (Path(location) / new.path).exists()


def test_a_conflict_is_still_one(
    tables: DeltaTables, location: str, lost: Lost
) -> None:
    added = write(tables, location, 1)
    lost.lose(location, 1, "never")
    with pytest.raises(UnknownOutcome):
        tables.commit_files(location, [added], Cursor(APP, 1), read_version=0)
    lost.end()
    with pytest.raises(CommitConflict):
        # The name was taken, so the version that was read is not the newest one.
        tables.commit_files(location, [added], Cursor(APP, 1), read_version=0)
    assert np.array_equal(paths(tables, location), [])
