"""The engine's side of walsenders: start one, wait for its end, know who is there.

In: a client that wants to stream, and its slot. Out: how that ended. While the process runs nobody
in the engine touches the client's socket; the thread of its session waits here.

A pipe to each process gets a byte when the log has grown; its end tells the process that the engine
has ended. The processes are forks of one ``Template``. Safe for all threads.
"""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from wal2lake.errors import InternalError, StorageError, Wal2LakeError
from wal2lake.publish.statistics import Statistics
from wal2lake.publish.walsender.page import Page, WalsenderPositions, page_path
from wal2lake.publish.walsender.template import Template

_STOP_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Task:
    """A walsender's task."""

    slot: str
    plugin: str
    start: int
    """Transactions that commit at or above are sent."""
    options: tuple[tuple[str, str | None], ...]
    allowed: tuple[str, ...]
    """Plugins that are not built in and may be used."""
    catalog: str
    warehouse: str
    log: str
    page: str
    timeout_ms: int
    work_mem: int
    """Bytes; see ``Decoding``."""
    warns: bool = True
    """The client wants to hear of warnings,"""
    codec: str = "utf-8"
    """with text in this codec of Python."""

    def to_json(self) -> str:
        """For another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Task:
        """The inverse."""
        found = json.loads(text)
        options = tuple((name, value) for name, value in found["options"])
        return cls(**{**found, "allowed": tuple(found["allowed"]), "options": options})


@dataclass(frozen=True, slots=True)
class StreamResult:
    """How a stream ended."""

    done: bool
    """By CopyDone: the connection goes on."""
    left: bytes = b""
    """Bytes that the client has sent behind the stream."""
    error: Wal2LakeError | None = None
    """Error for the client; None: none."""
    fatal: bool = False
    """It is then cut off."""


@dataclass(slots=True)
class _Running:
    pid: int
    slot: str
    process: int
    """Process number, which no other process gets before the walsender is reaped."""
    grown: int
    page: Page


class Walsenders:
    """Walsenders of one engine."""

    def __init__(self, run_directory: Path, statistics: Statistics) -> None:
        """``statistics``: where what they decode is counted."""
        self._run_directory = run_directory
        self._statistics = statistics
        self._template = Template("wal2lake.publish.walsender")
        self._lock = threading.Condition()
        self._running: dict[int, _Running] = {}

    def prepare(self) -> None:
        """Somebody will want to stream soon."""
        # Whoever streams is told if that cannot be.
        with suppress(OSError):
            self._template.prepare()

    def page_of(self, pid: int) -> str:
        """Where the positions of a session's walsender are."""
        return str(page_path(self._run_directory, pid))

    def stream(self, pid: int, socket_fd: int, task: Task) -> StreamResult:
        """Run one to its end, in the session's thread. ``pid``: the session's."""
        grown_read, grown_write = os.pipe()
        outcome_read, outcome_write = os.pipe()
        os.set_blocking(grown_write, False)
        path = Path(task.page)
        path.unlink(missing_ok=True)
        page = Page(path)
        try:
            process = self._template.fork(
                task.to_json(), (socket_fd, grown_read, outcome_write)
            )
        except OSError as error:
            os.close(grown_write)
            os.close(outcome_read)
            page.close()
            raise StorageError(
                f"could not fork new process for connection: {error.strerror}",
                sqlstate="53000",
            ) from error
        finally:
            os.close(grown_read)
            os.close(outcome_write)
        with self._lock:
            self._running[pid] = _Running(pid, task.slot, process, grown_write, page)
        try:
            with (
                self._statistics.of(task.slot, page.read_counts),
                os.fdopen(outcome_read, "rb") as pipe,
            ):
                text = pipe.read()
            return _outcome(text)
        finally:
            with self._lock:
                del self._running[pid]
                self._lock.notify_all()
            self._template.reap(process)
            os.close(grown_write)
            page.close()
            path.unlink(missing_ok=True)

    def grown(self) -> None:
        """The log has."""
        with self._lock:
            for one in self._running.values():
                # A pipe that is full says it already.
                with suppress(BlockingIOError, BrokenPipeError):
                    os.write(one.grown, b"g")

    def user_of(self, slot: str) -> int | None:
        """The session that streams from a slot."""
        with self._lock:
            return next((o.pid for o in self._running.values() if o.slot == slot), None)

    def positions(self) -> list[tuple[int, str, WalsenderPositions]]:
        """Return session, slot and positions of each walsender."""
        with self._lock:
            return [(o.pid, o.slot, o.page.read()) for o in self._running.values()]

    def end(self, pid: int) -> None:
        """Cut a session's off (pg_terminate_backend)."""
        self._signal(signal.SIGKILL, lambda one: one.pid == pid)

    def stop(self) -> None:
        """The node stops: all send what is there, and end when their clients have confirmed it, or
        ``_STOP_SECONDS`` later."""
        self._signal(signal.SIGTERM, lambda _: True)
        with self._lock:
            self._lock.wait_for(lambda: not self._running, _STOP_SECONDS)
        self._signal(signal.SIGKILL, lambda _: True)
        with self._lock:
            self._lock.wait_for(lambda: not self._running, _STOP_SECONDS)
        self._template.close()

    def _signal(self, number: int, which: Callable[[_Running], bool]) -> None:
        with self._lock:
            for one in self._running.values():
                if which(one):
                    with suppress(ProcessLookupError):
                        os.kill(one.process, number)
        self.grown()


def _outcome(text: bytes) -> StreamResult:
    if not text:
        # Killed, or it has died: its log says why.
        return StreamResult(False)
    try:
        found: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise InternalError("a walsender has said nothing sensible") from error
    told = None
    if found["end"] in ("ERROR", "FATAL"):
        told = Wal2LakeError(
            found["message"],
            sqlstate=found["sqlstate"],
            detail=found["detail"],
            hint=found["hint"],
            context=found["context"],
            original=found["original"],
        )
    return StreamResult(
        found["end"] == "DONE",
        bytes.fromhex(found["left"]),
        told,
        found["end"] == "FATAL",
    )
