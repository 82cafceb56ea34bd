"""Log lines on stderr, in the shape of a PostgreSQL server's.

    2026-01-02 03:04:05.678 UTC [123] receiver LOG:  message  key=value ...

Events are dicts that pass through pure functions (structlog). If an event carries an error of
wal2lake, then DETAIL, HINT and CONTEXT follow on lines of their own, as in PostgreSQL, and the
SQLSTATE (PostgreSQL's %e) is a field of the first line. A line ORIGINAL has the message of the
engine or library behind an error: it is for support, and no client sees it. Values of rows are
never logged.

As in PostgreSQL, a line that cannot be written is lost, and the process goes on: the reader of
stderr may be gone (``wal2lake start 2>&1 | head``), or the disk may be full.
"""

from __future__ import annotations

import os
import select
import sys
import time
import traceback
from collections.abc import MutableMapping
from contextlib import suppress
from typing import Any, Final, TextIO, cast

import structlog

from wal2lake.errors import Wal2LakeError

_LEVELS = {
    "debug": "DEBUG",
    "info": "LOG",
    "warning": "WARNING",
    "error": "ERROR",
    "critical": "FATAL",
}


_LABELS: Final = ("detail", "hint", "context", "original")
"""Fields of an error or event that are printed on lines of their own."""

_PATIENCE_MS: Final = 1000
"""Longest wait for a full pipe that somebody else has made non-blocking. Chosen arbitrarily."""


class LossyStream:
    """Writes text to a stream, and drops what it does not take."""

    def __init__(self, stream: TextIO | None) -> None:
        """``stream`` is None in a process that was started with its stderr closed."""
        self._stream = stream
        self._descriptor: int | None = None
        if stream is not None:
            # A test's stream in memory has none.
            with suppress(OSError, ValueError, AttributeError):
                self._descriptor = stream.fileno()

    def write(self, text: str) -> None:
        """Write at once, without a buffer: a buffer would keep what the disk did not take."""
        with suppress(OSError, ValueError):
            if self._descriptor is not None:
                _write(self._descriptor, text.encode(errors="backslashreplace"))
            elif self._stream is not None:
                self._stream.write(text)

    def flush(self) -> None:
        """Flush a stream in memory."""
        if self._descriptor is None and self._stream is not None:
            with suppress(OSError, ValueError):
                self._stream.flush()


def _write(descriptor: int, data: bytes) -> None:
    while data:
        try:
            data = data[os.write(descriptor, data) :]
        except BlockingIOError:
            poll = select.poll()
            poll.register(descriptor, select.POLLOUT)
            if not poll.poll(_PATIENCE_MS):
                return


def _stamp(
    logger: object, method: str, event: MutableMapping[str, Any]
) -> MutableMapping[str, Any]:
    now = time.time()
    day = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(now))
    event["timestamp"] = f"{day}.{int(now * 1000) % 1000:03d} UTC"
    event["level"] = _LEVELS.get(method, method.upper())
    return event


def render(logger: object, method: str, event: MutableMapping[str, Any]) -> str:
    """Render one event as text; the fields of an error follow on lines of their own."""
    stamp = event.pop("timestamp")
    level = event.pop("level")
    role = event.pop("process", "")
    message = str(event.pop("event"))
    error = event.pop("error", None)
    trace = event.pop("exc_info", None)
    if isinstance(error, Wal2LakeError):
        event["sqlstate"] = error.sqlstate
    texts = {label: event.pop(label, None) for label in _LABELS}
    pairs = "".join(f"  {key}={value}" for key, value in event.items())
    head = f"{stamp} [{os.getpid()}] {role + ' ' if role else ''}"
    lines = [f"{head}{level}:  {message}{pairs}"]
    if isinstance(error, Wal2LakeError):
        if error.message not in message:
            lines.append(f"{head}DETAIL:  {error.message}")
        texts = {label: texts[label] or getattr(error, label) for label in _LABELS}
    elif error is not None:
        lines.append(f"{head}DETAIL:  {error}")
    for label, text in texts.items():
        if text:
            # As in PostgreSQL, a tab marks the continuation of a field.
            shown = str(text).replace("\n", "\n\t")
            lines.append(f"{head}{label.upper()}:  {shown}")
    if trace:
        raised = sys.exc_info() if trace is True else trace
        if isinstance(raised, BaseException):
            raised = (type(raised), raised, raised.__traceback__)
        lines.append("".join(traceback.format_exception(*raised)).rstrip())
    return "\n".join(lines)


def configure(process: str, *, stream: TextIO | None = None) -> None:
    """Set up the log of this process; ``process`` is its role (supervisor, engine ...)."""

    def name(
        logger: object, method: str, event: MutableMapping[str, Any]
    ) -> MutableMapping[str, Any]:
        event["process"] = process
        return event

    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, name, _stamp, render],
        wrapper_class=structlog.make_filtering_bound_logger(20),
        # One write for the line and its newline, because other processes share the stream.
        logger_factory=structlog.WriteLoggerFactory(
            file=cast(TextIO, LossyStream(stream or sys.stderr))
        ),
        cache_logger_on_first_use=False,
    )


def get_logger() -> Any:
    """Return a logger; keyword arguments of its methods become fields of the event."""
    return structlog.get_logger()
