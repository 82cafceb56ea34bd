"""An error that comes again and again: said once, then counted.

In: each error of a loop that tries again. Out: its lines in the log. PostgreSQL's worker says the
same three lines at each attempt, which hides what else is in the log; the catalog counts each
(``pg_stat_subscription_stats``). Called by: workers that retry.

Two errors are the same if all that they say is, the words of the engine or library behind them
too (``Wal2LakeError.original``): a general text stands for many failures. Numbers in these words
do not count: tasks, stages and temporary files have another one at each attempt.
"""

from __future__ import annotations

import re
from typing import Any, Final

from wal2lake.errors import Wal2LakeError, description_of, words_of

_NUMBER: Final = re.compile(
    r"\b(?=[a-f-]*\d)[0-9a-f]+(?:-[0-9a-f]+)*\b|\d+", re.IGNORECASE
)
"""Numbers, decimal or hexadecimal, and UUIDs."""


class RepeatedErrors:
    """Counts repeated errors of one loop. After the first one, a line is logged at 10, 100, 1000
    ... of the same error."""

    def __init__(self) -> None:
        self._last: tuple[str, str] | None = None
        self._times = 0

    def say(self, events: Any, text: str, error: Exception) -> None:
        """``text``, and all that ``error`` says, if it is not the one before; else it is counted,
        and the count is said now and then. A bug of ours has its traceback."""
        ours = isinstance(error, Wal2LakeError)
        original = (
            error.original if isinstance(error, Wal2LakeError) else words_of(error)
        )
        described = f"{text}: {description_of(error)}"
        this = described, _NUMBER.sub("#", original or "")
        if this == self._last:
            self._times += 1
            if self._times == _next_power(self._times):
                first = described.split("\n", 1)[0] if ours else text
                events.error(f"the same error for the {self._times}th time: {first}")
            return
        if self._times > 1:
            events.info(f"the error before this one came {self._times} times")
        self._last, self._times = this, 1
        if ours:
            events.error(text, error=error)
        else:
            events.error(text, exc_info=error)

    def passed(self, events: Any) -> None:
        """An attempt has succeeded."""
        if self._times > 1:
            events.info(f"an error has passed that came {self._times} times")
        self._last, self._times = None, 0


def _next_power(number: int) -> int:
    """The power of ten at or above a number."""
    power = 10
    while power < number:
        power *= 10
    return power
