"""The process that writes the node's log file: everything that any process prints.

    supervisor, engine, JVM, receivers ... ──▶ a pipe (their stderr and stdout)
                                                  │
                                     collector ◀──┘ ──▶ the file, and stderr in the foreground

All children inherit the pipe, so lines of other programs (a JVM's warning, the stack of a crash)
are in the file, too, and only one process renames files. The collector is a fork of the supervisor,
as the guardian is, without the node's marker: it ends when the last writer has ended, and so writes
the last words of all. The supervisor keeps both ends of the pipe, so that a collector that was
killed loses nothing that its successor cannot read. At the end there may be no successor: then the
supervisor itself writes what the pipe has. All that a killed collector takes with it are the bytes
that it has read and not written, at most 64 KiB.

A line of up to ``PIPE_BUF`` bytes is never mixed with another; a longer one could be while the pipe
is full, and the pipe is as large as the system allows.

A reader of stderr that does not read delays no process (``echo``): the file has everything.

Called by: nodelog. Source: PostgreSQL's syslogger.c.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from wal2lake.errors import ConfigurationError
from wal2lake.launch.children.attendants import Attendant
from wal2lake.launch.children.echo import LogEcho
from wal2lake.launch.children.guardian import close_all_but
from wal2lake.launch.children.logfile import LogRotation, RotatedFile
from wal2lake.settings import Settings

_PIPE_BYTES: Final = 1 << 20
"""Linux's default limit of a pipe for users."""

_READ_BYTES: Final = 1 << 16

_MOST_BLOCKS: Final = 2 * _PIPE_BYTES // _READ_BYTES
"""Reads of the rest at most, if something that cannot be killed goes on writing."""

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
    """The collector process as its parent sees it. Only ``node_log`` makes one."""

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
        os.close(self._writer)
        # Something that cannot be killed may hold the pipe.
        if self.process.part(_END_SECONDS, kill=False):
            self._write_rest()
        for descriptor in (self._reader, *self._outputs):
            os.close(descriptor)

    def make_room(self) -> None:
        """Write what is in the pipe if there is no collector, for the last words of the node. One
        that was stopped goes on."""
        if not self.process.pid:
            self._write_rest()
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, signal.SIGCONT)

    def _write_rest(self) -> None:
        # Without a collector, nobody else reads. One that has ended in order has left nothing.
        os.set_blocking(self._reader, False)
        blocks: list[bytes] = []
        with contextlib.suppress(BlockingIOError):
            while len(blocks) < _MOST_BLOCKS and (
                data := os.read(self._reader, _READ_BYTES)
            ):
                blocks.append(data)
        if not blocks:
            return
        rest = b"".join(blocks)
        file = RotatedFile(self._path, rotation_of(self._settings))
        file.write(rest)
        file.close()
        if self._echo is not None:
            echo = LogEcho(self._echo)
            echo.write(rest)
            echo.finish()

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


def check_log_file(path: Path) -> None:
    """Raise ConfigurationError unless the file can be written."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600))
    except OSError as error:
        raise ConfigurationError(
            f'could not open log file "{path}": {error.strerror}',
            hint='Set "log_file" of [node] to a file that the node\'s operating system'
            " user may write.",
        ) from None
