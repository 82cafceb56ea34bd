"""The port through which work runs on Spark's executors.

Comes in: a top-level function and its arguments. Goes out: its results. Called by table
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

    A function is a module's top-level function, or a ``functools.partial`` of one. It is sent by
    its name, so its imports come from the executor's installation of wal2lake. Arguments and
    results are pickled.
    """

    def run(self, pool: Pool, function: Callable[[A], R], argument: A) -> R:
        """Return ``function(argument)``; a Wal2LakeError is raised as itself."""
        ...

    def map(
        self, function: Callable[[A], R], arguments: Sequence[A], context: str
    ) -> list[R]:
        """Return ``function(argument)`` for each argument, one task each, in their order.

        ``context`` becomes the CONTEXT of an error of Spark's. The pool is that of the calling
        thread.
        """
        ...
