"""An Iceberg REST catalog for tests: Iceberg's own code in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.request
from pathlib import Path
from typing import Any

import pyspark

from wal2lake.lake.jars import Jar, JarSource, locate_jars

ICEBERG = Jar(
    "org.apache.iceberg",
    "iceberg-spark-runtime-4.1_2.13",
    "1.12.0",
    "3123c3798af642dd537230923548e013ef41cc28b6626e5225808cf5670a0f82",
)

_SOURCE = Path(__file__).with_name("IcebergRestServer.java")


class IcebergRestServer:
    """A context manager: a server, whose tables are forgotten at its end."""

    def __init__(self, directory: Path, *, transactions: bool = True) -> None:
        """``transactions``: whether it takes several tables in one request."""
        (jar,) = locate_jars(
            JarSource.from_environment(os.environ), os.environ, [ICEBERG]
        )
        jars = Path(pyspark.__file__).parent / "jars"
        java = Path(os.environ.get("JAVA_HOME", "/usr")) / "bin" / "java"
        self._log = (directory / "rest.log").open("w")
        self._process = subprocess.Popen(
            [
                str(java if java.exists() else "java"),
                "-Xmx256m",
                "-XX:TieredStopAtLevel=1",
                "-cp",
                f"{jar}:{jars}/*",
                str(_SOURCE),
                str(directory / "rest-warehouse"),
                str(transactions).lower(),
            ],
            cwd=directory,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
        )
        assert self._process.stdout is not None
        port = self._process.stdout.readline().strip()
        if not port:
            self.__exit__()
            raise AssertionError((directory / "rest.log").read_text()[-2000:])
        self.uri = f"http://127.0.0.1:{port}"

    def requests(self) -> list[str]:
        """Return method and path of each request since the last call."""
        log: list[str] = self._ask("/log")["log"]
        return log

    def fail(self, commits: int) -> None:
        """Do the next commits, but answer nothing."""
        self._ask(f"/fail/{commits}")

    def _ask(self, path: str) -> Any:
        with urllib.request.urlopen(f"{self.uri}{path}", timeout=30) as answer:
            return json.loads(answer.read())

    def __enter__(self) -> IcebergRestServer:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()
