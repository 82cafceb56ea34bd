"""Facts and problems of a node as text.

    node is ready (PID 12), listening on 127.0.0.1:5480
      engine: PID 14 since 2026-05-04T03:02:01+00:00
    subscription "shop": streaming, 3 of 3 tables ready, applied 0/15D7A40, 0.4 s (912 bytes) behind
      behind the source: received 0.0 s, durable 0.1 s, applied 0.3 s, visible 0.4 s
    1 problem
    warning: ...

Pure. Called by ``run``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from wal2lake.cli.looking import Look
from wal2lake.cli.status.document import STAGES
from wal2lake.cli.terminal.words import (
    clean,
    copy_text,
    problem_lines,
    seconds_text,
)
from wal2lake.health import NodeFacts, ProcessFacts, SubscriptionFacts
from wal2lake.health.rules.words import in_bytes
from wal2lake.model import SyncState

_SILENT: Final = ("supervisor", "guardian", "jvm")
"""Roles that are always there, beside another one that is listed."""

_MOST_COPIES: Final = 10
"""Copies that are listed; ``wal2lake top`` has all."""


def lines(look: Look) -> Iterator[str]:
    """Yield all lines."""
    facts = look.facts
    if facts.state == "stopped":
        yield f'no node is running in "{facts.directory}"'
    else:
        where = f"{facts.address}:{facts.port}"
        listening = f", listening on {where}" if facts.state == "ready" else ""
        yield f"node is {facts.state} (PID {facts.pid}){listening}"
    for process in facts.processes:
        if process.role not in _SILENT:
            yield _process(process)
    for url in facts.web_urls:
        yield f"  metrics and page: {url}"
    if facts.web_error is not None:
        yield f"  metrics and page are not served: {clean(facts.web_error)}"
    for subscription in facts.subscriptions:
        yield from _subscription(facts, subscription)
    # The first line has said it.
    problems = [p for p in look.problems if p.kind != "stopped"]
    if problems:
        yield ""
        yield f"{len(problems)} problem{'' if len(problems) == 1 else 's'}"
    for problem in problems:
        yield from problem_lines(problem, facts.taken_at)


def _process(process: ProcessFacts) -> str:
    of = f' of subscription "{process.subscription}"' if process.subscription else ""
    since = ""
    if process.started_at is not None:
        since = f" since {process.started_at.isoformat(timespec='seconds')}"
    restarts = f", restarted {process.restarts}x" if process.restarts else ""
    return clean(f"  {process.role}{of}: PID {process.pid}{since}{restarts}")


def _subscription(facts: NodeFacts, s: SubscriptionFacts) -> Iterator[str]:
    ready = sum(table.state is SyncState.READY for table in s.tables)
    behind = in_bytes(s.applied.behind_bytes)
    seconds = s.visible.behind_seconds
    lag = behind if seconds is None else f"{seconds_text(seconds)} ({behind})"
    yield clean(
        f'subscription "{s.name}": {s.state},'
        f" {ready} of {len(s.tables)} tables ready,"
        f" applied {s.applied.lsn}, {lag} behind"
    )
    stages = [(stage, getattr(s, stage).behind_seconds) for stage in STAGES]
    if any(behind is not None for _, behind in stages):
        shown = ", ".join(f"{stage} {seconds_text(behind)}" for stage, behind in stages)
        yield f"  behind the source: {shown}"
    copying = [table for table in s.tables if table.copy is not None]
    for table in copying[:_MOST_COPIES]:
        assert table.copy is not None
        text = copy_text(table.copy, facts.taken_at)
        yield f"  copying {clean(table.qualified)}: {text}"
    if len(copying) > _MOST_COPIES:
        yield f"  copying {len(copying) - _MOST_COPIES} more tables"
