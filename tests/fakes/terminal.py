"""A terminal with ``wal2lake top`` in it."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import struct
import subprocess
import termios
import time

from wal2lake.testing.node import COMMAND


class Terminal:
    """``wal2lake top`` in a terminal of its own."""

    def __init__(self, *arguments: str) -> None:
        self.descriptor, other = pty.openpty()
        self.resize(80, 24)
        self.before = termios.tcgetattr(self.descriptor)
        environ = {k: v for k, v in os.environ.items() if k not in ("COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            [*COMMAND, "top", *arguments],
            stdin=other,
            stdout=other,
            stderr=other,
            env={**environ, "TERM": "xterm-256color", "NO_COLOR": "1"},
            start_new_session=True,
            # Ctrl-C is a signal to the session whose terminal it is.
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(other)
        self.output = ""

    def resize(self, width: int, height: int) -> None:
        size = struct.pack("HHHH", height, width, 0, 0)
        fcntl.ioctl(self.descriptor, termios.TIOCSWINSZ, size)

    def press(self, keys: str) -> None:
        self.output = ""
        os.write(self.descriptor, keys.encode())

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + 60
        while text not in self.output:
            assert time.monotonic() < deadline, (
                f"{text!r} is not in {self.output[-3000:]!r}"
            )
            if select.select([self.descriptor], [], [], 1)[0]:
                self.output += os.read(self.descriptor, 65536).decode()

    def end(self, keys: str) -> None:
        self.press(keys)
        self.wait_for("\x1b[?1049l")
        assert self.process.wait(20) == 0
        assert termios.tcgetattr(self.descriptor)[3] == self.before[3]
        os.close(self.descriptor)
