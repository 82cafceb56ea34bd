"""A Spark job beside a node, in a process of its own that knows nothing of it.

As a program it takes jars and reads statements, one on a line; each is repeated while others
overtake it (Delta's concurrency errors), and answered by a line: ``ok`` and how often it was
tried, or the error. ``ForeignSpark`` starts it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRIES = 20


class ForeignSpark:
    """A context manager; ``sql`` returns when the statement has been committed."""

    def __init__(self, directory: Path, jars: Sequence[Path]) -> None:
        """``directory``: for its own files."""
        directory.mkdir(parents=True, exist_ok=True)
        self._errors = (directory / "stderr").open("w+")
        # Not our package: the file alone, with whatever pyspark brings.
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, ",".join(map(str, jars))],
            cwd=directory,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def sql(self, statement: str) -> int:
        """How often it was tried."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(" ".join(statement.split()) + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline().split(None, 1)
        if answer[:1] != ["ok"]:
            self._errors.seek(0)
            raise AssertionError(f"{statement}: {answer}\n{self._errors.read()[-500:]}")
        return int(answer[1])

    def __enter__(self) -> ForeignSpark:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._errors.close()


def main() -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.jars", sys.argv[1])
        .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
        .config(
            "spark.sql.catalog.spark_catalog",
            "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        )
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.databricks.delta.snapshotPartitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
        .getOrCreate()
    )
    for line in sys.stdin:
        print(_run(spark, line), flush=True)
    spark.stop()


def _run(spark: SparkSession, statement: str) -> str:
    for tried in range(1, TRIES + 1):
        try:
            spark.sql(statement).collect()
        except Exception as error:
            text = " ".join(str(error).split())
            if "DELTA_CONCURRENT" not in text or tried == TRIES:
                return text[:500]
        else:
            return f"ok {tried}"
    return "not tried"


if __name__ == "__main__":
    main()
