"""When a table whose copy fails is tried again. Pure.

In: failures, and what of a table somebody may change. Out: whether its pause is over. A pause
doubles with each failure that nothing was done about, up to five minutes.

Called by the snapshot keeper, which holds nothing at the publisher meanwhile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

from wal2lake.catalog import SubscriptionRel

_LONGEST_SECONDS: Final = 300.0
"""A snapshot taken so rarely costs the publisher nothing, and a table that was repaired at the
source is not waited for much longer. A guess."""

_Sign: TypeAlias = tuple[int, int | None]
"""Another one if somebody has done something about it: epoch, version of the table."""


@dataclass(frozen=True, slots=True)
class _Pause:
    seconds: float
    until: float
    sign: _Sign


class Patience:
    """Decides when one keeper gives way. Times are of a monotonic clock, in seconds."""

    def __init__(self) -> None:
        self._pauses: dict[int, _Pause] = {}

    def __bool__(self) -> bool:
        """Has anything failed?"""
        return bool(self._pauses)

    def failed(
        self, rel: SubscriptionRel, version: int | None, now: float, seconds: float
    ) -> None:
        """``seconds`` is the first pause, and the shortest."""
        sign = (rel.epoch, version)
        before = self._pauses.get(int(rel.relid))
        pause = seconds
        if before is not None and before.sign == sign:
            pause = max(seconds, min(before.seconds * 2, _LONGEST_SECONDS))
        self._pauses[int(rel.relid)] = _Pause(pause, now + pause, sign)

    def is_over(self, rel: SubscriptionRel, version: int | None, now: float) -> bool:
        """Also if there was none."""
        pause = self._pauses.get(int(rel.relid))
        return pause is None or pause.sign != (rel.epoch, version) or now >= pause.until
