"""What the page shows of nodes that do not exist: calm, in each kind of trouble, large, hostile.

Numbers follow from the time alone, so that rates and charts look like those of a shop: counters
grow, with slow waves. Problems are made by hand, one of each look.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Final

from tests.fakes.facts import GIB, NODE, ORDERS, SHOP

from wal2lake.catalog import (
    Catalog,
    ColumnDef,
    Subscription,
    SubscriptionRel,
    TableDef,
)
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
from wal2lake.model import (
    Coercion,
    Conflict,
    ConflictType,
    Lsn,
    Oid,
    Resolution,
    SyncState,
)

MIB: Final = 1 << 20
EPOCH: Final = datetime(2026, 11, 1, tzinfo=UTC)
Scene = tuple[NodeFacts, Sequence[Problem]]
SceneAt = Callable[[datetime], Scene]

_SHOP: Final = (
    ("public", "orders", 412.0, 3_182_004_224, 96),
    ("public", "order_items", 1033.0, 9_402_113_024, 214),
    ("public", "payments", 368.0, 1_904_214_016, 61),
    ("public", "customers", 24.0, 742_391_808, 18),
    ("public", "addresses", 11.0, 391_118_848, 12),
    ("public", "products", 2.2, 98_566_144, 4),
    ("public", "stock_levels", 655.0, 604_110_848, 33),
    ("public", "shipments", 118.0, 1_203_765_248, 40),
    ("public", "carts", 530.0, 822_083_584, 52),
    ("public", "reviews", 3.1, 451_936_256, 9),
    ("billing", "invoices", 96.0, 2_041_118_720, 47),
    ("billing", "invoice_lines", 290.0, 4_820_301_824, 101),
    ("billing", "tax_rates", 0.0, 1_048_576, 1),
    ("audit", "logins", 44.0, 5_102_883_840, 73),
)


def _wave(seconds: float, period: float, phase: float = 0.0) -> float:
    return math.sin(2 * math.pi * seconds / period + phase)


def _seconds(now: datetime) -> float:
    return (now - EPOCH).total_seconds()


def _grown(now: datetime, rate: float, phase: float) -> int:
    """Return a counter whose rate waves around ``rate``."""
    t = _seconds(now)
    total = rate * t
    for period, share in ((1500, 0.35), (240, 0.18), (37, 0.12), (11, 0.06)):
        total -= rate * share * period / (2 * math.pi) * _wave(t, period, phase + 1.57)
    return int(total)


def _table(
    oid: int, place: tuple[str, str, float, int, int], now: datetime, behind: float
) -> TableFacts:
    schema, name, rate, size, files = place
    total = _grown(now, rate, oid)
    return replace(
        ORDERS,
        oid=Oid(oid),
        namespace=schema,
        name=name,
        behind_seconds=behind,
        version=int(1000 + _seconds(now) // 2),
        files=files,
        size_bytes=size,
        deletion_vectors=files // 5,
        rows={
            "inserted": int(total * 0.62),
            "updated": int(total * 0.33),
            "deleted": total - int(total * 0.62) - int(total * 0.33),
        },
        batches={"append": int(_seconds(now) / 9), "upsert": int(_seconds(now) / 3)},
    )


def _stage(lsn: int, behind_bytes: float, seconds: float | None) -> StageLag:
    behind = max(0, int(behind_bytes))
    return StageLag(Lsn(max(1, lsn - behind)), behind, seconds)


def subscription(
    now: datetime,
    tables: Sequence[TableFacts],
    *,
    oid: int = 16400,
    name: str = "shop",
    visible: float | None = None,
) -> SubscriptionFacts:
    """Return a subscription that streams, ``visible`` seconds behind."""
    t = _seconds(now)
    lsn = 0x16_0000_0000 + _grown(now, 2_600_000, oid)
    calm = 0.55 + 0.16 * _wave(t, 97, oid) + 0.09 * _wave(t, 13) + 0.05 * _wave(t, 5.3)
    burst = max(0.0, _wave(t, 1500) - 0.93) * 24
    seen = calm + burst if visible is None else visible
    return replace(
        SHOP,
        oid=Oid(oid),
        name=name,
        receiver_pid=4127,
        publications=(name,),
        received=_stage(lsn, 900, 0.04),
        durable=_stage(lsn, 5_000, 0.06 + 0.01 * _wave(t, 7)),
        applied=_stage(lsn, seen * 2_000_000, seen * 0.86),
        visible=_stage(lsn, seen * 2_600_000, seen),
        source=SourceFacts(
            asked_at=now - timedelta(seconds=t % 10),
            wal_lsn=Lsn(lsn),
            slot_name=name,
            slot_active=True,
            wal_status="reserved",
            retained_bytes=int(58 * MIB + 12 * MIB * _wave(t, 300)),
            safe_wal_bytes=63 * GIB,
            limit_bytes=64 * GIB,
        ),
        last_message_at=now,
        log_bytes=int(2.6 * GIB + 0.4 * GIB * _wave(t, 900)),
        log_limit_bytes=16 * GIB,
        tables=tuple(tables),
    )


def node(
    now: datetime,
    subscriptions: Sequence[SubscriptionFacts],
    *,
    published: bool = True,
    state: str = "ready",
) -> NodeFacts:
    """Return a node with these subscriptions; ``published``: with two subscribers of its own."""
    t = _seconds(now)
    end = 0x2_0000_0000 + _grown(now, 900_000, 5)
    started = now - timedelta(days=12, hours=3, minutes=8)
    running = state != "stopped"
    return replace(
        NODE,
        taken_at=now,
        directory="/var/lib/wal2lake",
        state=state,
        version="0.1.0",
        pid=4100 if running else None,
        started_at=started if running else None,
        processes=(
            ProcessFacts("supervisor", 4100, started, 0, rss_bytes=31 * MIB),
            ProcessFacts("engine", 4111, started, 0, rss_bytes=486 * MIB),
            ProcessFacts("receiver", 4127, started, 0, "shop", 118 * MIB),
            ProcessFacts("web", 4113, started, 0, rss_bytes=58 * MIB),
        )
        if running
        else (),
        disks=(
            DiskFacts("log", "/var/lib/wal2lake/log", 312 * GIB, 500 * GIB),
            DiskFacts("warehouse", "/lake", 2900 * GIB, 8000 * GIB),
        ),
        heap_bytes=int(1.6 * GIB + 0.5 * GIB * _wave(t, 47)),
        heap_limit_bytes=4 * GIB,
        engine_told_at=now,
        subscriptions=tuple(subscriptions),
        slots=(
            SlotFacts(
                "reporting",
                "pgoutput",
                5210,
                Lsn(end - 20_480),
                32 * MIB,
                "reserved",
                16 * GIB,
            ),
            SlotFacts(
                "search",
                "pgoutput",
                5218,
                Lsn(end - 4 * MIB),
                96 * MIB,
                "reserved",
                16 * GIB,
            ),
        )
        if published
        else (),
        walsenders=(
            WalsenderFacts(
                5210,
                "reporting",
                "10.0.4.17:52114",
                "reporting",
                "streaming",
                Lsn(end),
                Lsn(end - 8_192),
                Lsn(end - 20_480),
            ),
            WalsenderFacts(
                5218,
                "search",
                "10.0.4.23:40022",
                "search",
                "streaming",
                Lsn(end - MIB),
                Lsn(end - 3 * MIB),
                Lsn(end - 4 * MIB),
            ),
        )
        if published
        else (),
        published_lsn=Lsn(end) if published else Lsn(0),
    )


def calm(now: datetime) -> Scene:
    """Show a shop that is replicated without a problem."""
    facts = subscription(now, _shop(now))
    return node(now, [facts]), ()


def _shop(now: datetime) -> list[TableFacts]:
    t = _seconds(now)
    return [
        _table(
            16500 + 7 * i,
            place,
            now,
            round(0.5 + 0.15 * _wave(t, 29, i) + 0.05 * _wave(t, 6, i), 2),
        )
        for i, place in enumerate(_SHOP)
    ]


def empty(now: datetime) -> Scene:
    """Show a node without a subscription."""
    return node(now, [], published=False), ()


def copying(now: datetime) -> Scene:
    """Show a subscription whose tables are being copied."""
    began = now - timedelta(seconds=200)
    tables = _shop(now)
    progress = (0.64, 0.31, 0.97, 0.08)
    for i, share in enumerate(progress):
        expected = tables[i].size_bytes or 0
        rows = expected // 90
        tables[i] = replace(
            tables[i],
            state=SyncState.DATASYNC,
            behind_seconds=None,
            copy=CopyFacts(
                rows=int(rows * share),
                rows_expected=rows,
                bytes_done=int(expected * share),
                bytes_expected=expected,
                ranges_done=int(24 * share),
                ranges=24,
                started_at=began,
                ends_at=now + timedelta(seconds=200 / share - 200),
            ),
        )
    for i in range(len(progress), 9):
        tables[i] = replace(tables[i], state=SyncState.INIT, behind_seconds=None)
    return node(now, [subscription(now, tables, visible=1.2)], published=False), ()


def troubled(now: datetime) -> Scene:
    """Show each look of a problem: late stages, stopped tables, a lost slot, a full disk."""
    tables = _shop(now)
    tables[0] = replace(
        tables[0], behind_seconds=94.0, freshness=5.0, conflicts=17, coercions=3
    )
    tables[2] = replace(
        tables[2],
        error='duplicate key value violates unique constraint "payments_pkey"',
        behind_seconds=1890.0,
    )
    tables[9] = replace(tables[9], paused_since=now - timedelta(hours=26))
    shop = subscription(now, tables, visible=94.0)
    crm_tables = [
        _table(17000 + i, ("crm", name, 0.0, 88_000_000, 5), now, 4200.0)
        for i, name in enumerate(("accounts", "contacts", "deals"))
    ]
    streaming = subscription(now, crm_tables, oid=16410, name="crm", visible=4200.0)
    behind = replace(streaming.visible, behind_seconds=4200.0)
    crm = replace(
        streaming,
        state="retrying",
        received=behind,
        durable=behind,
        applied=behind,
        source=replace(
            streaming.source,
            slot_active=False,
            wal_status="extended",
            retained_bytes=58 * GIB,
            safe_wal_bytes=6 * GIB,
        ),
    )
    return node(now, [shop, crm]), _problems(now)


def _problems(now: datetime) -> tuple[Problem, ...]:
    return (
        Problem(
            "errored",
            Severity.ERROR,
            "table is not applied: duplicate key value violates unique constraint"
            ' "payments_pkey"',
            Concern.OPERATOR,
            since=now - timedelta(minutes=31, seconds=30),
            subscription="shop",
            table="public.payments",
            sqlstate="23505",
            detail="Key (id)=(48211) already exists.\nThe other tables go on.",
            hint="Remove the row that is in the way, or copy the table again.",
            remedy="SELECT wal2lake.recopy_table('shop', 'public.payments');",
        ),
        Problem(
            "errored",
            Severity.ERROR,
            'could not connect to the publisher: password authentication failed for user "crm"',
            Concern.OPERATOR,
            since=now - timedelta(minutes=70),
            subscription="crm",
            subject="receiver",
            stage="received",
            sqlstate="28P01",
            hint="The role's password was changed at the source.",
            remedy="ALTER SUBSCRIPTION crm\n"
            "    CONNECTION 'host=crm.internal dbname=crm user=crm password=...';",
        ),
        Problem(
            "wal_held",
            Severity.WARNING,
            'the source keeps 58 GB of WAL for slot "crm" and removes it at 64 GB',
            Concern.SOURCE,
            since=now - timedelta(minutes=12),
            subscription="crm",
            subject="crm",
            stage="source",
            hint="Raise max_slot_wal_keep_size at the source, or end what stops the receiver.",
            remedy="-- at the source\nALTER SYSTEM SET max_slot_wal_keep_size = '128GB';\n"
            "SELECT pg_reload_conf();",
        ),
        Problem(
            "late",
            Severity.WARNING,
            "readers see a state that is 94 s old",
            Concern.NOBODY,
            since=now - timedelta(seconds=89),
            subscription="shop",
            stage="applied",
            detail="A transaction of 2.1 million rows is being applied.",
        ),
        Problem(
            "late",
            Severity.WARNING,
            "table owes its readers 5 s and is 94 s behind",
            Concern.NOBODY,
            since=now - timedelta(seconds=89),
            subscription="shop",
            table="public.orders",
            stage="applied",
        ),
        Problem(
            "paused",
            Severity.WARNING,
            "table is paused; the log keeps all changes since then",
            Concern.OPERATOR,
            since=now - timedelta(hours=26),
            subscription="shop",
            table="public.reviews",
            remedy="SELECT wal2lake.resume_table('shop', 'public.reviews');",
        ),
        Problem(
            "disk",
            Severity.WARNING,
            "the disk of the log has 6.1 GB left",
            Concern.OPERATOR,
            since=now - timedelta(minutes=3),
            subject="/var/lib/wal2lake/log",
        ),
    )


HOSTILE: Final = (
    "<img src=x onerror=alert(1)>",
    "</script><script>alert(2)</script>",
    '"quoted" & <b>bold</b>',
    "o'clock; drop table x --",
    "javascript:alert(3)",
    "a" * 63,
    "\u202egnp.exe",
    "tab\tand\nline",
    "größe_表_🦆",
    "__proto__",
    "constructor",
)


def hostile(now: datetime) -> Scene:
    """Show names that would break a careless page."""
    tables = [
        _table(18000 + i, (name, name, 3.0, 1_000_000, 2), now, 0.4)
        for i, name in enumerate(HOSTILE)
    ]
    tables[0] = replace(tables[0], error="<script>alert(4)</script>" + "x" * 4000)
    facts = subscription(now, tables, name=HOSTILE[0])
    problems = [
        Problem(
            "errored",
            Severity.ERROR,
            f"table failed: {name}" + "y" * (5000 if i == 5 else 0),
            Concern.OPERATOR,
            subscription=HOSTILE[0],
            table=f"{name}.{name}",
            detail=name,
            hint=name,
            remedy=f"SELECT wal2lake.recopy_table('{name}');",
        )
        for i, name in enumerate(HOSTILE)
    ]
    return node(now, [facts]), problems


def many(now: datetime, count: int = 1000) -> Scene:
    """Show 1,000 tables, some of them in trouble."""
    t = _seconds(now)
    tables = []
    problems = []
    for i in range(count):
        rate = 0.0 if i % 3 else float(1 + i % 50)
        table = _table(
            20000 + i,
            (
                f"tenant_{i % 25:02d}",
                f"events_{i:04d}",
                rate,
                1_000_000 * (i + 1),
                1 + i % 90,
            ),
            now,
            round(0.4 + 0.2 * _wave(t, 30, i), 2),
        )
        if i % 97 == 5:
            table = replace(table, error=f"value {i} is out of range for type integer")
            problems.append(
                Problem(
                    "errored",
                    Severity.ERROR,
                    table.error or "",
                    Concern.OPERATOR,
                    since=EPOCH,
                    subscription="shop",
                    table=table.qualified,
                    sqlstate="22003",
                )
            )
        tables.append(table)
    return node(now, [subscription(now, tables)]), problems


def stopped(now: datetime) -> Scene:
    """Show a node that does not run."""
    facts, _ = calm(now)
    shop = replace(facts.subscriptions[0], state="down")
    return (
        node(now, [shop], state="stopped"),
        (
            Problem(
                "stopped",
                Severity.ERROR,
                "the node is stopped",
                Concern.OPERATOR,
                since=now - timedelta(minutes=4),
                hint="Start it with: wal2lake start -D /var/lib/wal2lake",
            ),
        ),
    )


def fill(catalog: Catalog, facts: NodeFacts) -> None:
    """Make the tables of ``facts`` in a catalog, with a history of versions, and for the first
    table conflicts, coercions and changes of its columns."""
    for s in facts.subscriptions:
        for namespace in {t.namespace for t in s.tables} - {
            n.name for n in catalog.namespaces()
        }:
            catalog.create_namespace(namespace, Oid(10))
        for t in s.tables:
            columns = (
                ColumnDef("id", Oid(20), not_null=True),
                ColumnDef("customer_id", Oid(20)),
                ColumnDef("total", Oid(1700)),
                ColumnDef("placed_at", Oid(1184)),
            )
            place = f"/lake/{int(t.oid)}"
            catalog.create_table(
                TableDef(t.oid, t.namespace, t.name, Oid(10), columns, ("id",), place)
            )
        catalog.create_subscription(
            Subscription(
                s.oid, s.name, Oid(10), True, "host=p", s.name, s.publications
            ),
            [
                SubscriptionRel(s.oid, t.oid, t.namespace, t.name, t.state, None, 1)
                for t in s.tables
            ],
            {int(t.oid): 1 for t in s.tables},
        )
        _fill_history(catalog, s)


def _fill_history(catalog: Catalog, s: SubscriptionFacts) -> None:
    if not s.tables:
        return
    first = s.tables[0]
    newest = int(s.visible.lsn)
    oids = [t.oid for t in s.tables]
    for back in range(14, 0, -1):
        lsn = Lsn(newest - back * 1_743_112)
        version = (first.version or 20) - back
        if back == 1:
            conflicts = [
                Conflict(
                    first.oid, kind, resolution, lsn, None, None, None, None, count
                )
                for kind, resolution, count in (
                    (ConflictType.UPDATE_MISSING, Resolution.SKIP, 14),
                    (ConflictType.INSERT_EXISTS, Resolution.APPLY_REMOTE, 3),
                )
            ]
            coercion = Coercion(
                "total", "clamp", "numeric field overflow", 3, lsn, lsn, "1e200"
            )
            catalog.expect(
                s.oid,
                lsn,
                {first.oid: lsn},
                {first.oid: (coercion,)},
                conflicts,
            )
        catalog.publish(
            s.oid,
            lsn,
            {int(first.oid): version, **({int(oids[1]): version} if back % 2 else {})},
            participants=oids,
        )
