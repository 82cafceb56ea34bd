"""Readings of a node on which everything happens that facts can say, for the metrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import timedelta

from tests.fakes.facts import COPYING, NODE, NOW, ORDERS, SHOP

from wal2lake.health import (
    Concern,
    CopyFacts,
    NodeFacts,
    Problem,
    Severity,
    SlotFacts,
    SourceFacts,
    StageLag,
    SubscriptionFacts,
    TableFacts,
    WalsenderFacts,
)
from wal2lake.model import Lsn, Oid
from wal2lake.observe.series import SeriesKey, SeriesValues
from wal2lake.observe.telemetry import BUCKETS, Histogram, ProcessTelemetry
from wal2lake.web.reading import NodeReading

NAMES = ("plain", 'with "quotes"', "back\\slash", "new\nline", "ünïcode", "{a=b}")
"""Names of tables that a text format must escape."""


def table(number: int, **changed: object) -> TableFacts:
    changes: dict[str, object] = {
        "oid": Oid(20_000 + number),
        "namespace": "public",
        "name": f"table_{number}",
        "freshness": 2.0,
        "applied_lsn": Lsn(900),
        "version": number,
    }
    return replace(ORDERS, **{**changes, **changed})  # type: ignore[arg-type]


def copying(number: int) -> TableFacts:
    copy = CopyFacts(10, 100, 1000, 10_000, 1, 4, NOW, NOW + timedelta(minutes=1))
    return table(number, state=COPYING.state, copy=copy)


def subscription(name: str, tables: tuple[TableFacts, ...]) -> SubscriptionFacts:
    late = StageLag(Lsn(2**60 + 1), 100, 1.5)
    return replace(
        SHOP,
        name=name,
        received=late,
        durable=late,
        applied=late,
        visible=late,
        source=SourceFacts(
            NOW, Lsn(1000), "slot", True, "reserved", 5000, 6000, 10_000
        ),
        log_limit_bytes=1000,
        errors={"apply": ("broken", "23505", NOW)},
        error_counts={"apply": 3, "copy": 1},
        conflicts={"insert_exists": 2},
        tables=tables,
    )


def node(*subscriptions: SubscriptionFacts) -> NodeFacts:
    return replace(
        NODE,
        certificate_ends=NOW,
        subscriptions=subscriptions,
        slots=(SlotFacts("down", "pgoutput", 7, Lsn(40), 60, "reserved", 1 << 20),),
        walsenders=(
            WalsenderFacts(7, "a", "::1", "down", "streaming", *map(Lsn, (90, 80, 70))),
            WalsenderFacts(8, "a", "::1", "down", "streaming", *map(Lsn, (95, 50, 75))),
        ),
        published_lsn=Lsn(100),
    )


def telemetry(name: str = "s", *tables: TableFacts) -> tuple[ProcessTelemetry, ...]:
    """Return what receiver and engine have measured."""
    of = {"subscription": name}
    return (
        measured(
            "receiver-16384",
            {
                series("received_bytes_total", **of): 17,
                series("received_messages_total", **of): 17,
                series("durable_bytes_total", **of): 17,
                series("durable_messages_total", **of): 17,
                series("durable_transactions_total", **of): 17,
                series("reconnects_total", **of): 0,
                series("errors_total", worker="receiver", sqlstate="08006", **of): 1,
            },
            "commit_to_durable_seconds",
            name,
        ),
        measured(
            "engine",
            {
                **{
                    series(f"retention_removed_{of}_total", kind="data"): 3
                    for of in _OF
                },
                **{
                    key: 3
                    for one in tables
                    for key in table_series(name, one.qualified)
                },
            },
            "commit_to_visible_seconds",
            name,
        ),
        measured("engine", {}, "batch_seconds", name),
    )


_OF = ("files", "bytes")


def series(metric: str, **labels: str) -> SeriesKey:
    return metric, tuple(sorted(labels.items()))


def table_series(subscription: str, table: str) -> Iterator[SeriesKey]:
    """Yield the series that a table has when all has happened to it."""
    of = {"subscription": subscription, "table": table}
    for kind in ("inserted", "updated", "deleted", "copied"):
        yield series("rows_total", kind=kind, **of)
    for method in ("append", "upsert"):
        yield series("batches_total", method=method, **of)
    yield series("applied_bytes_total", **of)
    yield series("copied_bytes_total", **of)
    yield series("conflicts_total", kind="insert_exists", **of)
    yield series("coercions_total", kind="null", **of)


def measured(
    process: str, counters: Mapping[SeriesKey, float], histogram: str, name: str
) -> ProcessTelemetry:
    return ProcessTelemetry(
        process=process,
        pid=2,
        birth=None,
        started_at=NOW,
        written_at=NOW,
        counters=SeriesValues.of(counters),
        gauges=SeriesValues.of(
            {
                series("not_declared", subscription=name): 1,
                series("walsender_flush_lag_seconds", pid="7"): 0.5,
                series("walsender_flush_lag_seconds", pid="8"): 1.5,
                series("walsender_flush_lag_seconds", pid="99"): 9.0,
            }
        ),
        histograms=SeriesValues.of(
            {
                series(histogram, subscription=name): Histogram(
                    (*range(len(BUCKETS)), 4), 12.5
                )
            }
        ),
    )


def reading(*tables: TableFacts, name: str = "s") -> NodeReading:
    problem = Problem(
        "errored", Severity.ERROR, "it is broken", Concern.OPERATOR, NOW, name
    )
    return NodeReading(
        node(subscription(name, tables)),
        (problem,),
        telemetry(name, *tables),
        0.01,
    )


def full_reading() -> NodeReading:
    """Return a reading in which every metric has a value."""
    named = (table(number, name=name) for number, name in enumerate(NAMES))
    return reading(*named, copying(99))
