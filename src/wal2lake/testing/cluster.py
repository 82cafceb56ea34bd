"""A Spark standalone cluster for tests: a master and workers of the installed PySpark.

Comes in: a directory for the cluster. Goes out: the master's URL, and workers that can be killed
one by one. Every process listens on 127.0.0.1 and dies with the test process.

Source: Spark 4.1 "Spark Standalone Mode".
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Final

from wal2lake.launch.processes import descendants, is_alive
from wal2lake.testing.tied import tied
from wal2lake.testing.waits import wait_until

_MASTER: Final = re.compile(r"Starting Spark master at (spark://\S+)")
_REGISTERED: Final = re.compile(r"Successfully registered with master")

_HEAP: Final = "192m"
"""Heap of the master and of each worker, which only start other processes."""

_JAVA_OPTIONS: Final = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options for short-lived JVMs on few cores."""

SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "512m",
        "spark.executor.extraJavaOptions": _JAVA_OPTIONS,
    }
)
"""Spark settings for a driver on the same machine."""


class Worker:
    """One worker, and the executors that it has started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    @property
    def pid(self) -> int:
        """Process ID of the worker's JVM."""
        return self._process.pid

    def has_below(self, pid: int) -> bool:
        """Return whether a process is an executor of this worker, or an executor's Python
        worker."""
        return pid in descendants(self.pid)

    def kill(self) -> None:
        """Send SIGKILL to the worker and all of its descendants, as if its machine died."""
        below = descendants(self.pid)
        for pid in (self.pid, *below):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait(30)
        wait_until(
            lambda: not any(map(is_alive, below)),
            describe=f"processes {below} are gone",
        )


class Cluster:
    """A running cluster, as a context manager whose end kills every process."""

    def __init__(
        self,
        directory: Path,
        *,
        workers: int = 2,
        cores: int = 1,
        hidden: Path | None = None,
    ) -> None:
        """``cores`` is the number for each worker. Workers see ``hidden`` as an empty directory,
        as another machine would, if this process may make mount namespaces (``hides``)."""
        self.directory = directory
        self.workers: list[Worker] = []
        self.url = ""
        self._cores = cores
        self._wanted = workers
        self._hidden = hidden
        self._master: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Cluster:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Kill all processes; the directory stays."""
        with contextlib.ExitStack() as each:
            if self._master is not None:
                each.callback(self._master.wait, 30)
                each.callback(self._master.kill)
            for worker in self.workers:
                each.callback(worker.kill)

    def log_text(self, name: str) -> str:
        """Return the log of ``master``, ``worker1``, ``worker2`` ..."""
        return (self.directory / f"{name}.log").read_text(errors="replace")

    def _start(self) -> None:
        self.directory.mkdir(parents=True)
        self._master = self._run("master", "org.apache.spark.deploy.master.Master")
        match = self._wait_for("master", self._master, _MASTER)
        self.url = match[1]
        for _ in range(self._wanted):
            self.add_worker()
        for number, worker in enumerate(self.workers, 1):
            self._wait_for(f"worker{number}", worker._process, _REGISTERED)

    def add_worker(self) -> None:
        """Start one more worker; it registers with the master soon after."""
        name = f"worker{len(self.workers) + 1}"
        own = self.directory / name
        process = self._run(
            name,
            "org.apache.spark.deploy.worker.Worker",
            *("--cores", str(self._cores), "--memory", "1g"),
            *("--work-dir", str(own / "work"), self.url),
            environ={"SPARK_LOCAL_DIRS": str(own / "local")},
            before=_hiding(self._hidden),
        )
        self.workers.append(Worker(process))

    def _run(
        self,
        name: str,
        main: str,
        *arguments: str,
        environ: Mapping[str, str] = MappingProxyType({}),
        before: Sequence[str] = (),
    ) -> subprocess.Popen[bytes]:
        spec = find_spec("pyspark")
        assert spec is not None
        assert spec.origin is not None
        home = Path(spec.origin).parent
        # Machines of a real cluster do not have the node's environment variables.
        mine = {k: v for k, v in os.environ.items() if not k.startswith("WAL2LAKE_")}
        with (self.directory / f"{name}.log").open("ab") as log:
            return subprocess.Popen(
                tied(
                    *before,
                    *(str(home / "bin" / "spark-class"), main),
                    *("--host", "127.0.0.1", "--port", "0", "--webui-port", "0"),
                    *arguments,
                ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self.directory,
                env={
                    **mine,
                    "SPARK_HOME": str(home),
                    "SPARK_DAEMON_MEMORY": _HEAP,
                    "SPARK_DAEMON_JAVA_OPTS": _JAVA_OPTIONS,
                    "SPARK_MASTER_OPTS": "-Dspark.master.rest.enabled=false",
                    "SPARK_LOCAL_IP": "127.0.0.1",
                    "PYSPARK_PYTHON": sys.executable,
                    **environ,
                },
            )

    def _wait_for(
        self, name: str, process: subprocess.Popen[bytes], text: re.Pattern[str]
    ) -> re.Match[str]:
        def logged() -> re.Match[str] | None:
            assert process.poll() is None, self.log_text(name)
            return text.search(self.log_text(name))

        match = wait_until(
            logged,
            timeout_seconds=60,
            describe=lambda: f"{name} is up; its log:\n{self.log_text(name)}",
        )
        assert match is not None
        return match


def hides() -> bool:
    """Return whether this process may start others in a mount namespace of their own."""
    program = shutil.which("unshare")
    if program is None:
        return False
    return subprocess.run([program, "-m", "true"], capture_output=True).returncode == 0


def _hiding(directory: Path | None) -> Sequence[str]:
    """Return the prefix of a command that hides a directory."""
    program = shutil.which("unshare")
    if directory is None or program is None or not hides():
        return ()
    over = 'mount -t tmpfs none "$0" && exec "$@"'
    return (program, "-m", "sh", "-c", over, str(directory))
