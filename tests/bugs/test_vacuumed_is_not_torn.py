"""A start judged commits above the published version by whether their files are there. VACUUM
takes files that a later version has removed, so after an outside OPTIMIZE and VACUUM good
commits were taken for torn ones and deleted, with all above them. It was judged again at each
retry, and from version 0 on where nothing had been published."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.fakes.apply_world import World
from tests.fakes.publisher import Change, Transaction

from wal2lake.lake.delta.durability import discard_torn_commits
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.testing.waits import wait_until

pytestmark = pytest.mark.usefixtures("no_fsync")

Actions = Callable[..., None]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    made = tmp_path / "t"
    (made / "_delta_log").mkdir(parents=True)
    return made


@pytest.fixture
def commit(table: Path) -> Actions:
    def write(version: int, *actions: dict[str, Any]) -> None:
        lines = [json.dumps(action) for action in ({"commitInfo": {}}, *actions)]
        path = table / "_delta_log" / f"{version:020}.json"
        path.write_text("\n".join(lines))

    return write


def add(table: Path, name: str, *, there: bool = True, **more: Any) -> dict[str, Any]:
    if there:
        (table / name).write_bytes(b"123")
    return {"add": {"path": name, "size": 3, **more}}


def remove(name: str) -> dict[str, Any]:
    return {"remove": {"path": name}}


def versions(table: Path) -> list[int]:
    return sorted(int(path.stem) for path in (table / "_delta_log").iterdir())


def test_a_vacuumed_file_does_not_tear_the_version_that_added_it(
    table: Path, commit: Actions
) -> None:
    commit(0)
    commit(1, add(table, "a", there=False))
    commit(2, remove("a"), add(table, "b", dataChange=False))
    commit(3, add(table, "c"))
    assert discard_torn_commits(table, 0) == ()
    assert versions(table) == [0, 1, 2, 3]


def test_a_vacuumed_deletion_vector_does_not_tear_either(
    table: Path, commit: Actions
) -> None:
    """The file stays with another vector: version 3 takes it away and adds it again."""
    gone = {"storageType": "p", "pathOrInlineDv": "gone.bin", "sizeInBytes": 1}
    kept = {"storageType": "p", "pathOrInlineDv": "kept.bin", "sizeInBytes": 1}
    (table / "kept.bin").write_bytes(b"12345")
    commit(0)
    commit(1, add(table, "a"))
    commit(2, remove("a"), add(table, "a", deletionVector=gone))
    commit(3, remove("a"), add(table, "a", deletionVector=kept))
    assert discard_torn_commits(table, 0) == ()
    (table / "kept.bin").unlink()
    assert discard_torn_commits(table, 0) == (2, 3)


def test_vacuumed_change_files_do_not_tear(table: Path, commit: Actions) -> None:
    """VACUUM takes them by age; no action says so."""
    commit(0)
    commit(1, add(table, "a"), {"cdc": {"path": "_change_data/x", "size": 3}})
    assert discard_torn_commits(table, 0) == ()
    (table / "_change_data").mkdir()
    (table / "_change_data" / "x").write_bytes(b"1")
    assert discard_torn_commits(table, 0) == (1,)


def test_a_version_that_must_go_excuses_nothing(table: Path, commit: Actions) -> None:
    """Version 3 removes the file, but goes with the torn version 2."""
    commit(0)
    commit(1, add(table, "a", there=False))
    commit(2, add(table, "b", there=False))
    commit(3, remove("a"), add(table, "c"))
    assert discard_torn_commits(table, 0) == (1, 2, 3)
    assert versions(table) == [0]


def test_a_removal_does_not_excuse_a_later_addition(
    table: Path, commit: Actions
) -> None:
    commit(0)
    commit(1, add(table, "a"))
    commit(2, remove("a"))
    commit(3, add(table, "a", size=5))
    commit(4, add(table, "b"))
    assert discard_torn_commits(table, 0) == (3, 4)


# ---- when a worker asks for it -----------------------------------------------------------


def insert(key: bytes, value: bytes = b"v") -> Change:
    return Change(1, "I", (key, value))


def test_a_table_is_judged_once_and_not_at_each_retry(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1,)) as world:
        side = world.side
        world.lake.poison = {b"bad"}
        side.send(Transaction(100, (insert(b"1", b"bad"),)))
        side.start()
        side.stops("finished at")
        tried = len(world.lake.requests)
        wait_until(lambda: len(world.lake.requests) > tried + 3)
        assert world.lake.recovered == [(side.location(1), 0)]


def test_a_table_of_which_nothing_is_published_is_not_judged(tmp_path: Path) -> None:
    with World(tmp_path, tables=(1,)) as world:
        side = world.side
        side.add_table(2)
        world.catalog.add_rels([side.rel(2, SyncState.READY, Lsn(1))])
        side.send(Transaction(100, (insert(b"1"),)))
        side.start()
        side.reaches(108)
        assert world.lake.recovered == [(side.location(1), 0)]


def test_a_copy_that_is_torn_when_it_ends_is_copied_again(tmp_path: Path) -> None:
    """The power failed in its commit, and tablesync found the cursor in the torn one."""
    with World(tmp_path, tables=(1,)) as world:
        side = world.side
        side.add_table(2)
        world.catalog.add_rels([side.rel(2, SyncState.INIT)])
        world.catalog.publish(Oid(1), Lsn(0), {102: 0})
        side.copied(2, {b"0": (b"0", b"copied")}, 50)
        world.lake.torn[side.location(2)] = 1
        side.send(Transaction(100, (insert(b"1"),)))
        side.start()
        wait_until(lambda: world.catalog.rels(Oid(1))[1].state is SyncState.DATASYNC)
        wait_until(lambda: side.visible(1) == {b"1": (b"1", b"v")})
        assert side.floor == 0, "what its copy will lack stays in the log"
        assert side.visible(2) == {}
        assert side.table(2).version == 0


def test_a_torn_copy_goes_before_tablesync_looks_at_it_again(tmp_path: Path) -> None:
    """Torn so that the table cannot be read: tablesync would fail for ever."""
    with World(tmp_path, tables=(1,)) as world:
        side = world.side
        side.add_table(2)
        world.catalog.add_rels([side.rel(2, SyncState.INIT)])
        world.catalog.publish(Oid(1), Lsn(0), {102: 0})
        world.catalog.update_rel(Oid(1), Oid(102), state=SyncState.DATASYNC)
        side.table(2).versions.append({})
        world.lake.torn[side.location(2)] = 1
        side.start()
        wait_until(lambda: side.table(2).version == 0)
