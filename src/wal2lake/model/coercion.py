"""A value that its column could not hold, and what a declared policy made of it.

Counted by column and reason: one ``Coercion`` stands for all alike of a batch or of a range
of a copy. Made where values are converted, kept by the catalog, shown by
``wal2lake.coercions``. Pure; nothing here knows how values look.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from wal2lake.model.lsn import Lsn


@dataclass(frozen=True, slots=True)
class Coercion:
    """Values of one column that met the same fate for the same reason."""

    column: str
    policy: str
    """null or clamp; widen: the column became text for the first such value."""
    reason: str
    """Why the value could not be stored, in the words of the error that it would be."""
    count: int
    first_lsn: Lsn
    """LSN of the transaction's commit; of a copy, the snapshot's consistent point."""
    last_lsn: Lsn
    example: str
    """The first such value, as text, cut to a bounded length."""


def merged(coercions: Iterable[Coercion]) -> tuple[Coercion, ...]:
    """One for each column, policy and reason; the earliest example stays."""
    found: dict[tuple[str, str, str], Coercion] = {}
    for one in coercions:
        key = (one.column, one.policy, one.reason)
        known = found.get(key)
        if known is None:
            found[key] = one
            continue
        earlier = known if known.first_lsn <= one.first_lsn else one
        found[key] = replace(
            known,
            count=known.count + one.count,
            first_lsn=earlier.first_lsn,
            last_lsn=max(known.last_lsn, one.last_lsn),
            example=earlier.example,
        )
    return tuple(found[key] for key in sorted(found))
