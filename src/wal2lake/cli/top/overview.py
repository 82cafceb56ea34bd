"""The header and subscriptions of a node, as lines. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rich.console import RenderableType
from rich.text import Text

from wal2lake.cli.looking import Look, NodeCondition, condition
from wal2lake.cli.status.document import STAGES
from wal2lake.cli.terminal.words import seconds_text
from wal2lake.cli.top.columns import ColumnStyle, cell
from wal2lake.cli.top.rates import RecentRates
from wal2lake.cli.top.tables import rate_text
from wal2lake.health import NodeFacts, SubscriptionFacts
from wal2lake.health.rules.words import in_bytes, in_words
from wal2lake.model import SyncState

SUBSCRIPTION_COLUMNS: Final = (
    ColumnStyle("subscription", flexible=True),
    ColumnStyle("state"),
    ColumnStyle("received", right=True),
    ColumnStyle("durable", right=True),
    ColumnStyle("applied", right=True),
    ColumnStyle("visible", right=True),
    ColumnStyle("rows/s", right=True),
    ColumnStyle("log", right=True),
    ColumnStyle("tables", right=True, wide_only=True),
    ColumnStyle("WAL/s", right=True, wide_only=True),
    ColumnStyle("held at source", right=True, wide_only=True),
    ColumnStyle("slot", wide_only=True),
)

_COLORS: Final = {
    NodeCondition.WELL: "green",
    NodeCondition.TROUBLE: "yellow",
    NodeCondition.DOWN: "red",
}

_OLD_SECONDS: Final = 15.0
"""Age from which numbers of the engine are called old. It reports each few seconds."""


def header(look: Look, error: str | None, width: int) -> Iterator[Text]:
    """Yield the lines above each page."""
    facts = look.facts
    left = cell(f"wal2lake top  {facts.directory}", "bold")
    right = f"{facts.taken_at:%H:%M:%S} UTC"
    left.truncate(max(width - len(right) - 1, 1), overflow="ellipsis", pad=True)
    yield left.append(f" {right}")
    yield cell(_state(facts), _COLORS[condition(look)])
    yield cell(_resources(facts), "dim")
    if error is not None:
        yield cell(f"the node cannot be read: {error}", "red")


def _state(facts: NodeFacts) -> str:
    if facts.state == "stopped":
        return "no node is running; this is what it has left"
    text = f"{facts.state} (PID {facts.pid}) on {facts.address}:{facts.port}"
    if facts.started_at is not None:
        text += f", up {in_words(facts.taken_at - facts.started_at)}"
    if facts.state == "ready" and not any(
        process.role == "engine" for process in facts.processes
    ):
        text += "; the engine is down"
    reported = facts.engine_told_at
    if (
        reported is not None
        and (facts.taken_at - reported).total_seconds() > _OLD_SECONDS
    ):
        text += f"; the engine's numbers are {in_words(facts.taken_at - reported)} old"
    return text


def _resources(facts: NodeFacts) -> str:
    parts = []
    for role in ("engine", "jvm", "receiver", "web"):
        sizes = [p.rss_bytes or 0 for p in facts.processes if p.role == role]
        if sum(sizes):
            name = f"{len(sizes)} receivers" if len(sizes) > 1 else role
            parts.append(f"{name} {in_bytes(sum(sizes))}")
    if parts and facts.heap_bytes is not None and facts.heap_limit_bytes is not None:
        limit = in_bytes(facts.heap_limit_bytes)
        parts.append(f"heap {in_bytes(facts.heap_bytes)} of {limit}")
    seen: set[int] = set()
    for disk in facts.disks:
        if disk.device not in seen or not disk.device:
            seen.add(disk.device)
            parts.append(f"{in_bytes(disk.free_bytes)} free for the {disk.purpose}")
    return ", ".join(parts)


def subscription_row(
    look: Look, subscription: SubscriptionFacts, rates: RecentRates
) -> list[RenderableType]:
    """Return the cells of ``SUBSCRIPTION_COLUMNS``."""
    late = {
        problem.stage
        for problem in look.problems
        if problem.subscription == subscription.name and problem.stage is not None
    }
    good = subscription.state == "streaming"
    ready = sum(table.state is SyncState.READY for table in subscription.tables)
    held = subscription.source.retained_bytes
    received = rates.received(subscription)
    return [
        cell(subscription.name),
        cell(subscription.state, "green" if good else "yellow"),
        *(
            cell(
                seconds_text(getattr(subscription, stage).behind_seconds),
                "bold red" if stage in late else "",
            )
            for stage in STAGES
        ),
        cell(rate_text(rates.rows(subscription))),
        cell(in_bytes(subscription.log_bytes)),
        cell(f"{ready}/{len(subscription.tables)}"),
        cell("-" if received is None else in_bytes(round(received))),
        cell("-" if held is None else in_bytes(held)),
        cell(subscription.source.wal_status or "-"),
    ]
