"""The process that walsenders are forked from.

A Python process that can decode needs 0.7 CPU-seconds for its imports, and a subscriber opens a
stream for each table that it copies. So one template process does the imports, and each walsender
is a fork of it, with the descriptors that came with the request.

    request   its length (4 bytes, with the descriptors), then JSON:
              ["fork", TASK]   replies {"pid": n} or {"errno": n}
              ["reap", PID]    replies {}; until then the pid is not reused
    end       when the engine's end is closed, the template ends; walsenders detect that, too

The template must have a single thread when it forks, and opens no catalog.

Source: PostgreSQL's postmaster.c forks its backends for the same reason; sendmsg(2), SCM_RIGHTS.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Final, NoReturn

_LENGTH: Final = struct.Struct("!I")

_MOST_FDS: Final = 8


class Template:
    """The engine's side of the template process, which is started on demand. Thread-safe."""

    def __init__(self, module: str) -> None:
        """``module`` is run with the number of its socket's descriptor, and calls ``serve``."""
        self._module = module
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def prepare(self) -> None:
        """Start the process if it does not run. Raises OSError."""
        # A thread that holds the lock starts the process itself.
        if self._lock.acquire(blocking=False):
            try:
                self._connected()
            finally:
                self._lock.release()

    def fork(self, task: str, fds: Sequence[int]) -> int:
        """Fork a process that does ``task`` with copies of ``fds``, in that order. Return its pid.
        Raises OSError."""
        with self._lock:
            try:
                answer = self._request(["fork", task], fds)
            except OSError:
                # If a process was forked after all, it ends when its pipes are closed.
                self._end()
                raise
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        pid: int = answer["pid"]
        return pid

    def reap(self, pid: int) -> None:
        """Wait for a process that is about to end, and release its pid."""
        with self._lock, suppress(OSError):
            if self._socket is not None:
                self._request(["reap", pid], ())

    def close(self) -> None:
        """End the template. Walsenders go on."""
        with self._lock:
            self._end()

    def _request(self, request: list[object], fds: Sequence[int]) -> dict[str, Any]:
        connection = self._connected()
        _send(connection, request, fds)
        answer = _receive(connection)
        if answer is None:
            raise ConnectionResetError(
                "the process that walsenders come from has ended"
            )
        reply: dict[str, Any] = answer[0]
        return reply

    def _connected(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self._end()
        if self._socket is None:
            engine_end, template_end = socket.socketpair()
            with template_end:
                try:
                    self._process = subprocess.Popen(
                        [
                            sys.executable,
                            "-m",
                            self._module,
                            str(template_end.fileno()),
                        ],
                        pass_fds=[template_end.fileno()],
                        stdin=subprocess.DEVNULL,
                        # Walsenders need no threads for numerics, and threads do not survive a
                        # fork.
                        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                    )
                except OSError:
                    engine_end.close()
                    raise
            self._socket = engine_end
        return self._socket

    def _end(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._socket = self._process = None


def serve(
    connection: socket.socket, run: Callable[[str, Sequence[int]], object]
) -> None:
    """Run the template until the other side closes the connection. ``run`` gets a task and its
    descriptors, in a new process."""
    # Objects that exist now are shared by all forks, so the garbage collector need not touch
    # them.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while (received := _receive(connection)) is not None:
        (kind, argument), fds = received
        if kind == "reap":
            with suppress(ChildProcessError):
                os.waitpid(argument, 0)
            _send(connection, {}, ())
            continue
        try:
            pid = os.fork()
        except OSError as error:
            _send(connection, {"errno": error.errno}, ())
        else:
            if pid == 0:
                connection.close()
                _be(run, argument, fds)
            _send(connection, {"pid": pid}, ())
        for fd in fds:
            os.close(fd)


def _be(
    run: Callable[[str, Sequence[int]], object], task: str, fds: Sequence[int]
) -> NoReturn:
    """Run a walsender and exit, without the template's exit handlers."""
    code = 1
    try:
        run(task, fds)
        code = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with suppress(OSError, ValueError):
            sys.stderr.flush()
        os._exit(code)


def _send(connection: socket.socket, value: object, fds: Sequence[int]) -> None:
    body = json.dumps(value).encode()
    socket.send_fds(connection, [_LENGTH.pack(len(body))], fds)
    connection.sendall(body)


def _receive(connection: socket.socket) -> tuple[Any, list[int]] | None:
    """Receive a value and its descriptors; None at the end."""
    head, fds, _, _ = socket.recv_fds(connection, _LENGTH.size, _MOST_FDS)
    while 0 < len(head) < _LENGTH.size:
        chunk = connection.recv(_LENGTH.size - len(head))
        if not chunk:
            return None
        head += chunk
    if not head:
        return None
    body = bytearray()
    length = _LENGTH.unpack(head)[0]
    while len(body) < length:
        chunk = connection.recv(length - len(body))
        if not chunk:
            return None
        body += chunk
    return json.loads(body), fds
