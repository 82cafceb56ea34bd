"""The supervisor's only wait: for signals, words from the engine, or a timeout.

Signals arrive through Python's wakeup descriptor, and words through a datagram socket in the node's
``run/``. Both are read in the loop, so no code runs inside a signal handler. The engine sends
``changed`` after a command has changed a subscription, ``ready PID`` once it accepts clients and
again every few seconds, and ``reload`` if a session requests it. A lost ``changed`` costs a poll
interval, a lost ``ready`` these seconds. A socket whose file somebody has removed is made anew,
unless the directory may be another node's by now.

Called by: supervisor (``Wakeup``), the engine (``notify``).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final

SOCKET_NAME: Final = "supervisor.sock"

CHANGED: Final = "changed"
"""A subscription was created, altered or dropped."""

READY: Final = "ready"
"""The engine accepts clients. Its PID follows: the word may arrive when that engine has died and
the next one is starting."""

RELOAD: Final = "reload"
"""Requests a reload of the settings, as SIGHUP does."""

SIGNALS: Final = (
    signal.SIGTERM,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGCHLD,
)

_MOST_WORDS: Final = 1000
"""Words that one wait reads at most: signals must not wait for a sender that never pauses."""

_Handler = Callable[[int, FrameType | None], object] | int | None


@dataclass(frozen=True, slots=True)
class Wake:
    """The reasons why the wait ended; both are empty after the timeout."""

    signals: tuple[signal.Signals, ...] = ()
    words: tuple[str, ...] = ()


class Wakeup:
    """Catches ``SIGNALS`` and opens the socket, as a context. Main thread only."""

    def __init__(
        self, run_directory: Path, owns_directory: Callable[[], bool] = lambda: True
    ) -> None:
        """Prepare; entering the context opens the socket. ``owns_directory`` says whether the
        directory is still this node's."""
        self._run_directory = run_directory
        self._owns_directory = owns_directory
        self._identity: tuple[int, int] | None = None
        self._before: dict[signal.Signals, _Handler] = {}

    def __enter__(self) -> Wakeup:
        self._socket = self._listen()
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._reader, False)
        os.set_blocking(self._writer, False)
        # If the pipe is full, the loop is about to read it anyway.
        signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        for number in SIGNALS:
            self._before[number] = signal.signal(number, _note)
        # Those that have come since the start began (``requests``) arrive now.
        self._mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._mask)
        signal.set_wakeup_fd(-1)
        for number, handler in self._before.items():
            signal.signal(number, handler)
        for descriptor in (self._reader, self._writer):
            os.close(descriptor)
        self._socket.close()
        with contextlib.suppress(OSError):
            if self._is_in_place():
                self._path.unlink()

    @property
    def _path(self) -> Path:
        return self._run_directory / SOCKET_NAME

    def _is_in_place(self) -> bool:
        """Return whether the file of that name is this socket's."""
        return self._identity is not None and (
            _identity_of(self._path) == self._identity
        )

    def _listen(self) -> socket.socket:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        try:
            listening.setblocking(False)
            # The directory may have been moved away since the lock was taken. The file of this name
            # is another node's then, and no word arrives until the supervisor ends.
            if not self._owns_directory():
                return listening
            self._path.unlink(missing_ok=True)
            with _address(self._run_directory) as address:
                listening.bind(address)
            self._identity = _identity_of(self._path)
        except OSError:
            listening.close()
            raise
        return listening

    def wait(self, timeout_seconds: float) -> Wake:
        """Sleep until something happens, or the timeout."""
        # Without its directory, it is tried again each time.
        with contextlib.suppress(OSError):
            if not self._is_in_place() and self._owns_directory():
                renewed = self._listen()
                self._socket.close()
                self._socket = renewed
        poll = select.poll()
        for source in (self._reader, self._socket.fileno()):
            poll.register(source, select.POLLIN)
        if not poll.poll(max(timeout_seconds, 0) * 1000):
            return Wake()
        # The signals last: an error must not lose one that has been read.
        words = tuple(self._read_words())
        return Wake(tuple(self._read_signals()), words)

    def _read_signals(self) -> Iterator[signal.Signals]:
        with contextlib.suppress(BlockingIOError):
            # Any further numbers would be repetitions.
            for number in dict.fromkeys(os.read(self._reader, 65536)):
                yield signal.Signals(number)

    def _read_words(self) -> Iterator[str]:
        words: dict[str, None] = {}
        with contextlib.suppress(BlockingIOError):
            for _ in range(_MOST_WORDS):
                words[self._socket.recv(256).decode(errors="replace")] = None
        # Any further ones would be repetitions.
        return iter(words)


def notify(run_directory: Path, word: str) -> bool:
    """Send a word to the supervisor; False if none listens.

    Does not wait: a supervisor with a full queue is about to look anyway.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        try:
            with _address(run_directory) as address:
                sender.sendto(word.encode(), address)
        except OSError:
            return False
    return True


@contextlib.contextmanager
def _address(run_directory: Path) -> Iterator[str]:
    # An address holds 107 bytes, and a path may be longer: use an open directory.
    path = str(run_directory / SOCKET_NAME)
    if len(os.fsencode(path)) <= 100 or not Path("/proc/self/fd").exists():
        yield path
        return
    directory = os.open(run_directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{SOCKET_NAME}"
    finally:
        os.close(directory)


def _identity_of(path: Path) -> tuple[int, int] | None:
    """Return device and inode; None without a file."""
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status.st_dev, status.st_ino


def _note(number: int, frame: FrameType | None) -> None:
    # The wakeup descriptor has got the number; nothing else is needed.
    return None
