"""Facts of a node that does not exist. Whatever judges or shows facts begins with these values, and
replaces what it is about; nothing else in the tests makes a whole node."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from wal2lake.catalog import Verification
from wal2lake.health import (
    CopyFacts,
    DiskFacts,
    NodeFacts,
    ProcessFacts,
    SlotFacts,
    SourceFacts,
    StageLag,
    SubscriptionFacts,
    TableFacts,
    WalsenderFacts,
)
from wal2lake.model import Lsn, Oid, SyncState

NOW = datetime(2026, 5, 4, 3, 2, 1, tzinfo=UTC)
GIB = 1 << 30


def ago(**duration: float) -> datetime:
    return NOW - timedelta(**duration)


def lag(lsn: int, seconds: float | None) -> StageLag:
    return StageLag(Lsn(lsn), 5000 - lsn, seconds)


ORDERS = TableFacts(
    Oid(2),
    "shop",
    "orders",
    SyncState.READY,
    behind_seconds=0.4,
    applied_lsn=Lsn(4000),
    version=12,
    files=3,
    size_bytes=5 << 20,
    deletion_vectors=1,
    rows={"inserted": 100, "updated": 20, "deleted": 3},
    batches={"append": 4, "upsert": 1},
    rows_copied=90,
    verification=Verification(
        Oid(1),
        Oid(2),
        Lsn(3800),
        "2026-01-02T03:00:00+00:00",
        blocks=1,
        rows=90,
        differing_rows=0,
        verified_lsn=Lsn(3800),
        verified_at="2026-01-02T03:00:00+00:00",
        different_lsn=None,
        different_at=None,
        repaired_rows=2,
    ),
)
"""It follows the source, and VERIFY has found it equal."""

COPYING = TableFacts(
    Oid(3),
    "shop",
    "payments",
    SyncState.DATASYNC,
    copy=CopyFacts(
        rows=4500,
        rows_expected=10_000,
        bytes_done=1 << 20,
        bytes_expected=None,
        ranges_done=9,
        ranges=20,
        started_at=ago(seconds=90),
        ends_at=NOW + timedelta(seconds=110),
    ),
    rows_copied=4500,
)
"""Its copy runs."""

SHOP = SubscriptionFacts(
    oid=Oid(1),
    name="shop",
    enabled=True,
    state="streaming",
    receiver_pid=7,
    publications=("p",),
    received=lag(5000, 0.0),
    durable=lag(4900, 0.1),
    applied=lag(4088, 0.3),
    visible=lag(4000, 0.4),
    source=SourceFacts(
        slot_name="shop", wal_status="reserved", retained_bytes=3 << 20, asked_at=NOW
    ),
    last_message_at=NOW,
    log_bytes=12 << 20,
    log_limit_bytes=None,
    errors={},
    error_counts={},
    conflicts={},
    tables=(ORDERS, COPYING),
    connected=True,
)

ENGINE = ProcessFacts("engine", 3, ago(hours=2), 0, None, 800 << 20)

NODE = NodeFacts(
    taken_at=NOW,
    directory="/srv/node",
    state="ready",
    version="1.2",
    pid=1,
    address="127.0.0.1",
    port=5480,
    started_at=ago(hours=2),
    processes=(
        ProcessFacts("supervisor", 1, ago(hours=2), 0, None, 30 << 20),
        ProcessFacts("guardian", 2, ago(hours=2), 0),
        ENGINE,
        ProcessFacts("jvm", 4, ago(hours=2), 0, None, 1 * GIB),
        ProcessFacts("receiver", 7, ago(minutes=5), 2, "shop", 90 << 20),
    ),
    disks=(DiskFacts("catalog", "/srv/node", 50 * GIB, 100 * GIB, 1),),
    certificate_ends=None,
    heap_bytes=500 << 20,
    heap_limit_bytes=2 * GIB,
    engine_told_at=ago(seconds=1),
    subscriptions=(SHOP,),
    slots=(SlotFacts("mirror", "pgoutput", 9, Lsn(900), 4096, "reserved", None),),
    walsenders=(
        WalsenderFacts(
            9,
            "mirror",
            "10.0.0.5:4711",
            "mirror",
            "streaming",
            Lsn(1000),
            Lsn(990),
            Lsn(900),
        ),
    ),
    published_lsn=Lsn(1000),
)
"""All is well: one subscription, one table that follows, one that is copied."""

STOPPED = replace(
    NODE, state="stopped", pid=None, address=None, port=None, version=None, processes=()
)


def with_subscription(**changes: object) -> NodeFacts:
    """NODE, whose subscription is changed."""
    return replace(NODE, subscriptions=(replace(SHOP, **changes),))  # type: ignore[arg-type]


def large(tables: int = 1000) -> NodeFacts:
    """A node with many tables, names of wide characters, and of characters that terminals obey."""
    names = ("注文履歴テーブル", "naïve", "ord\x1b[31mers", "x" * 63, "t[bold]")
    many = tuple(
        replace(
            ORDERS,
            oid=Oid(100 + number),
            name=f"{names[number % len(names)]}_{number}",
            behind_seconds=float(number % 97),
        )
        for number in range(tables)
    )
    return with_subscription(tables=(COPYING, *many), name="店舗")
