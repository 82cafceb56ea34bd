"""Makes an archive of Spark's classes, read and verified once, that later JVMs map into memory.

Comes in: the jars and a place. Goes out: the archive, for ``SessionOptions.class_archive``. Called
by make (``python -m wal2lake.lake.spark.classarchive``); the engine uses the archive if it exists.

Why this way. The start of a session parses and verifies some ten thousand classes from 300 jars,
and the first statements as many again: about four CPU-seconds of each start of an engine. On
request Java writes the classes that a JVM has loaded to an archive when the JVM ends ("class data
sharing"). So a small session does here what an engine does first, and then ends.

Nothing depends on the archive. The JVM itself compares version, class path, and each jar's size
and time with those of the archive, and starts without it if they differ. The archive is in the
environment (``sys.prefix``) that has the jars, and is removed with it.

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
"""Time for the JVM to write 150 MB at its end: 10 s on a quiet machine."""

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
"""Examples of the statements that an engine runs; a class that none of them needs is read from its
jar."""


def class_archive_path() -> Path:
    """Return the path of this environment's archive, which need not exist."""
    return Path(sys.prefix) / "share" / "wal2lake" / "spark-classes.jsa"


def is_fresh(archive: Path, jars: tuple[Path, ...], java: Path) -> bool:
    """Whether the archive is newer than everything that it is made from."""
    try:
        archive_time = archive.stat().st_mtime
    except FileNotFoundError:
        return False
    spark = Path(pyspark.__file__).parent / "jars"
    return all(
        p.stat().st_mtime <= archive_time for p in (*spark.iterdir(), *jars, java)
    )


def make_archive(archive: Path, options: SessionOptions) -> None:
    """Start a session, use it, and archive its classes; takes half a minute.

    Needs a process without a session. It replaces an older archive atomically. StorageError if no
    archive was written.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    with (
        _alone(archive.parent),
        tempfile.TemporaryDirectory(prefix=_MAKING, dir=archive.parent) as work,
    ):
        written = Path(work) / archive.name
        # The quick compiler is enough for so short a session.
        java_options = (
            f"-XX:ArchiveClassesAtExit={written} -XX:TieredStopAtLevel=1 -Xlog:disable"
        )
        extra = {**options.extra, "spark.driver.extraJavaOptions": java_options}
        spark = start_session(replace(options, class_archive=None, extra=extra))
        try:
            _use(spark, f"delta.`{work}/t`")
        finally:
            stop_session(spark, timeout_seconds=DUMP_SECONDS)
        if not written.exists():
            raise StorageError(
                f'Java has not written the archive of Spark\'s classes to "{archive}"',
                sqlstate="58030",
                hint="Nothing depends on it; engines start more slowly without it.",
            )
        # An archive torn by a power loss would end each JVM that maps it.
        with written.open("rb") as file:
            os.fsync(file.fileno())
        written.replace(archive)


@contextmanager
def _alone(directory: Path) -> Iterator[None]:
    """Exclude other processes that make an archive there, and remove what killed ones have
    left."""
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
