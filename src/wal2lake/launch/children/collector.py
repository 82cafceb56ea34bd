"""The process that writes the node's log file: everything that any process prints.

    supervisor, engine, JVM, receivers ... ──▶ a pipe (their stderr and stdout)
                                                  │
                                     collector ◀──┘ ──▶ the file, and stderr in the foreground

All children inherit the pipe, so lines of other programs (a JVM's warning, the stack of a crash)
are in the file, too, and only one process renames files. The collector is a fork of the supervisor,
as the guardian is, without the node's marker: it ends when the last writer has ended, and so writes
the last words of all. The supervisor keeps both ends of the pipe, so that a collector that was
killed loses nothing that its successor cannot read.

A line of up to ``PIPE_BUF`` bytes is never mixed with another; a longer one could be while the pipe
is full, and the pipe is as large as the system allows.

A reader of stderr that does not read delays no process (``echo``): the file has everything.

Called by: supervisor. Source: PostgreSQL's syslogger.c.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from wal2lake.errors import ConfigurationError, Wal2LakeError, reason_of
from wal2lake.launch.children.attendants import Attendant
from wal2lake.launch.children.echo import LogEcho
from wal2lake.launch.children.guardian import close_all_but
from wal2lake.launch.children.logfile import LogRotation, RotatedFile
from wal2lake.observe import get_logger
from wal2lake.settings import Settings

_PIPE_BYTES: Final = 1 << 20
"""Linux's default limit of a pipe for users."""

_READ_BYTES: Final = 1 << 16

_END_SECONDS: Final = 5.0
"""Longest wait for the collector at the end of the node. Chosen arbitrarily."""

_IGNORED: Final = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGPIPE,
)

_STDOUT: Final = 1
_STDERR: Final = 2


class LogCollector:
    """The collector process as its parent sees it. Only ``collecting`` makes one."""

    def __init__(
        self, settings: Settings, reload: Callable[[], Settings], *, echo: bool
    ) -> None:
        path = settings.log_file
        assert path is not None
        self._path = path
        self._settings = settings
        self._reload = reload
        self._reader, self._writer = os.pipe()
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(self._writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._outputs = (os.dup(_STDOUT), os.dup(_STDERR))
        self._echo = self._outputs[1] if echo else None
        self._hung_up = False
        self.process = Attendant("log collector", self._fork, self._fork())
        _flush()
        os.dup2(self._writer, _STDOUT)
        os.dup2(self._writer, _STDERR)

    def reload(self) -> None:
        """Have the collector read its settings, and open its file, again."""
        if self.process.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, signal.SIGHUP)

    def close(self) -> None:
        """Give stdout and stderr back, and wait until everything is written."""
        _flush()
        for saved, number in zip(self._outputs, (_STDOUT, _STDERR), strict=True):
            os.dup2(saved, number)
            os.close(saved)
        os.close(self._reader)
        os.close(self._writer)
        # Something that cannot be killed may hold the pipe.
        self.process.part(_END_SECONDS, kill=False)

    def _fork(self) -> int:
        _flush()
        # A SIGHUP must not meet a collector that does not handle it yet.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
        ours = os.getpid()
        try:
            pid = os.fork()
        finally:
            if os.getpid() == ours:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if pid != 0:
            return pid
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            for ignored in _IGNORED:
                signal.signal(ignored, signal.SIG_IGN)
            os.setsid()
            kept = {self._reader} | ({self._echo} if self._echo is not None else set())
            # The descriptors of stdout and stderr must not become those of files.
            null = os.open(os.devnull, os.O_RDWR)
            for number in (_STDOUT, _STDERR):
                os.dup2(null, number)
            close_all_but({*kept, _STDOUT, _STDERR})
            self._collect()
            code = 0
        finally:
            # Never return into the supervisor's code.
            os._exit(code)

    def _collect(self) -> None:
        file = RotatedFile(self._path, rotation_of(self._settings))
        signal.signal(signal.SIGHUP, self._on_hangup)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGHUP})
        echo = None if self._echo is None else LogEcho(self._echo)
        while data := self._read(echo):
            if self._hung_up:
                self._hung_up = False
                # Whatever is wrong with the settings, the log goes on.
                with contextlib.suppress(Exception):
                    file.rotation = rotation_of(self._reload())
                file.reopen()
            file.write(data)
            if echo is not None:
                echo.write(data)
        file.close()
        if echo is not None:
            echo.finish()

    def _read(self, echo: LogEcho | None) -> bytes:
        """Wait for bytes of the log, and give the echo what it waits for meanwhile."""
        while echo is not None and echo.waits:
            poll = select.poll()
            poll.register(self._reader, select.POLLIN)
            poll.register(echo.descriptor, select.POLLOUT)
            ready = {descriptor for descriptor, _ in poll.poll()}
            if echo.descriptor in ready:
                echo.flush()
            if self._reader in ready:
                break
        return os.read(self._reader, _READ_BYTES)

    def _on_hangup(self, *_: object) -> None:
        # Obeyed before the next line: a signal must not come between the parts of a write.
        self._hung_up = True


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def rotation_of(settings: Settings) -> LogRotation:
    """Return the rotation that the settings ask for."""
    node = settings.node
    return LogRotation(
        size_bytes=node.log_rotation_size * 1024,
        age_seconds=node.log_rotation_age * 60,
        keep=node.log_keep_files,
    )


@contextlib.contextmanager
def collecting(
    settings: Settings, reload: Callable[[], Settings], *, echo: bool
) -> Iterator[LogCollector | None]:
    """Send the log of this process and of its children to the log file, if there is one.

    ``echo``: to stderr, too. An error that ends the node is written to the file before it is
    passed on. ConfigurationError if the file cannot be written.
    """
    if settings.log_file is None:
        yield None
        return
    _check(settings.log_file)
    try:
        collector = LogCollector(settings, reload, echo=echo)
    except OSError as error:
        raise ConfigurationError(
            f"could not start the log collector: {reason_of(error)}"
        ) from error
    try:
        yield collector
    except Wal2LakeError as error:
        get_logger().critical(error.message, error=error)
        raise
    except Exception as error:
        # In the background, nobody sees what the interpreter prints.
        get_logger().critical("the node has failed", exc_info=error)
        raise
    finally:
        collector.close()


def _check(path: Path) -> None:
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError as error:
        raise ConfigurationError(
            f'could not open log file "{path}": {error.strerror}',
            hint='Set "log_file" of [node] to a file that the node\'s operating system'
            " user may write.",
        ) from None
