"""Spark's classes, read and verified once: an archive that every later JVM maps into memory.

Comes in: the jars and a place. Goes out: the archive, for ``SessionOptions.class_archive``.
Called by make (``python -m wal2lake.lake.spark.classarchive``); the engine takes what is there.

Why this way. A session's start parses and verifies some ten thousand classes out of 300 jars, and
the first statements as many again: about four CPU-seconds of each start of an engine. Java keeps
what one JVM has loaded ("class data sharing") if it is asked to when that JVM ends. So one small
session does here what an engine does first, and ends so.

Nothing depends on the archive. The JVM itself compares version, class path, and each jar's size and
time with what it was made from, and starts without it when they differ. It lies in the environment
(``sys.prefix``) whose jars it is of, and goes with it.

Sources: JEP 350 (dynamic class data sharing archives); the java command's manual.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

import pyspark
from pyspark.sql import SparkSession

from wal2lake.errors import ConfigurationError, StorageError
from wal2lake.lake.jars import JarSource, find_java, locate_jars
from wal2lake.lake.spark.session import SessionOptions, start_session, stop_session

DUMP_SECONDS: Final = 300.0
"""For the JVM to write 150 MB at its end: 10 s on a quiet machine."""

_MAKING: Final = ".making-"

_STATEMENTS: Final = (
    "create table {t} (a bigint, b string, c timestamp, d decimal(10,2)) using delta"
    " tblproperties ('delta.enableDeletionVectors' = 'true')",
    "insert into {t} values (1, 'a', timestamp '2000-01-01', 1), (2, 'b', null, 2)",
    "create temporary view changes as select 2L as a, 'c' as b, null as c, 3 as d",
    "merge into {t} t using changes s on t.a = s.a when matched then update set *"
    " when not matched then insert *",
    "update {t} set b = 'x' where a = 1",
    "delete from {t} where a = 2",
    "select b, count(*), row_number() over (order by b) from {t} group by b order by b",
)
"""The kinds of what an engine does; a class that none of them needs is read from its jar."""


def class_archive_path() -> Path:
    """Where this environment's archive is, if there is one."""
    return Path(sys.prefix) / "share" / "wal2lake" / "spark-classes.jsa"


def is_fresh(archive: Path, jars: tuple[Path, ...], java: Path) -> bool:
    """Was it made after everything that it is made from?"""
    try:
        made = archive.stat().st_mtime
    except FileNotFoundError:
        return False
    spark = Path(pyspark.__file__).parent / "jars"
    return all(p.stat().st_mtime <= made for p in (*spark.iterdir(), *jars, java))


def make_archive(archive: Path, options: SessionOptions) -> None:
    """Start a session, use it, and keep its classes; half a minute.

    Needs a process without a session. It replaces an older archive at once, whole. StorageError if
    there is none afterwards.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    with (
        _alone(archive.parent),
        tempfile.TemporaryDirectory(prefix=_MAKING, dir=archive.parent) as work,
    ):
        made = Path(work) / archive.name
        # The quick compiler is all that so short a life can use.
        java_options = (
            f"-XX:ArchiveClassesAtExit={made} -XX:TieredStopAtLevel=1 -Xlog:disable"
        )
        extra = {**options.extra, "spark.driver.extraJavaOptions": java_options}
        spark = start_session(replace(options, class_archive=None, extra=extra))
        try:
            _use(spark, f"delta.`{work}/t`")
        finally:
            stop_session(spark, timeout_seconds=DUMP_SECONDS)
        if not made.exists():
            raise StorageError(
                f'Java has not written the archive of Spark\'s classes to "{archive}"',
                sqlstate="58030",
                hint="Nothing needs it; engines start more slowly without.",
            )
        # Cut short by a loss of power it would end each JVM that maps it.
        with made.open("rb") as file:
            os.fsync(file.fileno())
        made.replace(archive)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Nobody else makes one there meanwhile; what those have left who were killed is gone."""
    held = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        for left in directory.glob(f"{_MAKING}*"):
            shutil.rmtree(left, ignore_errors=True)
        yield
    finally:
        os.close(held)


def _use(spark: SparkSession, table: str) -> None:
    for statement in _STATEMENTS:
        spark.sql(statement.format(t=table)).collect()
    spark.sparkContext.parallelize([1], 1).map(abs).collect()


def main() -> int:
    """Make this environment's archive for make, unless there is a fresh one."""
    archive = class_archive_path()
    try:
        jars = locate_jars(JarSource.from_environment(os.environ), os.environ)
        java = find_java(os.environ)
        if is_fresh(archive, jars, java.resolve()):
            return 0
        with tempfile.TemporaryDirectory(prefix="wal2lake-classes-") as work:
            local = Path(work)
            make_archive(
                archive,
                SessionOptions(jars=jars, local_dir=local, warehouse=str(local / "w")),
            )
    except (ConfigurationError, StorageError) as error:
        print(f"ERROR:  {error.describe()}", file=sys.stderr)
        return 1
    print(archive)
    return 0


if __name__ == "__main__":
    sys.exit(main())
