"""Judges the facts of a node: which problems it has.

In: ``NodeFacts``, the time. Out: ``Problem``s, the worst and oldest first. Pure: equal facts give
equal problems, so every surface that has the facts has the problems. Limits are constants of
``rules``, each with its reason.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from wal2lake.health.facts import NodeFacts
from wal2lake.health.problem import (
    Concern,
    Problem,
    ProblemKey,
    ProblemKind,
    Severity,
)
from wal2lake.health.rules.catalogs import catalog_problems
from wal2lake.health.rules.node import node_problems
from wal2lake.health.rules.publisher import publisher_problems
from wal2lake.health.rules.subscription import subscription_problems

__all__ = ["Concern", "Problem", "ProblemKey", "ProblemKind", "Severity", "problems"]

_ORDER: Final = {Severity.ERROR: 0, Severity.WARNING: 1}
_LATEST: Final = datetime.max.replace(tzinfo=UTC)


def problems(facts: NodeFacts, now: datetime) -> tuple[Problem, ...]:
    """Return all problems: errors before warnings, and older ones before newer ones."""
    by_key: dict[ProblemKey, Problem] = {}
    for problem in _all(facts, now):
        # Two sources of one problem: the first one knows more.
        by_key.setdefault(problem.key, problem)
    return tuple(sorted(by_key.values(), key=_rank))


def _rank(problem: Problem) -> tuple[int, datetime, ProblemKey]:
    return (_ORDER[problem.severity], problem.since or _LATEST, problem.key)


def _all(facts: NodeFacts, now: datetime) -> Iterator[Problem]:
    yield from node_problems(facts, now)
    for subscription in facts.subscriptions:
        yield from subscription_problems(facts, subscription, now)
    yield from publisher_problems(facts, now)
    yield from catalog_problems(facts)
