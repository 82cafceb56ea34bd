"""Facts of a node, read from its files."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from wal2lake.catalog import (
    Catalog,
    CatalogReader,
    CopyRange,
    ProgressFile,
    ReplicationSlot,
    Subscription,
    SubscriptionRel,
    TableDef,
    WorkerKind,
)
from wal2lake.catalog.mapped.committimes import CommitTimes
from wal2lake.cli.terminal.words import problem_headline
from wal2lake.errors import ConfigurationError
from wal2lake.health import FactReader, SubscriptionFacts, problems
from wal2lake.health.collecting.lag import LagClock, StagePositions
from wal2lake.health.collecting.tables import expected_end
from wal2lake.launch import NodeStatus, WorkerStatus
from wal2lake.launch.directory.lockfile import LockFacts, LockFile
from wal2lake.launch.directory.status import write_status
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.observe.telemetry import Telemetry, TelemetryFile
from wal2lake.settings import LogSettings, NodeSettings, Settings, load

SUB = Oid(20000)
NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
EPOCH = datetime(2000, 1, 1, tzinfo=UTC)


def us(moment: datetime) -> int:
    return (moment - EPOCH) // timedelta(microseconds=1)


def rel(number: int, state: SyncState = SyncState.READY) -> SubscriptionRel:
    return SubscriptionRel(SUB, Oid(number), "public", f"t{number}", state, None, 1)


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    catalog = Catalog.create(tmp_path / "catalog.sqlite", "me", None)
    for number in (30000, 30001):
        catalog.create_table(
            TableDef(
                Oid(number), "public", f"t{number}", Oid(10), (), (), f"/t{number}"
            )
        )
    catalog.create_subscription(
        Subscription(
            SUB, "s", Oid(10), True, "host=p", "slot", ("p",), floor=Lsn(1000)
        ),
        [rel(30000), rel(30001)],
        {30000: 1, 30001: 1},
    )
    (tmp_path / "run").mkdir()
    return catalog


def files(directory: Path) -> set[str]:
    return {str(path.relative_to(directory)) for path in directory.rglob("*")}


def only(reader: FactReader) -> SubscriptionFacts:
    (found,) = reader.read(NOW).subscriptions
    return found


def test_a_stopped_node_is_read_without_a_trace(
    catalog: Catalog, tmp_path: Path
) -> None:
    catalog.close()
    before = files(tmp_path)
    assert "catalog.sqlite-wal" not in before
    reader = FactReader(Settings(tmp_path))
    facts = reader.read(NOW)
    reader.close()
    assert files(tmp_path) == before
    assert (facts.state, facts.pid, facts.processes) == ("stopped", None, ())
    (found,) = facts.subscriptions
    assert (found.name, found.state, found.applied.lsn) == ("s", "down", Lsn(1000))
    assert [table.qualified for table in found.tables] == [
        "public.t30000",
        "public.t30001",
    ]
    assert {disk.purpose for disk in facts.disks} == {"catalog", "log", "warehouse"}


def test_the_catalog_is_read_again_only_after_a_change(
    catalog: Catalog, tmp_path: Path
) -> None:
    reader = FactReader(Settings(tmp_path))
    assert only(reader).enabled
    first = reader._catalog.read()
    assert reader._catalog.read() is first
    catalog.update_subscription(SUB, enabled=False)
    assert only(reader).state == "disabled"


def test_rows_of_the_catalog_that_stay_keep_their_records(
    catalog: Catalog, tmp_path: Path
) -> None:
    reader = CatalogReader(tmp_path / "catalog.sqlite")
    first = reader.read()
    catalog.publish(SUB, Lsn(2000), {30001: 8}, participants=[30000, 30001])
    second = reader.read()
    assert second is not first
    assert second.tables[Oid(30000)] is first.tables[Oid(30000)]
    assert [*map(id, second.rels[SUB])] == [*map(id, first.rels[SUB])]
    catalog.update_rel(SUB, Oid(30000), state=SyncState.SYNCDONE)
    table = catalog.table_by_oid(Oid(30001))
    assert table is not None
    catalog.rename_table(table, "public", "renamed")
    third = reader.read()
    assert third.rels[SUB][0].state is SyncState.SYNCDONE
    assert third.rels[SUB][1] is first.rels[SUB][1]
    assert third.tables[Oid(30001)].name == "renamed"
    reader.close()


def test_a_catalog_that_is_replaced_is_opened_again(
    catalog: Catalog, tmp_path: Path
) -> None:
    reader = FactReader(Settings(tmp_path))
    assert len(reader.read(NOW).subscriptions) == 1
    catalog.close()
    for path in tmp_path.glob("catalog.sqlite*"):
        path.unlink()
    Catalog.create(tmp_path / "catalog.sqlite", "me", None)
    assert reader.read(NOW).subscriptions == ()


def test_a_directory_without_a_catalog_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="does not exist"):
        FactReader(Settings(tmp_path)).read()


def test_an_invalid_settings_file_is_a_fact(catalog: Catalog, tmp_path: Path) -> None:
    (tmp_path / "wal2lake.toml").write_text("[node]\nportt = 1\n")
    facts = FactReader(tmp_path).read(NOW)
    assert "portt" in (facts.settings_error or "")
    assert len(facts.subscriptions) == 1


def test_a_process_that_runs_sees_its_settings_file_become_invalid(
    catalog: Catalog, tmp_path: Path
) -> None:
    file = tmp_path / "wal2lake.toml"
    file.write_text("")
    for node in (tmp_path, load(tmp_path, {})):
        reader = FactReader(node)
        assert reader.read(NOW).settings_error is None
        file.write_text("[node]\nportt = 1\n")
        assert "portt" in (reader.read(NOW).settings_error or "")
        file.write_text("")
        assert reader.read(NOW).settings_error is None


def certificate(path: Path, *ends: datetime) -> None:
    """A file with a chain of certificates that end at these times."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "node")])
    chain = [
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - timedelta(days=90))
        .not_valid_after(end)
        .sign(key, hashes.SHA256())
        for end in ends
    ]
    path.write_bytes(b"".join(one.public_bytes(Encoding.PEM) for one in chain))


def test_the_first_certificate_of_a_chain_that_ends_counts(
    catalog: Catalog, tmp_path: Path
) -> None:
    path = tmp_path / "server.crt"
    reader = FactReader(Settings(tmp_path, node=NodeSettings(ssl=True)))
    assert reader.read(NOW).certificate_ends is None
    path.write_text("no certificate")
    assert reader.read(NOW).certificate_ends is None
    certificate(path, NOW + timedelta(days=9), NOW + timedelta(days=5))
    assert reader.read(NOW).certificate_ends == NOW + timedelta(days=5)
    certificate(path, NOW + timedelta(days=90))
    assert reader.read(NOW).certificate_ends == NOW + timedelta(days=90)
    assert FactReader(Settings(tmp_path)).read(NOW).certificate_ends is None


def test_a_stopped_node_says_since_when(catalog: Catalog, tmp_path: Path) -> None:
    reader = FactReader(Settings(tmp_path))
    never = reader.read(NOW)
    assert (never.state, never.stopped_at) == ("stopped", None)
    write_status(tmp_path / "run", NodeStatus(1, 2, "stopping", "9", "::", 1, 0, ()))
    at = (NOW - timedelta(hours=3)).timestamp()
    os.utime(tmp_path / "run" / "status.json", (at, at))
    facts = reader.read(NOW)
    assert facts.stopped_at == NOW - timedelta(hours=3)
    (problem,) = [p for p in problems(facts, NOW) if p.kind == "stopped"]
    assert problem_headline(problem, NOW).endswith("(for 3 hours; concerns you)")
    just = replace(problem, since=NOW)
    assert problem_headline(just, NOW).endswith(f'"{tmp_path}" (concerns you)')
    with LockFile.acquire(tmp_path):
        assert reader.read(NOW).stopped_at is None


def test_a_running_node_shows_its_processes(catalog: Catalog, tmp_path: Path) -> None:
    lock = LockFile.acquire(tmp_path)
    started = NOW.timestamp()
    lock.write(LockFacts(1, str(tmp_path), started, 5480, "127.0.0.1", "ready"))
    status = NodeStatus(
        1,
        2,
        "ready",
        "9.9",
        "127.0.0.1",
        5480,
        started,
        (
            WorkerStatus("engine", 3, started, 2),
            WorkerStatus("receiver", 4, started, 1, SUB, "s"),
        ),
    )
    try:
        write_status(tmp_path / "run", status)
        facts = FactReader(Settings(tmp_path)).read(NOW)
    finally:
        lock.release()
    assert (facts.state, facts.version, facts.port) == ("ready", "9.9", 5480)
    assert [(p.role, p.pid, p.restarts, p.subscription) for p in facts.processes] == [
        ("supervisor", 1, 0, None),
        ("guardian", 2, 0, None),
        ("engine", 3, 1, None),
        ("receiver", 4, 0, "s"),
    ]
    assert facts.processes[0].rss_bytes
    (found,) = facts.subscriptions
    assert (found.state, found.receiver_pid, found.connected) == ("streaming", 4, True)


def test_positions_errors_and_log_sizes_are_read(
    catalog: Catalog, tmp_path: Path
) -> None:
    with ProgressFile(tmp_path / "run", SUB) as file:
        file.set(
            received=5000,
            logged=4000,
            applied=3000,
            last_msg_receipt_time=us(NOW - timedelta(seconds=90)),
        )
    catalog.note_error(SUB, WorkerKind.APPLY, "duplicate key", "23505")
    log = tmp_path / "log" / str(SUB)
    log.mkdir(parents=True)
    (log / "journal-00000000000000000001").write_bytes(b"x" * 100)
    (log / "seg-00000000000000000001.json").write_bytes(b"x" * 20)
    (log / "spool-00000000000000000001.json").write_bytes(b"x" * 7)
    settings = Settings(tmp_path, log=LogSettings(size_limit_bytes=1000))
    reader = FactReader(settings)
    found = only(reader)
    positions = [found.received.lsn, found.durable.lsn, found.applied.lsn]
    assert positions == [Lsn(5000), Lsn(4000), Lsn(3000)]
    assert (found.durable.behind_bytes, found.applied.behind_bytes) == (1000, 2000)
    # The receiver does not run: what the source has done since its last message is not known.
    assert found.received.behind_seconds == pytest.approx(90)
    text, sqlstate, noted_at = found.errors["apply"]
    assert (text, sqlstate) == ("duplicate key", "23505")
    assert noted_at is not None
    assert (found.log_bytes, found.log_limit_bytes) == (120, 1000)
    assert found.log_warning_bytes == 800
    (log / "journal-00000000000000000001").write_bytes(b"x" * 200)
    assert only(reader).log_bytes == 220


def test_lags_are_measured_in_commit_times(catalog: Catalog, tmp_path: Path) -> None:
    catalog.publish(SUB, Lsn(2000), {30000: 2}, participants=[30000, 30001])
    with ProgressFile(tmp_path / "run", SUB) as file:
        file.set(received=5000, logged=4000, applied=2000)
        file.set(last_msg_receipt_time=us(NOW))
    with CommitTimes.open_writer(tmp_path / "run", SUB) as times:
        for end, age in ((2000, 40), (3000, 30), (5000, 10)):
            times.append(Lsn(end), us(NOW - timedelta(seconds=age)))
    reader = FactReader(Settings(tmp_path))
    found = only(reader)
    stages = (found.received, found.durable, found.applied, found.visible)
    assert [stage.behind_seconds for stage in stages] == [0, 10, 30, 30]
    assert [table.behind_seconds for table in found.tables] == [30, 30]
    catalog.publish(SUB, Lsn(5000), {30000: 3}, participants=[30000, 30001])
    assert only(reader).visible.behind_seconds == 0


def test_the_source_is_what_the_receiver_has_reported(
    catalog: Catalog, tmp_path: Path
) -> None:
    telemetry = Telemetry()
    telemetry.gauge("source_asked_timestamp_seconds", 1.8e9, subscription="s")
    telemetry.gauge("source_wal_lsn", 1 << 62, subscription="s")
    telemetry.gauge("source_slot_active", 1, subscription="s")
    telemetry.gauge("source_slot_retained_bytes", 12, subscription="s")
    telemetry.gauge("source_slot_limit_bytes", 34, subscription="s")
    telemetry.state("source_slot_wal_status", "status", "extended", subscription="s")
    reader = FactReader(Settings(tmp_path))
    with TelemetryFile(tmp_path / "run", "receiver-20000", telemetry) as file:
        file.write()
        source = only(reader).source
        telemetry.gauge("source_slot_retained_bytes", 13, subscription="s")
        file.write()
        later = only(reader).source
    assert source.asked_at == datetime.fromtimestamp(1.8e9, UTC)
    assert (source.wal_lsn, source.slot_name) == (Lsn(1 << 62), "slot")
    assert (source.slot_active, source.wal_status) == (True, "extended")
    assert (source.retained_bytes, source.limit_bytes) == (12, 34)
    assert source.safe_wal_bytes is None
    assert later.retained_bytes == 13


def test_tables_copies_slots_and_walsenders_are_what_the_engine_has_reported(
    catalog: Catalog, tmp_path: Path
) -> None:
    catalog.add_rels(
        [
            replace(
                rel(30002, SyncState.DATASYNC),
                rows_copied=30,
                rows_expected=120,
                copy_plan='{"snapshot": "s", "bounds": [10, 20, null]}',
            )
        ]
    )
    copied_range = CopyRange(SUB, Oid(30002), 1, "s", 0, 30, "[]")
    catalog.record_ranges([copied_range])
    catalog.create_slot(ReplicationSlot("down", "pgoutput", Lsn(400), Lsn(500)))
    telemetry = Telemetry()
    first = {"subscription": "s", "table": "public.t30000"}
    telemetry.count("rows_total", 5, kind="inserted", **first)
    telemetry.count("rows_total", 2, kind="deleted", **first)
    telemetry.count("batches_total", 3, method="upsert", **first)
    telemetry.gauge("table_files", 4, **first)
    telemetry.gauge("table_size_bytes", 1 << 40, **first)
    copied = {"subscription": "s", "table": "public.t30002"}
    begin = NOW - timedelta(seconds=10)
    telemetry.gauge("copy_started_timestamp_seconds", begin.timestamp(), **copied)
    telemetry.gauge("copy_expected_bytes", 777, **copied)
    last = NOW - timedelta(seconds=2)
    telemetry.gauge("copy_progress_timestamp_seconds", last.timestamp(), **copied)
    telemetry.gauge("jvm_heap_used_bytes", 10)
    telemetry.gauge("jvm_heap_limit_bytes", 20)
    telemetry.gauge("published_lsn", 1000)
    telemetry.gauge("slot_active_pid", 9, slot="down")
    telemetry.state("slot_wal_status", "status", "unreserved", slot="down")
    who = {"slot": "down", "application_name": "app", "client": "10.0.0.1"}
    telemetry.state("walsender_state", "state", "streaming", pid="9", **who)
    for name, lsn in (("sent", 3), ("flush", 2), ("replay", 1)):
        telemetry.gauge(f"walsender_{name}_lsn", lsn, pid="9")
    with TelemetryFile(tmp_path / "run", "engine", telemetry) as file:
        file.write()
        facts = FactReader(Settings(tmp_path)).read(NOW)
    assert (facts.heap_bytes, facts.heap_limit_bytes) == (10, 20)
    assert facts.engine_told_at is not None
    table, _, copying = facts.subscriptions[0].tables
    assert (table.rows, table.batches) == ({"inserted": 5, "deleted": 2}, {"upsert": 3})
    assert (table.files, table.size_bytes) == (4, 1 << 40)
    assert (table.deletion_vectors, table.copy) == (None, None)
    copy = copying.copy
    assert copy is not None
    assert (copy.rows, copy.ranges_done, copy.ranges) == (60, 1, 3)
    assert copy.share == pytest.approx(1 / 3)
    assert (copy.bytes_expected, copy.started_at) == (777, begin)
    assert copy.ends_at == begin + 3 * timedelta(seconds=8)
    assert copy.progressed_at == NOW
    (slot,) = facts.slots
    assert (slot.active_pid, slot.retained_bytes) == (9, 600)
    assert slot.wal_status == "unreserved"
    (walsender,) = facts.walsenders
    assert (walsender.pid, walsender.slot_name) == (9, "down")
    assert (walsender.state, walsender.client) == ("streaming", "10.0.0.1")
    assert (walsender.sent_lsn, walsender.replayed_lsn) == (Lsn(3), Lsn(1))


def test_a_copy_ends_as_fast_as_it_has_gone() -> None:
    def seconds(total: int, done: int, last: float | None, now: float) -> float | None:
        progressed = None if last is None else NOW + timedelta(seconds=last)
        found = expected_end(
            total=total,
            done=done,
            started=NOW,
            progressed=progressed,
            now=NOW + timedelta(seconds=now),
        )
        return None if found is None else (found - NOW).total_seconds()

    assert seconds(10, 0, None, 5) is None
    assert seconds(10, 1, 2, 2) == 20
    # Waiting for the next range moves nothing, until it is late.
    assert [seconds(10, 4, 8, now) for now in (8, 9, 10, 15)] == [20, 20, 20, 30]
    assert seconds(1000, 19, 38, 38) is None, "2 % say little"
    assert seconds(1000, 20, 40, 40) == 2000
    # What is left of a copy that was interrupted when it was nearly done.
    assert seconds(2, 1, 4, 4) == 8
    assert seconds(0, 0, None, 3) is None, "only the commit is left"
    assert seconds(3, 4, 8, 8) is None, "a division of another snapshot"


def test_a_paused_table_has_a_position_of_its_own(
    catalog: Catalog, tmp_path: Path
) -> None:
    catalog.publish(SUB, Lsn(2000), {30000: 2}, participants=[30000, 30001])
    catalog.pause_table(SUB, Oid(30001), Lsn(2000), 1)
    catalog.publish(SUB, Lsn(3000), {30000: 3}, participants=[30000])
    found = only(FactReader(Settings(tmp_path)))
    running, paused = found.tables
    assert (running.applied_lsn, running.version) == (Lsn(3000), 3)
    assert running.paused_since is None
    assert (paused.applied_lsn, paused.version) == (Lsn(2000), 1)
    assert paused.paused_since is not None
    assert found.visible.lsn == Lsn(3000)


def test_a_stage_is_as_old_as_the_first_commit_above_it() -> None:
    commits = {1500: 30, 2500: 20, 3500: 10}

    def first_after(lsn: Lsn) -> int | None:
        ages = [age for end, age in commits.items() if end > lsn]
        return us(NOW - timedelta(seconds=ages[0])) if ages else None

    positions = StagePositions(*map(Lsn, (5000, 4000, 3000, 2000, 1000)))
    stages = LagClock(positions, first_after, NOW, 0).stages()
    assert [stage.behind_seconds for stage in stages] == [0, 10, 20, 30]
    assert [stage.behind_bytes for stage in stages] == [1000, 2000, 3000, 4000]
    stages = LagClock(positions, first_after, NOW, 25).stages()
    assert [stage.behind_seconds for stage in stages] == [25, 25, 25, 30]
    # It has said nothing since the node was started, and may have committed anything.
    stages = LagClock(positions, first_after, NOW, None).stages()
    assert [stage.behind_seconds for stage in stages] == [None, 10, 20, 30]


def test_a_table_about_which_nothing_has_changed_keeps_its_facts(
    catalog: Catalog, tmp_path: Path
) -> None:
    telemetry = Telemetry()
    of = {"subscription": "s", "table": "public.t30000"}
    telemetry.count("rows_total", 5, kind="inserted", **of)
    reader = FactReader(Settings(tmp_path))
    with TelemetryFile(tmp_path / "run", "engine", telemetry) as file:
        file.write()
        first = only(reader).tables
        telemetry.gauge("jvm_heap_used_bytes", 10)
        file.write()
        # Names of series have changed, but nothing about tables.
        assert [*map(id, only(reader).tables)] == [*map(id, first)]
        telemetry.count("rows_total", 2, kind="inserted", **of)
        file.write()
        second = only(reader).tables
        assert second[0].rows == {"inserted": 7} and second[1] is first[1]
        catalog.publish(SUB, Lsn(2000), {30001: 8}, participants=[30000, 30001])
        third = only(reader).tables
        assert (third[0].version, third[1].version) == (second[0].version, 8)
        telemetry.forget(table="public.t30000")
        file.write()
        assert only(reader).tables[0].rows == {}
    catalog.pause_table(SUB, Oid(30001), Lsn(2000), 8)
    assert only(reader).tables[1].paused_since is not None


def test_of_a_thousand_tables_a_look_takes_a_few_calls_each(
    catalog: Catalog, tmp_path: Path
) -> None:
    numbers = range(40000, 41000)
    for number in numbers:
        catalog._database._connection().execute(
            "insert into relation (oid, namespace, name, owner, location, columns, key)"
            " values (?, 'public', ?, 10, ?, '[]', '[]')",
            (number, f"t{number}", f"/t{number}"),
        )
    catalog.add_rels([rel(number) for number in numbers])
    catalog.publish(SUB, Lsn(2000), dict.fromkeys(numbers, 1), participants=numbers)
    reader = FactReader(Settings(tmp_path))
    calls = [0]

    def count(frame: object, event: str, argument: object) -> None:
        calls[0] += event == "call"

    only(reader)
    for lsn in range(3000, 3003):
        catalog.publish(SUB, Lsn(lsn), {40000: lsn}, participants=numbers)
        calls[0] = 0
        # Calls of Python functions instead of seconds: the machine may be busy.
        sys.setprofile(count)
        try:
            tables = only(reader).tables
        finally:
            sys.setprofile(None)
        assert len(tables) == 1002
        assert calls[0] < 20 * len(tables), "about 12 for each table"
