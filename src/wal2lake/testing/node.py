"""A whole node as a subprocess, for tests and the demo.

Comes in: a directory. Goes out: a running ``wal2lake start`` (the real command line, real
children) whose processes can be killed, and results of SQL. The node listens on a port that the
system chooses, so several nodes can run side by side; its log is a file beside the
directory. The node dies with the thread that started it.

A node that has ended by itself fails every test that uses it afterwards. Their errors say so in a
note, and the first one quotes the end of the log.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, Literal

from wal2lake.errors import PublisherError
from wal2lake.launch import NodeStatus, is_locked, read_lock, read_status
from wal2lake.launch.directory.passfile import connection_parameters, conninfo
from wal2lake.launch.processes import descendants, describe_exit, is_alive
from wal2lake.pg.client import Client
from wal2lake.testing.tied import tied
from wal2lake.testing.waits import wait_until

Rows = list[tuple[str | None, ...]]

COMMAND: Final = (sys.executable, "-m", "wal2lake.cli")
"""The program, wherever its script is installed."""

START_SECONDS: Final = 120.0
"""A first Spark session took 18 s on a busy machine; the rest is reserve for slower ones."""

_DEFAULTS: Final[Mapping[str, object]] = {"node.port": 0, "web.listen": ""}
"""Most nodes of tests need no web process; those that do let the system choose its port, too
(``"web.listen": "127.0.0.1:0"``)."""

_ENDED: Final = "has ended by itself"

Role = Literal["engine", "receiver", "supervisor", "tree"]


def run_cli(
    *arguments: str | Path,
    environ: Mapping[str, str] | None = None,
    stdin: str = "",
    timeout_seconds: float = 120.0,
) -> subprocess.CompletedProcess[str]:
    """Run ``wal2lake`` to its end and return its output; any exit code is allowed."""
    return subprocess.run(
        [*COMMAND, *map(str, arguments)],
        input=stdin,
        capture_output=True,
        text=True,
        env={**os.environ, **(environ or {})},
        timeout=timeout_seconds,
        check=False,
    )


class Node:
    """One node. A context manager; ``close`` kills it and leaves its directory."""

    def __init__(
        self,
        directory: Path,
        *,
        settings: Mapping[str, object] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        """``settings`` maps ``section.name`` to a value, ``environ`` adds variables; both
        apply to every start. The constructor starts nothing."""
        self.directory = directory
        self.log = directory.parent / f"{directory.name}.log"
        self._environ = {
            **{
                "WAL2LAKE_" + name.replace(".", "_").upper(): str(value)
                for name, value in {**_DEFAULTS, **(settings or {})}.items()
            },
            **(environ or {}),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._may_end = False
        """True once a test wants the node to end."""
        self._is_quoted = False

    # ---- life -------------------------------------------------------------------

    def init(self, *arguments: str) -> Node:
        """Run ``wal2lake init``; RuntimeError with its error output if it fails."""
        done = run_cli("init", "-D", self.directory, *arguments)
        if done.returncode != 0:
            raise RuntimeError(f"init failed: {done.stderr}")
        return self

    def start(
        self,
        *arguments: str,
        environ: Mapping[str, str] | None = None,
        wait: bool = True,
    ) -> Node:
        """Run ``wal2lake start``; with ``wait``, return when a client can connect."""
        self._may_end = self._is_quoted = False
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                tied(*COMMAND, "start", "-D", str(self.directory), *arguments),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self._environ, **(environ or {})},
                start_new_session=True,
            )
        if wait:
            self.wait_ready()
        return self

    def wait_ready(self, timeout_seconds: float = START_SECONDS) -> None:
        """Wait until a client can connect; fails with the log if the node ends instead."""
        wait_until(
            self._is_ready,
            timeout_seconds=timeout_seconds,
            describe=lambda: f"the node is ready; its log:\n{self.log_text()}",
        )

    def stop(self, mode: str = "fast", *, timeout_seconds: float = 60.0) -> int:
        """Run ``wal2lake stop``; returns the exit code of ``wal2lake start``."""
        self._may_end = True
        done = run_cli(
            "stop",
            "-D",
            self.directory,
            "--mode",
            mode,
            "--timeout",
            str(timeout_seconds),
            timeout_seconds=timeout_seconds + 30,
        )
        if done.returncode != 0:
            raise RuntimeError(f"stop failed: {done.stderr}\n{self.log_text()}")
        return self.wait_end()

    def wait_end(self, timeout_seconds: float = 60.0) -> int:
        """Wait until ``wal2lake start`` has ended; returns its exit code."""
        assert self._process is not None, "not started"
        self._may_end = True
        return self._process.wait(timeout_seconds)

    def kill(self, role: Role = "tree", *, subscription: str | None = None) -> None:
        """Send SIGKILL and wait until the processes are gone.

        ``tree``: all processes, as simultaneously as possible; ``engine`` and ``supervisor``:
        that process alone; ``receiver``: the receiver of one subscription, or all receivers.
        """
        pids = self._pids_of(role, subscription)
        self._may_end |= role in ("tree", "supervisor")
        # Stop all processes first, so that none reacts to the death of another.
        for number in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, number)
        if role in ("tree", "supervisor"):
            self.wait_end()
        wait_until(
            lambda: not [pid for pid in pids if is_alive(pid)],
            describe=f"processes {pids} are gone",
        )
        if role in ("tree", "supervisor"):
            wait_until(lambda: not is_locked(self.directory))

    def close(self) -> None:
        """Kill the node if it runs; its directory stays."""
        if self._process is not None and self._process.poll() is None:
            self.kill("tree")

    def __enter__(self) -> Node:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # ---- use ----------------------------------------------------------------------

    def conninfo(self, **parameters: str) -> str:
        """Return a libpq connection string; ``parameters`` add to its parameters or replace
        them."""
        with self.explained():
            defaults = connection_parameters(self.directory)
        return conninfo({**defaults, "application_name": "test", **parameters})

    def connect(self, **parameters: str) -> Client:
        """Return a new connection; the caller closes it."""
        with self.explained():
            return Client(self.conninfo(**parameters))

    def sql(self, sql: str) -> Rows:
        """Run statements on a connection of their own; returns the last one's rows.

        PublisherError with the node's fields if one fails.
        """
        with self.explained(), self.connect() as client:
            return client.rows(sql)

    def value(self, sql: str) -> str | None:
        """Return the single value of a single row; None if there is no row."""
        rows = self.sql(sql)
        return rows[0][0] if rows else None

    def wait_for(
        self,
        sql: str,
        condition: Callable[[Rows], object] = bool,
        *,
        timeout_seconds: float = 60.0,
    ) -> Rows:
        """Repeat a query until ``condition`` holds for its rows (default: there are rows), and
        return them. After an error of a node that runs the query is repeated, too."""
        last: list[object] = []

        def ask() -> tuple[Rows] | None:
            try:
                rows = self.sql(sql)
            except PublisherError as error:
                if self._has_ended():
                    raise
                last[:] = [error.describe()]
                return None
            last[:] = rows
            return (rows,) if condition(rows) else None

        answer = wait_until(
            ask,
            timeout_seconds=timeout_seconds,
            describe=lambda: f"{sql}\nlast answer: {last}\nlog:\n{self._log_tail()}",
        )
        assert answer is not None
        return answer[0]

    @property
    def port(self) -> int:
        """The port on which the node listens; 0 if it does not run."""
        facts = read_lock(self.directory)
        return facts.port if facts is not None else 0

    def status(self) -> NodeStatus:
        """The supervisor's view of its children."""
        status = read_status(self.directory / "run")
        assert status is not None, "the node has not been started"
        return status

    def pids(self) -> list[int]:
        """Return the PIDs of the node's processes, the supervisor's first."""
        assert self._process is not None, "not started"
        return [self._process.pid, *descendants(self._process.pid)]

    def log_text(self) -> str:
        """Return everything that the node has logged in all of its starts."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Add to an error of the block that the node has ended by itself, if it has."""
        try:
            yield
        except Exception as error:
            notes = getattr(error, "__notes__", ())
            if self._has_ended() and not any(_ENDED in note for note in notes):
                error.add_note(self._end())
            raise

    def _has_ended(self) -> bool:
        """Return whether the node has ended although no test wanted it to."""
        process = self._process
        return process is not None and process.poll() is not None and not self._may_end

    def _end(self) -> str:
        """Return how it has ended, and the first time also the end of the log."""
        assert self._process is not None
        how = f"The node in {self.directory} {_ENDED}: it "
        how += describe_exit(self._process.returncode)
        if self._is_quoted:
            return f"{how}; an earlier error quotes its log."
        self._is_quoted = True
        return f"{how}. The end of its log:\n{self._log_tail()}"

    def _log_tail(self) -> str:
        return "\n".join(self.log_text().splitlines()[-60:])

    def _pids_of(self, role: Role, subscription: str | None) -> Sequence[int]:
        if role == "tree":
            return self.pids()
        if role == "supervisor":
            return self.pids()[:1]
        pids = [
            worker.pid
            for worker in self.status().workers
            if worker.role == role
            and (subscription is None or worker.subscription == subscription)
        ]
        assert pids, f"no {role} is running"
        return pids

    def _is_ready(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            how = describe_exit(self._process.returncode)
            raise AssertionError(f"the node ended by itself, {how}:\n{self.log_text()}")
        facts = read_lock(self.directory)
        if facts is None or facts.pid != self._process.pid or facts.state != "ready":
            return False
        try:
            self.connect().close()
        except PublisherError:
            return False
        return True
