"""A node's directory with a real supervisor and fake children."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from wal2lake.catalog import Catalog, Subscription
from wal2lake.launch import is_locked, notify, read_lock, read_status
from wal2lake.launch.processes import session_members
from wal2lake.model import Oid
from wal2lake.settings import FILE_NAME, render_default_toml
from wal2lake.testing.waits import wait_until

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


class FakeNode:
    """A node's directory, its supervisor, and what the fake children have noted."""

    def __init__(self, directory: Path, **chosen: object) -> None:
        self.directory = directory
        (directory / "fake").mkdir()
        defaults = {
            "node.port": 0,
            "web.listen": "",
            "subscription.wal_retrieve_retry_interval_ms": 700,
        }
        dotted = {k.replace("__", "."): v for k, v in chosen.items()}
        (directory / FILE_NAME).write_text(render_default_toml({**defaults, **dotted}))
        self.catalog = Catalog.create(directory / "catalog.sqlite", "me", None)
        self.log = directory / "stderr"
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def environ(self) -> dict[str, str]:
        # The children are modules of this package.
        path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}

    def launch(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as log:
            return subprocess.Popen(
                [
                    sys.executable,
                    str(HERE / "node_runner.py"),
                    str(self.directory),
                    *arguments,
                ],
                env=self.environ,
                stderr=log,
                start_new_session=True,
            )

    def start(self, *arguments: str) -> FakeNode:
        self.process = self.launch(*arguments)
        wait_until(self.ready, describe=self.log_text)
        return self

    def ready(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log_text()
        facts = read_lock(self.directory)
        return (
            facts is not None
            and facts.pid == self.process.pid
            and facts.state == "ready"
        )

    def log_text(self) -> str:
        return self.log.read_text()

    def events(self, role: str, event: str = "up") -> list[tuple[float, int, str]]:
        """(time, pid, rest) of each noted event that starts with ``event``."""
        path = self.directory / "fake" / "events"
        found = []
        for line in path.read_text().splitlines() if path.exists() else []:
            at, who, pid, what = line.split(" ", 3)
            if who == role and what.startswith(event):
                found.append((float(at), int(pid), what))
        return found

    def wait_events(self, role: str, count: int, event: str = "up") -> list[int]:
        """The pids, once there are ``count`` such events."""
        wait_until(
            lambda: len(self.events(role, event)) >= count,
            describe=lambda: f"{count} x {role} {event}\n{self.log_text()}",
        )
        return [pid for _, pid, _ in self.events(role, event)]

    def pids(self) -> list[int]:
        """Every process below the supervisor, found by what the children noted."""
        status = read_status(self.directory / "run")
        assert status is not None
        found = [status.guardian_pid]
        for worker in status.workers:
            found.extend(session_members(worker.pid))
        return found

    def subscribe(self, number: int, **changes: Any) -> Oid:
        oid = Oid(20000 + number)
        fields: dict[str, Any] = {"enabled": True, "slot_name": f"s{number}"}
        self.catalog.create_subscription(
            Subscription(
                oid=oid,
                name=f"s{number}",
                owner=Oid(10),
                conninfo="",
                publications=("p",),
                **{**fields, **changes},
            ),
            [],
        )
        notify(self.directory / "run", "changed")
        return oid

    def change(self, oid: Oid, **changes: Any) -> None:
        self.catalog.update_subscription(oid, **changes)
        notify(self.directory / "run", "changed")

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def wait_end(self, timeout: float = 20.0) -> int:
        assert self.process is not None
        return self.process.wait(timeout)

    def close(self) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        wait_until(lambda: not is_locked(self.directory))
        self.catalog.close()
