"""Measurements of copies: what they have read, how much they expect, and why they have failed.

    GroupCopy ── begun, received, ended ──▶ counters and gauges of the table
    TableSync ── failed(error) ───────────▶ errors by SQLSTATE

The gauges of a copy exist while it runs. Its rows and ranges are in the catalog, too, where they
survive the engine; the bytes that are expected and the times are only here.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from wal2lake.catalog import TableDef, WorkerKind
from wal2lake.errors import sqlstate_of
from wal2lake.model import Coercion
from wal2lake.observe.telemetry import Telemetry

_GAUGES = (
    "copy_started_timestamp_seconds",
    "copy_expected_rows",
    "copy_expected_bytes",
    "copy_ranges",
    "copy_finished_ranges",
    "copy_resumed_ranges",
)
_PROGRESS = "copy_progress_timestamp_seconds"
"""Time at which a range was finished last in this attempt."""


class CopyMeasures:
    """Measurements of all subscriptions' copies. Thread-safe."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry

    def begun(
        self,
        subscription: str,
        table: TableDef,
        *,
        rows: int | None,
        size: int | None,
        ranges: int,
        finished: int,
    ) -> None:
        """Note the begin of an attempt, with the source's estimates of rows and bytes, and the
        number of ranges, of which an earlier attempt has finished some."""
        values = (time.time(), rows, size, ranges, finished, finished)
        for name, value in zip(_GAUGES, values, strict=True):
            self._telemetry.gauge(
                name, value, subscription=subscription, table=table.qualified
            )

    def received(
        self,
        subscription: str,
        table: TableDef,
        *,
        rows: int,
        size: int,
        coercions: Sequence[Coercion],
        finished: int,
    ) -> None:
        """Count a finished range: its rows, the bytes of its files, and values that policies have
        changed. ``finished``: number of all finished ranges."""
        labels = {"subscription": subscription, "table": table.qualified}
        self._telemetry.count("rows_total", rows, kind="copied", **labels)
        self._telemetry.count("copied_bytes_total", size, **labels)
        self._telemetry.gauge("copy_finished_ranges", finished, **labels)
        self._telemetry.gauge(_PROGRESS, time.time(), **labels)
        for coercion in coercions:
            self._telemetry.count(
                "coercions_total", coercion.count, kind=coercion.policy, **labels
            )

    def ended(self, subscription: str, tables: Iterable[TableDef]) -> None:
        """Note the end of attempts, whatever it was."""
        for table in tables:
            for name in (*_GAUGES, _PROGRESS):
                self._telemetry.gauge(
                    name, None, subscription=subscription, table=table.qualified
                )

    def failed(self, subscription: str, error: Exception) -> None:
        """Count an error that one or more attempts have failed with."""
        self._telemetry.count(
            "errors_total",
            subscription=subscription,
            worker=WorkerKind.COPY.value,
            sqlstate=sqlstate_of(error),
        )
