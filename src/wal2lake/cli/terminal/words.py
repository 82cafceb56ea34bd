"""Lags, copies and problems in the words of ``wal2lake status`` and ``wal2lake top``. Pure.

Names come from the source and may contain anything: ``clean`` keeps them from moving the cursor.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from wal2lake.health import Concern, CopyFacts, Problem, TableFacts
from wal2lake.health.rules.words import in_words
from wal2lake.model import SyncState

_CONCERNS: Final = {
    Concern.OPERATOR: "concerns you",
    Concern.SOURCE: "concerns the administrator of the source",
    Concern.NOBODY: "passes by itself",
}

_STATES: Final = {
    SyncState.INIT: "waits",
    SyncState.DATASYNC: "copying",
    SyncState.FINISHEDCOPY: "copied",
    SyncState.SYNCDONE: "joins",
    SyncState.READY: "ready",
}


def clean(text: str) -> str:
    """Return the text with a question mark for each character that a terminal would obey."""
    return "".join(c if c.isprintable() else "?" for c in text)


def seconds_text(seconds: float | None) -> str:
    """Return a lag in few characters: ``0.4 s``, ``3 min``; ``-`` if it is not known."""
    if seconds is None:
        return "-"
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return (
        f"{seconds / 3600:.0f} h" if seconds < 172_800 else f"{seconds / 86400:.0f} d"
    )


def state_text(table: TableFacts) -> str:
    """Return a table's state in one word."""
    if table.error is not None:
        return "error"
    return "paused" if table.paused_since is not None else _STATES[table.state]


def copy_text(copy: CopyFacts, now: datetime) -> str:
    """Return ``45 %, 4,500 of about 10,000 rows, 2 minutes left``."""
    share = copy.share
    parts = [] if share is None else [f"{share:.0%}".replace("%", " %")]
    expected = f" of about {copy.rows_expected:,}" if copy.rows_expected else ""
    parts.append(f"{copy.rows:,}{expected} rows")
    if copy.ends_at is not None and copy.ends_at > now:
        parts.append(f"{in_words(copy.ends_at - now)} left")
    return ", ".join(parts)


def problem_headline(problem: Problem, now: datetime) -> str:
    """Return ``error: the message (for 5 minutes; concerns you)``."""
    about = [_CONCERNS[problem.concern]]
    # A command that looks once knows of some problems only that they are there now.
    if problem.since is not None and now - problem.since >= timedelta(seconds=1):
        about.insert(0, f"for {in_words(now - problem.since)}")
    return f"{problem.severity}: {clean(problem.message)} ({'; '.join(about)})"


def problem_lines(problem: Problem, now: datetime) -> Iterator[str]:
    """Yield the headline, and below it detail, hint and remedy."""
    yield problem_headline(problem, now)
    if problem.since is not None:
        yield f"  since: {problem.since:%Y-%m-%d %H:%M:%S} UTC"
    for label in ("detail", "hint"):
        text = getattr(problem, label)
        if text:
            first, *more = text.split("\n")
            yield f"  {label}: {clean(first)}"
            yield from (f"    {clean(line.strip())}" for line in more)
    if problem.remedy:
        yield "  remedy:"
        yield from (f"    {clean(line)}" for line in problem.remedy.split("\n"))
