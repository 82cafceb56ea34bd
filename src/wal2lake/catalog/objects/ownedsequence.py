"""Sequences of serial and identity columns.

Source: sequence.c, nextval_internal().
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wal2lake.errors import UsageError
from wal2lake.model import Oid

_BITS: Final = {21: 15, 23: 31, 20: 63}
"""Bits of a sequence's greatest value, by type."""


@dataclass(frozen=True, slots=True)
class OwnedSequence:
    """pg_sequence: the source of values of a serial or identity column."""

    oid: Oid
    namespace: str
    name: str
    relid: Oid
    """OID of the table whose column owns the sequence."""
    type_oid: Oid
    start: int = 1
    increment: int = 1

    @property
    def limits(self) -> tuple[int, int]:
        """The least and the greatest value."""
        bits = _BITS.get(self.type_oid, 63)
        if self.increment < 0:
            return -(1 << bits), max(-1, self.start)
        return min(1, self.start), (1 << bits) - 1

    def next_of(self, last: int | None) -> int:
        """Return the value after ``last``; the first one if none was taken."""
        return self.start if last is None else last + self.increment

    def left(self, last: int | None) -> int:
        """Return the number of values after ``last``."""
        limit = self.limits[self.increment > 0]
        return max(0, (limit - self.next_of(last)) // self.increment + 1)

    def behind(self, last: int | None, count: int) -> tuple[int, int]:
        """Return the first and last of the next ``count`` values. Raises 2200H if there are too
        few."""
        if self.left(last) < count:
            raise UsageError(self.exhausted, sqlstate="2200H")
        first = self.next_of(last)
        return first, first + (count - 1) * self.increment

    @property
    def exhausted(self) -> str:
        """Text of nextval()'s error when the sequence is exhausted."""
        upwards = self.increment > 0
        end, limit = "maximum" if upwards else "minimum", self.limits[upwards]
        return f'nextval: reached {end} value of sequence "{self.name}" ({limit})'
