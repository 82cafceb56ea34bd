"""Spark as a reader of an Iceberg REST catalog, in a process that knows nothing of the node.

As a program it takes jars, the catalog's URL and a credential, and reads statements, each as JSON
with the warehouse to use; it answers with the rows as JSON, or with the error's text.
``IcebergSpark`` starts it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any


class IcebergSpark:
    """A context manager; ``rows`` runs a statement."""

    def __init__(
        self, directory: Path, jars: Sequence[Path], uri: str, credential: str
    ) -> None:
        """``directory``: for its own files."""
        directory.mkdir(parents=True, exist_ok=True)
        self._errors = (directory / "stderr").open("w+")
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, ",".join(map(str, jars)), uri, credential],
            cwd=directory,
            env={k: v for k, v in os.environ.items() if k != "PYTHONPATH"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )

    def rows(self, warehouse: str, statement: str) -> Counter[tuple[str | None, ...]]:
        """Return the rows of a statement, each value as a text."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([warehouse, statement]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            self._errors.seek(0)
            raise AssertionError(f"Spark has ended: {self._errors.read()[-2000:]}")
        answer = json.loads(line)
        if isinstance(answer, str):
            raise AssertionError(f"{statement}: {answer}")
        return Counter(map(tuple, answer))

    def __enter__(self) -> IcebergSpark:
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

    jars, uri, credential = sys.argv[1:]
    builder = (
        SparkSession.builder.master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.jars", jars)
        .config("spark.sql.shuffle.partitions", "1")
        .config("spark.sql.session.timeZone", "UTC")
    )
    spark = builder.getOrCreate()
    catalogs: dict[str, str] = {}
    for line in sys.stdin:
        warehouse, statement = json.loads(line)
        if warehouse not in catalogs:
            name = catalogs[warehouse] = f"node{len(catalogs)}"
            for key, value in (
                ("", "org.apache.iceberg.spark.SparkCatalog"),
                (".type", "rest"),
                (".uri", uri),
                (".warehouse", warehouse),
                (".credential", credential),
                (".oauth2-server-uri", f"{uri}/v1/oauth/tokens"),
                (".cache-enabled", "false"),
            ):
                spark.conf.set(f"spark.sql.catalog.{name}{key}", value)
        print(json.dumps(_run(spark, catalogs[warehouse], statement)), flush=True)
    spark.stop()


def _run(spark: Any, catalog: str, statement: str) -> list[list[str | None]] | str:
    try:
        spark.sql(f"use {catalog}")
        return [
            [None if value is None else str(value) for value in row]
            for row in spark.sql(statement).collect()
        ]
    except Exception as error:
        return " ".join(str(error).split())[:2000]


if __name__ == "__main__":
    main()
