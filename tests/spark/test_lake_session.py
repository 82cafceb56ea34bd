"""The session's JVM: how it starts, whom it obeys, when it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import psutil
import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from wal2lake.errors import ConfigurationError
from wal2lake.lake.executors import Pool
from wal2lake.lake.spark.session import (
    SessionOptions,
    configuration,
    jvm_pid,
    session_alive,
    start_session,
    use_pool,
)
from wal2lake.testing.waits import wait_until

INTERRUPTED = signal.getsignal(signal.SIGINT)
"""The handler before there is a session: a shell's background process ignores the signal."""

ENGINE = """
import os, sys, time
from pathlib import Path
from wal2lake.lake.jars import JarSource, locate_jars
from wal2lake.lake.spark.session import SessionOptions, jvm_pid, start_session, stop_session
import signal
stopping = []
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda *_: stopping.append(1))
work = Path(sys.argv[1])
source = JarSource.from_environment(os.environ)
spark = start_session(SessionOptions(
    jars=locate_jars(source, os.environ), local_dir=work / "local dir",
    warehouse=str(work), master="local[2]"))
# A Python worker, which must not be left over either.
spark.sparkContext.parallelize([1], 1).map(lambda x: x + 1).collect()
print("ready", jvm_pid(spark), flush=True)
while not stopping:
    time.sleep(0.01)
print("answer", spark.range(7).count(), flush=True)
stop_session(spark)
print("stopped", flush=True)
"""


class Engine:
    """A process of its own group with a session, as the node's engine is."""

    def __init__(self, work: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", ENGINE, str(work)],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.process.stdout is not None
        self.lines: Iterator[str] = iter(self.process.stdout)
        self.jvm = psutil.Process(int(next(self.lines).split()[1]))
        self.workers = self.jvm.children(recursive=True)

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = Engine(tmp_path)
    yield engine
    engine.end()


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


def test_jvm_and_python_workers_end_with_a_killed_engine(engine: Engine) -> None:
    assert engine.workers
    engine.process.kill()
    wait_until(lambda: gone(engine.jvm))
    wait_until(lambda: all(gone(worker) for worker in engine.workers))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_the_group_leaves_the_jvm_to_the_engine(
    engine: Engine, number: signal.Signals
) -> None:
    os.killpg(engine.process.pid, number)
    assert next(engine.lines) == "answer 7\n"
    assert next(engine.lines) == "stopped\n"
    assert engine.process.wait(30) == 0
    assert gone(engine.jvm)
    wait_until(lambda: all(gone(worker) for worker in engine.workers))


def test_the_session_has_postgresqls_semantics(spark_session: SparkSession) -> None:
    conf = spark_session.conf
    assert conf.get("spark.sql.session.timeZone") == "UTC"
    assert conf.get("spark.sql.ansi.enabled") == "true"
    assert conf.get("spark.sql.caseSensitive") == "true"
    assert conf.get("spark.sql.shuffle.partitions") == "2"
    row = spark_session.sql("select 1 as Id, 2 as id").first()
    assert row is not None
    assert row.__fields__ == ["Id", "id"]
    assert session_alive(spark_session)
    assert jvm_pid(spark_session) is not None


@pytest.mark.parametrize("stopped", [False, True])
def test_an_application_that_its_master_has_ended_is_no_session(stopped: bool) -> None:
    spark: Any = Mock()
    spark.sparkContext._gateway.proc.poll.return_value = None
    spark.sparkContext.master = "spark://example:7077"
    spark.sparkContext._jsc.sc.return_value.isStopped.return_value = stopped
    assert session_alive(spark) is not stopped
    spark.sparkContext._jsc.sc.side_effect = Py4JError("gone")
    assert not session_alive(spark)


def test_executors_run_this_python(spark_session: SparkSession) -> None:
    rdd = spark_session.sparkContext.parallelize([0], 1)
    assert rdd.map(lambda _: sys.executable).collect() == [sys.executable]


def test_the_callers_sigint_handler_is_kept(spark_session: SparkSession) -> None:
    assert spark_session is not None
    assert signal.getsignal(signal.SIGINT) is INTERRUPTED


def test_a_second_session_in_one_process_is_refused(
    spark_session: SparkSession, session_options: SessionOptions
) -> None:
    assert spark_session is not None
    with pytest.raises(ConfigurationError, match="already"):
        start_session(session_options)


def test_each_thread_has_its_own_pool(spark_session: SparkSession) -> None:
    use_pool(spark_session, Pool.SYNC)
    context = spark_session.sparkContext
    assert context.getLocalProperty("spark.scheduler.pool") == "sync"
    pools = context._jsc.sc().getAllPools()
    names = {pools.apply(i).name() for i in range(pools.size())}
    assert names >= {"apply", "sync", "query"}
    context.setLocalProperty("spark.scheduler.pool", None)


def test_an_operators_settings_win_unless_results_would_differ(
    session_options: SessionOptions,
) -> None:
    options = replace(
        session_options,
        extra={
            "spark.sql.shuffle.partitions": "7",
            "spark.sql.extensions": "com.example.Ext",
            "spark.driver.extraJavaOptions": "-Dx=y",
            "spark.sql.ansi.enabled": "true",
        },
    )
    settings = configuration(options)
    assert settings["spark.sql.shuffle.partitions"] == "7"
    assert settings["spark.sql.extensions"].split(",") == [
        "io.delta.sql.DeltaSparkSessionExtension",
        "com.example.Ext",
    ]
    assert settings["spark.driver.extraJavaOptions"].endswith("-Dx=y")
    with pytest.raises(ConfigurationError, match=r"spark\.sql\.ansi\.enabled") as no:
        configuration(replace(options, extra={"spark.sql.ansi.enabled": "false"}))
    assert no.value.hint == "Remove it: results would differ from PostgreSQL's."
    configuration(replace(options, extra={}))


def test_a_cluster_is_sent_the_jars(session_options: SessionOptions) -> None:
    options = replace(session_options, master="spark://example:7077")
    settings = configuration(options)
    assert len(settings["spark.jars"].split(",")) == len(session_options.jars)
    assert "spark.driver.extraClassPath" not in settings
    assert "spark.driver.bindAddress" not in settings


def test_a_clusters_executors_have_the_drivers_rules_for_logging(
    session_options: SessionOptions,
) -> None:
    options = replace(
        session_options,
        master="spark://example:7077",
        exchange_dir=Path("/shared/a b"),
        extra={"spark.executor.extraJavaOptions": "-Dx=y"},
    )
    assert configuration(options)["spark.executor.extraJavaOptions"] == (
        "-Dlog4j2.configurationFile=file:///shared/a%20b/log4j2.properties -Dx=y"
    )
    apart = replace(options, exchange_dir=None, executor_java_options=("-Da=b",))
    assert configuration(apart)["spark.executor.extraJavaOptions"] == (
        "-Dlog4j2.level=FATAL -Da=b -Dx=y"
    )
    alone = configuration(replace(options, master="local[2]"))
    assert alone["spark.executor.extraJavaOptions"] == "-Dx=y"


@pytest.mark.parametrize(
    ("extra", "cores", "readers"),
    [
        ({"spark.cores.max": "6"}, 6, 5),
        ({"spark.executor.instances": "2", "spark.executor.cores": "4"}, 8, 7),
        ({"spark.cores.max": "1"}, 1, 1),
    ],
)
def test_cores_of_a_cluster_are_those_of_its_settings(
    session_options: SessionOptions, extra: dict[str, str], cores: int, readers: int
) -> None:
    options = replace(session_options, master="spark://example:7077", extra=extra)
    assert (options.cores, options.readers) == (cores, readers)


@pytest.mark.parametrize(
    ("master", "cores"), [("local", 1), ("local[3]", 3), ("local[4,2]", 4)]
)
def test_cores_follow_the_local_master(
    session_options: SessionOptions, master: str, cores: int
) -> None:
    assert replace(session_options, master=master).cores == cores
