"""Decides about changes that meet another row than the publisher's.

Comes in: the resolutions of a table, the writers of its rows, the batch's transactions. Goes out:
the ``Judge`` that ``lives`` asks; None if every conflict is resolved as PostgreSQL does and the
writers of rows are not tracked. Called by ``plan``.

Times are times of commits, at the publisher or here. A row without a known time counts as older
than every change. If the times are equal, the local row stays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa

from wal2lake.errors import InternalError
from wal2lake.lake.expressions import (
    EvaluatedPair,
    Expressions,
    Pairs,
    RowDemands,
    facts_table,
)
from wal2lake.lake.origins import LONG_AGO, UNKNOWN, BatchCommits, RowMarks
from wal2lake.lake.port import FieldSpec
from wal2lake.lake.rowtexts import row_texts
from wal2lake.lake.staging.generated import (
    NotComputed,
    computed,
    empty_texts,
    in_place,
)
from wal2lake.lake.staging.layout import ChangeShape
from wal2lake.lake.staging.rowchecks import Violation, explained, violating
from wal2lake.lake.upsert.keys import Places
from wal2lake.lake.upsert.lives.lives import (
    STORED,
    HeldRow,
    Index,
    Mask,
    MetEvent,
    Question,
)
from wal2lake.lake.upsert.lives.marks import DeletionMarks
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
    """None: the writers of rows are not tracked."""
    unsent: frozenset[int] = field(default_factory=frozenset)
    """Columns that the publisher does not have; they are null in rows that the table does not
    hold."""
    expressions: Expressions | None = None
    """Evaluates the resolutions that are expressions; None if there are none."""
    required: frozenset[str] = field(default_factory=frozenset)
    """Columns that must not be null."""
    checks: tuple[CheckConstraint, ...] = ()
    """CHECK constraints of the table."""
    relation: str = ""
    """The table's bare name, for messages."""
    generated: Generated = ()
    """The table's generated columns."""
    soft: DeletionMarks | None = None
    """How deleted rows are marked; None if they are removed."""

    demands: RowDemands | None = None
    """Delta's demands on rows; None if there are none."""

    partition_texts: frozenset[str] = field(default_factory=frozenset)
    """Text columns by which the table is partitioned."""

    @property
    def looks_at_rows(self) -> bool:
        """True if the rows that UPDATEs make must be checked or computed."""
        return bool(self.checks or self.generated) or self.demands is not None

    @property
    def computes(self) -> frozenset[str]:
        """The generated columns, also those of Delta's own."""
        names = frozenset(name for name, _ in self.generated)
        return names if self.demands is None else names | self.demands.generated

    def computed(
        self, fields: Sequence[FieldSpec], rows: pa.Table, where: Mask | None = None
    ) -> tuple[pa.Table, list[NotComputed]]:
        """Compute the generated columns of rows (``where`` only), as ``generated.computed``; also
        those of Delta's own."""
        rows, failed = self._computed(fields, rows, where)
        failed += empty_texts(rows, self.computes & self.partition_texts, where)
        return rows, sorted(failed, key=lambda failure: failure.row)

    def _computed(
        self, fields: Sequence[FieldSpec], rows: pa.Table, where: Mask | None
    ) -> tuple[pa.Table, list[NotComputed]]:
        rows, failed = computed(self.generated, fields, rows, where)
        if self.demands is None or not self.demands.generated or not rows.num_rows:
            return rows, failed
        if where is not None and not where.any():
            return rows, failed
        part = rows if where is None else rows.filter(pa.array(where))
        positions = np.arange(rows.num_rows) if where is None else np.flatnonzero(where)
        columns, refused = self.demands.compute(part)
        for name, values in columns.items():
            place = rows.schema.get_field_index(name)
            column = rows.column(place)
            array = values if where is None else in_place(column, values, where)
            rows = rows.set_column(place, rows.schema.field(place), array)
        failed += [
            NotComputed(int(positions[v.row]), v.column, v.sqlstate, v.message, True)
            for v in refused
        ]
        return rows, failed

    def violating(self, rows: pa.Table) -> Mask:
        """Mark the rows that violate a constraint, also one of Delta's own."""
        violations = violating(self.checks, rows)
        if self.demands is not None and rows.num_rows:
            violations = violations | self.demands.violating(rows)
        return violations

    def explained(self, fields: Sequence[FieldSpec], row: pa.Table) -> Violation:
        """Build the error for a row that ``violating`` has marked."""
        if self.demands is None or violating(self.checks, row).any():
            return explained(self.checks, self.relation, fields, row)
        why = self.demands.explain(self.relation, row)
        detail = None
        if why.shows_row:
            (text,) = row_texts(fields, row.select([field.name for field in fields]))
            detail = f"Failing row contains {text}."
        return Violation(why.sqlstate, why.message, detail, None)

    @property
    def are_postgresqls(self) -> bool:
        """True if there is nothing to decide."""
        return not self.resolutions.chosen and self.commits is None


AS_POSTGRESQL = ConflictRules()


class TableJudge:
    """The judge of one table; see ``lives.Judge``."""

    def __init__(
        self,
        rules: ConflictRules,
        events: RowMarks,
        stored: RowMarks,
        foreign: Mask,
        *,
        repeats: bool,
    ) -> None:
        """``events``: writers by event of the batch; ``stored`` and ``foreign``: by key."""
        self._rules = rules
        self._events = events
        self._stored = stored
        self._repeats = repeats
        self._known: dict[tuple[ConflictType, int], EvaluatedPair] = {}
        self._merged: dict[tuple[ConflictType, int], int] = {}
        self._events_of: list[int] = []
        """Events of merged rows; the numbers of merged rows follow those of the events."""
        self.foreign = foreign
        self.unsent = rules.unsent

    def decide(
        self, kind: ConflictType, event: int, stored: int, writer: int
    ) -> Resolution | None:
        """Decide by the rule for the conflict's type, and by time if the rule says so. None: an
        expression needs the rows."""
        rule = self._rules.resolutions.of(kind)
        if rule is Resolution.MERGE and self._repeats:
            self._known[kind, event] = EvaluatedPair(error=_WITHOUT_KEY)
        if rule in (Resolution.EXPRESSION, Resolution.MERGE):
            outcome = self._known.get((kind, event))
            if outcome is None:
                return None
            if outcome.error is not None:
                return Resolution.ERROR
            if outcome.choice is None:
                return Resolution.MERGE
            rule = Resolution(outcome.choice)
        if rule in (Resolution.LAST_UPDATE_WINS, Resolution.FIRST_UPDATE_WINS):
            mine, theirs = int(self._events.time_us[event]), self._time(stored, writer)
            last = rule is Resolution.LAST_UPDATE_WINS
            wins = mine > theirs if last else mine < theirs
            rule = Resolution.APPLY_REMOTE if wins else Resolution.KEEP_LOCAL
        if self._repeats and stored != STORED and rule in _LEFT_OUT:
            # Later changes could no longer tell which of the equal rows they mean.
            return Resolution.ERROR
        return rule

    def merged(self, kind: ConflictType, event: int) -> int:
        """Return the number of the merged row."""
        return self._merged[kind, event]

    def error(self, met: MetEvent) -> tuple[str, str] | None:
        """Return SQLSTATE and message of an expression that failed; None if the conflict itself
        stops."""
        outcome = self._known.get((met.type, met.event))
        return None if outcome is None else outcome.error

    def event(self, number: int) -> int:
        """Return the event of a merged row; for an event its own number."""
        count = len(self._events.time_us)
        return number if number < count else self._events_of[number - count]

    def answer(
        self,
        shape: ChangeShape,
        questions: Sequence[Question],
        rows_of: Callable[[Sequence[HeldRow]], pa.Table],
    ) -> tuple[pa.Table, list[int]] | None:
        """Evaluate the expressions. ``rows_of`` returns the values of rows.

        Returns the merged rows, in the order of their numbers, which continue the last ones, and
        their events; None if no row was merged.
        """
        rows, events = [], []
        for kind in dict.fromkeys(question.type for question in questions):
            same_kind = [question for question in questions if question.type == kind]
            outcomes = self._ask(shape, kind, same_kind, rows_of)
            for question, outcome in zip(same_kind, outcomes, strict=False):
                self._known[kind, question.event] = outcome
                if outcome.row is not None:
                    number = len(self._events.time_us) + len(self._events_of)
                    self._merged[kind, question.event] = number
                    self._events_of.append(question.event)
                    rows.append(outcome.row)
                    events.append(question.event)
        if not rows:
            return None
        # An expression sets no generated columns. ``checking`` watches rows that fail.
        names = [field.name for field in shape.fields]
        merged = pa.concat_tables(rows).rename_columns(names)
        return self._rules.computed(shape.fields, merged)[0], events

    def _ask(
        self,
        shape: ChangeShape,
        kind: ConflictType,
        questions: Sequence[Question],
        rows_of: Callable[[Sequence[HeldRow]], pa.Table],
    ) -> list[EvaluatedPair]:
        """Evaluate the expression of one type; the result is shorter if a row fails."""
        evaluator = self._rules.expressions
        if evaluator is None:
            raise InternalError("a resolution has an expression and no evaluator")
        writers = [self._writer(question) for question in questions]
        tracked = self._rules.commits is not None
        times = [int(self._events.time_us[question.event]) for question in questions]
        facts = facts_table(
            [None if writer is None else writer.time_us for writer in writers],
            [time if tracked else None for time in times],
            [
                None if w is None else f"pg_{w.origin}" if w.origin else "local"
                for w in writers
            ],
        )
        pairs = Pairs(
            rows_of([question.local for question in questions]),
            rows_of([question.remote for question in questions]),
            facts,
        )
        expression = self._rules.resolutions.expressions[kind]
        key = [shape.fields[i].name for i in shape.key]
        required = self._rules.required
        return evaluator.evaluate(shape.fields, key, required, expression, pairs)

    def _writer(self, question: Question) -> Modified | None:
        row = question.local
        if row.last == STORED:
            return self.modified(row.base, STORED)
        return self.modified(STORED, row.last)

    def modified(self, stored: int, writer: int) -> Modified | None:
        """Return the writer of the row that was met; None if it is not known."""
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
    """Return the judge of a batch whose events committed at ``lsn``, over ``count`` keys; None if
    there is nothing to decide."""
    if rules.are_postgresqls:
        return None
    held = RowMarks.unknown(count)
    foreign = np.zeros(count, np.bool_)
    commits = rules.commits
    if commits is None:
        events = RowMarks.unknown(len(lsn))
    else:
        events = commits.of(lsn)
        marks = stored.marks(places.file, places.row)
        held.origin[places.key] = marks.origin
        held.xid[places.key] = marks.xid
        held.time_us[places.key] = marks.time_us
        foreign = (held.origin != UNKNOWN) & (held.origin != commits.origin)
    return TableJudge(rules, events, held, foreign, repeats=repeats)
