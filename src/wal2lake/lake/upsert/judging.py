"""Decides about changes that meet another row than the publisher's.

Comes in: the resolutions of a table, who has made its rows, the batch's transactions. Goes out:
the ``Judge`` that ``lives`` asks; None where all is as PostgreSQL does it and nobody wants to
know whose the rows are. Called by ``plan.py``.

Times are those of commits, at the publisher or here. A row of which nobody says when it was
written counts as older than every change. Of two of the same time the one that is here stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from wal2lake.errors import InternalError
from wal2lake.lake.expressions import EvaluatedPair, Expressions, Pairs, facts_table
from wal2lake.lake.origins import LONG_AGO, UNKNOWN, BatchCommits, RowMarks
from wal2lake.lake.staging.changes import ChangeShape
from wal2lake.lake.staging.generated import computed
from wal2lake.lake.upsert.keys import Places
from wal2lake.lake.upsert.lives.lives import STORED, HeldRow, Index, Mask, Met, Question
from wal2lake.lake.upsert.stored import StoredRows
from wal2lake.model import (
    CheckConstraint,
    ConflictType,
    Generated,
    Modified,
    Resolution,
)
from wal2lake.pgtypes import DEFAULT_RESOLUTIONS, Resolutions

_WITHOUT_KEY = (
    "0A000",
    "rows of a table without a primary key cannot be merged",
)

_LEFT_OUT = (Resolution.SKIP, Resolution.KEEP_LOCAL)


@dataclass(frozen=True, slots=True)
class ConflictRules:
    """Rules of one table in one batch."""

    resolutions: Resolutions = DEFAULT_RESOLUTIONS
    commits: BatchCommits | None = None
    """None: who has made a row is not kept."""
    unsent: frozenset[int] = field(default_factory=frozenset)
    """Columns that the publisher does not have, and that are null in rows without them."""
    expressions: Expressions | None = None
    """Where there are any among the resolutions."""
    required: frozenset[str] = field(default_factory=frozenset)
    """Columns that must not be null."""
    checks: tuple[CheckConstraint, ...] = ()
    """CHECK constraints of the table."""
    relation: str = ""
    """The table's bare name, for messages."""
    generated: Generated = ()
    """The table's generated columns."""

    @property
    def looks_at_rows(self) -> bool:
        """True if the row that an UPDATE makes is to be judged, or computed."""
        return bool(self.checks or self.generated)

    @property
    def are_postgresqls(self) -> bool:
        """Nothing is left to decide."""
        return not self.resolutions.chosen and self.commits is None


AS_POSTGRESQL = ConflictRules()


class TableJudge:
    """The judge of one table; ``lives.Judge`` explains it."""

    def __init__(
        self,
        rules: ConflictRules,
        events: RowMarks,
        stored: RowMarks,
        foreign: Mask,
        *,
        repeats: bool,
    ) -> None:
        """``events``: of the batch, by event; ``stored`` and ``foreign``: by key."""
        self._rules = rules
        self._events = events
        self._stored = stored
        self._repeats = repeats
        self._known: dict[tuple[ConflictType, int], EvaluatedPair] = {}
        self._merged: dict[tuple[ConflictType, int], int] = {}
        self._events_of: list[int] = []
        """Events of merged rows, whose numbers come after those of the events."""
        self.foreign = foreign
        self.unsent = rules.unsent

    def decide(
        self, kind: ConflictType, event: int, stored: int, writer: int
    ) -> Resolution | None:
        """By the rule for its type, and by time if that says so. None: an expression has to see
        the rows."""
        rule = self._rules.resolutions.of(kind)
        if rule is Resolution.MERGE and self._repeats:
            self._known[kind, event] = EvaluatedPair(error=_WITHOUT_KEY)
        if rule in (Resolution.EXPRESSION, Resolution.MERGE):
            known = self._known.get((kind, event))
            if known is None:
                return None
            if known.error is not None:
                return Resolution.ERROR
            if known.choice is None:
                return Resolution.MERGE
            rule = Resolution(known.choice)
        if rule in (Resolution.LAST_UPDATE_WINS, Resolution.FIRST_UPDATE_WINS):
            mine, other = int(self._events.time_us[event]), self._time(stored, writer)
            last = rule is Resolution.LAST_UPDATE_WINS
            wins = mine > other if last else mine < other
            rule = Resolution.APPLY_REMOTE if wins else Resolution.KEEP_LOCAL
        if self._repeats and stored != STORED and rule in _LEFT_OUT:
            # Which of the equal rows later changes mean would not be known any more.
            return Resolution.ERROR
        return rule

    def merged(self, kind: ConflictType, event: int) -> int:
        """The number of the merged row."""
        return self._merged[kind, event]

    def error(self, met: Met) -> tuple[str, str] | None:
        """SQLSTATE and message of an expression that could not say; None: it is a conflict that
        is to stop."""
        known = self._known.get((met.type, met.event))
        return None if known is None else known.error

    def event(self, number: int) -> int:
        """The event of a merged row; an event's own number."""
        count = len(self._events.time_us)
        return number if number < count else self._events_of[number - count]

    def answer(
        self,
        shape: ChangeShape,
        questions: Sequence[Question],
        rows_of: Callable[[Sequence[HeldRow]], pa.Table],
    ) -> tuple[pa.Table, list[int]] | None:
        """Ask the expressions. ``rows_of``: the values of rows. Returns the merged rows, in the
        order of their numbers, which go on from the last ones, and their events; None: there
        are none."""
        rows, events = [], []
        for kind in dict.fromkeys(one.type for one in questions):
            mine = [one for one in questions if one.type == kind]
            said = self._ask(shape, kind, mine, rows_of)
            for one, outcome in zip(mine, said, strict=False):
                self._known[kind, one.event] = outcome
                if outcome.row is not None:
                    number = len(self._events.time_us) + len(self._events_of)
                    self._merged[kind, one.event] = number
                    self._events_of.append(one.event)
                    rows.append(outcome.row)
                    events.append(one.event)
        if not rows:
            return None
        # Of generated columns an expression says nothing. What fails is watched (``checking``).
        names = [field.name for field in shape.fields]
        merged = pa.concat_tables(rows).rename_columns(names)
        return computed(self._rules.generated, shape.fields, merged)[0], events

    def _ask(
        self,
        shape: ChangeShape,
        kind: ConflictType,
        questions: Sequence[Question],
        rows_of: Callable[[Sequence[HeldRow]], pa.Table],
    ) -> list[EvaluatedPair]:
        """Fewer, if one of them fails."""
        asks = self._rules.expressions
        if asks is None:
            raise InternalError("nobody evaluates the expressions of a resolution")
        who = [self._writer(one) for one in questions]
        tracked = self._rules.commits is not None
        mine = [int(self._events.time_us[one.event]) for one in questions]
        facts = facts_table(
            [None if one is None else one.time_us for one in who],
            [time if tracked else None for time in mine],
            [
                None if one is None else f"pg_{one.origin}" if one.origin else "local"
                for one in who
            ],
        )
        pairs = Pairs(
            rows_of([one.local for one in questions]),
            rows_of([one.remote for one in questions]),
            facts,
        )
        expression = self._rules.resolutions.expressions[kind]
        key = [shape.fields[i].name for i in shape.key]
        required = self._rules.required
        return asks.evaluate(shape.fields, key, required, expression, pairs)

    def _writer(self, question: Question) -> Modified | None:
        row = question.local
        if row.last == STORED:
            return self.modified(row.base, STORED)
        return self.modified(STORED, row.last)

    def modified(self, stored: int, writer: int) -> Modified | None:
        """Return the writer of the row that was met; None: not known."""
        if writer != STORED:
            return self._events.at(self.event(writer))
        return None if stored == STORED else self._stored.at(stored)

    def _time(self, stored: int, writer: int) -> int:
        if writer != STORED:
            return int(self._events.time_us[self.event(writer)])
        return LONG_AGO if stored == STORED else int(self._stored.time_us[stored])


def judge_for(
    rules: ConflictRules,
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
    held = RowMarks.unknown(count)
    foreign = np.zeros(count, np.bool_)
    mine = rules.commits
    if mine is None:
        events = RowMarks.unknown(len(lsn))
    else:
        events = mine.of(lsn)
        found = stored.marks(places.file, places.row)
        held.origin[places.key] = found.origin
        held.xid[places.key] = found.xid
        held.time_us[places.key] = found.time_us
        foreign = (held.origin != UNKNOWN) & (held.origin != mine.origin)
    return TableJudge(rules, events, held, foreign, repeats=repeats)
