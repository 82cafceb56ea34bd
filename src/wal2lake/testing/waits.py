"""Waits for a condition, never for a fixed time.

Comes in: a condition as a function. Goes out: its first true value, or a failure that names the
condition and the state that was found instead. Called by tests, ``node`` and the demo.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final, TypeVar

T = TypeVar("T")

_FIRST_PAUSE_SECONDS: Final = 0.002
_LONGEST_PAUSE_SECONDS: Final = 0.1


class WaitTimeout(AssertionError):
    """The condition did not come true in time."""


def wait_until(
    condition: Callable[[], T | None],
    *,
    timeout_seconds: float = 30.0,
    describe: str | Callable[[], str] = "the condition",
) -> T:
    """Call ``condition`` until it returns a true value, and return this value.

    Pauses grow from 2 to 100 ms. ``describe`` names the condition in the failure; a function is
    called at the timeout and can describe the state that was found instead. An exception of
    ``condition`` is not caught.
    """
    deadline = time.monotonic() + timeout_seconds
    pause = _FIRST_PAUSE_SECONDS
    while True:
        # Check once more after the deadline: this process itself may have been slow.
        last_look = time.monotonic() >= deadline
        value = condition()
        if value:
            return value
        if last_look:
            text = describe() if callable(describe) else describe
            raise WaitTimeout(f"not within {timeout_seconds:g} s: {text}")
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
