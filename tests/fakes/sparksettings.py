"""Settings of a Spark session that hold for a part of a test."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from pyspark.sql import SparkSession


@contextmanager
def spark_settings(
    session: SparkSession, settings: Mapping[str, str]
) -> Iterator[None]:
    """Set these, and restore their values.

    ``unset`` would give a setting Spark's own default instead of what the session was started with,
    and tests share the session.
    """
    before = {name: session.conf.get(name, None) for name in settings}
    try:
        for name, value in settings.items():
            session.conf.set(name, value)
        yield
    finally:
        for name, known in before.items():
            if known is None:
                session.conf.unset(name)
            else:
                session.conf.set(name, known)
