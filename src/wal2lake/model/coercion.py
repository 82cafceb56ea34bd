"""Values that their column could not hold, and the policy that was used for them.

One ``Coercion`` counts all such values of a batch, or of one range of a copy, that have the same
column, policy and reason. The code that converts values makes it, the catalog keeps it and
``wal2lake.coercions`` shows it. Pure; nothing here depends on the form of values.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from wal2lake.model.lsn import Lsn


@dataclass(frozen=True, slots=True)
class Coercion:
    """Values of one column that one policy treated for the same reason."""

    column: str
    policy: str
    """null or clamp; widen: the column became text because of the first such value."""
    reason: str
    """Why the value could not be stored, in the words of the error that it would otherwise
    raise."""
    count: int
    first_lsn: Lsn
    """Commit LSN of the transaction; in a copy, the snapshot's consistent point."""
    last_lsn: Lsn
    example: str
    """The first such value as text, truncated."""


def merged(coercions: Iterable[Coercion]) -> tuple[Coercion, ...]:
    """Merge coercions with equal column, policy and reason; the earliest example stays."""
    by_key: dict[tuple[str, str, str], Coercion] = {}
    for coercion in coercions:
        key = (coercion.column, coercion.policy, coercion.reason)
        previous = by_key.get(key)
        if previous is None:
            by_key[key] = coercion
            continue
        earlier = previous if previous.first_lsn <= coercion.first_lsn else coercion
        by_key[key] = replace(
            previous,
            count=previous.count + coercion.count,
            first_lsn=earlier.first_lsn,
            last_lsn=max(previous.last_lsn, coercion.last_lsn),
            example=earlier.example,
        )
    return tuple(by_key[key] for key in sorted(by_key))
