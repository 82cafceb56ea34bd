"""Streamed and prepared transactions in the change log: what commits is there, whole and once."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.examples import examples
from tests.fakes.publisher import Change, content, gulp
from tests.fakes.streaming import Item, Running, Source

from wal2lake.changelog import (
    ChangeLog,
    LogReader,
    Retention,
    files,
    prepared_transactions,
)
from wal2lake.changelog.files import journal_name, journal_numbers
from wal2lake.errors import StorageError
from wal2lake.model import Lsn
from wal2lake.settings import LogSettings

SMALL = LogSettings(journal_file_bytes=600, segment_bytes=3000)

pytestmark = pytest.mark.usefixtures("no_fsync")

Step = tuple[str, int, int, int]
"""What happens, and three numbers that say how."""

STEPS = (
    *("change",) * 6,
    *("stream",) * 4,
    *("append",) * 4,
    *("absorb",) * 3,
    *("begin", "savepoint", "leave", "aborts", "end", "finish") * 2,
    *("sync",) * 4,
    *("emit", "seal", "seal", "reconnect", "crash", "trim"),
)
steps = st.lists(
    st.tuples(
        st.sampled_from(STEPS),
        st.integers(0, 3),
        st.integers(0, 9),
        st.integers(0, 400),
    ),
    min_size=80,
    max_size=160,
)


def insert(key: int, size: int = 4, relid: int = 1, columns: int = 2) -> Change:
    rest = (b"x" * size,) * (columns - 1)
    return Change(relid, "I", (b"%d" % key, *rest), columns=columns)


class World:
    """A source with savepoints and two-phase commit, a log and a disk."""

    def __init__(self, directory: Path, sizes: LogSettings = SMALL) -> None:
        self.directory = directory
        self.sizes = sizes
        self.source = Source()
        self.confirmed = 0
        self.synced: dict[str, int] = {}
        self.open()

    def open(self) -> None:
        self.log = ChangeLog.open(self.directory, self.sizes, handover_bytes=400)
        assert self.log.logged >= self.confirmed
        self.confirmed = self.log.logged
        self.note_synced()
        self.connect()

    def connect(self) -> None:
        self.log.connected(self.log.logged, streaming=True, two_phase=True)
        self.source.connect(self.log.logged)

    def note_synced(self) -> None:
        paths = self.directory.glob("journal-*")
        self.synced = {path.name: path.stat().st_size for path in paths}

    # ---- the source ------------------------------------------------------------------

    def step(self, step: Step) -> None:
        """Do it, if it can be done now."""
        kind, which, small, large = step
        source, running = self.source, list(self.source.running.values())
        match kind:
            case "emit":
                source.emit(b"m" * large)
            case "append" | "absorb" | "sync" | "seal" | "reconnect" | "crash" | "trim":
                getattr(self, kind)(small, large)
            case "finish":
                if prepared := list(source.prepared.values()):
                    source.finish(prepared[which % len(prepared)], commit=small < 6)
            case _ if not running or kind == "begin":
                if len(running) < 4:
                    source.begin()
            case _:
                self.act(kind, running[which % len(running)], small, large)

    def act(self, kind: str, one: Running, small: int, large: int) -> None:
        """Something of one transaction."""
        source = self.source
        match kind:
            case "change":
                self.change(one, small, large)
            case "stream":
                source.block(one, len(one.items) * min(small + 1, 8) // 8)
            case "savepoint":
                source.savepoint(one)
            case "leave" if one.stack and small < 6:
                source.rollback_to(one)
            case "leave" if one.stack:
                source.release(one)
            case "aborts":
                # In any order, and later than PostgreSQL would.
                order = sorted(one.unsaid, key=lambda xid: xid * (large | 1) % 97)
                source.aborts(one, order)
            case "end" if small == 0:
                source.rollback(one)
            case "end":
                source.end(one, "commit" if small < 5 else "prepare")

    def change(self, one: Running, small: int, large: int) -> None:
        for i in range(1 + large % 9):
            row = insert(len(one.items) + i, large // 2, 1 + small % 2, 1 + small // 4)
            one.items.append((one.current, row))
        # Behind a rollback PostgreSQL sends none before it has said so.
        if small == 9 and (one.stack or not one.rolled_back):
            one.items.append((one.current, b"m" * large))

    # ---- the log ----------------------------------------------------------------------

    def append(self, small: int, large: int) -> None:
        if count := len(self.source.wire[: 1 + large // 8]):
            self.log.append(*gulp(self.source.wire[:count]))
            del self.source.wire[:count]

    def sync(self, small: int = 0, large: int = 0) -> None:
        """As a receiver does behind each group of appends."""
        self.confirmed = self.log.sync()
        self.note_synced()

    def absorb(self, small: int, large: int = 0) -> None:
        for _ in range(1 + small):
            self.log.absorb(0)

    def seal(self, small: int = 0, large: int = 0) -> None:
        self.log.seal()
        self.confirmed = self.log.logged

    def reconnect(self, small: int, large: int) -> None:
        self.sync()
        self.connect()

    def crash(self, small: int, large: int) -> None:
        """Power loss: what was not synced is cut, or gone."""
        lost = {name for spool in self.log._spools._all() for name in spool.unsynced}
        self.log.close()
        for name in lost:
            (self.directory / name).write_bytes(b"")
        for path in sorted(self.directory.glob("journal-*")):
            newest = path.name == journal_name(journal_numbers(self.directory)[-1])
            kept = path.stat().st_size
            if newest:
                kept = min(kept, max(self.synced.get(path.name, 64), 64) + large)
            with path.open("rb+") as file:
                file.truncate(kept)
        self.open()

    def trim(self, small: int, large: int) -> None:
        Retention(self.directory).trim(Lsn(self.log.sealed * small // 9))

    # ---- what must hold ---------------------------------------------------------------

    def check(self) -> None:
        """Sealed is a piece of what was committed, without a gap up to its end."""
        found = content(self.directory)
        ended = [o for o in self.source.committed if o.end_lsn <= self.log.sealed]
        assert found == ended[len(ended) - len(found) :]
        newest = LogReader(self.directory).newest()
        assert (newest.number if newest else 0) == self.log.last_segment
        assert self.log._spools.buffered_bytes <= self.sizes.segment_bytes

    def finish(self) -> None:
        """Whatever was confirmed is there, whatever was open has left nothing behind."""
        self.crash(0, 0)
        for ended in list(self.source.prepared.values()):
            self.source.finish(ended, commit=True)
        self.source.emit(b"end")
        while self.source.wire:
            self.append(0, 200)
            self.sync()
            self.absorb(2)
        while self.log.absorb(0):
            pass
        self.log.seal()
        self.check()
        assert self.log.sealed == self.source.wal[-1].end >= self.confirmed
        assert self.log._spools.streams().keys() <= self.source.running.keys()
        self.log.close()
        # What is left belongs to transactions that are open still.
        ChangeLog.open(self.directory, self.sizes).close()
        left = [path.name for path in self.directory.glob("spool-*")]
        assert left == [], left


def play(script: Sequence[Step]) -> None:
    """Every step, and after each what must hold."""
    with TemporaryDirectory() as place:
        world = World(Path(place) / "log")
        for step in script:
            world.step(step)
            if step[0] in ("seal", "crash", "absorb", "trim"):
                world.check()
        world.finish()


@settings(
    max_examples=examples(60), deadline=None, suppress_health_check=list(HealthCheck)
)
@given(steps)
def test_any_order_of_blocks_savepoints_prepares_and_crashes_ends_as_the_model(
    script: list[Step],
) -> None:
    play(script)


def history(source: Source) -> None:
    """One of each: streamed, prepared streamed and not, rolled back, and what is between."""
    streamed, prepared, whole, gone = (source.begin() for _ in range(4))
    for one in (streamed, prepared, gone):
        one.items += [(one.xid, insert(i, 60)) for i in range(12)]
        source.block(one)
        source.savepoint(one)
        one.items += [(one.current, insert(100 + i, 60, columns=3)) for i in range(5)]
        source.block(one)
        source.rollback_to(one)
        source.aborts(one)
        one.items += [(one.xid, insert(200 + i, 60, 2)) for i in range(6)]
    whole.items += [(whole.xid, insert(i, 30)) for i in range(5)]
    first = source.end(prepared, "prepare")
    source.end(streamed, "commit")
    source.emit(b"between")
    second = source.end(whole, "prepare")
    third = source.end(gone, "prepare")
    source.finish(second, commit=True)
    source.finish(third, commit=False)
    source.finish(first, commit=True)


def everything(world: World) -> None:
    """What is on the wire reaches the segments."""
    while world.source.wire:
        world.append(0, 40)
        world.sync()
        world.absorb(1)
    world.seal()
    world.check()


def test_a_journal_cut_at_any_byte_loses_nothing_that_comes_again(
    tmp_path: Path,
) -> None:
    world = World(tmp_path / "log", LogSettings(journal_file_bytes=1 << 20))
    history(world.source)
    sent = list(world.source.wire)
    while world.source.wire:
        world.append(0, 40)
    world.log.sync()
    world.log.close()
    size = (tmp_path / "log" / journal_name(1)).stat().st_size
    for cut in range(64, size, 103):
        copy = tmp_path / f"cut-{cut}"
        shutil.copytree(tmp_path / "log", copy)
        with (copy / journal_name(1)).open("rb+") as file:
            file.truncate(cut)
        log = ChangeLog.open(copy, SMALL)
        again = replace(world.source, wire=[], known={})
        log.connected(log.logged, streaming=True, two_phase=True)
        again.connect(log.logged)
        log.append(*gulp(again.wire))
        log.sync()
        while log.absorb(0):
            pass
        log.seal()
        assert content(copy) == world.source.committed, cut
        log.close()
        assert list(copy.glob("spool-*")) == []
        shutil.rmtree(copy)
    assert sent


def test_all_that_comes_again_after_a_reconnect_is_recognised(tmp_path: Path) -> None:
    world = World(tmp_path / "log")
    one = world.source.begin()
    one.items += [(one.xid, insert(i, 60)) for i in range(30)]
    world.source.block(one)
    waiting = world.source.end(one, "prepare")
    history(world.source)
    everything(world)
    for _ in range(2):
        # As if nothing had ever been confirmed.
        world.log.connected(Lsn(0), streaming=True, two_phase=True)
        world.source.connect(0)
        everything(world)
        world.crash(0, 0)
    assert len(prepared_transactions(world.directory)) == 1
    world.source.finish(waiting, commit=True)
    everything(world)
    assert content(world.directory) == world.source.committed
    assert prepared_transactions(world.directory) == []


@pytest.mark.parametrize("pieces", [1, 3])
def test_messages_of_a_savepoint_that_is_rolled_back_go_with_it(
    tmp_path: Path, pieces: int
) -> None:
    world = World(tmp_path / "log")
    source = world.source
    one = source.begin()
    top, (outer, inner) = one.xid, (source.xid(), source.xid())
    script: list[tuple[int, Item] | int] = [
        (top, b"kept: first"),
        (top, insert(1)),
        (top, b"kept: second"),
        (outer, insert(2)),
        (top, b"gone: of outer"),
        (inner, insert(3)),
        (top, b"gone: of inner"),
        inner,
        (top, b"gone: of outer, too"),
        outer,
        (top, b"kept: third"),
        (top, insert(4)),
    ]
    for step in script:
        if isinstance(step, int):
            source.block(one)
            source.abort(top, step)
            one.rolled_back.add(step)
            one.sent.clear()
        else:
            one.items.append(step)
            if pieces > 1:
                source.block(one)
                everything(world)
    source.end(one, "commit")
    one.items = [
        (xid, item)
        for xid, item in one.items
        if not (isinstance(item, bytes) and item.startswith(b"gone"))
    ]
    everything(world)
    assert len(one.surviving) == 5
    assert content(world.directory) == source.committed


def test_a_full_disk_at_any_write_of_a_spool_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each write fails once, and every step is simply done again."""
    write, link, failed = files.write_temporary, Path.hardlink_to, set()

    def once(name: str) -> None:
        if name not in failed:
            failed.add(name)
            raise OSError(errno.ENOSPC, "No space left on device")

    def full(path: Path, data: Any, **options: bool) -> Path:
        try:
            once(path.name)
        except OSError as error:
            raise files.storage_error("write to file", path, error) from error
        return write(path, data, **options)

    def unlinkable(path: Path, target: Path) -> None:
        once(path.name)
        link(path, target)

    world = World(tmp_path / "log")
    monkeypatch.setattr(files, "write_temporary", full)
    monkeypatch.setattr(Path, "hardlink_to", unlinkable)
    history(world.source)
    while world.source.wire:
        world.append(0, 40)
        world.sync()
        for step in (world.log.absorb, lambda _: world.log.seal()):
            for _ in range(200):
                try:
                    step(0)
                    break
                except StorageError:
                    continue
    assert any(name.startswith("spool-") and "json" in name for name in failed)
    assert any(name.startswith("spool-") and "parquet" in name for name in failed)
    assert content(world.directory) == world.source.committed


def test_an_open_transaction_holds_the_journal_back_only_until_its_checkpoint(
    tmp_path: Path,
) -> None:
    # A file has several rounds, so that one is in the checkpoint in part.
    world = World(tmp_path / "log", replace(SMALL, journal_file_bytes=5000))
    one = world.source.begin()
    one.items += [(one.xid, insert(i, 60)) for i in range(10)]
    world.source.block(one)
    for number in range(40):
        other = world.source.begin()
        other.items += [(other.xid, insert(i, 60)) for i in range(9)]
        world.source.end(other, "commit")
        one.items.append((one.xid, insert(number, 60, 2, 2 + number % 2)))
        world.source.block(one)
        everything(world)
        assert len(journal_numbers(world.directory)) <= 5
    assert list(world.directory.glob("spool-*.json")) != []
    world.source.end(one, "commit")
    # The half of it that only the checkpoint has is found again.
    world.append(0, 400)
    world.sync()
    world.log.close()
    log = ChangeLog.open(world.directory, SMALL)
    assert content(world.directory) == world.source.committed
    log.close()


def test_many_interleaved_transactions_keep_memory_bounded_and_few_pieces(
    tmp_path: Path,
) -> None:
    sizes = LogSettings(journal_file_bytes=1 << 20, segment_bytes=128 << 10)
    world = World(tmp_path / "log", sizes)
    running = [world.source.begin() for _ in range(120)]
    for part in range(4):
        for one in running:
            one.items += [(one.xid, insert(part * 100 + i, 60)) for i in range(12)]
            world.source.block(one)
        while world.source.wire:
            world.append(0, 4000)
            world.sync()
            world.absorb(1)
            assert world.log._spools.buffered_bytes <= sizes.segment_bytes
    pieces = len(list(world.directory.glob("spool-*.parquet")))
    assert 0 < pieces <= 4 * len(running)
    for one in running:
        world.source.end(one, "commit")
    everything(world)
    assert content(world.directory) == world.source.committed
    # Small ones share segments.
    assert world.log.last_segment < len(running) // 4
    assert list(world.directory.glob("spool-*")) == []


@pytest.mark.parametrize("streamed", [True, False])
def test_a_prepare_is_confirmed_when_all_of_it_is_synced(
    tmp_path: Path, streamed: bool
) -> None:
    world = World(tmp_path / "log")
    one = world.source.begin()
    one.items += [(one.xid, insert(i)) for i in range(5)]
    if streamed:
        world.source.block(one)
    ended = world.source.end(one, "prepare")
    wire = world.source.wire
    world.log.append(*gulp(wire[:-1]))
    assert world.log.sync() == 0
    world.log.append(*gulp(wire[-1:]))
    assert world.log.logged == 0
    assert world.log.sync() == ended.end
    # And it stays so, with nothing but the journal.
    world.log.close()
    log = ChangeLog.open(world.directory, SMALL)
    assert log.logged == ended.end
    (listed,) = prepared_transactions(world.directory)
    assert (listed.gid, listed.prepare_lsn) == (f"g{one.xid}", ended.lsn)
    log.close()
