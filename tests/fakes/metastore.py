"""A Hive metastore for tests: the server whose classes Spark brings, with Derby in memory."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from wal2lake.testing.tied import tied
from wal2lake.testing.waits import wait_until

_JARS = Path(pyspark.__file__).parent / "jars"

_OPENED = (
    "java.base/java.lang",
    "java.base/java.net",
    "java.base/java.util",
    "java.base/java.util.concurrent",
)
"""Packages that Hive's classes reach into, as Spark's own JVM opens them."""


@contextmanager
def metastore(directory: Path, port: int | None = None) -> Iterator[str]:
    """Run a server; gives its URI."""
    if port is None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
    warehouse = directory / "hive-warehouse"
    properties = {
        "javax.jdo.option.ConnectionURL": f"jdbc:derby:{directory}/metastore_db;create=true",
        "javax.jdo.option.ConnectionDriverName": "org.apache.derby.iapi.jdbc.AutoloadedDriver",
        "datanucleus.schema.autoCreateAll": "true",
        "hive.metastore.schema.verification": "false",
        "hive.async.log.enabled": "false",
        "hive.metastore.warehouse.dir": str(warehouse),
        "derby.stream.error.file": f"{directory}/derby.log",
    }
    java = Path(os.environ.get("JAVA_HOME", "/usr")) / "bin" / "java"
    command = [
        str(java if java.exists() else "java"),
        "-Xmx256m",
        "-XX:TieredStopAtLevel=1",
        *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
        *(f"-D{name}={value}" for name, value in properties.items()),
        "-cp",
        f"{_JARS}/*",
        "org.apache.hadoop.hive.metastore.HiveMetaStore",
        "-p",
        str(port),
    ]
    with (directory / "metastore.log").open("wb") as log:
        process = subprocess.Popen(
            tied(*command), stdout=log, stderr=log, cwd=directory
        )
    try:
        wait_until(
            lambda: _listens(port) or process.poll() is not None,
            timeout_seconds=180,
            describe="the metastore listens",
        )
        assert process.poll() is None, (directory / "metastore.log").read_text()
        yield f"thrift://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(30)


def _listens(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
