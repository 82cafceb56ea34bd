"""How many examples of a property are tried.

``make test`` tries a quarter of those that a test names, ``make test-all`` all of them: it sets
``WAL2LAKE_ALL_EXAMPLES``. The examples are random, so that each run tries others.
"""

from __future__ import annotations

import os

VARIABLE = "WAL2LAKE_ALL_EXAMPLES"

_FEWEST = 8
"""Examples that a property is always given, unless its test names fewer."""


def examples(count: int) -> int:
    """The number for this run, of ``count`` that a full run tries."""
    if os.environ.get(VARIABLE):
        return count
    return max(count // 4, min(count, _FEWEST))
