"""Repeated errors: logged once, then counted.

In: each error of a loop that retries. Out: its lines in the log. PostgreSQL's worker logs the
same three lines at each attempt, which hides other messages; the catalog counts every attempt
(``pg_stat_subscription_stats``). Called by: workers that retry.

Two errors are equal if all of their fields are, including the message of the engine or library
(``Wal2LakeError.original``), because one general text can have many causes. Numbers in this message
are ignored: tasks, stages and temporary files get another number at each attempt.
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
    """Counts repeated errors of one loop. After the first one, a line is logged at the 10th, 100th,
    1000th ... equal error."""

    def __init__(self) -> None:
        self._last: tuple[str, str] | None = None
        self._times = 0

    def say(self, events: Any, text: str, error: Exception) -> None:
        """Log ``text`` and all fields of ``error`` if it differs from the error before. Otherwise
        count it, and log the count at powers of ten. A bug of ours is logged with its traceback."""
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
        """Reset the count after an attempt that succeeded."""
        if self._times > 1:
            events.info(f"an error has passed that came {self._times} times")
        self._last, self._times = None, 0


def _next_power(number: int) -> int:
    """Return the lowest power of ten that is not below a number, at least 10."""
    power = 10
    while power < number:
        power *= 10
    return power
