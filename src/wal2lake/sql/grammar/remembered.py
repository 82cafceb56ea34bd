"""``by_text``: keeps results of pure functions of a statement's text.

Comes in: a function whose result depends on the text alone, and is not changed by its users. Goes
out: the same function, which need not run again for texts that clients repeat: monitoring sends the
same few statements all the time.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import Final, TypeVar

TEXTS: Final = 512
"""Limit of kept results. More than psql, pgcli, drivers and exporters together send."""

LONGEST: Final = 16_384
"""Characters of the longest text that is kept, so that kept texts and trees have bounded memory.
The longest query of psql's commands has 4,000."""

T = TypeVar("T")


def by_text(function: Callable[[str], T]) -> Callable[[str], T]:
    """Return ``function`` with a bounded memory of its results. Exceptions are not kept."""
    kept = lru_cache(maxsize=TEXTS)(function)

    @wraps(function)
    def find(sql: str) -> T:
        return kept(sql) if len(sql) <= LONGEST else function(sql)

    return find
