"""The supervisor under everything at once: children that end, do not listen or are stopped at any
moment, signals, words, a catalog that is damaged, files that are garbage, rounds that fail, a log
that nobody reads. In the end the wanted children run, nothing is left over, and a stop ends with
0."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.fakes.node import FakeNode

from wal2lake.launch import is_locked, notify, read_lock, read_status
from wal2lake.launch.processes import (
    Process,
    directory_marker,
    is_alive,
    marked,
    processes,
)
from wal2lake.model import Oid
from wal2lake.settings import FILE_NAME
from wal2lake.testing.waits import wait_until

HOW_LONG = int(os.environ.get("WAL2LAKE_CHAOS_SECONDS", "60"))


class Chaos:
    """A node, and everything that can be done to it."""

    def __init__(self, directory: Path, dice: random.Random) -> None:
        self.node = FakeNode(
            directory,
            node__log_file="server.log",
            node__shutdown_timeout_ms=300,
            web__listen="127.0.0.1:0",
            subscription__wal_retrieve_retry_interval_ms=100,
            subscription__max_logical_replication_workers=100,
        )
        self.dice = dice
        self.wanted: dict[Oid, bool] = {}
        self.stopped: list[int] = []
        self.made = 0
        self.settings = (directory / FILE_NAME).read_text()
        self.node.start("--eager")
        assert self.node.process is not None
        self.pid = self.node.process.pid

    # ---- what happens -------------------------------------------------------------

    def happen(self) -> None:
        """One thing, of those that are there to happen."""
        self.dice.choice(
            [
                self.subscribe,
                self.alter,
                self.switch,
                self.drop,
                self.kill,
                self.kill,
                self.halt,
                self.go_on,
                self.kill_an_attendant,
                self.halt_an_attendant,
                self.lack,
                self.send_signal,
                self.send_signal,
                self.word,
                self.lose_the_socket,
                self.spoil_the_catalog,
                self.misconfigure,
                self.block_the_status,
            ]
        )()

    def subscribe(self) -> None:
        if len(self.wanted) < 6:
            self.made += 1
            self.wanted[self.node.subscribe(self.made)] = True

    def one(self) -> Oid | None:
        return self.dice.choice(list(self.wanted)) if self.wanted else None

    def alter(self) -> None:
        if (oid := self.one()) is not None:
            self.node.change(oid, bump=True)

    def switch(self) -> None:
        if (oid := self.one()) is not None:
            self.wanted[oid] = not self.wanted[oid]
            self.node.change(oid, enabled=self.wanted[oid])

    def drop(self) -> None:
        if len(self.wanted) > 3 and (oid := self.one()) is not None:
            del self.wanted[oid]
            self.node.catalog.drop_subscription(oid)

    def kill(self) -> None:
        self._send(self._children(), self.dice.choice([signal.SIGKILL, signal.SIGTERM]))

    def halt(self) -> None:
        self.stopped.extend(self._send(self._children(), signal.SIGSTOP))

    def go_on(self) -> None:
        for pid in self.stopped:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)
        self.stopped.clear()

    def kill_an_attendant(self) -> None:
        self._send(self._attendants(), signal.SIGKILL)

    def halt_an_attendant(self) -> None:
        self.stopped.extend(self._send(self._attendants(), signal.SIGSTOP))

    def lack(self) -> None:
        fault = self.node.directory / "fake" / "fault"
        kind = self.dice.choice(["OSError", "MemoryError"])
        fault.write_text(f"{kind} {self.dice.choice(['running', 'kill_lost', 'wait'])}")
        time.sleep(self.dice.random() / 5)
        fault.unlink()

    def send_signal(self) -> None:
        number = self.dice.choice([signal.SIGHUP, signal.SIGUSR1, signal.SIGCHLD])
        for _ in range(self.dice.choice([1, 30])):
            self.node.signal(number)

    def word(self) -> None:
        word = self.dice.choice(["changed", "reload", "ready 1", "ready", "\udcff" * 9])
        for _ in range(self.dice.choice([1, 50])):
            with contextlib.suppress(UnicodeEncodeError):
                notify(self.node.directory / "run", word)

    def lose_the_socket(self) -> None:
        (self.node.directory / "run" / "supervisor.sock").unlink(missing_ok=True)

    def spoil_the_catalog(self) -> None:
        path = self.node.directory / "catalog.sqlite"
        change = "update meta set value = ? where key = 'counter'"
        before = self.node.catalog.change_counter
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute(change, ("no number",))
            self.node.signal(signal.SIGUSR1)
            time.sleep(self.dice.random() / 5)
            other.execute(change, (str(before),))

    def misconfigure(self) -> None:
        path = self.node.directory / FILE_NAME
        path.write_bytes(self.dice.choice([b"\xff", b"", b"x = " + b"[" * 5000, b"["]))
        self.node.signal(signal.SIGHUP)
        time.sleep(0.02)
        path.write_text(self.settings)

    def block_the_status(self) -> None:
        blocking = self.node.directory / "run" / ".status.json.tmp"
        with contextlib.suppress(OSError):
            blocking.mkdir()
            time.sleep(0.05)
            blocking.rmdir()

    # ---- what there is --------------------------------------------------------------

    def _below(self) -> list[Process]:
        return [p for p in processes() if p.parent == self.pid]

    def _children(self) -> list[int]:
        return [p.pid for p in self._below() if p.pid not in self._attendants()]

    def _attendants(self) -> list[int]:
        """Guardian and collector: forks without the marker."""
        with_marker = marked(directory_marker(self.node.directory))
        return [p.pid for p in self._below() if p.pid not in with_marker]

    def _send(self, pids: list[int], number: signal.Signals) -> list[int]:
        if not pids:
            return []
        pid = self.dice.choice(pids)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        return [pid]

    def descriptors(self) -> int:
        return len(list(Path(f"/proc/{self.pid}/fd").iterdir()))

    def differs(self) -> str:
        """What is not as it should be; empty if all is well."""
        assert self.node.process is not None and self.node.process.poll() is None
        status = read_status(self.node.directory / "run")
        assert status is not None
        wanted = sorted(
            ["engine", "web", *(str(o) for o, w in self.wanted.items() if w)]
        )
        shown = sorted(str(w.subid) if w.subid else w.role for w in status.workers)
        below = self._below()
        known = {w.pid for w in status.workers}
        others = {p.pid for p in below} - known
        with_marker = marked(directory_marker(self.node.directory))
        sessions = {p.session for p in processes() if p.pid in with_marker}
        found = {
            "state": status.state != "ready" and status.state,
            "workers": shown != wanted and (shown, wanted),
            "dead": [pid for pid in known if not is_alive(pid)],
            "zombies": [p for p in below if p.state == "Z"],
            # Guardian, collector, spare.
            "others": len(others) != 3 and others,
            "guardian": status.guardian_pid not in others,
            "remains": sessions - known - others,
        }
        return ", ".join(f"{name}: {what}" for name, what in found.items() if what)

    def calm_down(self, seed: int) -> None:
        wait_until(
            lambda: not self.differs(),
            timeout_seconds=40,
            describe=lambda: f"seed {seed}: {self.differs()}\n{self.node.log_text()}",
        )


def passes(directory: Path, seed: int, seconds: float) -> None:
    chaos = Chaos(directory, random.Random(seed))
    fake = directory / "fake"
    try:
        for _ in range(3):
            chaos.subscribe()
        chaos.calm_down(seed)
        before = chaos.descriptors()
        (fake / "chaos").touch()
        # Those that are started from now on throw dice.
        for pid in chaos._children():
            os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            chaos.happen()
            time.sleep(chaos.dice.expovariate(20))
        (fake / "chaos").unlink()
        chaos.go_on()
        chaos.calm_down(seed)
        wait_until(
            lambda: chaos.descriptors() <= before,
            describe=lambda: f"{chaos.descriptors()} descriptors, {before} before",
        )
        told = chaos.node.log_text()
        assert "the supervisor has failed" not in told, f"seed {seed}\n{told}"
        # Nothing lacked but what was planted, which is more than a traceback away at most.
        for after in told.split("lacks a resource, trying again")[1:]:
            assert "Error: planted" in after[:8000], f"seed {seed}\n{told}"
        chaos.node.signal(signal.SIGTERM)
        assert chaos.node.wait_end(30) == 0, chaos.node.log_text()
        assert marked(directory_marker(directory)) == [] and not is_locked(directory)
        assert not (directory / "wal2lake.pid").exists()
    finally:
        chaos.node.close()


@pytest.fixture
def seed() -> Iterator[int]:
    yield int(os.environ.get("WAL2LAKE_CHAOS_SEED", time.time_ns() % 1_000_000))


def test_a_supervisor_survives_three_seconds_of_chaos(
    tmp_path: Path, seed: int
) -> None:
    passes(tmp_path, seed, 3.0)


@pytest.mark.slow
def test_a_supervisor_survives_minutes_of_chaos(tmp_path: Path, seed: int) -> None:
    passes(tmp_path, seed, HOW_LONG)


def test_a_stop_at_any_moment_of_the_start_ends_with_0(
    tmp_path: Path, seed: int
) -> None:
    dice = random.Random(seed)
    fake = FakeNode(tmp_path, node__shutdown_timeout_ms=100)
    fake.subscribe(1)
    try:
        for _ in range(5):
            fake.process = fake.launch("--eager")
            wait_until(lambda: (lock := read_lock(tmp_path)) and lock.state)
            time.sleep(dice.expovariate(5))
            for number in dice.choices([signal.SIGHUP, signal.SIGUSR1], k=5):
                fake.signal(number)
            fake.signal(dice.choice([signal.SIGTERM, signal.SIGQUIT, signal.SIGUSR2]))
            assert fake.wait_end() == 0, f"seed {seed}\n{fake.log_text()}"
            assert marked(directory_marker(tmp_path)) == [] and not is_locked(tmp_path)
    finally:
        fake.close()
