"""Requests to stop a node that is still starting.

Signals are blocked (``held``) until the supervisor can take them (``wakeup``): a SIGHUP would end a
node that is starting, and process 1 of a container would not hear a SIGTERM. But a start may last:
a mount under the warehouse hangs, Java or a name server does not answer, remains of a killed node
do not die. So such a step runs in a thread (``promptly``), while the main thread looks for a signal
that waits. A request to stop, of any mode, then ends the start in order, because nothing has been
started that would need time. A program that the step runs (``run_program``) is killed. The thread
is left behind and ends with the process; in a system call that cannot be interrupted it keeps the
process, but not the node's lock.

Called by: ``start``, ``nodelog``, ``warehouse`` and supervisor.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from wal2lake.launch.shutdown import SIGNAL_OF_MODE, Mode
from wal2lake.launch.wakeup import SIGNALS

T = TypeVar("T")

_LOOK_SECONDS: Final = 0.05
"""Interval of looks for a signal."""

_END_SECONDS: Final = 1.0
"""Longest wait for a step that looks for the request itself, and has a program to kill. Chosen
arbitrarily."""


class StopRequested(BaseException):
    """Ends the start of a node. As KeyboardInterrupt, it is no error that a step may handle."""

    def __init__(self, mode: Mode) -> None:
        """``mode`` is that of the request."""
        super().__init__(mode)
        self.mode = mode


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Keep signals until ``Wakeup`` or ``promptly`` can take them. Ctrl-C still ends the start at
    once.

    After ``Wakeup`` the node has ended in order, and signals are ignored."""
    numbers = set(SIGNALS) - {signal.SIGINT, signal.SIGCHLD}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        for number in numbers:
            # To ignore a signal discards the one that waits.
            handler = signal.signal(number, signal.SIG_IGN)
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def check_request() -> None:
    """Raise StopRequested if a signal that was ``held`` asks for it."""
    waiting = signal.sigpending()
    for mode, number in SIGNAL_OF_MODE.items():
        if number in waiting:
            raise StopRequested(mode)


def promptly(step: Callable[[], T]) -> T:
    """Return or raise what ``step`` does, or raise StopRequested as soon as the node shall stop."""
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(step())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="start", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        # The system has no room for a thread; a stop waits then.
        return step()
    try:
        while thread.is_alive():
            check_request()
            thread.join(_LOOK_SECONDS)
    except StopRequested:
        thread.join(_END_SECONDS)
        raise
    if errors:
        raise errors[0]
    return results[0]


def run_program(
    command: Sequence[str],
    environ: Mapping[str, str],
    timeout_seconds: float,
    on_wait: Callable[[bytes], None] = lambda so_far: None,
) -> subprocess.CompletedProcess[str]:
    """Run a program of a step of the start, and return its output. ``on_wait`` is called again and
    again with what the program has printed so far.

    The program is killed before StopRequested or ``subprocess.TimeoutExpired`` is raised. It begins
    with the signals blocked that are ``held``. OSError if it cannot be run."""
    deadline = time.monotonic() + timeout_seconds
    with subprocess.Popen(
        command,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as process:
        try:
            while True:
                check_request()
                try:
                    out, err = process.communicate(timeout=_LOOK_SECONDS)
                    return subprocess.CompletedProcess(
                        command, process.returncode, out, err
                    )
                except subprocess.TimeoutExpired as late:
                    on_wait(late.output or b"")
                if time.monotonic() > deadline:
                    raise subprocess.TimeoutExpired(command, timeout_seconds)
        finally:
            process.kill()
