"""Needs of a session of Spark for the tables of a warehouse.

In: values of a cloud's module. Out: ``SparkAccess``; the number of attempts of a connector.

The connectors count attempts and have no limit of time, so ``repeats_within`` says how many pauses
fit into the time that the node's own client has for an operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate, takewhile
from math import inf

from wal2lake.lake.jars import Jar


@dataclass(frozen=True, slots=True)
class SparkAccess:
    """Needs of a session for tables of a warehouse."""

    jars: tuple[Jar, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    """Settings of Spark, which its page shows: none is a secret."""
    java_options: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    executor_java_options: tuple[str, ...] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Settings of Hadoop that must not be shown."""


def first_of(environment: Mapping[str, str], *names: str) -> str | None:
    """Return the value of the first variable that has one."""
    return next((environment[name] for name in names if environment.get(name)), None)


def for_hadoop(settings: Mapping[str, str]) -> dict[str, str]:
    """Return settings of Hadoop as settings of Spark."""
    return {f"spark.hadoop.{name}": value for name, value in settings.items()}


def repeats_within(seconds: float, pauses: Iterable[float]) -> int:
    """Return how many repetitions fit into a time, of which each has a pause before it. ``pauses``
    are the longest ones in their order, and do not end."""
    return sum(1 for _ in takewhile(lambda total: total <= seconds, accumulate(pauses)))


def doubling(first: float, most: float = inf) -> Iterator[float]:
    """Yield pauses of which each is twice the one before, up to ``most``."""
    while True:
        yield first
        first = min(2 * first, most)
