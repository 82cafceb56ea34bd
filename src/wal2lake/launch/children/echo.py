"""Lines for a descriptor whose reader may be slow or asleep: the log's copy on stderr, and the
supervisor's own lines.

Takes bytes; writes them as far as the descriptor takes them at once. What it does not take waits in
memory, up to a limit; beyond that whole lines are left out, and a line says how much, as after an
error such as a full disk. So a pager that is not scrolled, or a terminal that was stopped with
Ctrl-S, delays no process: the log file has everything.

The descriptor stays blocking, because the mode would change for all processes that share the
terminal or the pipe. A terminal that poll calls writable may take one byte, and a pipe that others
write, too, may be full a moment later, so both are opened once more, with a mode of its own. Where
that is not possible, poll has to do. A line of up to PIPE_BUF bytes is one write, so it is never
mixed with another process's.

Called by: ``collector``, ``nodelog``. Source: POSIX, write() and poll() on pipes.
"""

from __future__ import annotations

import os
import select
import stat
import sys
import time
from collections import deque
from contextlib import suppress
from typing import Final

_LIMIT_BYTES: Final = 1 << 20
"""Bytes that wait at most: a burst of some ten thousand lines."""

_BLOCK_BYTES: Final = select.PIPE_BUF

_FAREWELL_SECONDS: Final = 1.0
"""Longest wait for the reader at the end."""


class LogEcho:
    """The copy. Not thread-safe."""

    def __init__(self, descriptor: int, limit_bytes: int = _LIMIT_BYTES) -> None:
        """``descriptor`` is written and stays open."""
        self._reopened = _reopen(descriptor)
        self.descriptor = descriptor if self._reopened is None else self._reopened
        self._limit = limit_bytes
        self._waiting: deque[tuple[bytes, int]] = deque()
        """Lines with 0, and notices with the number of bytes that they report."""
        self._bytes = 0
        self._begun = b""
        """A line whose end has not come."""
        self._left_out = 0
        self._is_cut = False
        """The descriptor has only a part of the last line."""
        self._poll = select.poll()
        self._poll.register(self.descriptor, select.POLLOUT)

    @property
    def waits(self) -> bool:
        """Whether bytes wait for the reader."""
        return self._bytes > 0

    def write(self, data: bytes) -> None:
        """Take bytes of the log."""
        lines, newline, self._begun = (self._begun + data).rpartition(b"\n")
        if len(self._begun) > self._limit:
            lines, self._begun = lines + newline + self._begun, b""
        self._take(lines + newline)
        self.flush()

    def _take(self, lines: bytes) -> None:
        if not lines:
            return
        # It goes on once half of the limit is free, not with each single line.
        room = self._limit // 2 if self._left_out else self._limit
        if self._bytes and self._bytes + len(lines) > room:
            self._left_out += len(lines)
            return
        if self._left_out:
            self._put_notice()
        self._put(lines)

    def _put_notice(self) -> None:
        begin = "\n" if self._is_cut and not self._bytes else ""
        notice = f"{begin}{self._left_out} bytes of the log are left out here\n"
        self._put(notice.encode(), self._left_out)
        self._left_out = 0

    def _put(self, data: bytes, reported: int = 0) -> None:
        self._waiting.append((data, reported))
        self._bytes += len(data)

    def flush(self) -> None:
        """Write what the descriptor takes at once."""
        while self._bytes and self._poll.poll(0):
            block, reported = self._waiting.popleft()
            try:
                done = os.write(self.descriptor, block[:_BLOCK_BYTES])
            except BlockingIOError:
                self._waiting.appendleft((block, reported))
                return
            except OSError:
                # Its reader has gone, or the disk is full. What a lost notice reports counts again.
                lost = [(block, reported), *self._waiting]
                self._left_out += sum(count or len(data) for data, count in lost)
                self._waiting.clear()
                self._bytes = 0
                return
            self._bytes -= done
            self._is_cut = not block.endswith(b"\n", 0, done)
            if done < len(block):
                self._waiting.appendleft((block[done:], reported))

    def finish(self, timeout_seconds: float = _FAREWELL_SECONDS) -> None:
        """Write what waits, as long as the reader is there and takes it soon."""
        self._take(self._begun)
        if self._left_out:
            self._put_notice()
        deadline = time.monotonic() + timeout_seconds
        while self._bytes and (left := deadline - time.monotonic()) > 0:
            self._poll.poll(left * 1000)
            self.flush()
        if self._reopened is not None:
            os.close(self._reopened)
            self._reopened = None


def _reopen(descriptor: int) -> int | None:
    """Open a terminal or pipe for writes that do not block. None if it is neither, or if it is
    another user's, as after ``su``."""
    flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    with suppress(OSError):
        if os.isatty(descriptor):
            return os.open(os.ttyname(descriptor), flags)
        # Elsewhere than on Linux, /dev/fd may duplicate the descriptor with its mode.
        if sys.platform == "linux" and stat.S_ISFIFO(os.fstat(descriptor).st_mode):
            return os.open(f"/proc/self/fd/{descriptor}", flags)
    return None
