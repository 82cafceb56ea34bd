"""Who decides what becomes of a change that meets another row than the publisher's.

Comes in: the resolutions of a table, who has made its rows, the batch's transactions. Goes out:
the ``Judge`` that ``lives`` asks; None where all is as PostgreSQL does it and nobody wants to
know whose the rows are. Called by ``plan.py``.

Times are those of commits, at the publisher or here. A row of which nobody says when it was
written counts as older than every change. Of two of the same time the one that is here stays.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from wal2lake.lake.origins import LONG_AGO, UNKNOWN, Commits, Marks
from wal2lake.lake.upsert.keys import Places
from wal2lake.lake.upsert.lives import STORED, Index, Mask
from wal2lake.lake.upsert.stored import StoredRows
from wal2lake.model import ConflictType, Modified, Resolution
from wal2lake.pgtypes import DEFAULT_RESOLUTIONS, Resolutions

_LEFT_OUT = (Resolution.SKIP, Resolution.KEEP_LOCAL)


@dataclass(frozen=True, slots=True)
class Rules:
    """Of one table in one batch."""

    resolutions: Resolutions = DEFAULT_RESOLUTIONS
    commits: Commits | None = None
    """None: who has made a row is not kept."""
    unsent: frozenset[int] = field(default_factory=frozenset)
    """Columns that the publisher does not have, and that are null in rows without them."""

    @property
    def are_postgresqls(self) -> bool:
        """Nothing is left to decide."""
        return not self.resolutions.chosen and self.commits is None


AS_POSTGRESQL = Rules()


class TableJudge:
    """See ``lives.Judge``."""

    def __init__(
        self,
        rules: Rules,
        events: Marks,
        stored: Marks,
        foreign: Mask,
        *,
        repeats: bool,
    ) -> None:
        """``events``: of the batch, by event; ``stored`` and ``foreign``: by key."""
        self._rules = rules
        self._events = events
        self._stored = stored
        self._repeats = repeats
        self.foreign = foreign
        self.unsent = rules.unsent

    def decide(
        self, kind: ConflictType, event: int, stored: int, writer: int
    ) -> Resolution:
        """By the rule for its type, and by time if that says so."""
        rule = self._rules.resolutions.of(kind)
        if rule in (Resolution.LAST_UPDATE_WINS, Resolution.FIRST_UPDATE_WINS):
            mine, other = int(self._events.time_us[event]), self._time(stored, writer)
            last = rule is Resolution.LAST_UPDATE_WINS
            wins = mine > other if last else mine < other
            rule = Resolution.APPLY_REMOTE if wins else Resolution.KEEP_LOCAL
        if self._repeats and stored != STORED and rule in _LEFT_OUT:
            # Which of the equal rows later changes mean would not be known any more.
            return Resolution.ERROR
        return rule

    def modified(self, stored: int, writer: int) -> Modified | None:
        """Who has made the row that was met; None: not known."""
        if writer != STORED:
            return self._events.at(writer)
        return None if stored == STORED else self._stored.at(stored)

    def _time(self, stored: int, writer: int) -> int:
        if writer != STORED:
            return int(self._events.time_us[writer])
        return LONG_AGO if stored == STORED else int(self._stored.time_us[stored])


def judge_for(
    rules: Rules,
    lsn: Index,
    places: Places,
    count: int,
    stored: StoredRows,
    *,
    repeats: bool,
) -> TableJudge | None:
    """The judge of a batch whose events committed at ``lsn``, over ``count`` keys; None: nothing
    is left to decide."""
    if rules.are_postgresqls:
        return None
    held = Marks.unknown(count)
    foreign = np.zeros(count, np.bool_)
    mine = rules.commits
    if mine is None:
        events = Marks.unknown(len(lsn))
    else:
        events = mine.of(lsn)
        found = stored.marks(places.file, places.row)
        held.origin[places.key] = found.origin
        held.xid[places.key] = found.xid
        held.time_us[places.key] = found.time_us
        foreign = (held.origin != UNKNOWN) & (held.origin != mine.origin)
    return TableJudge(rules, events, held, foreign, repeats=repeats)
