"""``remember``, ``by_text``: keep results of pure functions of a statement's text.

Comes in: a function whose result depends on its arguments alone, and is not changed by its users.
Goes out: the same function, which need not run again for texts that clients repeat: monitoring
sends the same few statements all the time. The results used last are kept.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from functools import wraps
from typing import Final, TypeVar, TypeVarTuple

TEXTS: Final = 512
"""Limit of a function's kept results. More than psql, pgcli, drivers and exporters together
send."""

LONGEST: Final = 16_384
"""Characters of the longest text that is kept: a longer one must not drive out many others. The
longest query of psql's commands has 4,000."""

CHARACTERS: Final = 256 * 1024
"""Limit of the characters of a function's kept texts together. The tree of a list of one-digit
constants has some 320 bytes a character, so trees have 80 MB at most."""

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


def remember(
    function: Callable[[*Ts], T], characters: Callable[[*Ts], int]
) -> Callable[[*Ts], T]:
    """Return ``function`` with a bounded memory of its results. Thread-safe.

    ``characters``: length of the texts in the arguments, which are hashable. Exceptions are not
    kept."""
    kept: OrderedDict[tuple[*Ts], tuple[T, int]] = OrderedDict()
    lock = threading.Lock()
    total = 0

    @wraps(function)
    def find(*key: *Ts) -> T:
        nonlocal total
        size = characters(*key)
        if size > LONGEST:
            return function(*key)
        with lock:
            if key in kept:
                kept.move_to_end(key)
                return kept[key][0]
        value = function(*key)
        with lock:
            if key not in kept:
                kept[key] = value, size
                total += size
            while len(kept) > TEXTS or total > CHARACTERS:
                _, (_, freed) = kept.popitem(last=False)
                total -= freed
        return value

    return find


def by_text(function: Callable[[str], T]) -> Callable[[str], T]:
    """Return a function of a text with a bounded memory of its results."""
    return remember(function, _length)


def _length(text: str) -> int:
    return len(text)
