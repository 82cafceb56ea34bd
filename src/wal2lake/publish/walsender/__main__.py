"""The process of one walsender, and the template process that walsenders are forked from:
``python -m wal2lake.publish.walsender SOCKET``, where SOCKET is the number of ``template``'s
descriptor.

A walsender gets a ``WalsenderTask`` as JSON, the client's socket, a pipe that announces growth of
the log, and a pipe for the outcome. At its end it writes the outcome as JSON: how the stream ended,
the bytes that the client sent after the stream (hex), and the error for the client.

On SIGTERM it sends what is in the log, then ends.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

from wal2lake.catalog import Catalog
from wal2lake.changelog import LogReader
from wal2lake.errors import InternalError, Wal2LakeError
from wal2lake.model import Lsn
from wal2lake.observe import configure, get_logger
from wal2lake.publish.driver import Decoding, callback_context
from wal2lake.publish.plugins.loading import load_plugin
from wal2lake.publish.plugins.port import Context, OutputPlugin
from wal2lake.publish.sending import ClientPublications
from wal2lake.publish.walsender.page import Page
from wal2lake.publish.walsender.starting import WalsenderTask
from wal2lake.publish.walsender.stream import ConnectionEnd, Stream
from wal2lake.publish.walsender.template import serve

Outcome: TypeAlias = dict[str, object]


def main(arguments: list[str]) -> int:
    """Run the template process."""
    configure("walsender")
    serve(socket.socket(fileno=int(arguments[0])), run)
    return 0


def run(text: str, fds: Sequence[int]) -> None:
    """Run one stream. ``text``: a ``WalsenderTask``. ``fds``: socket, growth pipe and outcome
    pipe."""
    task = WalsenderTask.from_json(text)
    socket_fd, grown_fd, outcome_fd = fds
    outcome: Outcome
    try:
        outcome = _stream(task, socket_fd, grown_fd)
    except Wal2LakeError as error:
        outcome = _error_outcome(error)
    except Exception as error:
        get_logger().error("internal error", exc_info=error)
        outcome = _error_outcome(
            InternalError("internal error", detail="The server log has the details.")
        )
    with os.fdopen(outcome_fd, "w") as pipe:
        json.dump(outcome, pipe)


def _error_outcome(
    error: Wal2LakeError, end: str = "ERROR", left: bytes = b""
) -> Outcome:
    return {
        "end": end,
        "left": left.hex(),
        "message": error.message,
        "sqlstate": error.sqlstate,
        "detail": error.detail,
        "hint": error.hint,
        "context": error.context,
        "original": error.original,
    }


class _Output:
    """A plugin's output. It goes to the stream, which is created after the plugin has started."""

    def __init__(self, task: WalsenderTask, log: Any) -> None:
        self._task = task
        self._log = log
        self.context: Context | None = None
        self.stream: Stream | None = None

    def write(self, payload: bytes, lsn: Lsn, last: bool) -> None:
        assert self.stream is not None
        self.stream.write(payload, lsn, last)

    def write_frames(self, data: memoryview) -> None:
        assert self.stream is not None
        self.stream.write_frames(data)

    def warn(self, warning: Wal2LakeError, lsn: Lsn) -> None:
        assert self.stream is not None and self.context is not None
        warning.context = callback_context(self.context, "change", lsn)
        self._log.warning(warning.message, error=warning)
        if self._task.warns:
            self.stream.warn(warning, self._task.codec)


def _stream(task: WalsenderTask, socket_fd: int, grown_fd: int) -> Outcome:
    with (
        closing(Catalog(Path(task.catalog), task.warehouse)) as catalog,
        socket.socket(fileno=socket_fd) as connection,
        closing(Page(Path(task.page))) as page,
    ):
        plugin = load_plugin(task.plugin, task.allowed)
        log = get_logger().bind(slot=task.slot)
        output = _Output(task, log)
        publications = ClientPublications(catalog, output.warn)
        context = output.context = Context(
            task.slot,
            task.plugin,
            output.write,
            output.write_frames,
            publications.sending,
            publications.table,
            publications.origin_number,
        )
        reader = LogReader(Path(task.log))
        decoding = Decoding(
            reader, plugin, context, Lsn(task.start), task.work_mem, together=True
        )
        decoding.begin(
            task.options,
            lambda: catalog.slot(task.slot),
            lambda start: catalog.begin_two_phase(task.slot, start),
        )
        stream = output.stream = Stream(
            connection,
            grown_fd,
            reader,
            decoding,
            page,
            lambda lsn: catalog.confirm_slot(task.slot, lsn),
            task.timeout_ms / 1000,
            log,
        )
        return _run_stream(stream, plugin, context)


def _run_stream(stream: Stream, plugin: OutputPlugin, context: Context) -> Outcome:
    """Run a stream to its end, or until SIGTERM."""

    def stop(number: int, frame: FrameType | None) -> None:
        stream.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        end = stream.run()
        plugin.shutdown(context)
        return {"end": end.name, "left": stream.left.hex()}
    except ConnectionEnd as fatal:
        stream.drain()
        return _error_outcome(fatal.error, "FATAL")
    except Wal2LakeError as error:
        stream.drain()
        return _error_outcome(error, left=stream.left)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
