"""Run one function on one argument in a Spark executor, and get its answer or its error.

For work that is Python's own (COPY, Parquet) and only needs a place to run that grows with the
cluster. The function is a module's top-level function: it is sent by name, so what it
imports is the executor's installation of wal2lake. The argument and the answer are
pickled. An error of ours comes back as itself, not as a Spark failure; Spark does not
retry it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from wal2lake.errors import Wal2LakeError
from wal2lake.lake.spark.errors import translated
from wal2lake.lake.spark.session import Pool, use_pool

A = TypeVar("A")
R = TypeVar("R")


class Executors:
    """Safe for many threads; each call is a Spark job of one task."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def run(self, pool: Pool, function: Callable[[A], R], argument: A) -> R:
        """``function(argument)`` somewhere; raises what it raises, if it is ours."""
        use_pool(self._spark, pool)
        with translated():
            outcome: tuple[Any, Wal2LakeError | None] = (
                self._spark.sparkContext.parallelize([argument], 1)
                .map(lambda one: _guarded(function, one))
                .collect()[0]
            )
        answer, error = outcome
        if error is not None:
            raise error
        result: R = answer
        return result


def _guarded(
    function: Callable[[Any], Any], argument: Any
) -> tuple[Any, Wal2LakeError | None]:
    try:
        return function(argument), None
    except Wal2LakeError as error:
        return None, error
