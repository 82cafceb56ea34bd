"""The supervisor's children as processes: start, signal, reap.

Every child leads a session of its own (a Ctrl-C at the terminal reaches only the supervisor, which
then stops the children in order). It inherits the lifeline and the marker, and the engine also the
listening sockets. When a child has ended, the rest of its session is killed before another process
may take its place.

Takes workers to run; returns pids, and ``Ended`` for each child that has ended. Called by:
supervisor.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from wal2lake.launch.children.child import (
    LIFELINE_FD,
    LISTEN_FD,
    SPARE,
    SUPERVISOR_PID,
    signals_held,
)
from wal2lake.launch.children.spare import Spare
from wal2lake.launch.directory.status import WorkerStatus
from wal2lake.launch.plan import ChildRole, Desired, Running, WorkerKey
from wal2lake.launch.processes import (
    MARKER,
    has_ended,
    kill_session,
    marked,
    processes,
)
from wal2lake.model import Oid

_REST_SECONDS: Final = 10.0
"""Longest wait for processes that do not die of SIGKILL: their disk does not answer. Chosen
arbitrarily."""

_CHILD: Final = (sys.executable, "-m", "wal2lake.launch")


@dataclass(frozen=True, slots=True)
class Commands:
    """The command lines of the children; tests use scripts of their own."""

    engine: tuple[str, ...]
    receiver: Callable[[Oid], tuple[str, ...]]
    web: tuple[str, ...] = ()
    """Starts the web process; empty for none."""
    spare: tuple[str, ...] = ()
    """Starts a process that can become a receiver; empty for none."""


def node_commands(directory: Path) -> Commands:
    """Return the command lines of a real node."""

    def receiver(subid: Oid) -> tuple[str, ...]:
        return (
            *_CHILD,
            "wal2lake.receive",
            "-D",
            str(directory),
            "--subscription",
            str(int(subid)),
        )

    return Commands(
        engine=(*_CHILD, "wal2lake.engine", "-D", str(directory)),
        receiver=receiver,
        web=(*_CHILD, "wal2lake.web", "-D", str(directory)),
        spare=(*_CHILD, SPARE, "wal2lake.receive"),
    )


@dataclass(frozen=True, slots=True)
class Child:
    """A started process and its place in the plan."""

    process: subprocess.Popen[bytes]
    desired: Desired
    running: Running
    wall_started_at: float

    @property
    def label(self) -> str:
        """A label like ``receiver process for subscription "s" (PID 12)``."""
        return f"{describe(self.desired)} (PID {self.process.pid})"


@dataclass(frozen=True, slots=True)
class Ended:
    """A child that has ended, with all of its session."""

    child: Child
    returncode: int
    """Exit code, in subprocess's form: negative for a signal."""
    remains: int
    """Number of processes of its session that had to be killed afterwards."""


def describe(worker: Desired) -> str:
    """Return ``engine process``, or ``receiver process for subscription "s"``."""
    if worker.key.role is not ChildRole.RECEIVER:
        return f"{worker.key.role.value} process"
    return f'receiver process for subscription "{worker.name}"'


class Children:
    """All running children. Not thread-safe: the supervisor has one thread."""

    def __init__(
        self,
        marker: str,
        commands: Commands,
        environ: Mapping[str, str],
        *,
        lifeline: int,
        listeners: Sequence[int],
        engine_holds: Sequence[int] = (),
    ) -> None:
        """``lifeline`` is the reading end; all descriptors still belong to the caller.
        ``engine_holds`` are only kept open in the engine, for their locks."""
        self._commands = commands
        self._lifeline = lifeline
        self._listeners = tuple(listeners)
        self._engine_holds = tuple(engine_holds)
        self._environ = {
            **environ,
            MARKER: marker,
            SUPERVISOR_PID: str(os.getpid()),
            LIFELINE_FD: str(lifeline),
        }
        self._spare = Spare(commands.spare, self._environ, lifeline)
        self._children: dict[WorkerKey, Child] = {}
        self._starts: dict[WorkerKey, tuple[int, int]] = {}
        """Present generation of each worker, and the number of its starts."""

    def __len__(self) -> int:
        return len(self._children)

    def get(self, key: WorkerKey) -> Child | None:
        """Return the running worker with the key."""
        return self._children.get(key)

    def has_pid(self, pid: int) -> bool:
        """True if the pid is a child's, reaped or not, or the spare process's."""
        return pid == self._spare.pid or any(
            c.process.pid == pid for c in self._children.values()
        )

    def running(self) -> list[Running]:
        """Return all children, as the plan needs them."""
        return [child.running for child in self._children.values()]

    def desired(self, role: ChildRole) -> list[Desired]:
        """Return the start requests of the running children of a role."""
        return [c.desired for k, c in self._children.items() if k.role is role]

    def statuses(self) -> tuple[WorkerStatus, ...]:
        """Return all children for the status file, engine and web process first."""
        return tuple(
            WorkerStatus(
                role=key.role.value,
                pid=child.process.pid,
                started_at=child.wall_started_at,
                starts=self._starts[key][1],
                subid=int(key.subid),
                subscription=child.desired.name,
            )
            for key, child in sorted(
                self._children.items(),
                key=lambda item: (int(item[0].subid), item[0].role.value),
            )
        )

    def prepare(self, now: float) -> None:
        """Keep a process ready for the next receiver."""
        self._spare.prepare(now)

    def dismiss_spare(self) -> None:
        """End the spare process: nothing more will be started."""
        self._spare.dismiss()

    def start(self, worker: Desired, now: float) -> Child:
        """Start a process; OSError if the system cannot create one."""
        process = self._spawn(worker, now)
        child = Child(
            process, worker, Running(worker.key, worker.generation, now), time.time()
        )
        self._children[worker.key] = child
        # The first start of a generation, after ALTER SUBSCRIPTION, is not a restart.
        generation, starts = self._starts.get(worker.key, (worker.generation, 0))
        if generation != worker.generation:
            starts = 0
        self._starts[worker.key] = worker.generation, starts + 1
        return child

    def _spawn(self, worker: Desired, now: float) -> subprocess.Popen[bytes]:
        environ = dict(self._environ)
        descriptors = [self._lifeline]
        command: tuple[str, ...]
        if worker.key.role is ChildRole.ENGINE:
            command = self._commands.engine
            environ[LISTEN_FD] = ",".join(map(str, self._listeners))
            descriptors.extend((*self._listeners, *self._engine_holds))
        elif worker.key.role is ChildRole.WEB:
            command = self._commands.web
        else:
            command = self._commands.receiver(worker.key.subid)
            process = self._spare.become(command[len(_CHILD) :], now)
            if process is not None:
                return process
        with signals_held():
            return subprocess.Popen(
                command,
                env=environ,
                stdin=subprocess.DEVNULL,
                pass_fds=descriptors,
                start_new_session=True,
            )

    def stop(self, key: WorkerKey, number: signal.Signals, now: float) -> None:
        """Ask a worker to end; its deadline counts from the first request."""
        child = self._children[key]
        _send(child, number)
        if child.running.stopping_since is None:
            self._note(key, replace(child.running, stopping_since=now))

    def send(self, role: ChildRole, number: signal.Signals) -> None:
        """Send a signal other than a request to end to all workers of a role."""
        for key, child in self._children.items():
            if key.role is role:
                _send(child, number)

    def kill(self, key: WorkerKey) -> None:
        """SIGKILL a worker with its whole session. ``reap`` waits until the session is gone."""
        child = self._children[key]
        since = child.running.stopping_since
        kill_session(child.process.pid, timeout_seconds=0)
        # Only then: an error before it leaves the worker to be killed.
        self._note(
            key,
            replace(
                child.running,
                killed=True,
                stopping_since=child.running.started_at if since is None else since,
            ),
        )

    def workers(self) -> list[WorkerKey]:
        """Return the keys of all running workers."""
        return list(self._children)

    def reap(self) -> Iterator[Ended]:
        """Yield the children that have ended since the last call, each with its whole session."""
        begin = time.monotonic()
        self._spare.reap(begin)
        for key, child in list(self._children.items()):
            pid = child.process.pid
            if not has_ended(pid):
                continue
            # Before the number is released, so that the session cannot be another one. All of them
            # have the time together: the service manager's watchdog waits for the supervisor.
            left = max(_REST_SECONDS - (time.monotonic() - begin), 0)
            remains = kill_session(pid, timeout_seconds=left)
            returncode = child.process.wait()
            del self._children[key]
            yield Ended(child, returncode, remains)

    def kill_lost(self) -> int:
        """SIGKILL children that an error has kept from being noted, with their sessions; returns
        their number. OSError if they cannot be looked for.

        A second engine must not run beside such a one. They are reaped as strangers."""
        ours = os.getpid()
        lost = [
            process
            for process in processes()
            if process.parent == ours
            and process.state not in "ZX"
            and not self.has_pid(process.pid)
        ]
        with_marker = marked(self._environ[MARKER]) if lost else []
        pids = [process.pid for process in lost if process.pid in with_marker]
        for pid in pids:
            kill_session(pid)
        return len(pids)

    def _note(self, key: WorkerKey, running: Running) -> None:
        self._children[key] = replace(self._children[key], running=running)


def _send(child: Child, number: signal.Signals) -> None:
    # Popen.send_signal reaps a child that has just ended, and ``reap`` would look for it in vain.
    # Until ``reap`` the number is the child's, dead or alive.
    with suppress(ProcessLookupError):
        os.kill(child.process.pid, number)
