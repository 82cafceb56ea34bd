"""Waiting for a condition, never for a while.

Comes in: a condition as a function. Goes out: its first true value, or a failure that
says what was waited for and what was there instead. Called by tests, ``node`` and the demo.
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
    condition: Callable[[], T],
    *,
    timeout_seconds: float = 30.0,
    describe: str | Callable[[], str] = "the condition",
) -> T:
    """Call ``condition`` until it returns something true, and return that.

    Pauses grow from 2 to 100 ms. ``describe`` names the condition in the failure; as a
    function it is called at the time-out and can say what is there instead. An exception of
    the condition passes through.
    """
    deadline = time.monotonic() + timeout_seconds
    pause = _FIRST_PAUSE_SECONDS
    while True:
        # Look once more after the deadline: this process may have been the slow one.
        last_look = time.monotonic() >= deadline
        value = condition()
        if value:
            return value
        if last_look:
            text = describe() if callable(describe) else describe
            raise WaitTimeout(f"not within {timeout_seconds:g} s: {text}")
        time.sleep(pause)
        pause = min(pause * 1.5, _LONGEST_PAUSE_SECONDS)
