"""Needs of a session of Spark for the tables of a warehouse.

In: values of a cloud's module. Out: ``SparkAccess``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

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
