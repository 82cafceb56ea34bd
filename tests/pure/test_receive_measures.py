"""Measurements of a receiver: commit times by position, counters, facts about its slot."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs
from tests.examples import examples
from tests.fakes.publisher import gulp, inserts, payloads, xlogdata
from tests.fakes.receiver import Receiver
from tests.fakes.streams import damaged, streams
from tests.fakes.walsender import FakeWalsender, Scripted

from wal2lake.catalog import Subscription
from wal2lake.catalog.mapped.committimes import CommitTimes, times_path
from wal2lake.changelog import ChangeLog
from wal2lake.errors import ProtocolViolation, PublisherError
from wal2lake.model import Lsn, Oid, Xid
from wal2lake.observe.ages import ages
from wal2lake.observe.telemetry import Telemetry, TelemetryFile, read_process
from wal2lake.receive.measures import (
    Commits,
    ReceiverMeasures,
    find_commits,
    find_few,
)
from wal2lake.receive.source import source
from wal2lake.receive.source.slotcheck import UnusableSlot
from wal2lake.receive.threads import verifier as module
from wal2lake.receive.threads.verifier import PositionVerifier
from wal2lake.settings import Settings
from wal2lake.testing.waits import wait_until
from wal2lake.wire.copyboth import XLOGDATA_HEADER
from wal2lake.wire.pgoutput import (
    Commit,
    CommitPrepared,
    StreamCommit,
    read_message,
)

pytestmark = pytest.mark.usefixtures("no_fsync")

_SUBID = Oid(7)
_SECOND = 1_000_000


def _committed(messages: Sequence[bytes]) -> Iterator[tuple[int, int]]:
    for payload in messages:
        try:
            message = read_message(payload[XLOGDATA_HEADER:])
        except ProtocolViolation:
            continue
        if isinstance(message, Commit | CommitPrepared | StreamCommit):
            yield int(message.end_lsn), message.commit_time


@given(streams())
def test_commits_are_found_in_any_stream(messages: list[bytes]) -> None:
    commits = find_commits(*gulp(messages))
    found = list(zip(commits.ends.tolist(), commits.times.tolist(), strict=True))
    assert found == list(_committed(messages))
    assert find_few(*gulp(messages)) == found


@settings(max_examples=examples(40))
@given(st.data())
def test_malformed_messages_are_left_to_the_decoder(data: st.DataObject) -> None:
    messages = data.draw(damaged(data.draw(streams())))
    data_, lengths = gulp([m for m in messages if m])
    commits = find_commits(data_, lengths)
    found = list(zip(commits.ends.tolist(), commits.times.tolist(), strict=True))
    assert find_few(data_, lengths) == found


def test_all_kinds_of_commits_are_found() -> None:
    messages = [
        xlogdata(Commit(Lsn(10), Lsn(18), 5)),
        xlogdata(StreamCommit(Xid(3), Lsn(20), Lsn(28), -6)),
        xlogdata(CommitPrepared(Lsn(30), Lsn(38), 7, Xid(4), "g")),
    ]
    commits = find_commits(*gulp(messages))
    assert commits.ends.tolist() == [18, 28, 38]
    assert commits.times.tolist() == [5, -6, 7]
    # Cut anywhere, a commit is none.
    for size in range(1, len(messages[0])):
        assert not len(find_commits(*gulp([messages[0][:size]])).ends)
        assert find_few(*gulp([messages[0][:size]])) == []


@given(
    st.lists(
        st.tuples(st.integers(1, 50), st.integers(0, 3600 * _SECOND)), max_size=300
    )
)
def test_pairs_cover_all_commits_in_few_groups(steps: list[tuple[int, int]]) -> None:
    ends = np.cumsum([step for step, _ in steps], dtype=np.int64)
    times = np.cumsum([elapsed for _, elapsed in steps], dtype=np.int64)
    pairs = list(Commits(ends, times).pairs())
    assert len(pairs) <= 64
    assert bool(pairs) == bool(steps)
    before = 0
    for end, when in pairs:
        inside = (ends > before) & (ends <= end)
        assert when == times[inside].min()
        before = end
    assert not steps or before == ends[-1]


@given(st.lists(st.floats(0, 2000), max_size=50))
def test_ages_are_counted_as_single_observations(seconds: list[float]) -> None:
    now = time.time()
    times = [round((now - 946_684_800 - s) * 1e6) for s in seconds]
    counts, total = ages(np.array(times, np.int64), now)
    one = Telemetry()
    for when in times:
        one.observe("age", (round((now - 946_684_800) * 1e6) - when) / 1e6)
    if seconds:
        ((expected, expected_total),) = one.copy().histograms.values()
        assert counts == expected
        assert total == pytest.approx(expected_total)
    assert sum(counts) == len(seconds)
    # The source's clock may be ahead.
    assert ages(np.array([round((now + 60) * 1e6)]), now)[1] == 0


class World:
    """A receiver's files, and its measures."""

    def __init__(self, directory: Path) -> None:
        self.settings = Settings(directory=directory)
        self.settings.run_directory.mkdir(parents=True, exist_ok=True)
        self.telemetry = Telemetry()

    def measures(self, log: ChangeLog, name: str = "s") -> ReceiverMeasures:
        subscription = Subscription(
            _SUBID, name, Oid(10), True, "host=x", "slot", ("p",)
        )
        return ReceiverMeasures(self.telemetry, subscription, self.settings, log)

    def open_log(self) -> ChangeLog:
        return ChangeLog.open(self.settings.log_directory / str(int(_SUBID)))

    def first_after(self, lsn: int) -> int | None:
        times = CommitTimes.open_reader(self.settings.run_directory, _SUBID)
        assert times is not None
        with times:
            return times.first_after(Lsn(lsn))

    def read(self) -> Any:
        with TelemetryFile(self.settings.run_directory, "receiver-7", self.telemetry):
            pass
        return read_process(self.settings.run_directory, "receiver-7")


def _log_some(
    log: ChangeLog, measures: ReceiverMeasures, *lsns: int, rows: int = 3
) -> None:
    for lsn in lsns:
        data, lengths = gulp(payloads(inserts(lsn, rows)))
        measures.logging(data, lengths)
        log.append(data, lengths)
        log.sync()
        measures.durable()


def test_what_becomes_durable_is_counted(tmp_path: Path) -> None:
    world = World(tmp_path)
    log = world.open_log()
    log.connected(Lsn(0))
    measures = world.measures(log)
    measures.received(100, 2)
    measures.tick(1.0, paused=False)
    measures.received(50, 1)
    measures.tick(1.5, paused=True)
    _log_some(log, measures, 100, 200)
    _log_some(log, measures, 300, rows=100)
    label = (("subscription", "s"),)
    read = world.read()
    assert read.counters["received_bytes_total", label] == 100
    measures.flush()
    read = world.read()
    assert read.counters["received_bytes_total", label] == 150
    assert read.counters["received_messages_total", label] == 3
    assert read.counters["durable_transactions_total", label] == 3
    assert read.counters["durable_messages_total", label] == 12 + 103
    assert read.gauges["receiving_paused", label] == 0
    measures.tick(2.5, paused=True)
    assert world.read().gauges["receiving_paused", label] == 1
    histogram = read.histograms["commit_to_durable_seconds", label]
    # The fake publisher committed in 2000.
    assert histogram.count == histogram.counts[-1] == 3
    assert world.first_after(100) == 5
    assert world.first_after(308) is None
    measures.close()
    log.close()


def test_a_log_that_cannot_be_written_is_a_lag_of_its_stage(tmp_path: Path) -> None:
    world = World(tmp_path)
    log = world.open_log()
    log.connected(Lsn(0))
    measures = world.measures(log)
    _log_some(log, measures, 100)
    measures.logging(*gulp(payloads(inserts(200, 3))))
    assert log.logged == 108
    assert world.first_after(log.logged) == 5
    measures.close()
    log.close()


def test_a_ring_is_filled_from_the_log(tmp_path: Path) -> None:
    world = World(tmp_path)
    log = world.open_log()
    log.connected(Lsn(0))
    measures = world.measures(log)
    _log_some(log, measures, 100, 200, 300)
    # Behind the log: it was sent, and its receiver was killed.
    measures.logging(*gulp(payloads(inserts(400, 3))))
    measures.close()
    log.close()
    for loss in ("nothing", "the file"):
        if loss == "the file":
            times_path(world.settings.run_directory, _SUBID).unlink()
        log = world.open_log()
        measures = world.measures(log)
        measures.begin()
        assert world.first_after(250) == 5
        assert world.first_after(308) is None
        measures.logging(*gulp(payloads(inserts(500, 1))))
        times = CommitTimes.open_reader(world.settings.run_directory, _SUBID)
        assert times is not None
        with times:
            assert times.first_after(Lsn(0)) == 5
            assert times.first_after(Lsn(250)) == 5
            assert times.last_end == 508
        measures.close()
        log.close()


def test_a_ring_is_tried_again_when_there_is_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    log = world.open_log()
    log.connected(Lsn(0))
    measures = world.measures(log)
    path = times_path(world.settings.run_directory, _SUBID)
    path.mkdir()
    now = time.monotonic()
    with capture_logs() as lines:
        for attempt in range(5):
            late = now + 11 * attempt
            monkeypatch.setattr(time, "monotonic", lambda late=late: late)
            _log_some(log, measures, 100 + attempt)
    assert [line["log_level"] for line in lines] == ["warning"], "once is enough"
    path.rmdir()
    monkeypatch.setattr(time, "monotonic", lambda: now + 66)
    _log_some(log, measures, 200)
    assert world.first_after(150) == 5
    measures.close()
    log.close()


def test_counters_go_on_after_a_restart_and_end_with_the_name(tmp_path: Path) -> None:
    world = World(tmp_path)
    log = world.open_log()
    world.measures(log).connected()
    before = world.read()
    assert before.counters == {("reconnects_total", (("subscription", "s"),)): 0}
    world.telemetry = Telemetry()
    world.telemetry.resume(before)
    world.measures(log).connected()
    assert world.read().counters == {
        ("reconnects_total", (("subscription", "s"),)): 1,
    }
    world.measures(log, "renamed").connected()
    assert world.read().counters == {
        ("reconnects_total", (("subscription", "renamed"),)): 0,
    }
    log.close()


def test_a_slot_that_ends_a_run_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UnusableSlot("can no longer access replication slot")

    monkeypatch.setattr(source, "check_slot", refuse)
    script = [Scripted(108, tuple(payloads(inserts(100, 1))))]
    with FakeWalsender([script]) as publisher:
        receiver = Receiver(tmp_path, publisher)
        telemetry = Telemetry()
        error = receiver.run(lambda: False, telemetry)
    assert isinstance(error, UnusableSlot)
    gauges = {name: value for (name, _), value in telemetry.copy().gauges.items()}
    assert gauges["source_slot_exists"] == 1
    assert gauges["source_slot_active"] == 0


def test_what_the_source_has_said_outlives_the_receiver(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.telemetry.gauge("source_wal_lsn", 7, subscription="s")
    before = world.read()
    world.telemetry = Telemetry()
    world.telemetry.resume(before)
    assert world.read().gauges == before.gauges


class Server:
    """A session to a publisher with a slot."""

    def __init__(self) -> None:
        self.slot: list[tuple[str | None, ...]] = []
        self.limit = "-1"
        self.broken = False
        self.sessions = 0

    def connect(self) -> Any:
        self.sessions += 1
        return SimpleNamespace(value=self._value, query=self._query, close=lambda: None)

    def _value(self, sql: str) -> str:
        if self.broken:
            raise PublisherError("server closed the connection unexpectedly")
        return self.limit if "max_slot" in sql else "0/5000"

    def _query(self, sql: str) -> list[tuple[str | None, ...]]:
        assert "'slot'" in sql
        return self.slot


def test_the_publisher_is_asked_about_the_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_FIRST_WATCH_SECONDS", 0.0)
    monkeypatch.setattr(module, "_WATCH_SECONDS", 0.01)
    world, server = World(tmp_path), Server()
    log = world.open_log()
    server.slot = [("t", "extended", "0/4000", "0/4800", "4096")]
    server.limit = "1"
    one = PositionVerifier(
        server.connect,
        lambda lsn: None,
        lambda: None,
        verified=Lsn(500),
        retry_interval_seconds=0.05,
        subscription="s",
        watch=world.measures(log).watch,
    )

    def gauges() -> dict[str, float]:
        read = world.read()
        return {} if read is None else {key[0]: v for key, v in read.gauges.items()}

    one.start()
    try:
        wait_until(lambda: "source_slot_wal_status" in gauges())
        found = gauges()
        assert found.pop("source_asked_timestamp_seconds") == pytest.approx(
            time.time(), abs=60
        )
        assert found == {
            "source_wal_lsn": 0x5000,
            "source_slot_exists": 1,
            "source_slot_active": 1,
            "source_slot_restart_lsn": 0x4000,
            "source_slot_confirmed_lsn": 0x4800,
            "source_slot_retained_bytes": 0x1000,
            "source_slot_safe_wal_bytes": 4096,
            "source_slot_limit_bytes": 1 << 20,
            "source_slot_wal_status": 1,
        }
        # A connection that breaks is made again; nothing else happens.
        server.broken = True
        sessions = server.sessions
        wait_until(lambda: server.sessions > sessions)
        server.slot, server.broken = [], False
        wait_until(lambda: gauges()["source_slot_exists"] == 0)
        assert "source_slot_wal_status" not in gauges()
        # Positions are verified meanwhile.
        one.request(Lsn(0x4FFF))
        wait_until(lambda: one.position == 0x5000)
    finally:
        assert not one.stop().is_alive()
    log.close()
