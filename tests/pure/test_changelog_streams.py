"""Streamed and prepared transactions in the change log: what commits is there, whole and once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.fakes.publisher import Change, content, gulp
from tests.fakes.streaming import Running, Source

from wal2lake.changelog import ChangeLog, LogReader, Retention
from wal2lake.changelog.files import journal_name, journal_numbers
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
        if small == 9:
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


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(steps)
def test_any_order_of_blocks_savepoints_prepares_and_crashes_ends_as_the_model(
    script: list[Step],
) -> None:
    play(script)
