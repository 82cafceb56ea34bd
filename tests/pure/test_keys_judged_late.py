"""Which event of a transaction leaves a key there twice."""

from __future__ import annotations

import numpy as np
import pytest

from wal2lake.lake.upsert.lives.deferral import first_repeated
from wal2lake.lake.upsert.lives.lives import NOT_MOVED, Events

Event = tuple[int, str, int, int]
"""Commit LSN, operation, key, and the key before it."""

N = NOT_MOVED


@pytest.mark.parametrize(
    ("stored", "events", "missed", "expected"),
    [
        ({0, 1}, [(1, "U", 1, 0), (1, "U", 2, 1)], [], None),
        ({0, 1}, [(1, "U", 1, 0)], [], 0),
        # The next transaction mends nothing.
        ({0, 1}, [(1, "U", 1, 0), (2, "U", 2, 1)], [], 0),
        ({0}, [(1, "I", 0, N), (1, "D", 0, N)], [], None),
        ({0}, [(1, "I", 1, N), (2, "I", 0, N), (2, "U", 0, N)], [], 1),
        # An event that has found no row has freed no key.
        ({0, 1}, [(1, "U", 1, 0), (1, "U", 2, 1)], [1], 0),
        ({0}, [(1, "I", 1, N), (1, "I", 1, N), (1, "U", 2, 1)], [], None),
        (set(), [(1, "I", 1, N), (1, "I", 1, N)], [], 0),
    ],
)
def test_keys_are_counted_when_their_transaction_ends(
    stored: set[int], events: list[Event], missed: list[int], expected: int | None
) -> None:
    lsn, op, key, old = (np.array(one) for one in zip(*events, strict=True))
    there = np.isin(np.arange(3), list(stored))
    given = Events(np.array([ord(o) for o in op], np.int8), key, old, {})
    assert first_repeated(given, there, np.array(missed, np.int64), lsn) == expected
