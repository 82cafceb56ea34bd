"""When problems began: remembers each problem from the time when it was first seen.

Some problems have a time of their own (a pause, a prepared transaction); a disk that fills has
none, and the error of a worker has that of its last text. The web process follows the problems all
the time and writes ``run/problems.json``; others, which look only now and then, read that file.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Final

from wal2lake.health.problem import Problem, ProblemKey, ProblemKind

FILE_NAME: Final = "problems.json"

_VALID_SECONDS: Final = 600.0
"""Age up to which the file is believed: a problem that ended while nobody looked is another one
when it comes again. A restart of the node takes less."""

_CONTINUED: Final = frozenset(
    {
        ProblemKind.ENGINE,
        ProblemKind.ERRORED,
        ProblemKind.RECEIVER,
        ProblemKind.TABLE_ERRORED,
        ProblemKind.SLOT_LOST,
        ProblemKind.LATE,
    }
)
"""Kinds whose own time moves while the problem lasts: an error with another text, a lag whose
oldest transaction is another one, an engine that dies again."""


class ProblemClock:
    """The first time of each present problem. For one thread at a time."""

    def __init__(self, seen: Mapping[ProblemKey, datetime] | None = None) -> None:
        """``seen``: problems that are known already."""
        self._seen = dict(seen or {})

    @property
    def seen(self) -> Mapping[ProblemKey, datetime]:
        """First times of the problems that the last look has found."""
        return self._seen

    def follow(self, problems: Iterable[Problem], now: datetime) -> tuple[Problem, ...]:
        """Return the problems with the time since which each has lasted. Problems that are not
        among them have ended."""
        dated = tuple(self._dated(problem, now) for problem in problems)
        self._seen = {
            problem.key: problem.since for problem in dated if problem.since is not None
        }
        return dated

    def _dated(self, problem: Problem, now: datetime) -> Problem:
        first = self._seen.get(problem.key)
        own = problem.since
        if own is not None and (first is None or problem.kind not in _CONTINUED):
            return problem
        times = [time for time in (first, own) if time is not None]
        return replace(problem, since=min(times, default=now))

    def learn(self, seen: Mapping[ProblemKey, datetime]) -> None:
        """Take over earlier times of another process."""
        for key, time in seen.items():
            self._seen[key] = min(time, self._seen.get(key, time))


def save_seen(run_directory: Path, seen: Mapping[ProblemKey, datetime]) -> None:
    """Replace the file, so that a reader finds a complete one. Its time counts, so this is called
    at each look, whether problems have changed or not. Raises OSError."""
    content = [[*key, time.isoformat()] for key, time in sorted(seen.items())]
    temporary = run_directory / f".{FILE_NAME}.tmp"
    temporary.write_text(json.dumps(content), encoding="utf-8")
    temporary.replace(run_directory / FILE_NAME)


def load_seen(run_directory: Path, now: datetime) -> dict[ProblemKey, datetime]:
    """Read the file; nothing if there is no valid one of late."""
    path = run_directory / FILE_NAME
    seen: dict[ProblemKey, datetime] = {}
    with contextlib.suppress(OSError, ValueError, TypeError):
        if now.timestamp() - path.stat().st_mtime > _VALID_SECONDS:
            return {}
        text = path.read_text(encoding="utf-8")
        for kind, subscription, table, subject, time in json.loads(text):
            seen[kind, subscription, table, subject] = datetime.fromisoformat(time)
    return seen
