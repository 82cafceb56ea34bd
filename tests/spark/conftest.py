"""One Spark session for every in-process test of this folder that a process runs.

``spark_session`` is the session, ``lake`` the Delta tables on it, ``queries`` the front
door's runner; ``location`` is a fresh place for one table. Starting a JVM takes seconds,
so tests share it and keep their tables apart by path.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.conftest import QUICK_JAVA

from wal2lake.lake.jars import JarSource, locate_jars
from wal2lake.lake.spark.classarchive import class_archive_path
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.query import Queries
from wal2lake.lake.spark.session import SessionOptions, start_session, stop_session


def pytest_configure(config: pytest.Config) -> None:
    """PySpark leaves the sockets of its own collect() to the garbage collector."""
    config.addinivalue_line("filterwarnings", "ignore:unclosed <socket:ResourceWarning")


@pytest.fixture(scope="session")
def session_options(tmp_path_factory: pytest.TempPathFactory) -> SessionOptions:
    """Options of a small local session."""
    source = JarSource.from_environment(os.environ)
    return SessionOptions(
        jars=locate_jars(source, os.environ),
        local_dir=tmp_path_factory.mktemp("spark"),
        warehouse=str(tmp_path_factory.mktemp("warehouse")),
        master="local[2]",
        class_archive=class_archive_path(),
        extra={"spark.driver.extraJavaOptions": QUICK_JAVA},
    )


@pytest.fixture(scope="session")
def spark_session(session_options: SessionOptions) -> Iterator[SparkSession]:
    """The one session of this process."""
    spark = start_session(session_options)
    yield spark
    stop_session(spark)


@pytest.fixture(scope="session")
def lake(spark_session: SparkSession) -> DeltaTables:
    """The table port on it."""
    return DeltaTables(spark_session)


@pytest.fixture(scope="session")
def queries(spark_session: SparkSession) -> Queries:
    """The query runner on it."""
    return Queries(spark_session)


@pytest.fixture
def location(tmp_path: Path) -> str:
    """Where one test may create a table."""
    return str(tmp_path / "warehouse" / "public" / "t")
