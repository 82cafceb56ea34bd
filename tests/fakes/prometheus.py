"""The real Prometheus and promtool, for tests of what they read.

Found in the PATH, or in a folder of the user's cache, into which Debian's package is unpacked once
(``apt-get download`` needs no root). Where neither works, the tests that need it are skipped.
"""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import tempfile
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

from wal2lake.testing.tied import tied
from wal2lake.testing.waits import wait_until

CACHE = Path.home() / ".cache" / "wal2lake" / "prometheus"


@dataclass(frozen=True)
class Tools:
    """Paths of the two programs."""

    prometheus: str
    promtool: str


def find_tools() -> Tools:
    """Return the programs; skips the test without them."""
    found = shutil.which("prometheus"), shutil.which("promtool")
    if found[0] and found[1]:
        return Tools(found[0], found[1])
    if not (CACHE / "usr/bin/promtool").exists():
        _unpack()
    return Tools(str(CACHE / "usr/bin/prometheus"), str(CACHE / "usr/bin/promtool"))


def _unpack() -> None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            subprocess.run(
                ["apt-get", "download", "prometheus"],
                cwd=folder,
                check=True,
                capture_output=True,
                timeout=120,
            )
            [package] = Path(folder).glob("prometheus_*.deb")
            made = Path(folder) / "unpacked"
            subprocess.run(
                ["dpkg", "-x", str(package), str(made)],
                check=True,
                capture_output=True,
                timeout=60,
            )
            CACHE.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(made, CACHE, symlinks=True, dirs_exist_ok=True)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            pytest.skip(f"no prometheus: not installed, and not downloaded: {error}")


class Prometheus:
    """A server with a configuration, as a context."""

    def __init__(self, tools: Tools, folder: Path, configuration: str) -> None:
        folder.mkdir()
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._log = folder / "log"
        file = folder / "prometheus.yml"
        file.write_text(configuration)
        self._command = tied(
            tools.prometheus,
            f"--config.file={file}",
            f"--storage.tsdb.path={folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self._port}",
        )

    def __enter__(self) -> Prometheus:
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(self._command, stderr=log)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.kill()
        self._process.wait()

    def ask(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of its API."""
        query = urllib.parse.urlencode(parameters)
        url = f"http://127.0.0.1:{self._port}/api/v1/{path}?{query}"
        with urllib.request.urlopen(url, timeout=20) as answer:
            value = json.load(answer)
        assert value["status"] == "success", value
        return value["data"]

    def values(self, query: str) -> dict[str, float]:
        """Return the values of an instant query, by their labels as JSON."""
        return {
            json.dumps(one["metric"], sort_keys=True): float(one["value"][1])
            for one in self.ask("query", query=query)["result"]
        }

    def wait_for(self, query: str) -> dict[str, float]:
        """Wait until a query has an answer."""

        def found() -> dict[str, float]:
            try:
                return self.values(query)
            except OSError:
                return {}

        answer = wait_until(found, timeout_seconds=60, describe=self._log.read_text)
        assert answer is not None
        return answer
