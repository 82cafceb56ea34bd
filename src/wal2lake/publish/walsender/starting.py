"""The engine's side of walsenders: starts them, waits for their end, lists them.

In: a client that wants to stream, and its slot. Out: the result of the stream. While the process
runs, the engine does not use the client's socket; the thread of its session waits here.

A pipe to each process gets a byte when the log has grown. When the pipe is closed, the process
knows that the engine has ended. The processes are forks of one ``Template``. Thread-safe.
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
class WalsenderTask:
    """A walsender's task."""

    slot: str
    plugin: str
    start: int
    """Start position: transactions that commit at or above it are sent."""
    options: tuple[tuple[str, str | None], ...]
    allowed: tuple[str, ...]
    """Allowed plugins that are not built in."""
    catalog: str
    warehouse: str
    log: str
    page: str
    timeout_ms: int
    work_mem: int
    """Bytes, as in ``Decoding``."""
    warns: bool = True
    """Whether the client wants warnings, encoded with ``codec``."""
    codec: str = "utf-8"
    """Python's name of the client's encoding."""

    def to_json(self) -> str:
        """Encode the task for another process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> WalsenderTask:
        """Decode the result of ``to_json``."""
        decoded = json.loads(text)
        options = tuple((name, value) for name, value in decoded["options"])
        return cls(
            **{**decoded, "allowed": tuple(decoded["allowed"]), "options": options}
        )


@dataclass(frozen=True, slots=True)
class StreamResult:
    """Result of a stream."""

    done: bool
    """Whether the stream ended by CopyDone, so that the connection goes on."""
    left: bytes = b""
    """Bytes that the client has sent after the stream."""
    error: Wal2LakeError | None = None
    """Error for the client, if any."""
    fatal: bool = False
    """Whether the client is disconnected after the error."""


@dataclass(slots=True)
class _Running:
    pid: int
    slot: str
    process: int
    """Process number. It is not reused before the walsender is reaped."""
    grown: int
    page: Page


class Walsenders:
    """Walsenders of one engine."""

    def __init__(self, run_directory: Path, statistics: Statistics) -> None:
        """``statistics`` counts the decoded transactions."""
        self._run_directory = run_directory
        self._statistics = statistics
        self._template = Template("wal2lake.publish.walsender")
        self._lock = threading.Condition()
        self._running: dict[int, _Running] = {}

    def prepare(self) -> None:
        """Start the template process, because a client will stream soon."""
        # ``stream`` reports the error.
        with suppress(OSError):
            self._template.prepare()

    def page_of(self, pid: int) -> str:
        """Return the path of the page of a session's walsender."""
        return str(page_path(self._run_directory, pid))

    def stream(self, pid: int, socket_fd: int, task: WalsenderTask) -> StreamResult:
        """Run a walsender to its end, in the session's thread. ``pid``: the session's."""
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
        """Tell all walsenders that the log has grown."""
        with self._lock:
            for walsender in self._running.values():
                # A full pipe has bytes for the process already.
                with suppress(BlockingIOError, BrokenPipeError):
                    os.write(walsender.grown, b"g")

    def user_of(self, slot: str) -> int | None:
        """Return the session that streams from a slot, if any."""
        with self._lock:
            return next((o.pid for o in self._running.values() if o.slot == slot), None)

    def positions(self) -> list[tuple[int, str, WalsenderPositions]]:
        """Return session, slot and positions of each walsender."""
        with self._lock:
            return [(o.pid, o.slot, o.page.read()) for o in self._running.values()]

    def end(self, pid: int) -> None:
        """Kill a session's walsender (pg_terminate_backend)."""
        self._signal(signal.SIGKILL, lambda walsender: walsender.pid == pid)

    def stop(self) -> None:
        """Stop all walsenders. Each sends the rest of the log and ends when its client has
        confirmed it, or ``_STOP_SECONDS`` later."""
        self._signal(signal.SIGTERM, lambda _: True)
        with self._lock:
            self._lock.wait_for(lambda: not self._running, _STOP_SECONDS)
        self._signal(signal.SIGKILL, lambda _: True)
        with self._lock:
            self._lock.wait_for(lambda: not self._running, _STOP_SECONDS)
        self._template.close()

    def _signal(self, number: int, concerns: Callable[[_Running], bool]) -> None:
        with self._lock:
            for walsender in self._running.values():
                if concerns(walsender):
                    with suppress(ProcessLookupError):
                        os.kill(walsender.process, number)
        self.grown()


def _outcome(text: bytes) -> StreamResult:
    if not text:
        # The process was killed or has crashed; the server log shows the cause.
        return StreamResult(False)
    try:
        outcome: dict[str, Any] = json.loads(text)
    except ValueError as error:
        raise InternalError("a walsender returned an invalid outcome") from error
    error_for_client = None
    if outcome["end"] in ("ERROR", "FATAL"):
        error_for_client = Wal2LakeError(
            outcome["message"],
            sqlstate=outcome["sqlstate"],
            detail=outcome["detail"],
            hint=outcome["hint"],
            context=outcome["context"],
            original=outcome["original"],
        )
    return StreamResult(
        outcome["end"] == "DONE",
        bytes.fromhex(outcome["left"]),
        error_for_client,
        outcome["end"] == "FATAL",
    )
