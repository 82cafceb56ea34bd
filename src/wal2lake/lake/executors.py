"""The port through which work runs on Spark's executors.

Comes in: a top-level function and its arguments. Goes out: its answers. Called by table
synchronisation, which copies in executors, and by staging; ``spark.executors`` implements it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Protocol, TypeVar

A = TypeVar("A")
R = TypeVar("R")


class Pool(Enum):
    """FAIR scheduler pools; under contention apply gets four times sync's share."""

    APPLY = "apply"
    SYNC = "sync"
    QUERY = "query"


class Executors(Protocol):
    """Runs functions in executors. Safe for all threads.

    A function is a module's top-level function, or a ``functools.partial`` of one: it is sent by
    its name, so what it imports is the executor's installation of wal2lake. Arguments and answers
    are pickled."""

    def run(self, pool: Pool, function: Callable[[A], R], argument: A) -> R:
        """Return ``function(argument)``; an error of ours is raised as itself."""
        ...

    def map(
        self, function: Callable[[A], R], arguments: Sequence[A], context: str
    ) -> list[R]:
        """Return ``function(argument)`` for each argument, a task each, in their order.

        ``context`` is the CONTEXT of an error of Spark's. The pool is that of the thread."""
        ...
