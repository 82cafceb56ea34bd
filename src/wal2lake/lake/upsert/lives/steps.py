"""Effects of single events on rows, as arrays, for tables with a history. Pure.

``lives`` makes them; ``recorded`` reads the rows that they refer to.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from wal2lake.lake.upsert.lives.lives import HeldRow

Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_NONE: Final = -1


@dataclass(frozen=True, slots=True)
class RowRefs:
    """Rows by where their values are, as arrays; the fields are those of ``HeldRow``."""

    exists: Mask
    """Whether there is a row; otherwise the other arrays say nothing."""
    base: Index
    last: Index
    sources: Mapping[int, Index]
    """By column of ``Events.unknown``."""

    @classmethod
    def of(cls, rows: Sequence[HeldRow | None], columns: Sequence[int]) -> RowRefs:
        """Collect rows. ``columns``: those of ``Events.unknown``."""
        return cls(
            np.array([row is not None for row in rows], np.bool_),
            np.array([_NONE if row is None else row.base for row in rows], np.int64),
            np.array([_NONE if row is None else row.last for row in rows], np.int64),
            {
                column: np.array(
                    [_NONE if row is None else row.sources[i] for row in rows], np.int64
                )
                for i, column in enumerate(columns)
            },
        )

    def take(self, positions: Index | slice) -> RowRefs:
        """Return some of the rows."""
        return RowRefs(
            self.exists[positions],
            self.base[positions],
            self.last[positions],
            {column: source[positions] for column, source in self.sources.items()},
        )

    def joined(self, other: RowRefs) -> RowRefs:
        """Return these rows and the others behind them."""
        return RowRefs(
            np.concatenate([self.exists, other.exists]),
            np.concatenate([self.base, other.base]),
            np.concatenate([self.last, other.last]),
            {
                column: np.concatenate([source, other.sources[column]])
                for column, source in self.sources.items()
            },
        )


@dataclass(frozen=True, slots=True)
class LifeSteps:
    """Effects of events on rows, for tables with a history, in log order."""

    event: Index
    """An event that displaces a row has that one's deletion before its own effect."""
    before: RowRefs
    """The row that the event found; none if it inserts one."""
    after: RowRefs
    """The row that it made; none if it deletes one."""

    def take(self, positions: Index | slice) -> LifeSteps:
        """Return some of the effects."""
        return LifeSteps(
            self.event[positions],
            self.before.take(positions),
            self.after.take(positions),
        )


def in_order(first: LifeSteps, second: LifeSteps) -> LifeSteps:
    """Put effects in log order."""
    joined = LifeSteps(
        np.concatenate([first.event, second.event]),
        first.before.joined(second.before),
        first.after.joined(second.after),
    )
    # A stable sort keeps the two effects of one event in their order.
    return joined.take(np.argsort(joined.event, kind="stable"))
