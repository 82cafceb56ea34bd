"""The engine's Spark session: one JVM, owned by this process.

Comes in: ``SessionOptions``. Goes out: a SparkSession that every thread of the engine shares.
Called once by the engine (and by tests).

Why this way. The JVM must live exactly as long as the engine needs it:

- It ends when this process ends, in whatever way: Spark's gateway reads its standard
  input, a pipe whose other end only this process holds, and exits at end of file.
- It is *not* in our process group. A terminal's Ctrl-C or a service manager's SIGTERM to
  the group reaches the engine alone, which then drains running commits and stops Spark.
- PySpark replaces SIGINT's handler when it starts in a main thread; ours is restored.

Threads: each Python thread has a JVM thread of its own (PySpark's pinned mode), so job groups and
scheduler pools set by one thread do not affect another. ``use_pool`` puts the calling thread's
jobs into one of three FAIR pools, so that a large initial copy cannot starve the apply workers or
a query.

The settings in ``REQUIRED`` ensure correctness (value semantics, Delta itself). A ``[spark]``
section that contradicts one is refused; every other setting in it wins over our defaults.

With a master that is not local, executors are processes on other machines. Jars are sent to them,
and they run the Python that ``spark.pyspark.python`` names; the default is this process's Python,
which must then exist there under the same path. ``exchange_dir``, if given, is visible to both
sides.

Sources: Spark 4.1 "Configuration", "Job Scheduling", "Spark Standalone Mode";
pyspark/java_gateway.py; PythonGatewayServer.scala (exit at end of input).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.java_gateway import launch_gateway
from pyspark.logger import PySparkLogger
from pyspark.sql import SparkSession

from wal2lake.errors import ConfigurationError, StorageError, words_of
from wal2lake.lake.executors import Pool

STOP_TIMEOUT_SECONDS = 20.0
"""Spark's own shutdown hooks take under two seconds. After the timeout the JVM is killed, which is
safe because commits are atomic."""

_PYTHON: Final = "spark.pyspark.python"
"""Spark's setting, which by itself only ``spark-submit`` of a Python program obeys."""

DELTA_EXTENSION: Final = "io.delta.sql.DeltaSparkSessionExtension"

REQUIRED: Final[Mapping[str, str]] = {
    "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    # PostgreSQL's arithmetic raises errors where Spark's old one gave null.
    "spark.sql.ansi.enabled": "true",
    "spark.sql.session.timeZone": "UTC",
    # The parser must not replace "${env:X}" inside a text.
    "spark.sql.variable.substitute": "false",
    # "Id" and id are two columns of a PostgreSQL table.
    "spark.sql.caseSensitive": "true",
    # Dates before 1582 are proleptic Gregorian in PostgreSQL as in Parquet.
    "spark.sql.parquet.datetimeRebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInRead": "CORRECTED",
    "spark.sql.parquet.int96RebaseModeInWrite": "CORRECTED",
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    # Otherwise constants in filters of Parquet files pass through the old API, whose calendar
    # cannot represent -infinity.
    "spark.sql.datetime.java8API.enabled": "true",
    # Otherwise Delta writes timestamps without an era; see lake/partitions.py.
    "spark.databricks.delta.write.utcTimestampPartitionValues": "false",
}

_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.app.name": "wal2lake",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.scheduler.mode": "FAIR",
    "spark.sql.catalogImplementation": "in-memory",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.python.worker.reuse": "true",
    # Workers start with their modules imported, and read no archive before each task.
    "spark.python.daemon.module": "wal2lake.executor",
    # A path without a scheme is on this machine, whatever Hadoop's configuration says.
    "spark.hadoop.fs.defaultFS": "file:///",
    # Snapshots of small logs: more partitions only cost task starts.
    "spark.databricks.delta.snapshotPartitions": "1",
    # History for a UI that is off; the default keeps a thousand plans in memory.
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "500",
    "spark.sql.ui.retainedExecutions": "10",
    "spark.sql.maxPlanStringLength": "4096",
}

_LOCAL_DEFAULTS: Final[Mapping[str, str]] = {
    # Only this process connects to a local master.
    "spark.driver.host": "localhost",
    "spark.driver.bindAddress": "127.0.0.1",
    # Opening a local file costs as much as reading this much of it. With the default of 4 MB a
    # table of two large files and nine small ones was read in tasks of very different sizes.
    "spark.sql.files.openCostInBytes": "262144",
}

_POOLS: Final = """<?xml version="1.0"?>
<allocations>
  <pool name="apply"><schedulingMode>FAIR</schedulingMode><weight>4</weight></pool>
  <pool name="sync"><schedulingMode>FAIR</schedulingMode><weight>1</weight></pool>
  <pool name="query"><schedulingMode>FAIR</schedulingMode><weight>4</weight></pool>
</allocations>
"""

# Errors arrive as exceptions, without the stack and the row's values that these loggers print.
# The remaining loggers print messages that are visible nowhere else.
_QUIET: Final = "-Dlog4j2.level=FATAL"
"""Option of a JVM that has no file with the settings of its log. Spark's own, at the level INFO,
replace Log4j's only if these have their default level."""

_LOGGING: Final = """status = error
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = spark %p %c{1}: %m %ex{short.message}%n
logger.executor.name = org.apache.spark.executor
logger.executor.level = off
logger.scheduler.name = org.apache.spark.scheduler.TaskSetManager
logger.scheduler.level = off
logger.writer.name = org.apache.spark.sql.execution.datasources
logger.writer.level = off
logger.utils.name = org.apache.spark.util.Utils
logger.utils.level = off
logger.writev2.name = org.apache.spark.sql.execution.datasources.v2
logger.writev2.level = off
logger.delta.name = org.apache.spark.sql.delta
logger.delta.level = off
logger.python.name = org.apache.spark.api.python
logger.python.level = off
# A Python driver's JVM takes this logger's level for its root.
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
"""

_LOGGING_FILE: Final = "log4j2.properties"

_EXECUTOR_OPTIONS: Final = "spark.executor.extraJavaOptions"

_PYSPARK_LOGGERS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
"""Loggers that print each exception with its JVM stack before it is raised."""


@dataclass(frozen=True, slots=True)
class SessionOptions:
    """Options of a session."""

    jars: Sequence[Path]
    """Paths from ``jars.locate_jars``."""
    local_dir: Path
    """Directory for shuffle files, spills and Spark's small configuration files; created if
    absent."""
    warehouse: str
    """URL or absolute path; only for tables that a query creates without a location. Not in an
    object store, which Spark would look at when it starts."""
    master: str = "local[*]"
    exchange_dir: Path | None = None
    """In a cluster: a directory that is visible to this process and all executors; created if
    absent. None: there is none."""
    driver_memory: str = "1g"
    """JVM heap, in Java's notation."""
    class_archive: Path | None = None
    """Archive from ``classarchive``; used if it exists and matches this Java and these jars."""
    added_jars: Sequence[Path] = ()
    """Further jars, which Spark adds to its class loader after its start, so that the class archive
    still matches."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Variables that this process gets, too, for the JVM and its Python workers: what Spark's
    settings, which its page shows, may not have."""
    java_options: Sequence[str] = ()
    """Further options of the driver's JVM, quoted as for a shell; an operator's follow them."""
    executor_java_options: Sequence[str] = ()
    """Further options of a cluster's executors, likewise."""
    secrets: Mapping[str, str] = field(default_factory=dict)
    """Settings of Hadoop that go to executors with each job, and not into Spark's settings."""
    extra: Mapping[str, str] = field(default_factory=dict)
    """Further Spark settings; they win over our defaults, not over ``REQUIRED``."""

    @property
    def is_local(self) -> bool:
        """Whether driver and executors are one JVM on this machine."""
        return self.master == "local" or self.master.startswith("local[")

    @property
    def task_slots(self) -> str:
        """The master, with twice as many slots as cores if it leaves the number open.

        A reader of an initial copy holds a slot while it waits for its publisher, and there are as
        many readers as cores: without further slots a query would wait, too.
        """
        return f"local[{2 * self.cores}]" if self.master == "local[*]" else self.master

    @property
    def readers(self) -> int:
        """Most ranges of initial copies that are read at a time; in a cluster one slot stays
        free."""
        return self.cores if self.is_local else max(1, self.cores - 1)

    @property
    def cores(self) -> int:
        """Number of cores that a local master or a cluster's settings name; otherwise this
        machine's."""
        if not self.is_local:
            cores_max = self.extra.get("spark.cores.max", "")
            each = self.extra.get("spark.executor.cores", "")
            executors = self.extra.get("spark.executor.instances", "")
            if cores_max.isdecimal():
                return max(1, int(cores_max))
            if each.isdecimal() and executors.isdecimal():
                return max(1, int(each) * int(executors))
        inside = self.master.removeprefix("local[").split("]")[0].split(",")[0]
        if self.master == "local":
            return 1
        return int(inside) if inside.isdecimal() else len(os.sched_getaffinity(0))


def start_session(options: SessionOptions) -> SparkSession:
    """Start a JVM and return its session; about five seconds.

    One per process at a time. Raises ConfigurationError for settings that contradict ``REQUIRED``
    and StorageError when the JVM does not start.
    """
    if SparkContext._active_spark_context is not None:
        raise ConfigurationError("this process has a Spark session already")
    for name in _PYSPARK_LOGGERS:
        PySparkLogger.getLogger(name).disabled = True
    conf = SparkConf(loadDefaults=False)
    for key, value in configuration(options).items():
        conf.set(key, value)
    _prepare_directories(options)
    os.environ.update(options.environment)
    handler = signal.getsignal(signal.SIGINT)
    try:
        gateway = launch_gateway(conf, {"process_group": 0})
    except (PySparkRuntimeError, OSError) as error:
        if _archive_options(options):
            # A damaged archive can end the JVM before it prints anything.
            return start_session(replace(options, class_archive=None))
        raise StorageError(
            "could not start the Java virtual machine of Spark",
            sqlstate="58000",
            original=words_of(error),
            hint="The JVM's own message is above in this log; check spark.driver_memory and"
            " the [spark] settings.",
        ) from error
    try:
        context = SparkContext(gateway=gateway, conf=conf)
    except Exception as error:
        # The error's text is in the JVM: read it before the JVM ends.
        reason = _first_line(error)
        _forget_gateway(alive=gateway.proc.poll() is None)
        _end_jvm(gateway.proc, 0.0)
        raise StorageError(
            "could not start Spark",
            sqlstate="58000",
            original=reason,
            hint="Check the [spark] settings.",
        ) from error
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)
    for key, value in options.secrets.items():
        context._jsc.hadoopConfiguration().set(key, value)
    # PySpark's default is whatever "python3" means on PATH.
    context.pythonExec = options.extra.get(
        _PYTHON, os.environ.get("PYSPARK_PYTHON", sys.executable)
    )
    return SparkSession(context)


def stop_session(
    spark: SparkSession, *, timeout_seconds: float = STOP_TIMEOUT_SECONDS
) -> None:
    """End the session and its JVM; returns when the JVM has ended. The JVM is killed if it has not
    ended within ``timeout_seconds``."""
    process = _process(spark)
    try:
        if process is None or process.poll() is None:
            spark.stop()
    finally:
        _forget_gateway(alive=process is None or process.poll() is None)
        _end_jvm(process, timeout_seconds)


def jvm_pid(spark: SparkSession) -> int | None:
    """Return the process id of the JVM; None if another program started it."""
    process = _process(spark)
    return None if process is None else process.pid


def session_alive(spark: SparkSession) -> bool:
    """Whether the session works. False once the JVM has died, or a cluster's master has ended the
    application; the engine then ends, too, and is restarted."""
    process = _process(spark)
    if process is not None and process.poll() is not None:
        return False
    if spark.sparkContext.master.startswith("local"):
        return True
    try:
        return not spark.sparkContext._jsc.sc().isStopped()
    except (Py4JError, ConnectionError):
        return False


def heap_bytes(spark: SparkSession) -> tuple[int, int] | None:
    """Return the bytes of the JVM's heap that are used, and their limit. None if it does not
    answer."""
    try:
        factory = spark.sparkContext._jvm.java.lang.management.ManagementFactory
        usage = factory.getMemoryMXBean().getHeapMemoryUsage()
        return int(usage.getUsed()), int(usage.getMax())
    except (Py4JError, ConnectionError):
        return None


def use_pool(spark: SparkSession, pool: Pool) -> None:
    """Run the calling thread's jobs in ``pool`` from now on."""
    choice = (spark.sparkContext, pool)
    if getattr(_CHOSEN, "pool", None) != choice:
        spark.sparkContext.setLocalProperty("spark.scheduler.pool", pool.value)
        _CHOSEN.pool = choice


_CHOSEN: Final = threading.local()
"""The pool of each thread. Most callers that choose a pool run no job, and the call into the JVM
costs more than this check."""


_JVM_OPTIONS: Final = (
    "-XX:+ExitOnOutOfMemoryError",
    # Start the optimising compiler ten times later than by default. Most of the JVM's work for
    # a node is planning, each plan different, and compiling took 3 of the first copy's 8
    # CPU-seconds and half of each later copy's.
    "-XX:Tier4InvocationThreshold=50000",
    "-XX:Tier4MinInvocationThreshold=6000",
    "-XX:Tier4CompileThreshold=150000",
    "-XX:Tier4BackEdgeThreshold=400000",
)


def configuration(options: SessionOptions) -> dict[str, str]:
    """Return the Spark settings that ``start_session`` uses."""
    settings = dict(_DEFAULTS)
    settings["spark.sql.shuffle.partitions"] = str(options.cores)
    settings["spark.default.parallelism"] = str(options.cores)
    if options.is_local:
        settings.update(_LOCAL_DEFAULTS)
    # If an operator's value is a list, ours is added to it.
    extra = dict(options.extra)
    extensions = [DELTA_EXTENSION]
    extensions += extra.pop("spark.sql.extensions", "").split(",")
    jvm_options = [
        *_JVM_OPTIONS,
        _logging_option(options.local_dir),
        *_archive_options(options),
        *options.java_options,
    ]
    jvm_options.append(extra.pop("spark.driver.extraJavaOptions", ""))
    if not options.is_local:
        # An executor's log would contain rows' values, like the driver's.
        logging = (
            _QUIET
            if options.exchange_dir is None
            else _logging_option(options.exchange_dir)
        )
        operator_options = extra.pop(_EXECUTOR_OPTIONS, "")
        all_options = (logging, *options.executor_java_options, operator_options)
        settings[_EXECUTOR_OPTIONS] = " ".join(filter(None, all_options))
    jars_key, separator = (
        # A local JVM has the jars on its class path; they are sent to a cluster's executors.
        ("spark.driver.extraClassPath", ":")
        if options.is_local
        else ("spark.jars", ",")
    )
    jars = [*map(str, options.jars), extra.pop(jars_key, "")]
    for key, value in extra.items():
        if REQUIRED.get(key, value) != value:
            raise ConfigurationError(
                f'setting "{key}" of [spark] must be "{REQUIRED[key]}"',
                hint="Remove it: results would differ from PostgreSQL's.",
            )
    settings.update(extra)
    settings.update(REQUIRED)
    settings["spark.master"] = options.task_slots
    settings["spark.driver.memory"] = options.driver_memory
    settings["spark.local.dir"] = str(options.local_dir)
    settings["spark.sql.warehouse.dir"] = options.warehouse
    settings["spark.scheduler.allocation.file"] = _file_url(options, "pools.xml")
    settings["spark.sql.extensions"] = ",".join(dict.fromkeys(filter(None, extensions)))
    settings["spark.driver.extraJavaOptions"] = " ".join(filter(None, jvm_options))
    settings[jars_key] = separator.join(filter(None, jars))
    if options.added_jars:
        added = [*map(str, options.added_jars), settings.get("spark.jars", "")]
        settings["spark.jars"] = ",".join(filter(None, added))
    return settings


def _file_url(options: SessionOptions, name: str) -> str:
    # Hadoop expects spaces and similar characters unencoded.
    return f"file://{options.local_dir.absolute() / name}"


def _logging_option(directory: Path) -> str:
    path = directory.absolute() / _LOGGING_FILE
    return f"-Dlog4j2.configurationFile={path.as_uri()}"


def _archive_options(options: SessionOptions) -> list[str]:
    archive = options.class_archive
    # In a list of options, or of archives, these characters cannot be part of a name.
    if archive is None or not archive.exists() or set(str(archive)) & set(" :\"'\\"):
        return []
    return [
        f"-XX:SharedArchiveFile={archive}",
        # If it is of another Java, or of other jars, start silently without it.
        "-Xshare:auto",
        "-Xlog:disable",
        "-Xlog:all=error:stderr",
    ]


def _prepare_directories(options: SessionOptions) -> None:
    places = [options.local_dir]
    if options.exchange_dir is not None and not options.is_local:
        places.append(options.exchange_dir)
    for place in places:
        try:
            place.mkdir(parents=True, exist_ok=True)
            (place / _LOGGING_FILE).write_text(_LOGGING)
            if place is options.local_dir:
                (place / "pools.xml").write_text(_POOLS)
        except OSError as error:
            raise ConfigurationError(
                f"cannot write Spark's directory {place}: {error.strerror}"
            ) from error


def _process(spark: SparkSession) -> subprocess.Popen[bytes] | None:
    process: subprocess.Popen[bytes] | None = getattr(
        spark.sparkContext._gateway, "proc", None
    )
    return process


def _end_jvm(process: subprocess.Popen[bytes] | None, timeout_seconds: float) -> None:
    """Close the JVM's standard input, wait, and kill it if it does not end."""
    if process is None:
        return
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _first_line(error: Exception) -> str:
    java: Any = getattr(error, "java_exception", None)
    text = str(error) if java is None else str(java.toString())
    return text.partition("\n")[0]


def _forget_gateway(*, alive: bool) -> None:
    """Let a later ``start_session`` of this process start a JVM of its own.

    Py4J prints a stack trace if it cannot shut down a gateway whose JVM has ended.
    """
    gateway: Any = SparkContext._gateway
    if gateway is not None and alive:
        gateway.shutdown()
    elif gateway is not None:
        gateway.close()
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkContext._active_spark_context = None
    SparkSession._instantiatedSession = None
