"""An error that comes again and again: said once, then counted.

In: each error of a loop that tries again. Out: whether it is said in the log. PostgreSQL's worker
says the same three lines at each attempt, which hides what else is in the log; the catalog counts
each (``pg_stat_subscription_stats``). Called by: workers that retry.
"""

from __future__ import annotations

from typing import Any


class RepeatedErrors:
    """Of one loop. After the first one a line comes at 10, 100, 1000 ... of the same."""

    def __init__(self) -> None:
        self._text: str | None = None
        self._times = 0

    def is_new(self, events: Any, text: str) -> bool:
        """Whether ``text`` is to be said in full; else it is counted, and the count is said now
        and then."""
        if text != self._text:
            if self._times > 1:
                events.info(f"the error before this one came {self._times} times")
            self._text, self._times = text, 1
            return True
        self._times += 1
        if self._times == _next_power(self._times):
            first = text.split("\n", 1)[0]
            events.error(f"the same error for the {self._times}th time: {first}")
        return False

    def passed(self, events: Any) -> None:
        """An attempt has succeeded."""
        if self._times > 1:
            events.info(f"an error has passed that came {self._times} times")
        self._text, self._times = None, 0


def _next_power(number: int) -> int:
    """The power of ten at or above a number."""
    power = 10
    while power < number:
        power *= 10
    return power
