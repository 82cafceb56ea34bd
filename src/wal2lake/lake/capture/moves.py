"""Tracks rows whose key has changed, as statements record them. Pure.

A commit is read as the difference of two versions, by key. A row whose key has changed would
therefore be a removed row and an unrelated added row. Only the UPDATE knows the pair when it is
executed, and records it. The pairs of a transaction's statements are combined (``KeyMoves``), and
its commit carries the result (``commitfacts``). Capture uses only pairs that the difference
confirms: a pair says that two rows belong together, never that they exist.

    1 → 2, then 2 → 3              1 → 3
    4 is inserted, then 4 → 5      4 → 5; the difference has no removed 4: an INSERT of 5
    1 → 2, then 2 is deleted       1 → 2; the difference has no added 2: a DELETE of 1
    1 → 9, 2 → 1, 9 → 2            1 → 2, 2 → 1: no order of two UPDATEs keeps a key unique, so
                                   each key is published with its other columns changed

Rows of a table without a key are recorded as a whole.

Called by the front door's transactions, and by capture.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

MOST_ROWS: Final = 4096
"""Most recorded moves of one table in one transaction; beyond that they are DELETEs and INSERTs. A
guess: the pairs are in the table's log, which every reader reads."""

_MOST_BYTES: Final = 512 * 1024
"""The limit for the size of their texts."""

Key = tuple[str | None, ...]
"""Values as PostgreSQL's text, in the order of the table's columns; None is NULL."""


class MovedKey(NamedTuple):
    """One row's key before and after."""

    old: Key
    new: Key


@dataclass(frozen=True, slots=True)
class KeyMoves:
    """Key changes of one table, in a transaction so far."""

    moved: tuple[MovedKey, ...] = ()
    too_many: bool = False

    def then(self, moved: Sequence[MovedKey]) -> KeyMoves:
        """Return the key changes after one more statement, which has moved these rows at once."""
        origins: dict[Key, list[Key]] = {}
        for old, new in self.moved:
            origins.setdefault(new, []).append(old)
        last = []
        for old, new in moved:
            earlier = origins.get(old)
            last.append(MovedKey(earlier.pop() if earlier else old, new))
        before = (MovedKey(old, new) for new, olds in origins.items() for old in olds)
        changed = tuple(move for move in (*before, *last) if move.old != move.new)
        size = sum(len(text or "") for move in changed for key in move for text in key)
        if self.too_many or len(changed) > MOST_ROWS or size > _MOST_BYTES:
            return KeyMoves(too_many=True)
        return KeyMoves(changed)


def moved_from(pairs: Any) -> tuple[MovedKey, ...]:
    """Convert the JSON form; ValueError or TypeError if it is something else."""
    return tuple(MovedKey(_key(old), _key(new)) for old, new in pairs)


def _key(values: Any) -> Key:
    if not all(text is None or isinstance(text, str) for text in values):
        raise TypeError("a value is no text")
    return tuple(values)


def chosen(
    moved: Iterable[MovedKey], gone: Mapping[Key, int], came: Mapping[Key, int]
) -> list[tuple[MovedKey, int, int]]:
    """Return the moves that the difference confirms: as many rows were removed with the old key,
    and as many added with the new key. Each move has two numbers, from 0: of the removed and of
    the added row among rows with an equal key."""
    left: dict[Key, int] = {}
    arrived: dict[Key, int] = {}
    confirmed = []
    for move in moved:
        old, new = left.get(move.old, 0), arrived.get(move.new, 0)
        if old < gone.get(move.old, 0) and new < came.get(move.new, 0):
            left[move.old], arrived[move.new] = old + 1, new + 1
            confirmed.append((move, old, new))
    return confirmed


def arranged(moved: Iterable[MovedKey]) -> list[MovedKey]:
    """Order moves, each key at most once on either side, so that a unique index accepts them one
    by one; moves in a circle are left out."""
    by_old = {move.old: move for move in moved}
    targets = {move.new for move in by_old.values()}
    ordered: list[MovedKey] = []
    for first in [move for key, move in by_old.items() if key not in targets]:
        chain = [first]
        while (following := by_old.get(chain[-1].new)) is not None:
            chain.append(following)
        ordered += reversed(chain)
    return ordered
