"""Starts a node in the background and waits until it is ready: ``wal2lake start --daemon``.

    this process ── fork ──▶ the supervisor, in a session of its own, its output in the log file
         │                        │
         │ ◀── the lock file ─────┤  ready
         │ ◀── a pipe ────────────┘  the error that has ended it

An error of the start reaches the terminal in its own words. If the engine is what could not start,
the error quotes the log. An interrupt while waiting stops the node, as pg_ctl's does.

Called by: ``wal2lake start``. Source: pg_ctl.c (start -w, trap_sigint_during_startup).
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Final

from wal2lake.errors import ConfigurationError, Wal2LakeError
from wal2lake.launch.directory.lockfile import read_lock

_POLL_SECONDS: Final = 0.05

_QUOTED_LINES: Final = 12
"""Most lines of the log that an error quotes."""

_QUOTED_BYTES: Final = 1 << 20

_QUOTED_CHARACTERS: Final = 8192
"""Most of a traceback, from its end."""

_TAIL_BYTES: Final = 4096

_LOG: Final = " LOG:  "

_LEVELS: Final = (" ERROR:  ", " FATAL:  ")


def start_detached(
    run: Callable[[], int],
    directory: Path,
    log_file: Path,
    *,
    timeout_seconds: float,
    on_wait: Callable[[], None] = lambda: None,
) -> int:
    """Call ``run`` in a process of its own; returns its pid when the node is ready.

    ``on_wait`` is called again and again. Raises the error that has ended the node, or
    ConfigurationError with the end of the log, or that it has not started in time.
    """
    position = _size(log_file)
    reader, writer = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        _become_node(run, writer)
    os.close(writer)
    try:
        _wait(pid, directory, reader, log_file, position, timeout_seconds, on_wait)
    except KeyboardInterrupt:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGINT)
        raise
    finally:
        os.close(reader)
    return pid


def _become_node(run: Callable[[], int], writer: int) -> None:
    """Run the node in this new process, and end it."""
    code = 1
    try:
        os.setsid()
        null = os.open(os.devnull, os.O_RDWR)
        for number in (0, 1, 2):
            os.dup2(null, number)
        code = run()
    except Wal2LakeError as error:
        with contextlib.suppress(OSError):
            os.write(writer, pickle.dumps(error))
    except BaseException:
        with contextlib.suppress(OSError):
            # The other side reads when this one has ended, so it must fit into the pipe.
            text = traceback.format_exc()[-_QUOTED_CHARACTERS:]
            os.write(writer, pickle.dumps(ConfigurationError(text)))
    finally:
        # Never return into the code of the process that waits.
        os._exit(code)


def _wait(
    pid: int,
    directory: Path,
    reader: int,
    log_file: Path,
    position: int,
    timeout_seconds: float,
    on_wait: Callable[[], None],
) -> None:
    deadline = time.monotonic() + timeout_seconds
    while True:
        facts = read_lock(directory)
        if facts is not None and facts.pid == pid and facts.state == "ready":
            return
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            raise _reason(reader, log_file, position)
        if time.monotonic() > deadline:
            raise ConfigurationError(
                "server did not start in time",
                detail=f"It goes on starting, with PID {pid}.",
                hint=f'See "wal2lake status -D {directory}" and "{log_file}", or give it'
                " more time with --timeout.",
            )
        on_wait()
        time.sleep(_POLL_SECONDS)


def _reason(reader: int, log_file: Path, position: int) -> Wal2LakeError:
    content = b""
    while part := os.read(reader, 65536):
        content += part
    if content:
        error: Wal2LakeError = pickle.loads(content)
        return error
    quoted = _errors_of_log(log_file, position)
    return ConfigurationError(
        "could not start server",
        detail="\n".join(quoted) if quoted else "It has ended without an error.",
        hint=f'Examine the log output in "{log_file}".',
    )


def _errors_of_log(log_file: Path, position: int) -> list[str]:
    """Return the log's lines from the first error behind ``position`` on."""
    try:
        with log_file.open("rb") as file:
            # The file may have been rotated meanwhile.
            if file.seek(0, os.SEEK_END) >= position:
                file.seek(position)
            else:
                file.seek(0)
            lines = file.read(_QUOTED_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []
    for number, line in enumerate(lines):
        if any(level in line for level in _LEVELS):
            return lines[number : number + _QUOTED_LINES]
    return lines[-_QUOTED_LINES:]


def last_message(log_file: Path) -> str:
    """Return the message of the log's last line at level LOG; empty if there is none."""
    try:
        with log_file.open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return ""
    messages = [line.partition(_LOG)[2] for line in lines if _LOG in line]
    return messages[-1] if messages else ""


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
