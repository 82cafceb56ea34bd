"""Pauses for clients that try passwords.

The first failures of an address are free: people mistype. Each further one doubles the pause before
the next attempt of the same address is looked at, up to a minute; a password that fits, or a quiet
quarter of an hour, ends that. So an address can try about 60 passwords an hour, and what it tries
in between costs the node no computation.

Takes addresses and times of one monotonic clock; returns seconds to wait. Pure, and bounded: the
addresses that failed longest ago are forgotten. Thread-safe.

Called by: the web process, the front door.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

FREE_FAILURES: Final = 5
"""Failures without a pause. Chosen arbitrarily."""

FIRST_PAUSE_SECONDS: Final = 1.0

LONGEST_PAUSE_SECONDS: Final = 60.0

FORGET_SECONDS: Final = 900.0
"""Failures are forgotten after this time without another one."""

MAX_ADDRESSES: Final = 4096
"""Most addresses that are remembered: about half a megabyte."""


@dataclass(frozen=True, slots=True)
class _Failures:
    count: int
    last_at: float


class Throttle:
    """Failed attempts by address."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._failures: OrderedDict[str, _Failures] = OrderedDict()

    def wait_seconds(self, address: str, now: float) -> float:
        """Return the time until the address may try again; 0 if it may now."""
        with self._lock:
            failures = self._failures.get(address)
        if failures is None or now - failures.last_at >= FORGET_SECONDS:
            return 0.0
        return max(failures.last_at + _pause(failures.count) - now, 0.0)

    def failed(self, address: str, now: float) -> None:
        """Note a failed attempt."""
        with self._lock:
            before = self._failures.pop(address, None)
            forgotten = before is None or now - before.last_at >= FORGET_SECONDS
            count = 1 if before is None or forgotten else before.count + 1
            self._failures[address] = _Failures(count, now)
            if len(self._failures) > MAX_ADDRESSES:
                self._failures.popitem(last=False)

    def succeeded(self, address: str) -> None:
        """Forget the address's failures."""
        with self._lock:
            self._failures.pop(address, None)


def _pause(count: int) -> float:
    beyond = count - FREE_FAILURES
    if beyond <= 0:
        return 0.0
    # The exponent is bounded: 2.0 ** 1100 would be an OverflowError.
    return min(FIRST_PAUSE_SECONDS * 2.0 ** min(beyond - 1, 16), LONGEST_PAUSE_SECONDS)
