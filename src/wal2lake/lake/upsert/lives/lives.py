"""Computes the net change of a batch whose keys are numbered: rows to remove and to write. Pure.

Comes in: the events of one table in log order, each key as a small number, and which keys the
table holds. Goes out: the keys whose stored rows are removed, and the rows that are written, each
as indices: *last* is the event that gives its values, *sources* the events that give those
columns that ``last`` does not know, ``STORED`` being the stored row of key ``base``; and which
events found no row (*missed*). Called by ``plan``.

Why this way. The row that a key holds lives from an INSERT to a DELETE, or comes from the table.
For keys that no key change touches, the last INSERT or DELETE of a key (its *reset*) and the last
known value of each column decide; NumPy finds them for all keys at once, and the result of key
changes between keys that no other event touches. The remaining keys depend on each other in log
order, and are walked one event at a time (about 2 microseconds and 500 bytes each); a batch has
few of them.

Sources: PostgreSQL worker.c (apply_handle_insert, _update, _delete).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from wal2lake.lake.staging.layout import DELETE, INSERT, UPDATE
from wal2lake.lake.upsert.lives.steps import LifeSteps, RowRefs, in_order
from wal2lake.model import ConflictType, Resolution

Index = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

STORED: Final = -1
"""Source of a value that the table holds. As ``base``: no stored row."""

NOT_MOVED: Final = -1

_CHANGES: Final = (Resolution.APPLY_REMOTE, Resolution.MERGE)
"""Resolutions by which the event makes a row."""


@dataclass(frozen=True, slots=True)
class Events:
    """Events of one table, ascending by (commit LSN, ordinal); no TRUNCATE."""

    op: npt.NDArray[np.int8]
    """ASCII I, U or D."""
    key: Index
    """Number of the key that the event's row has afterwards; for D: that it had."""
    old: Index
    """For a U that changed the key: the number before; otherwise NOT_MOVED."""
    unknown: Mapping[int, Mask]
    """By column: whether the event lacks its value. Only U, only columns with such events."""


@dataclass(frozen=True, slots=True)
class HeldRow:
    """Row that a key holds at some event."""

    base: int
    """The key whose stored row it comes from; STORED: none."""
    last: int
    """The event that made it; STORED: it is unchanged in the table."""
    sources: tuple[int, ...]
    """By column of ``Events.unknown``: the event that has the value, or STORED."""


Watched = tuple[tuple[int, HeldRow], ...]
"""Events, and the rows that they made."""


@dataclass(frozen=True, slots=True)
class Lives:
    """The net change of the events."""

    removed: Index
    """Keys whose stored rows are removed."""
    last: Index
    """For each row to write: the event with the row's key and values."""
    base: Index
    """For each row to write: the key whose stored row it comes from; STORED: inserted."""
    sources: Mapping[int, Index]
    """For each row to write, by column of ``Events.unknown``: the event that has the value, or
    STORED."""
    missed: Index
    """Events U and D that found no row and did nothing, ascending. With a judge: empty."""
    met: tuple[MetEvent, ...] = ()
    """Events that a judge has decided, ascending."""
    watched: Watched = ()
    """Rows that watched events made, ascending; an event that found no row has none."""
    steps: LifeSteps | None = None
    """With ``record``: the effects of all events that had one."""


@dataclass(frozen=True, slots=True)
class MetEvent:
    """A conflict, and the resolution of its event."""

    event: int
    type: ConflictType
    resolution: Resolution
    """error, skip, apply_remote, keep_local or merge."""
    stored: int = STORED
    """The key of the stored row that the event met; STORED: none, or a row of this batch."""
    writer: int = STORED
    """The event that wrote the row that was met; STORED: none, or a stored row."""
    incomplete: bool = False
    """True if the event should be applied, but some of its values were not sent."""


@dataclass(frozen=True, slots=True)
class Question:
    """A conflict that the judge can decide only after both rows have been read."""

    event: int
    type: ConflictType
    local: HeldRow
    remote: HeldRow
    """Row that the event would make."""


@dataclass(frozen=True, slots=True)
class KeyQuestions:
    """All questions that do not depend on each other. After the answers the batch is reduced
    again."""

    questions: tuple[Question, ...]


class Judge(Protocol):
    """Decides about conflicts that are not all resolved by PostgreSQL's default."""

    foreign: Mask
    """By key: whether the stored row is known to have another writer than the subscription."""
    unsent: frozenset[int]
    """Columns that the publisher does not have; they are null in rows that the table does not
    hold."""

    def decide(
        self, kind: ConflictType, event: int, stored: int, writer: int
    ) -> Resolution | None:
        """Return error, skip, apply_remote, keep_local or merge; ``stored`` and ``writer`` as in
        ``MetEvent``. None: the judge needs the rows."""
        ...

    def merged(self, kind: ConflictType, event: int) -> int:
        """Return the number of a merged row, which counts as an event that has all values."""
        ...


@dataclass(frozen=True, slots=True)
class Stopped:
    """The first event that cannot be applied: its row's key is taken, or the judge stops it."""

    event: int
    met: MetEvent | None = None
    """None without a judge."""
    watched: Watched = ()
    """Rows as in ``Lives``, if the batch stops at or after their events."""


def net_lives(
    events: Events,
    stored: Mask,
    *,
    unique: bool,
    judge: Judge | None = None,
    watched: Mask | None = None,
    record: bool = False,
) -> Lives | Stopped | KeyQuestions:
    """Reduce the events; ``stored`` says for each key whether the table holds a row.

    With ``unique`` a row whose key is taken is a conflict; otherwise it replaces the other row.
    Without a ``judge`` that conflict stops the batch, and changes of missing rows do nothing. If
    the judge needs rows, the result is ``KeyQuestions``. ``watched``: events whose rows are
    returned as they make them; all rows that the judge merges are returned with them. With
    ``record`` the effect of each event is returned.
    """
    linked = np.zeros(len(stored), np.bool_)
    moved = events.old != NOT_MOVED
    touches = np.bincount(events.key, minlength=len(stored))
    touches += np.bincount(events.old[moved], minlength=len(stored))
    alone = moved & (touches[events.key] == 1) & (touches[events.old] == 1)
    if record:
        alone[:] = False
    if watched is not None:
        alone &= ~watched
        linked[events.key[watched]] = True
    tied = moved & ~alone
    linked[events.key[tied]] = True
    linked[events.old[tied]] = True
    if judge is not None:
        # The resolution of one event decides what the next event meets.
        linked |= judge.foreign
        plain = np.flatnonzero(~linked[events.key] & ~alone)
        linked[_conflicting_keys(events, plain, stored)] = True
        meets = ~stored[events.old] | stored[events.key]
        meets |= linked[events.old] | linked[events.key]
        linked[events.key[alone & meets]] = True
        alone &= ~meets
    walked = linked[events.key]
    plain = np.flatnonzero(~walked & ~alone)
    parts: list[Lives | Stopped | KeyQuestions] = [
        _reduce(events, plain, stored, unique=unique)
    ]
    if alone.any():
        parts.append(
            _reduce_moves(events, np.flatnonzero(alone), stored, unique=unique)
        )
    seen: Watched = ()
    steps = _plain_steps(events, plain, stored) if record else None
    if walked.any():
        walk = _Walk(
            events, stored, unique=unique, judge=judge, watched=watched, record=record
        )
        parts.append(walk.run(np.flatnonzero(walked)))
        seen = tuple(walk.seen)
        if steps is not None:
            steps = in_order(steps, walk.recorded())
    elif steps is not None:
        steps = steps.take(np.argsort(steps.event, kind="stable"))
    for part in parts:
        if isinstance(part, KeyQuestions):
            return part
    stops = [part for part in parts if isinstance(part, Stopped)]
    if stops:
        return replace(min(stops, key=lambda stop: stop.event), watched=seen)
    results = [part for part in parts if isinstance(part, Lives)]
    if len(results) == 1:
        return replace(results[0], watched=seen, steps=steps)
    return Lives(
        np.concatenate([lives.removed for lives in results]),
        np.concatenate([lives.last for lives in results]),
        np.concatenate([lives.base for lives in results]),
        {
            column: np.concatenate([lives.sources[column] for lives in results])
            for column in events.unknown
        },
        np.sort(np.concatenate([lives.missed for lives in results])),
        tuple(met for lives in results for met in lives.met),
        seen,
        steps,
    )


def _reduce_moves(
    events: Events, chosen: Index, stored: Mask, *, unique: bool
) -> Lives | Stopped:
    """Reduce key changes between keys that no other event touches, all at once."""
    old, key = events.old[chosen], events.key[chosen]
    is_stored = stored[old]
    met = is_stored & stored[key]
    if unique and met.any():
        return Stopped(int(chosen[met].min()))
    last = chosen[is_stored]
    return Lives(
        removed=np.concatenate([old[is_stored], key[met]]),
        last=last,
        base=old[is_stored],
        sources={
            column: np.where(mask[last], STORED, last)
            for column, mask in events.unknown.items()
        },
        missed=chosen[~is_stored],
    )


def _conflicting_keys(events: Events, chosen: Index, stored: Mask) -> Index:
    """Return the keys of the chosen events that insert a taken key, or change a missing row."""
    if not chosen.size:
        return chosen
    by_key = _ByKey.of(events, chosen, stored)
    met = (by_key.op == INSERT) == by_key.occupied
    keys: Index = by_key.key[met]
    return keys


@dataclass(frozen=True, slots=True)
class _ByKey:
    """Events of keys that do not depend on each other, ordered by their keys."""

    order: Index
    """Numbers of the events; a key's events are in log order."""
    key: Index
    op: npt.NDArray[np.int8]
    starts: Index
    """Position where each key's events begin."""
    reset_at: Index
    """Position of an INSERT or DELETE; otherwise -1."""
    occupied: Mask
    """Whether the event finds a row."""

    @classmethod
    def of(cls, events: Events, chosen: Index, stored: Mask) -> _ByKey:
        """Order at least one event by its key."""
        # A stable sort keeps a key's events in log order.
        order = chosen[np.argsort(events.key[chosen], kind="stable")]
        key, op = events.key[order], events.op[order]
        place = np.arange(len(order))
        starts = np.flatnonzero(np.diff(key, prepend=-1))
        counts = np.diff(np.append(starts, len(order)))
        group = np.repeat(np.arange(len(starts)), counts)
        reset_at = np.where(op != UPDATE, place, -1)
        before = _before(reset_at)
        here = before >= starts[group]
        occupied = np.where(here, op[before] == INSERT, stored[key])
        return cls(order, key, op, starts, reset_at, occupied)


def _reduce(
    events: Events, chosen: Index, stored: Mask, *, unique: bool
) -> Lives | Stopped:
    """Reduce keys that do not depend on each other, all at once."""
    if not chosen.size:
        none = np.zeros(0, np.int64)
        return Lives(none, none, none, dict.fromkeys(events.unknown, none), none)
    by_key = _ByKey.of(events, chosen, stored)
    order, key, op = by_key.order, by_key.key, by_key.op
    starts, reset_at, occupied = by_key.starts, by_key.reset_at, by_key.occupied
    place = np.arange(len(order))
    ends = np.append(starts[1:], len(order)) - 1
    if unique:
        clashes = order[(op == INSERT) & occupied]
        if clashes.size:
            return Stopped(int(clashes.min()))

    reset = np.maximum.reduceat(reset_at, starts)
    from_table = reset < 0
    keys = key[starts]
    alive = np.where(from_table, stored[keys], op[reset] == INSERT)
    sources = {}
    for column, mask in events.unknown.items():
        with_value = np.where(mask[order] | (op == DELETE), -1, place)
        last_known = np.maximum.reduceat(with_value, starts)[alive]
        sources[column] = np.where(last_known < 0, STORED, order[last_known])
    return Lives(
        removed=keys[stored[keys]],
        last=order[ends[alive]],
        base=np.where(from_table, keys, STORED)[alive],
        sources=sources,
        missed=np.sort(order[(op != INSERT) & ~occupied]),
    )


def _plain_steps(events: Events, chosen: Index, stored: Mask) -> LifeSteps:
    """Return the effects of events of keys that do not depend on each other, by key."""
    if not chosen.size:
        none = RowRefs.of((), list(events.unknown))
        return LifeSteps(chosen, none, none)
    by_key = _ByKey.of(events, chosen, stored)
    order, key, op = by_key.order, by_key.key, by_key.op
    place = np.arange(len(order))
    counts = np.diff(np.append(by_key.starts, len(order)))
    start = np.repeat(by_key.starts, counts)
    reset = _before(by_key.reset_at)
    # The row that an event finds began at a reset of its key, or is the table's.
    from_table = reset < start
    begins = np.where(from_table, start, reset)
    before_last = np.where(place > start, order[place - 1], STORED)
    sources: dict[int, Index] = {}
    made: dict[int, Index] = {}
    for column, mask in events.unknown.items():
        lacks = mask[order]
        with_value = _before(np.where(lacks | (op == DELETE), -1, place))
        source = np.where(with_value < begins, STORED, order[with_value])
        sources[column] = source
        made[column] = np.where(lacks, source, order)
    occupied = by_key.occupied
    base = np.where(from_table, key, STORED)
    has_effect = np.flatnonzero((op == INSERT) | occupied)
    inserts = op == INSERT
    steps = LifeSteps(
        order,
        RowRefs(occupied, base, before_last, sources),
        RowRefs(op != DELETE, np.where(inserts, STORED, base), order, made),
    )
    return steps.take(has_effect)


def _before(places: Index) -> Index:
    """Return the highest place that comes before each position; -1 if there is none."""
    highest = np.empty_like(places)
    highest[0], highest[1:] = -1, np.maximum.accumulate(places)[:-1]
    return highest


class _Walk:
    """Applies events of keys that key changes tie together, or that meet conflicts, one at a
    time."""

    def __init__(
        self,
        events: Events,
        stored: Mask,
        *,
        unique: bool,
        judge: Judge | None,
        watched: Mask | None,
        record: bool,
    ) -> None:
        self._steps: list[tuple[int, HeldRow | None, HeldRow | None]] = []
        """Events, the rows that they found, and the rows that they made."""
        self._record = record
        self.seen: list[tuple[int, HeldRow]] = []
        """Rows as in ``Lives.watched``."""
        self._watched = watched
        self._events = events
        self._stored = stored
        self._unique = unique
        self._judge = judge
        self._columns = list(events.unknown)
        self._rows: dict[int, HeldRow | None] = {}
        """Row that each key holds now; a key that is missing here holds the table's row."""
        self._missed: list[int] = []
        self._met: list[MetEvent] = []
        self._questions: list[Question] = []
        self._undecided: set[int] = set()
        """Keys whose rows depend on a question that has no answer yet."""

    def run(self, chosen: Index) -> Lives | Stopped | KeyQuestions:
        """Apply the chosen events in order."""
        events = self._events
        masks = [events.unknown[column][chosen].tolist() for column in self._columns]
        steps = zip(
            chosen.tolist(),
            events.op[chosen].tolist(),
            events.key[chosen].tolist(),
            events.old[chosen].tolist(),
            strict=True,
        )
        for step, (event, op, key, old) in enumerate(steps):
            source = key if old == NOT_MOVED else old
            if self._undecided and not self._undecided.isdisjoint((source, key)):
                self._undecided |= {source, key}
                continue
            if op == INSERT:
                done, row = self._insert(event, key)
            elif op == DELETE:
                done, row = self._delete(event, key), None
            else:
                unknown = [mask[step] for mask in masks]
                done, row = self._update(event, source, key, unknown)
            if done is None:
                self._undecided |= {source, key}
                continue
            if done is Resolution.ERROR:
                if self._questions:
                    break
                return Stopped(event, self._met[-1] if self._met else None)
            if done not in _CHANGES:
                continue
            if self._record:
                self._step(event, source, key, row)
            if source != key:
                self._rows[source] = None
            self._rows[key] = row
            if row is not None and self._is_watched(event, row):
                self.seen.append((event, row))
        if self._questions:
            return KeyQuestions(tuple(self._questions))
        return self._result()

    def _step(self, event: int, source: int, key: int, row: HeldRow | None) -> None:
        displaced = self._row_of(key) if source != key else None
        if displaced is not None:
            self._steps.append((event, displaced, None))
        self._steps.append((event, self._row_of(source), row))

    def recorded(self) -> LifeSteps:
        """Return the effects of the events so far."""
        return LifeSteps(
            _indices([event for event, _, _ in self._steps]),
            RowRefs.of([before for _, before, _ in self._steps], self._columns),
            RowRefs.of([after for _, _, after in self._steps], self._columns),
        )

    def _is_watched(self, event: int, row: HeldRow) -> bool:
        if self._watched is None:
            return False
        return bool(self._watched[event]) or row.last >= len(self._events.op)

    def _updated_row(
        self, event: int, row: HeldRow | None, unknown: Sequence[bool]
    ) -> HeldRow:
        """Return the row that an UPDATE makes of a row, or of none."""
        if row is None:
            return self._inserted_row(event)
        return HeldRow(
            row.base,
            event,
            tuple(
                source if lacks else event
                for source, lacks in zip(row.sources, unknown, strict=True)
            ),
        )

    def _inserted_row(self, event: int) -> HeldRow:
        return HeldRow(STORED, event, (event,) * len(self._columns))

    def _resolved_row(
        self,
        kind: ConflictType,
        event: int,
        resolution: Resolution | None,
        remote: HeldRow,
    ) -> HeldRow:
        """Return the row that the resolution leads to: the remote one, or the judge's merged
        row."""
        if resolution is not Resolution.MERGE or self._judge is None:
            return remote
        return self._inserted_row(self._judge.merged(kind, event))

    def _insert(self, event: int, key: int) -> tuple[Resolution | None, HeldRow]:
        row, new = self._row_of(key), self._inserted_row(event)
        if row is None or not self._unique:
            return Resolution.APPLY_REMOTE, new
        kind = ConflictType.INSERT_EXISTS
        resolution = self._resolve(kind, event, row, new)
        return resolution, self._resolved_row(kind, event, resolution, new)

    def _delete(self, event: int, key: int) -> Resolution | None:
        row = self._row_of(key)
        if row is None:
            return self._resolve(ConflictType.DELETE_MISSING, event, None, None)
        if self._is_foreign(row):
            kind = ConflictType.DELETE_ORIGIN_DIFFERS
            return self._resolve(kind, event, row, self._inserted_row(event))
        return Resolution.APPLY_REMOTE

    def _update(
        self, event: int, source: int, key: int, unknown: list[bool]
    ) -> tuple[Resolution | None, HeldRow]:
        row = self._row_of(source)
        resolution: Resolution | None = Resolution.APPLY_REMOTE
        new = self._updated_row(event, row, unknown)
        if row is None:
            resolution = self._resolve(ConflictType.UPDATE_MISSING, event, None, None)
            if resolution is Resolution.APPLY_REMOTE and self._lacks_values(unknown):
                self._met[-1] = replace(
                    self._met[-1], resolution=Resolution.ERROR, incomplete=True
                )
                return Resolution.ERROR, new
        elif self._is_foreign(row):
            kind = ConflictType.UPDATE_ORIGIN_DIFFERS
            resolution = self._resolve(kind, event, row, new)
            new = self._resolved_row(kind, event, resolution, new)
        taken = self._row_of(key) if source != key and self._unique else None
        if resolution in _CHANGES and taken is not None:
            kind = ConflictType.UPDATE_EXISTS
            resolution = self._resolve(kind, event, taken, new)
            new = self._resolved_row(kind, event, resolution, new)
            for index in range(len(self._met) - 1, -1, -1):
                if self._met[index].event != event:
                    break
                if resolution is not None and resolution not in _CHANGES:
                    self._met[index] = replace(self._met[index], resolution=resolution)
        return resolution, new

    def _lacks_values(self, unknown: list[bool]) -> bool:
        unsent = () if self._judge is None else self._judge.unsent
        return any(
            lacks and column not in unsent
            for column, lacks in zip(self._columns, unknown, strict=True)
        )

    def _is_foreign(self, row: HeldRow) -> bool:
        judge = self._judge
        return (
            judge is not None and row.last == STORED and bool(judge.foreign[row.base])
        )

    def _resolve(
        self,
        kind: ConflictType,
        event: int,
        row: HeldRow | None,
        remote: HeldRow | None,
    ) -> Resolution | None:
        if self._judge is None:
            if kind in (ConflictType.INSERT_EXISTS, ConflictType.UPDATE_EXISTS):
                return Resolution.ERROR
            self._missed.append(event)
            return Resolution.SKIP
        stored = writer = STORED
        if row is not None:
            stored, writer = (
                (row.base, STORED) if row.last == STORED else (STORED, row.last)
            )
        resolution = self._judge.decide(kind, event, stored, writer)
        if resolution is not None:
            self._met.append(MetEvent(event, kind, resolution, stored, writer))
        elif row is not None and remote is not None:
            self._questions.append(Question(event, kind, row, remote))
        return resolution

    def _row_of(self, key: int) -> HeldRow | None:
        if key not in self._rows:
            is_stored = bool(self._stored[key])
            sources = (STORED,) * len(self._columns)
            self._rows[key] = HeldRow(key, STORED, sources) if is_stored else None
        return self._rows[key]

    def _result(self) -> Lives:
        touched = {
            key: row
            for key, row in self._rows.items()
            if row is None or row.last != STORED
        }
        written = [row for row in touched.values() if row is not None]
        return Lives(
            removed=_indices([key for key in touched if self._stored[key]]),
            last=_indices([row.last for row in written]),
            base=_indices([row.base for row in written]),
            sources={
                column: _indices([row.sources[i] for row in written])
                for i, column in enumerate(self._columns)
            },
            missed=_indices(self._missed),
            met=tuple(self._met),
        )


def _indices(values: list[int]) -> Index:
    return np.array(values, np.int64)
