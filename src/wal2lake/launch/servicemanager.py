"""Tells a service manager (systemd, or what speaks its protocol) how the node is.

In: the supervisor's state at each turn of its loop. Out: datagrams on the socket that NOTIFY_SOCKET
names: READY=1 when clients are accepted, STOPPING=1 at a shutdown, RELOADING=1 and READY=1 around a
reload, and WATCHDOG=1 while the loop turns. A unit with ``Type=notify`` and ``WatchdogSec`` thus
waits for a node that answers, and restarts one whose supervisor hangs. Without the variable nothing
happens. The variables are not passed on: children must not speak for the node.

Source: sd_notify(3), sd_watchdog_enabled(3).
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Mapping
from typing import Final

_WORDS: Final = {"ready": "READY=1\n", "stopping": "STOPPING=1\n"}

_LEAST_SECONDS: Final = 0.05
"""No watchdog is worth a loop that turns more often. Chosen arbitrarily."""

VARIABLES: Final = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")


class ServiceManager:
    """The manager that has started this process, if any. For one thread."""

    def __init__(
        self,
        environ: Mapping[str, str],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read the manager's variables. Its socket stays open, so that a supervisor that has no
        descriptor left can still say that it is alive."""
        # An abstract socket's name begins with a zero byte, which the variable shows as "@".
        address = environ.get("NOTIFY_SOCKET", "")
        self._address = "\0" + address[1:] if address.startswith("@") else address
        kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
        self._sender = socket.socket(socket.AF_UNIX, kind) if address else None
        if self._sender is not None:
            self._sender.setblocking(False)
        self._clock = clock
        self._interval = _watchdog_seconds(environ) / 2
        self._last_ping = -self._interval
        self._told: str | None = None

    @property
    def patience_seconds(self) -> float:
        """Longest pause between two calls of ``tell`` with which no ping is late."""
        if self._interval <= 0:
            return float("inf")
        return max(self._interval / 2, _LEAST_SECONDS)

    def tell(self, state: str) -> None:
        """Report the node's state (starting, ready, stopping), if it is another one, and that the
        loop turns."""
        if state != self._told:
            self._told = state
            self._send(f"{_WORDS.get(state, '')}STATUS=node is {state}")
        now = self._clock()
        if self._interval > 0 and now - self._last_ping >= self._interval:
            self._last_ping = now
            self._send("WATCHDOG=1")

    def reloading(self) -> None:
        """Report that the settings are being read; ``tell`` follows with the state."""
        if self._told == "ready":
            microseconds = int(self._clock() * 1_000_000)
            self._send(f"RELOADING=1\nMONOTONIC_USEC={microseconds}")
            self._told = "reloading"

    def close(self) -> None:
        """Close the socket: nothing more is told."""
        if self._sender is not None:
            self._sender.close()
            self._sender = None

    def _send(self, text: str) -> None:
        if self._sender is None:
            return
        try:
            self._sender.sendto(text.encode(), self._address)
        except OSError:
            # The manager is gone or its queue is full; the next turn of the loop tells again.
            self._told = None
            self._last_ping = -self._interval


def _watchdog_seconds(environ: Mapping[str, str]) -> float:
    """Return the time after which the manager restarts a silent node; 0 for no watchdog."""
    text = environ.get("WATCHDOG_USEC", "")
    pid = environ.get("WATCHDOG_PID", "")
    if not text.isdecimal() or (pid and pid != str(os.getpid())):
        return 0.0
    return int(text) / 1_000_000
