"""When values last changed, as far as a reader has seen it.

In: a value for each thing, at each look. Out: the time of the look that first saw the present
value. For one thread at a time.
"""

from __future__ import annotations

from collections.abc import Hashable
from datetime import datetime


class LastChanges:
    """Times of changes, by key. Keys that a round does not ask for are forgotten."""

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[Hashable, datetime]] = {}
        self._asked: dict[Hashable, tuple[Hashable, datetime]] = {}

    def since(self, key: Hashable, value: Hashable, now: datetime) -> datetime:
        """Return the time since which the key has this value."""
        last_change = self._known.get(key)
        kept = (
            last_change
            if last_change is not None and last_change[0] == value
            else (value, now)
        )
        self._asked[key] = kept
        return kept[1]

    def end_round(self) -> None:
        """Forget what was not asked for since the last round."""
        self._known, self._asked = self._asked, {}
