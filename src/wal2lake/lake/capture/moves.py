"""Rows that have another key than before: what statements say of them. Pure.

A commit is read as the difference of two versions, by key, so a row whose key has changed would be
one that went and another that came. Which is which is known when an UPDATE is executed: it says
so in pairs, those of a transaction's statements are one after the other (``KeyMoves``), and its
commit carries what they come to (``messages``). Capture takes of them what the difference has:
a pair says how two rows belong together, never that there are any.

    1 → 2, then 2 → 3              1 → 3
    4 is inserted, then 4 → 5      4 → 5, of which the difference has no 4: an INSERT of 5
    1 → 2, then 2 is deleted       1 → 2, of which the difference has no 2: a DELETE of 1
    1 → 9, 2 → 1, 9 → 2            1 → 2, 2 → 1: no order of two UPDATEs keeps a key unique, so
                                   each key is one whose other columns have changed

Rows of a table without a key are pairs as a whole.

Called by the front door's transactions, and by capture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

MOST_ROWS: Final = 4096
"""Moves of one table in one transaction at most; more are DELETEs and INSERTs. A guess: the pairs
are in the table's log, which every reader reads."""

_MOST_BYTES: Final = 512 * 1024
"""The same, for their texts."""

Key = tuple[str | None, ...]
"""Values as PostgreSQL's text, in the order of the table's columns; None is NULL."""


class MovedKey(NamedTuple):
    """One row: its key before and now."""

    old: Key
    new: Key


@dataclass(frozen=True, slots=True)
class KeyMoves:
    """Key changes of one table, in a transaction so far."""

    moved: tuple[MovedKey, ...] = ()
    too_many: bool = False

    def then(self, moved: Sequence[MovedKey]) -> KeyMoves:
        """Behind one more statement, which has moved these at once."""
        origins: dict[Key, list[Key]] = {}
        for old, new in self.moved:
            origins.setdefault(new, []).append(old)
        last = []
        for old, new in moved:
            known = origins.get(old)
            last.append(MovedKey(known.pop() if known else old, new))
        before = (MovedKey(old, new) for new, olds in origins.items() for old in olds)
        found = tuple(one for one in (*before, *last) if one.old != one.new)
        size = sum(len(text or "") for one in found for key in one for text in key)
        if self.too_many or len(found) > MOST_ROWS or size > _MOST_BYTES:
            return KeyMoves(too_many=True)
        return KeyMoves(found)


def moved_from(found: Any) -> tuple[MovedKey, ...]:
    """From what JSON has of them; ValueError or TypeError if it is something else."""
    return tuple(MovedKey(_key(old), _key(new)) for old, new in found)


def _key(found: Any) -> Key:
    if not all(text is None or isinstance(text, str) for text in found):
        raise TypeError("a value is no text")
    return tuple(found)


def chosen(
    moved: Iterable[MovedKey], gone: Mapping[Key, int], came: Mapping[Key, int]
) -> list[tuple[MovedKey, int, int]]:
    """Return the moves that the difference confirms: as many rows of a key went, and as many came.
    Each has the number, from 0, among its equals of the row that went and of the one that came."""
    left: dict[Key, int] = {}
    arrived: dict[Key, int] = {}
    found = []
    for one in moved:
        old, new = left.get(one.old, 0), arrived.get(one.new, 0)
        if old < gone.get(one.old, 0) and new < came.get(one.new, 0):
            left[one.old], arrived[one.new] = old + 1, new + 1
            found.append((one, old, new))
    return found


def arranged(moved: Iterable[MovedKey]) -> list[MovedKey]:
    """Order moves, each key at most once on either side, as a unique index takes them; those that
    move in a circle are left out."""
    by_old = {one.old: one for one in moved}
    targets = {one.new for one in by_old.values()}
    found: list[MovedKey] = []
    for first in [one for key, one in by_old.items() if key not in targets]:
        chain = [first]
        while (following := by_old.get(chain[-1].new)) is not None:
            chain.append(following)
        found += reversed(chain)
    return found
