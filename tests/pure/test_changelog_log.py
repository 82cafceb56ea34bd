"""The whole change log: recovery, reconnects, two threads, any order of events."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from tests.examples import examples
from tests.fakes.publisher import (
    Emitted,
    Event,
    content,
    gulp,
    gulps,
    inserts,
    payloads,
)

from wal2lake.changelog import ChangeLog, LogReader, Retention
from wal2lake.changelog.files import journal_name, journal_numbers
from wal2lake.changelog.journal.format import JournalRecord
from wal2lake.changelog.journal.gulp import Lengths
from wal2lake.changelog.journal.journal import Journal, JournalPlace
from wal2lake.errors import ConfigurationError, CorruptLogError
from wal2lake.model import Lsn, Relation
from wal2lake.settings import LogSettings
from wal2lake.wire.columnar import StreamDecoder

SMALL = LogSettings(journal_file_bytes=600, segment_bytes=3000)


pytestmark = pytest.mark.usefixtures("no_fsync")


def opened(directory: Path, sizes: LogSettings = SMALL, **more: int) -> ChangeLog:
    return ChangeLog.open(directory, sizes, **more)


def absorb_all(log: ChangeLog) -> None:
    while log.absorb(0):
        pass


def send(log: ChangeLog, transactions: Sequence[Event], size: int = 4) -> None:
    for one in gulps(transactions, size):
        log.append(*one)
    log.sync()


SENT = [inserts(100, 3), inserts(200, 40, size=50), inserts(300, 2)]


def test_what_is_appended_and_synced_is_logged_and_what_is_sealed_can_be_read(
    tmp_path: Path,
) -> None:
    log = opened(tmp_path / "new" / "sub-1")
    assert (log.logged, log.sealed, log.last_segment) == (0, 0, 0)
    log.connected(Lsn(0))
    for one in gulps(SENT, 4):
        log.append(*one)
    assert log.logged < 308
    absorb_all(log)
    assert log.backlog > 0, "what a power loss may take is not given out"
    assert log.sync() == log.logged == 308
    assert log.backlog > 0
    absorb_all(log)
    log.seal()
    assert (log.sealed, log.backlog) == (308, 0)
    assert content(tmp_path / "new" / "sub-1") == SENT
    # Only the current journal file is left.
    assert len(journal_numbers(tmp_path / "new" / "sub-1")) == 1
    log.close()


def test_recovery_seals_what_only_the_journal_had(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.connected(Lsn(0))
    send(log, SENT)
    log.sync()
    log.close()
    assert content(tmp_path) == []
    log = opened(tmp_path)
    assert log.logged == log.sealed == 308
    assert content(tmp_path) == SENT
    assert journal_numbers(tmp_path) == []
    log.close()


def test_recovery_decodes_many_gulps_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path, LogSettings())
    log.connected(Lsn(0))
    send(log, SENT, size=1)
    log.close()
    runs: list[int] = []
    feed = StreamDecoder.feed

    def counted(self: StreamDecoder, data: bytes, lengths: Lengths) -> Iterable[Any]:
        runs.append(len(lengths))
        return feed(self, data, lengths)

    monkeypatch.setattr(StreamDecoder, "feed", counted)
    opened(tmp_path, LogSettings()).close()
    decoded = [messages for messages in runs if messages]
    assert len(decoded) == 1, "a fixed cost for each gulp would delay the start"
    assert content(tmp_path) == SENT


def test_recovery_skips_what_is_sealed_and_drops_what_is_open(tmp_path: Path) -> None:
    log = opened(tmp_path, LogSettings())
    log.connected(Lsn(0))
    send(log, SENT[:1])
    absorb_all(log)
    log.seal()
    known: dict[int, Relation] = {}
    rest = [m for t in SENT[1:] for m in payloads(t, known)]
    log.append(*gulp(rest[:-1]))
    log.sync()
    log.close()
    log = opened(tmp_path)
    assert log.logged == 208
    assert content(tmp_path) == SENT[:2]
    # The publisher sends the open one again, whole.
    log.connected(Lsn(208))
    send(log, SENT[2:])
    absorb_all(log)
    log.seal()
    assert content(tmp_path) == SENT
    log.close()


def test_a_transaction_over_several_journal_files_is_recovered_without_those_before(
    tmp_path: Path,
) -> None:
    log = opened(tmp_path)
    log.connected(Lsn(0))
    many = [inserts(100, 30, size=30), inserts(200, 30, relid=2), inserts(300, 60)]
    messages = gulps(many, 5)
    for one in messages[:8]:
        log.append(*one)
    log.sync()
    absorb_all(log)
    log.seal()
    log.sync()
    first = journal_numbers(tmp_path)[0]
    assert first > 1, "the file with the Relation message has gone"
    for one in messages[8:]:
        log.append(*one)
    assert len(journal_numbers(tmp_path)) > 4
    log.sync()
    log.close()
    log = opened(tmp_path)
    assert log.logged == 308
    assert content(tmp_path) == many
    log.close()


def test_a_reconnect_drops_the_open_transaction_and_takes_it_whole_again(
    tmp_path: Path,
) -> None:
    log = opened(tmp_path)
    log.connected(Lsn(0))
    send(log, SENT[:1])
    log.append(*gulp(payloads(SENT[1])[:30]))
    log.sync()
    absorb_all(log)
    log.connected(Lsn(108))
    send(log, SENT[1:])
    log.sync()
    # Recovery from here and live sealing must agree.
    copy = tmp_path.parent / "copy"
    shutil.copytree(tmp_path, copy)
    absorb_all(log)
    log.seal()
    assert content(tmp_path) == SENT
    log.close()
    opened(copy).close()
    assert content(copy) == SENT


def test_what_does_not_fit_the_queue_is_read_back_from_the_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = Journal.read
    places: list[JournalPlace] = []

    def counted(journal: Journal, place: JournalPlace) -> JournalRecord:
        places.append(place)
        return read(journal, place)

    monkeypatch.setattr(Journal, "read", counted)
    log = opened(tmp_path, handover_bytes=100)
    log.connected(Lsn(0))
    send(log, SENT)
    for _ in range(4):
        log.absorb(0)
        # A trim must not take what is still to be read back.
        log.seal()
    absorb_all(log)
    log.seal()
    assert content(tmp_path) == SENT
    assert len(places) == len(gulps(SENT, 4)) - 1
    log.close()


def test_two_threads_share_the_log(tmp_path: Path) -> None:
    log = opened(tmp_path, handover_bytes=2000)
    sent = [inserts(1000 + 100 * i, 1 + i % 7, relid=1 + i % 3) for i in range(150)]
    finished = threading.Event()
    problems: list[BaseException] = []

    def seal() -> None:
        try:
            while not (finished.is_set() and log.backlog == 0):
                log.absorb(0.01)
                log.seal()
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=seal)
    thread.start()
    log.connected(Lsn(0))
    for one in gulps(sent, 9):
        log.append(*one)
        log.sync()
    finished.set()
    log.wake()
    thread.join(60)
    assert not thread.is_alive()
    assert problems == []
    assert content(tmp_path) == sent
    log.close()


def test_a_second_receiver_is_refused(tmp_path: Path) -> None:
    log = opened(tmp_path)
    with pytest.raises(ConfigurationError, match="in use") as caught:
        opened(tmp_path)
    assert caught.value.sqlstate == "55006"
    log.close()
    opened(tmp_path).close()


def test_a_log_that_cannot_be_recovered_stays_as_it_is(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.connected(Lsn(0))
    send(log, SENT)
    log.sync()
    log.close()
    path = tmp_path / journal_name(1)
    whole = path.read_bytes()
    path.write_bytes(whole[:70] + b"?" + whole[71:])
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}
    for _ in range(2):
        with pytest.raises(CorruptLogError):
            opened(tmp_path)
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    path.write_bytes(whole)
    opened(tmp_path).close()
    assert content(tmp_path) == SENT


class Machine(RuleBasedStateMachine):
    """A publisher, a log and a disk; a crash keeps only what had been synced.

    The model is the list of transactions and messages that the publisher has sent. Its
    promise: what is sealed is a prefix of that list, and never shorter than what was ever
    confirmed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.place = TemporaryDirectory()
        self.directory = Path(self.place.name) / "log"
        self.committed: list[Event] = []
        self.trimmed = 0
        self.confirmed = 0
        self.synced: dict[str, int] = {}
        self.log: ChangeLog | None = None
        self.wire: list[bytes] = []
        self.open()

    def open(self) -> None:
        self.log = opened(self.directory, handover_bytes=400)
        assert self.log.logged >= self.confirmed
        self.confirmed = self.log.logged
        self.note_synced()
        self.connect()

    def connect(self) -> None:
        """The publisher sends again all that commits at or above the start."""
        assert self.log is not None
        start = self.log.logged
        self.log.connected(start)
        known: dict[int, Relation] = {}
        self.wire = []
        for one in self.committed:
            if one.commit_lsn >= start:
                self.wire.extend(payloads(one, known))
        self.known = known

    def note_synced(self) -> None:
        paths = self.directory.glob("journal-*")
        self.synced = {path.name: path.stat().st_size for path in paths}

    @rule(
        count=st.integers(0, 12),
        relid=st.integers(1, 2),
        size=st.integers(1, 200),
        messages=st.lists(st.sampled_from((b"", b"m", b"m" * 400)), max_size=3),
    )
    def commit(self, count: int, relid: int, size: int, messages: list[bytes]) -> None:
        lsn = 100 * (len(self.committed) + 1)
        one = inserts(lsn, count, relid, size)
        self.happen(replace(one, messages=tuple(messages)))

    @rule(content=st.sampled_from((b"", b"\0\xff", b"m" * 400)))
    def emit(self, content: bytes) -> None:
        self.happen(Emitted(100 * (len(self.committed) + 1), content))

    def happen(self, one: Event) -> None:
        self.committed.append(one)
        self.wire.extend(payloads(one, self.known))

    @precondition(lambda self: self.wire)
    @rule(count=st.integers(1, 20))
    def append(self, count: int) -> None:
        assert self.log is not None
        self.log.append(*gulp(self.wire[:count]))
        del self.wire[:count]

    @rule()
    def sync(self) -> None:
        assert self.log is not None
        self.confirmed = self.log.sync()
        self.note_synced()

    @rule(count=st.integers(1, 5))
    def absorb(self, count: int) -> None:
        assert self.log is not None
        for _ in range(count):
            self.log.absorb(0)

    @rule()
    def seal(self) -> None:
        assert self.log is not None
        self.log.seal()
        self.confirmed = self.log.logged

    @rule()
    def reconnect(self) -> None:
        assert self.log is not None
        # As a receiver does: what was received is made durable, then it asks for the rest.
        self.sync()
        self.connect()

    @rule(torn=st.integers(0, 400))
    def crash(self, torn: int) -> None:
        """Power loss: of the newest file, some unsynced bytes may have reached the disk."""
        assert self.log is not None
        self.log.close()
        for path in sorted(self.directory.glob("journal-*")):
            # A file that was followed by another had been synced whole.
            newest = path.name == journal_name(journal_numbers(self.directory)[-1])
            kept = path.stat().st_size
            if newest:
                kept = min(kept, max(self.synced.get(path.name, 64), 64) + torn)
            with path.open("rb+") as file:
                file.truncate(kept)
        self.open()

    @rule(part=st.floats(0, 1))
    def trim(self, part: float) -> None:
        """Apply has a floor somewhere at or below what is sealed."""
        assert self.log is not None
        floor = Lsn(int(self.log.sealed * part))
        Retention(self.directory).trim(floor)

    @invariant()
    def sealed_is_a_prefix_of_what_was_committed(self) -> None:
        assert self.log is not None
        found = content(self.directory)
        if not found:
            assert self.log.sealed == 0
            return
        at = found[0].commit_lsn // 100 - 1
        assert found == self.committed[at : at + len(found)]
        assert found[-1].end_lsn == self.log.sealed
        newest = LogReader(self.directory).newest()
        assert newest is not None
        assert newest.number == self.log.last_segment

    def teardown(self) -> None:
        if self.log is not None:
            self.crash(torn=0)
            absorb_all(self.log)
            self.log.seal()
            assert self.log.sealed >= self.confirmed
            while self.wire:
                self.append(50)
            self.log.sync()
            absorb_all(self.log)
            self.log.seal()
            self.sealed_is_a_prefix_of_what_was_committed()
            if self.committed:
                assert self.log.sealed == self.committed[-1].end_lsn
            self.log.close()
        self.place.cleanup()


def test_any_order_of_events_keeps_every_confirmed_transaction() -> None:
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=examples(60),
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
