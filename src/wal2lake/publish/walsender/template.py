"""The process that walsenders are forked from.

A Python process that can decode needs 0.7 CPU-seconds for its imports; a subscriber opens a stream
of its own for each table that it copies. So one process has the imports behind it, and each
walsender is a fork of it, with the descriptors that came with the request.

    request   its length (4 bytes, with which descriptors may come), then JSON:
              ["fork", TASK]   answered {"pid": n} or {"errno": n}
              ["reap", PID]    answered {}; until then the pid belongs to nobody else
    end       of the engine's side: the process ends; its walsenders see that the engine has

It must have one thread when it forks, and opens no catalog.

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
    """The engine's side: at most one process, started when it is first wanted. Safe for all
    threads."""

    def __init__(self, module: str) -> None:
        """``module`` is run with the number of its socket's descriptor, and calls ``serve``."""
        self._module = module
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def prepare(self) -> None:
        """Have it start, if it does not run. OSError if it cannot."""
        # Whoever has the lock needs it to run.
        if self._lock.acquire(blocking=False):
            try:
                self._connected()
            finally:
                self._lock.release()

    def fork(self, task: str, fds: Sequence[int]) -> int:
        """The pid of a new process that does ``task`` with copies of ``fds``, in that order.
        OSError if there can be none."""
        with self._lock:
            try:
                answer = self._ask(["fork", task], fds)
            except OSError:
                # If there is a process after all, it ends when its caller gives up.
                self._bury()
                raise
        if "errno" in answer:
            raise OSError(answer["errno"], os.strerror(answer["errno"]))
        pid: int = answer["pid"]
        return pid

    def reap(self, pid: int) -> None:
        """Wait for the end of one, which is near, and give its number back."""
        with self._lock, suppress(OSError):
            if self._socket is not None:
                self._ask(["reap", pid], ())

    def close(self) -> None:
        """End it; walsenders go on."""
        with self._lock:
            self._bury()

    def _ask(self, request: list[object], fds: Sequence[int]) -> dict[str, Any]:
        connection = self._connected()
        _send(connection, request, fds)
        answer = _receive(connection)
        if answer is None:
            raise ConnectionResetError(
                "the process that walsenders come from has ended"
            )
        found: dict[str, Any] = answer[0]
        return found

    def _connected(self) -> socket.socket:
        if self._process is not None and self._process.poll() is not None:
            self._bury()
        if self._socket is None:
            ours, theirs = socket.socketpair()
            with theirs:
                try:
                    self._process = subprocess.Popen(
                        [sys.executable, "-m", self._module, str(theirs.fileno())],
                        pass_fds=[theirs.fileno()],
                        stdin=subprocess.DEVNULL,
                        # Numbers are not computed there, and threads do not survive a fork.
                        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
                    )
                except OSError:
                    ours.close()
                    raise
            self._socket = ours
        return self._socket

    def _bury(self) -> None:
        if self._socket is not None:
            self._socket.close()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        self._socket = self._process = None


def serve(
    connection: socket.socket, run: Callable[[str, Sequence[int]], object]
) -> None:
    """Be the template, until the other side ends. ``run`` has a task and its descriptors, in a
    process of its own."""
    # What is there now is the same in all of them: no collection need touch it.
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while (found := _receive(connection)) is not None:
        (what, argument), fds = found
        if what == "reap":
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
    """A walsender's whole life; nothing of the template's is run behind it."""
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
    """A value and what came with it; None at the end."""
    head, fds, _, _ = socket.recv_fds(connection, _LENGTH.size, _MOST_FDS)
    while 0 < len(head) < _LENGTH.size:
        more = connection.recv(_LENGTH.size - len(head))
        if not more:
            return None
        head += more
    if not head:
        return None
    body = bytearray()
    wanted = _LENGTH.unpack(head)[0]
    while len(body) < wanted:
        more = connection.recv(wanted - len(body))
        if not more:
            return None
        body += more
    return json.loads(body), fds
