"""The real web process without a node: a directory with a catalog."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from wal2lake.catalog import Catalog
from wal2lake.launch import read_web_status
from wal2lake.settings import FILE_NAME, render_default_toml
from wal2lake.testing.tied import tied
from wal2lake.testing.waits import wait_until


class WebProcess:
    """``python -m wal2lake.web`` on a directory that it makes."""

    def __init__(self, directory: Path, **chosen: object) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        (directory / "run").mkdir()
        self.chosen: dict[str, object] = {"web.listen": "127.0.0.1:0"}
        self.configure(**chosen)
        Catalog.create(directory / "catalog.sqlite", "me", None).close()
        self.log = directory / "stderr"
        self.process: subprocess.Popen[bytes] | None = None

    def configure(self, **chosen: object) -> None:
        """Write the settings' file; ``web__listen`` is ``web.listen``."""
        self.chosen.update({k.replace("__", "."): v for k, v in chosen.items()})
        (self.directory / FILE_NAME).write_text(render_default_toml(self.chosen))

    def start(self, *, wait: bool = True) -> WebProcess:
        """Start it, and wait until it listens."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                tied(sys.executable, "-m", "wal2lake.web", "-D", str(self.directory)),
                stderr=log,
                env=os.environ,
            )
        if wait:
            wait_until(lambda: self.urls, describe=self.log_text)
        return self

    @property
    def urls(self) -> tuple[str, ...]:
        """Where it listens."""
        assert self.process is not None
        assert self.process.poll() is None, self.log_text()
        status = read_web_status(self.directory / "run")
        mine = status is not None and status.pid == self.process.pid
        return status.urls if status is not None and mine else ()

    @property
    def port(self) -> int:
        """Port of the first address."""
        port = urlsplit(self.urls[0]).port
        assert port is not None
        return port

    def get(
        self,
        path: str,
        *,
        method: str = "GET",
        headers: dict[str, str] | None = None,
        body: bytes | None = None,
    ) -> tuple[int, dict[str, str], bytes]:
        """Return status, headers and body of one request."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            found = {k.lower(): v for k, v in answer.getheaders()}
            return answer.status, found, answer.read()
        finally:
            connection.close()

    def json(self, path: str, **rest: Any) -> tuple[int, Any]:
        """Return status and value of one request."""
        status, _, body = self.get(path, **rest)
        return status, json.loads(body)

    def rss_bytes(self) -> int:
        """Return the largest resident size so far."""
        assert self.process is not None
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        line = next(x for x in status.splitlines() if x.startswith("VmHWM"))
        return int(line.split()[1]) * 1024

    def log_text(self) -> str:
        """Return everything that it has logged."""
        return self.log.read_text(errors="replace")

    def reload(self) -> None:
        """Have it read the settings again."""
        assert self.process is not None
        self.process.send_signal(signal.SIGHUP)

    def stop(self) -> int:
        """Tell it to end; returns its exit code."""
        assert self.process is not None
        self.process.terminate()
        return self.process.wait(10)

    def close(self) -> None:
        """Kill it if it runs."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
