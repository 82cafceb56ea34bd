"""Decides when a table whose copy failed is tried again. Pure.

In: failures, with the facts of a table that show an intervention. Out: whether the table's pause is
over. A pause doubles with each failure, up to five minutes, until someone intervenes.

Called by the snapshot keeper, which holds nothing at the publisher during a pause.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from wal2lake.catalog import SubscriptionRel

_LONGEST_SECONDS: Final = 300.0
"""Such rare snapshots cost the publisher nothing, and a table repaired at the source need not wait
much longer. Chosen arbitrarily."""

_Sign: TypeAlias = tuple[int, int | None]
"""Epoch and version of the table. A change shows that someone has intervened."""


@dataclass(frozen=True, slots=True)
class _Pause:
    seconds: float
    until: float
    sign: _Sign


class Patience:
    """Pauses of one keeper's tables. Times are in seconds, of a monotonic clock."""

    def __init__(self) -> None:
        self._pauses: dict[int, _Pause] = {}

    def __bool__(self) -> bool:
        """Whether any table has failed."""
        return bool(self._pauses)

    def failed(
        self, rel: SubscriptionRel, version: int | None, now: float, seconds: float
    ) -> None:
        """Note a failure. ``seconds`` is the first and shortest pause."""
        sign = (rel.epoch, version)
        before = self._pauses.get(int(rel.relid))
        pause = seconds
        if before is not None and before.sign == sign:
            pause = max(seconds, min(before.seconds * 2, _LONGEST_SECONDS))
        self._pauses[int(rel.relid)] = _Pause(pause, now + pause, sign)

    def is_over(self, rel: SubscriptionRel, version: int | None, now: float) -> bool:
        """Whether the table may be tried: it has no pause, or its pause is over."""
        pause = self._pauses.get(int(rel.relid))
        return pause is None or pause.sign != (rel.epoch, version) or now >= pause.until
