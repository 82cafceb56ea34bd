"""The node's writer of tables, interrupted at each step, and beside others: a version is there or
not, and every version can be read and gone on from."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable, QueryBuilder
from tests.fakes.log_table import LogTable

from wal2lake.lake.delta.log.checksum import Totals
from wal2lake.lake.delta.log.commit import NextVersion, write_next
from wal2lake.lake.delta.versions.checkpoints import write_checkpoint
from wal2lake.lake.delta.versions.cleanup import clean_up
from wal2lake.lake.delta.versions.known import KnownVersions
from wal2lake.lake.delta.versions.replay import replay
from wal2lake.lake.port import Cursor
from wal2lake.lake.store import LocalStore
from wal2lake.lake.tablefiles import add_action

STEPS = ("make_folder", "put_if_absent", "put", "settle", "delete")
"""Operations that change a store."""

MOST_STEPS = 200
"""More than any of the tests has."""

KINDS: dict[str, dict[str, str]] = {
    "plain": {},
    "v2": {"delta.checkpointPolicy": "v2"},
    "numbered rows": {"delta.enableRowTracking": "true"},
    "own times": {"delta.enableInCommitTimestamps": "true"},
}


class Crash(Exception):
    """The process ends."""


def _crashing(root: Path, at: int, *, done: bool) -> LocalStore:
    """A store whose operation number ``at`` is the last one; ``done``: it is still carried out."""
    store, count = LocalStore(root), 0

    def counted(real: Callable[..., Any]) -> Callable[..., Any]:
        def operation(*args: Any, **more: Any) -> Any:
            nonlocal count
            count += 1
            if count > at:
                raise Crash
            if count == at and not done:
                raise Crash
            result = real(*args, **more)
            if count == at:
                raise Crash
            return result

        return operation

    for name in STEPS:
        setattr(store, name, counted(getattr(store, name)))
    return store


def _rows(location: str) -> dict[int, tuple[int, str]]:
    read = QueryBuilder().register("t", DeltaTable(location))
    found = pa.table(read.execute("select id, part, name from t").read_all())
    return {row["id"]: (row["part"], row["name"]) for row in found.to_pylist()}


def _interrupted(work: Callable[[int, bool], None]) -> int:
    """Do the work with a crash at each step; return the number of steps."""
    for at in range(1, MOST_STEPS):
        for done in (False, True):
            try:
                work(at, done)
            except Crash:
                continue
            return at - 1
    raise AssertionError("there is no end")


def _check(table: LogTable) -> None:
    """What a new process reads is one version, however it reads it."""
    table.known = KnownVersions()
    version, files = table.version, table.files
    assert version.totals == Totals.of(files.values())
    number = version.state.version
    assert set(replay(table.location, table.store, number).files) == set(files)
    assert _rows(table.location) == table.rows


@pytest.mark.parametrize("kind", KINDS)
def test_a_commit_is_there_or_not(tmp_path: Path, kind: str) -> None:
    table = LogTable(tmp_path / "t", KINDS[kind])
    table.append(range(3))
    seen = set()

    def commit(at: int, done: bool) -> None:
        before = table.version
        number, new = before.state.version + 1, [1000 * at + done]
        changes = [{"add": add_action(table.write(new), data_change=True)}]
        cursor = Cursor(f"crash {at} {done}", 1)
        store = _crashing(table.root, at, done=done)
        files = table.known.files(before.state)
        try:
            write_next(store, before, files, NextVersion(changes, cursor, "test"))
        finally:
            table.known = KnownVersions()
            is_there = table.version.state.version == number
            seen.add(is_there)
            assert (cursor.app_id in table.version.state.cursors) == is_there
            if is_there:
                table.rows |= {i: (1, f"n{i}") for i in new}
            _check(table)
            table.append([1000 * at + 10 + done])
            _check(table)

    assert _interrupted(commit) >= 4
    assert seen == {False, True}


@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_may_be_left_half_done(tmp_path: Path, kind: str) -> None:
    table = LogTable(tmp_path / "t", KINDS[kind])

    def checkpoint(at: int, done: bool) -> None:
        table.append([1000 * at + done])
        (file, *_) = table.files.values()
        if file.rows == 1:
            table.delete(file, [])
            del table.rows[min(table.rows)]
        number = table.version.state.version
        try:
            store = _crashing(table.root, at, done=done)
            write_checkpoint(table.location, store, number)
        finally:
            for path in (table.root / "_delta_log").glob("*.crc"):
                path.unlink()
            _check(table)
            write_checkpoint(table.location, table.store, number)
            _check(table)

    assert _interrupted(checkpoint) >= 6


@pytest.mark.parametrize("kind", ["plain", "v2"])
def test_a_log_is_whole_after_each_step_of_its_clean_up(
    tmp_path: Path, kind: str
) -> None:
    table = LogTable(tmp_path / "t", KINDS[kind])
    for step in range(1, 7):
        table.append([step])
        if step in (2, 4):
            write_checkpoint(table.location, table.store, step)
    log, old = table.root / "_delta_log", 1_700_000_000
    for path in [*log.iterdir(), *(log / "_sidecars").glob("*")]:
        if path.name[:20] <= f"{5:020}":
            os.utime(path, (old, old))
    version, template = table.version, tmp_path / "u"
    shutil.move(table.root, template)

    def clean(at: int, done: bool) -> None:
        shutil.rmtree(table.root, ignore_errors=True)
        shutil.copytree(template, table.root)
        try:
            clean_up(_crashing(table.root, at, done=done), version)
        finally:
            for path in log.glob("*.crc"):
                path.unlink()
            _check(table)
            clean_up(table.store, version)
            _check(table)

    assert _interrupted(clean) >= 12
    assert sorted(path.name for path in log.glob("*.json") if len(path.name) == 25) == [
        f"{number:020}.json" for number in (4, 5, 6)
    ]


def test_many_writers_make_one_history(tmp_path: Path) -> None:
    table = LogTable(tmp_path / "t", KINDS["numbered rows"])
    added = [[table.write([100 * who + n]) for n in range(12)] for who in range(4)]

    def write(who: int) -> None:
        known, store = KnownVersions(), LocalStore(table.root)
        for n, file in enumerate(added[who]):
            changes = [{"add": add_action(file, data_change=True)}]
            commit = NextVersion(changes, Cursor(f"app{who}", n), "append")
            while True:
                newest = known.newest(table.location)
                assert newest is not None
                files = known.files(newest.state)
                written = write_next(store, newest, files, commit)
                if written is not None:
                    known.written(newest.state, written)
                    break

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    ids = [100 * who + n for who in range(4) for n in range(12)]
    table.rows = {i: (1, f"n{i}") for i in ids}
    _check(table)
    assert table.version.state.version == 48
    assert table.version.state.cursors == {f"app{who}": 11 for who in range(4)}
    numbers = sorted(file.action["baseRowId"] for file in table.files.values())
    assert numbers == list(range(48))
