"""Implements ``lake.Executors`` on the engine's Spark session.

Comes in: a top-level function and its arguments. Goes out: its results, or its error. It serves
work in Python (COPY, Parquet) that only needs a place to run that grows with the cluster. A
Wal2LakeError arrives as itself, not as a Spark failure; Spark does not retry it.

A task brings the options of the store's client with it: a cluster's workers do not have the node's
environment, and Spark's settings are shown by its page and written to its event log.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from pyspark.sql import SparkSession

from wal2lake.errors import Wal2LakeError
from wal2lake.lake.executors import Pool
from wal2lake.lake.spark.errors import translated
from wal2lake.lake.spark.session import use_pool
from wal2lake.lake.store import StoreOptions, process_options, use_options

A = TypeVar("A")
R = TypeVar("R")


class SparkExecutors:
    """Runs functions in executors. Safe for all threads; each call is a Spark job."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def run(self, pool: Pool, function: Callable[[A], R], argument: A) -> R:
        """Return ``function(argument)``; raises its Wal2LakeError."""
        use_pool(self._spark, pool)
        task = partial(_guarded, process_options(), function)
        with translated():
            outcome: tuple[Any, Wal2LakeError | None] = (
                self._spark.sparkContext.parallelize([argument], 1)
                .map(task)
                .collect()[0]
            )
        answer, error = outcome
        if error is not None:
            raise error
        result: R = answer
        return result

    def map(
        self, function: Callable[[A], R], arguments: Sequence[A], context: str
    ) -> list[R]:
        """Return ``function(argument)`` for each argument, one task each, in their order."""
        task = partial(_prepared, process_options(), function)
        with translated(context):
            tasks = self._spark.sparkContext.parallelize(arguments, len(arguments))
            answers: list[R] = tasks.map(task).collect()
            return answers


def _prepared(options: StoreOptions, function: Callable[[A], R], argument: A) -> R:
    use_options(options)
    return function(argument)


def _guarded(
    options: StoreOptions, function: Callable[[Any], Any], argument: Any
) -> tuple[Any, Wal2LakeError | None]:
    try:
        return _prepared(options, function, argument), None
    except Wal2LakeError as error:
        return None, error
