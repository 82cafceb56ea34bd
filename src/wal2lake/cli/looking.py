"""Looks at a node: its facts, its problems, and how it is on the whole.

``wal2lake status`` looks once, ``wal2lake top`` again and again. Only files are read, so a look
answers while the engine is starting, busy or down. ``condition`` is the only judgement of this
room: it reduces the problems, which ``health`` judges, to an exit code.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import IntEnum
from pathlib import Path
from types import TracebackType
from typing import Final

from wal2lake.errors import ConfigurationError
from wal2lake.health import (
    FactReader,
    NodeFacts,
    Problem,
    ProblemClock,
    ProblemKind,
    Severity,
    load_seen,
    problems,
)
from wal2lake.launch import is_locked

_CATALOG: Final = "catalog.sqlite"
_RUN: Final = "run"

_TROUBLE: Final = frozenset(
    {ProblemKind.LATE, ProblemKind.PAUSED, ProblemKind.PAUSED_LONG}
)
"""Kinds that are trouble even as warnings: readers of a table have old rows."""

_WELL: Final = "streaming"


class NodeCondition(IntEnum):
    """The state of a whole node, as the exit code of ``wal2lake status --check``."""

    WELL = 0
    """Every subscription streams, and no table is late."""
    TROUBLE = 1
    """Something is late, paused, disabled or fails; the node serves its tables."""
    DOWN = 2
    """The node does not serve its tables."""


@dataclass(frozen=True, slots=True)
class Look:
    """A node at one moment."""

    facts: NodeFacts
    problems: tuple[Problem, ...]


def condition(look: Look) -> NodeCondition:
    """Return how the node is."""
    serves = any(process.role == "engine" for process in look.facts.processes)
    if look.facts.state != "ready" or not serves:
        return NodeCondition.DOWN
    troubled = any(
        problem.severity is Severity.ERROR or problem.kind in _TROUBLE
        for problem in look.problems
    )
    stands = any(s.state != _WELL for s in look.facts.subscriptions)
    return NodeCondition.TROUBLE if troubled or stands else NodeCondition.WELL


class Looker:
    """Looks at the node in a directory. A context manager."""

    def __init__(self, directory: Path) -> None:
        """ConfigurationError if there is no node in the directory."""
        self._directory = directory.absolute()
        if not is_node(self._directory):
            raise no_node(self._directory)
        self._reader = FactReader(self._directory)
        self._clock = ProblemClock()

    def look(self) -> Look:
        """Return what is known now. Raises what ``FactReader.read`` does."""
        now = datetime.now(UTC)
        facts = self._reader.read(now)
        # The web process has seen problems before this process was there.
        self._clock.learn(load_seen(self._directory / _RUN, now))
        return Look(facts, self._clock.follow(problems(facts, now), now))

    def __enter__(self) -> Looker:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._reader.close()


def is_node(directory: Path) -> bool:
    """Return whether there is a node in the directory, or was one and still runs."""
    return is_locked(directory) or (directory / _CATALOG).exists()


def no_node(directory: Path) -> ConfigurationError:
    """Return the error of a directory without a node."""
    return ConfigurationError(
        f'directory "{directory}" is not a wal2lake node',
        hint=f"Make one with: wal2lake init -D {directory}",
    )
