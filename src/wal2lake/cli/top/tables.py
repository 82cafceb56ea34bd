"""Tables and copies, as lines. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from rich.console import RenderableType
from rich.progress_bar import ProgressBar
from rich.text import Text

from wal2lake.cli.looking import Look
from wal2lake.cli.terminal.words import seconds_text, state_text
from wal2lake.cli.top.columns import ColumnStyle, cell
from wal2lake.cli.top.keys import SortOrder
from wal2lake.cli.top.rates import RecentRates
from wal2lake.health import SubscriptionFacts, TableFacts
from wal2lake.health.rules.words import in_bytes

TABLE_COLUMNS: Final = (
    ColumnStyle("table", flexible=True),
    ColumnStyle("state"),
    ColumnStyle("behind", right=True),
    ColumnStyle("rows/s", right=True),
    ColumnStyle("size", right=True),
    ColumnStyle("files", right=True),
    ColumnStyle("version", right=True),
    ColumnStyle("subscription", wide_only=True, width=16),
    ColumnStyle("applied", right=True, wide_only=True),
    ColumnStyle("conflicts", right=True, wide_only=True),
    ColumnStyle("coerced", right=True, wide_only=True),
)

COPY_COLUMNS: Final = (
    ColumnStyle("table", flexible=True),
    ColumnStyle("copy", width=14),
    ColumnStyle("done", right=True),
    ColumnStyle("rows", right=True),
    ColumnStyle("left", right=True),
    ColumnStyle("bytes", right=True, wide_only=True),
    ColumnStyle("ranges", right=True, wide_only=True),
    ColumnStyle("since", right=True, wide_only=True),
)

_WORST: Final = float("inf")

Entry = tuple[SubscriptionFacts, TableFacts]


def sorted_tables(look: Look, rates: RecentRates, order: SortOrder) -> list[Entry]:
    """Return all tables in an order."""
    entries = [(s, t) for s in look.facts.subscriptions for t in s.tables]
    ranks: Mapping[SortOrder, Callable[[Entry], float]] = {
        SortOrder.LAG: lambda e: -_behind(e[1]),
        SortOrder.RATE: lambda e: -(rates.table(*e) or 0.0),
        SortOrder.SIZE: lambda e: -float(e[1].size_bytes or 0),
        SortOrder.NAME: lambda e: 0.0,
    }
    rank = ranks[order]
    return sorted(entries, key=lambda e: (rank(e), e[0].name, e[1].qualified))


def _behind(table: TableFacts) -> float:
    if table.error is not None:
        return _WORST
    return -1.0 if table.behind_seconds is None else table.behind_seconds


def table_row(
    subscription: SubscriptionFacts, table: TableFacts, rates: RecentRates
) -> list[RenderableType]:
    """Return the cells of ``TABLE_COLUMNS``."""
    behind = table.behind_seconds
    late = table.freshness is not None and (behind or 0.0) > table.freshness
    state = state_text(table)
    color = {"error": "red", "paused": "yellow", "copying": "cyan"}.get(state, "")
    return [
        cell(table.qualified),
        cell(state, color),
        cell(seconds_text(behind), "red" if late else ""),
        cell(rate_text(rates.table(subscription, table))),
        cell(_size(table.size_bytes)),
        cell(_number(table.files)),
        cell(_number(table.version)),
        cell(subscription.name),
        cell(str(table.applied_lsn)),
        cell(_number(table.conflicts)),
        cell(_number(table.coercions)),
    ]


def copy_rows(look: Look) -> Iterator[list[RenderableType]]:
    """Yield the cells of ``COPY_COLUMNS`` for each running copy."""
    for subscription in look.facts.subscriptions:
        for table in subscription.tables:
            if table.copy is None:
                continue
            copy, now = table.copy, look.facts.taken_at
            share = copy.share
            bar: RenderableType = Text("")
            if share is not None:
                bar = ProgressBar(total=1.0, completed=share, width=14)
            left = (
                None if copy.ends_at is None else (copy.ends_at - now).total_seconds()
            )
            began = copy.started_at
            yield [
                cell(table.qualified),
                bar,
                cell("-" if share is None else f"{share:.0%}"),
                cell(_of(copy.rows, copy.rows_expected)),
                cell(seconds_text(None if left is None else max(left, 0.0))),
                cell(in_bytes(copy.bytes_done)),
                cell(_of(copy.ranges_done, copy.ranges)),
                cell(seconds_text((now - began).total_seconds() if began else None)),
            ]


def _of(done: int, expected: int | None) -> str:
    return f"{done:,}" if not expected else f"{done:,}/{expected:,}"


def rate_text(rate: float | None) -> str:
    """Return a rate in few characters: ``1,234``, ``0.4``, ``12k``."""
    if rate is None:
        return "-"
    if 0 < rate < 10:
        return f"{rate:.1f}"
    return f"{rate:,.0f}" if rate < 100_000 else f"{rate / 1000:,.0f}k"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _size(size: int | None) -> str:
    return "-" if size is None else in_bytes(size)
