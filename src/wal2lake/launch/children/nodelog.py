"""The log of a node as its supervisor sees it: its own lines, and the process that writes the file.

    the supervisor's lines ──▶ LogEcho ──▶ stderr, or with a log file the pipe ──▶ collector

The supervisor must not wait for its log: a pipe that nobody reads (a terminal stopped with Ctrl-S,
a collector that cannot be forked again or is stopped) would keep it from reaping its children and
from obeying signals. So its lines wait in memory, up to a limit. Beyond that they are left out, and
a line says how much. Children may wait for the pipe: the supervisor kills those that do not stop in
time.

Called by: supervisor.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Final, TextIO, cast

from wal2lake.errors import ConfigurationError, Wal2LakeError, reason_of
from wal2lake.launch.children.collector import LogCollector, check_log_file
from wal2lake.launch.children.echo import LogEcho
from wal2lake.launch.requests import promptly
from wal2lake.observe import configure, get_logger
from wal2lake.settings import Settings

_ROLE: Final = "supervisor"

_STDERR: Final = 2

_END_SECONDS: Final = 5.0
"""Longest wait for a reader of the last lines. Chosen arbitrarily."""


class _OwnLines:
    """The text stream that the supervisor's logger writes to."""

    def __init__(self, echo: LogEcho) -> None:
        self._echo = echo

    def write(self, text: str) -> None:
        self._echo.write(text.encode(errors="backslashreplace"))

    def flush(self) -> None:
        self._echo.flush()


class NodeLog:
    """The log. Only ``node_log`` makes one; not thread-safe."""

    def __init__(self, collector: LogCollector | None) -> None:
        """``collector`` has its pipe in place of stderr already."""
        self.collector = collector
        self._own = LogEcho(_STDERR)
        configure(_ROLE, stream=cast(TextIO, _OwnLines(self._own)))

    def keep(self, now: float) -> None:
        """Start the collector if there should be one, and write what waits."""
        if self.collector is not None:
            self.collector.process.keep(now)
        self._own.flush()

    def note_end(self, pid: int, status: int, now: float) -> None:
        """Note that a child has been reaped, which may be the collector."""
        if self.collector is not None:
            self.collector.process.note_end(pid, status, now)

    def reload(self) -> None:
        """Have the collector read its settings, and open its file, again."""
        if self.collector is not None:
            self.collector.reload()

    def close(self) -> None:
        """Write the last lines, and wait until all of them are in the file."""
        if self.collector is not None:
            self.collector.make_room()
        self._own.finish(_END_SECONDS)
        configure(_ROLE)
        if self.collector is not None:
            self.collector.close()


@contextlib.contextmanager
def node_log(
    settings: Settings, reload: Callable[[], Settings], *, echo: bool
) -> Iterator[NodeLog]:
    """Send the log of this process and of its children to the log file, if there is one.

    ``echo``: to stderr, too. An error that ends the node is written to the file before it is
    passed on. ConfigurationError if the file cannot be written.
    """
    collector: LogCollector | None = None
    if settings.log_file is not None:
        path = settings.log_file
        promptly(lambda: check_log_file(path))
        try:
            collector = LogCollector(settings, reload, echo=echo)
        except OSError as error:
            raise ConfigurationError(
                f"could not start the log collector: {reason_of(error)}"
            ) from error
    log = NodeLog(collector)
    try:
        yield log
    except Wal2LakeError as error:
        if collector is not None:
            get_logger().critical(error.message, error=error)
        raise
    except Exception as error:
        # In the background, nobody sees what the interpreter prints.
        if collector is not None:
            get_logger().critical("the node has failed", exc_info=error)
        raise
    finally:
        log.close()
