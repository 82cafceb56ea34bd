"""Facts of a node on which everything happens that facts can say."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from wal2lake.health import (
    Concern,
    CopyFacts,
    DiskFacts,
    NodeFacts,
    Problem,
    ProcessFacts,
    Severity,
    SlotFacts,
    SourceFacts,
    StageLag,
    SubscriptionFacts,
    TableFacts,
    WalsenderFacts,
)
from wal2lake.model import Lsn, Oid, SyncState
from wal2lake.observe.telemetry import BUCKETS, Histogram, ProcessTelemetry
from wal2lake.web.reading import NodeReading

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)

NAMES = ("plain", 'with "quotes"', "back\\slash", "new\nline", "ünïcode", "{a=b}")
"""Names of tables that a text format must escape."""


def table(number: int, **changed: object) -> TableFacts:
    facts: dict[str, object] = {
        "oid": Oid(20_000 + number),
        "namespace": "public",
        "name": f"table_{number}",
        "state": SyncState.READY,
        "freshness": 2.0,
        "behind_seconds": 0.25,
        "applied_lsn": Lsn(900),
        "version": number,
        "files": 3,
        "size_bytes": 4096,
        "deletion_vectors": 1,
        "rows": {"inserted": 5, "updated": 4, "deleted": 3, "copied": 2},
        "batches": {"append": 7, "upsert": 1},
        "conflicts": 1,
        "coercions": 2,
    }
    return TableFacts(**{**facts, **changed})  # type: ignore[arg-type]


def copying(number: int) -> TableFacts:
    copy = CopyFacts(10, 100, 1000, 10_000, 1, 4, NOW, NOW + timedelta(minutes=1))
    return table(number, state=SyncState.DATASYNC, copy=copy)


def subscription(name: str, tables: tuple[TableFacts, ...]) -> SubscriptionFacts:
    lag = StageLag(Lsn(2**60 + 1), 100, 1.5)
    return SubscriptionFacts(
        oid=Oid(16_384),
        name=name,
        enabled=True,
        state="streaming",
        receiver_pid=1,
        publications=("p",),
        received=lag,
        durable=lag,
        applied=lag,
        visible=lag,
        source=SourceFacts(
            NOW, Lsn(1000), "slot", True, "reserved", 5000, 6000, 10_000
        ),
        last_message_at=NOW,
        log_bytes=300,
        log_limit_bytes=1000,
        errors={"apply": ("broken", "23505", NOW)},
        error_counts={"apply": 3, "copy": 1},
        conflicts={"insert_exists": 2},
        tables=tables,
    )


def node(*subscriptions: SubscriptionFacts) -> NodeFacts:
    return NodeFacts(
        taken_at=NOW,
        directory="/node",
        state="ready",
        version="1.2.3",
        pid=1,
        address="127.0.0.1",
        port=5480,
        started_at=NOW,
        processes=(
            ProcessFacts("supervisor", 1, NOW, 0, None, 1 << 20),
            ProcessFacts("receiver", 2, NOW, 1, "s", 1 << 20),
        ),
        disks=(DiskFacts("log", "/node/log", 1 << 30, 1 << 40),),
        certificate_ends=NOW,
        heap_bytes=1,
        heap_limit_bytes=2,
        engine_told_at=NOW,
        subscriptions=subscriptions,
        slots=(SlotFacts("down", "pgoutput", 7, Lsn(40), 60, "reserved", 1 << 20),),
        walsenders=(
            WalsenderFacts(7, "a", "::1", "down", "streaming", *map(Lsn, (90, 80, 70))),
            WalsenderFacts(8, "a", "::1", "down", "streaming", *map(Lsn, (95, 50, 75))),
        ),
        published_lsn=Lsn(100),
    )


def telemetry(name: str = "s") -> ProcessTelemetry:
    of = (("subscription", name),)
    times = Histogram((*range(len(BUCKETS)), 4), 12.5)
    counters = (
        "received_bytes_total",
        "received_messages_total",
        "durable_bytes_total",
        "durable_messages_total",
        "durable_transactions_total",
        "reconnects_total",
    )
    return ProcessTelemetry(
        process="receiver-16384",
        pid=2,
        birth=None,
        started_at=NOW,
        written_at=NOW,
        counters={(counter, of): 17 for counter in counters},
        gauges={("not_declared", of): 1},
        histograms={
            ("commit_to_durable_seconds", of): times,
            ("commit_to_visible_seconds", of): times,
        },
    )


def reading(*tables: TableFacts, name: str = "s") -> NodeReading:
    problem = Problem(
        "errored", Severity.ERROR, "it is broken", Concern.OPERATOR, NOW, name
    )
    return NodeReading(
        node(subscription(name, tables)), (problem,), (telemetry(name),), 0.01
    )


def full_reading() -> NodeReading:
    """Return a reading in which every metric has a value."""
    named = (table(number, name=name) for number, name in enumerate(NAMES))
    return reading(*named, copying(99))
