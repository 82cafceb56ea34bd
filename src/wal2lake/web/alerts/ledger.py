"""Which alerts are due: one when a problem begins, one when it ends, each once. Pure.

In: the problems of each look, the results of attempts to send. Out: the next alert to send. A
problem is announced after it has lasted for the delay, and its end after it has been gone for as
long, so a problem that flickers says nothing.

    stage       written   what happens                           next stage
    ---------   -------   ------------------------------------   -------------------------------
    waiting     no        the problem goes                       forgotten
                          an attempt to send the begin           beginning
    beginning   yes       accepted                               announced
                          refused, as each attempt before        waiting
                          no answer                              beginning; another attempt
                          the problem goes, and stays away       ending, by an attempt
    announced   yes       the problem goes, and stays away       ending, by an attempt
    ending      yes       accepted                               forgotten
                          10,000 younger ends wait, too          forgotten, and counted
                          refused, or no answer                  ending; another attempt

The ledger is written to a file after each change, and before each attempt. So a crash neither
forgets nor invents an alert: one whose acceptance could not be noted is sent again with the same
id, by which the other side knows that it has it. An end may have been accepted, so a problem that
comes back meanwhile is a new one, after that end. A begin may have been accepted, so its end is
sent in any case.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final, Literal
from uuid import uuid4

from wal2lake.health import Problem, ProblemKey

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 300.0

_MOST_ENDS: Final = 10_000
"""Ends that wait for a channel that accepts nothing; the oldest ones beyond are given up. Tables
that come and go would otherwise fill memory and disk. A guess: with usual texts some 20 MB."""

Event = Literal["begin", "end"]


@dataclass(frozen=True, slots=True)
class Alert:
    """One message."""

    id: str
    """The same for the begin and the end of one problem."""
    event: Event
    problem: Mapping[str, Any]
    """The problem's fields in JSON's types, as last seen."""
    ended_at: datetime | None = None


class _Stage(StrEnum):
    """How much of a problem the other side knows."""

    WAITING = "waiting"
    """Nothing."""
    BEGINNING = "beginning"
    """Perhaps that it has begun."""
    ANNOUNCED = "announced"
    """That it has begun."""
    ENDING = "ending"
    """Perhaps that it has ended."""


@dataclass(frozen=True, slots=True)
class _Entry:
    """One problem that has an alert, or will have one."""

    id: str
    problem: Mapping[str, Any]
    first_seen: datetime
    stage: _Stage = _Stage.WAITING
    doubtful: bool = False
    """True if an attempt to send the begin has got no answer."""
    gone_at: datetime | None = None
    failures: int = 0
    retry_at: datetime | None = None


class AlertLedger:
    """The alerts of one channel. For one thread at a time.

    The file must be written when a method returns True, and after ``sent``."""

    def __init__(self, delay_seconds: float) -> None:
        """Begin without any problem."""
        self.delay = timedelta(seconds=delay_seconds)
        self._entries: dict[ProblemKey, _Entry] = {}
        self._looked = True
        # The problem of the alert that is being sent.
        self._under_way: ProblemKey | None = None
        self.given_up = 0
        """Ends that were given up; the caller may begin anew to count."""

    def observe(self, problems: Iterable[Problem], now: datetime) -> bool:
        """Take the problems of one look."""
        self._looked = True
        before = self._written()
        present = {problem.key: problem for problem in problems}
        for key, problem in present.items():
            entry = self._entries.get(key)
            if entry is None:
                entry = _Entry(str(uuid4()), _as_json(problem), now)
            elif entry.stage is _Stage.ENDING:
                continue
            elif entry.gone_at is not None:
                entry = replace(entry, gone_at=None, failures=0, retry_at=None)
            self._entries[key] = replace(entry, problem=_as_json(problem))
        for key, entry in list(self._entries.items()):
            if key in present:
                continue
            if entry.stage is _Stage.WAITING:
                del self._entries[key]
            elif entry.gone_at is None:
                self._entries[key] = replace(
                    entry, gone_at=now, failures=0, retry_at=None
                )
        self._give_up()
        # The words of a problem may change with each look; a restart gets them from the first one.
        return self._written() != before

    def _give_up(self) -> None:
        if len(self._entries) <= _MOST_ENDS:
            return
        gone = sorted(
            (entry.gone_at, key)
            for key, entry in self._entries.items()
            if entry.gone_at is not None and key != self._under_way
        )
        for _, key in gone[: max(0, len(gone) - _MOST_ENDS)]:
            del self._entries[key]
            self.given_up += 1

    def _written(self) -> dict[ProblemKey, tuple[str, _Stage, datetime | None]]:
        return {
            key: (entry.id, entry.stage, entry.gone_at)
            for key, entry in self._entries.items()
            if entry.stage is not _Stage.WAITING
        }

    def due(self, now: datetime) -> Alert | None:
        """Return the oldest alert that is to be sent now. None after a restart until the first
        look."""
        waiting = [
            (entry.gone_at or entry.first_seen, key)
            for key, entry in self._entries.items()
            if self._is_due(entry, now)
        ]
        if not waiting or not self._looked:
            return None
        entry = self._entries[min(waiting)[1]]
        event: Event = "begin" if entry.gone_at is None else "end"
        return Alert(entry.id, event, entry.problem, entry.gone_at)

    def _is_due(self, entry: _Entry, now: datetime) -> bool:
        if entry.stage is _Stage.ANNOUNCED and entry.gone_at is None:
            return False
        # A clock that is set back by hours must not make a pause, or the delay, last for hours.
        if entry.retry_at is not None:
            left = entry.retry_at - now
            if timedelta() < left <= timedelta(seconds=_LONGEST_PAUSE):
                return False
        return abs(now - (entry.gone_at or entry.first_seen)) >= self.delay

    def attempt(self, alert: Alert) -> bool:
        """Note that an alert is going to be sent."""
        key, entry = self._entry_of(alert)
        begins = alert.event == "begin"
        stage = _Stage.BEGINNING if begins else _Stage.ENDING
        self._entries[key] = replace(entry, stage=stage)
        self._under_way = key
        return entry.stage is not stage

    def sent(self, alert: Alert) -> None:
        """Note that the alert of an attempt was accepted."""
        key, entry = self._entry_of(alert)
        self._under_way = None
        if alert.event == "end":
            del self._entries[key]
        else:
            self._entries[key] = replace(
                entry, stage=_Stage.ANNOUNCED, failures=0, retry_at=None
            )

    def failed(self, alert: Alert, now: datetime, *, doubtful: bool) -> bool:
        """Note an attempt that failed; the next one comes after a growing pause. ``doubtful``: the
        alert may have been accepted all the same."""
        key, entry = self._entry_of(alert)
        self._under_way = None
        pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(entry.failures, 16))
        failed = replace(
            entry,
            failures=entry.failures + 1,
            retry_at=now + timedelta(seconds=pause),
            doubtful=entry.doubtful or doubtful,
        )
        if alert.event == "end" or failed.doubtful:
            self._entries[key] = failed
            return False
        if entry.gone_at is None:
            self._entries[key] = replace(failed, stage=_Stage.WAITING)
        else:
            del self._entries[key]
        return True

    def _entry_of(self, alert: Alert) -> tuple[ProblemKey, _Entry]:
        """Return the entry of an alert that is due or under way, which no look forgets."""
        key = _key(alert.problem)
        return key, self._entries[key]

    def to_json(self) -> list[dict[str, Any]]:
        """Return what a restart must know."""
        return [
            {
                "id": entry.id,
                "problem": dict(entry.problem),
                "first_seen": entry.first_seen.isoformat(),
                "gone_at": entry.gone_at and entry.gone_at.isoformat(),
                "stage": entry.stage.value,
            }
            for entry in self._entries.values()
            if entry.stage is not _Stage.WAITING
        ]

    def restore(self, content: Iterable[Any]) -> None:
        """Take over what ``to_json`` has returned. Raises ValueError for anything else."""
        try:
            entries = [_restored(item) for item in content]
            self._entries = {_key(entry.problem): entry for entry in entries}
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError("not the entries of a ledger") from error
        self._looked = False


def _restored(item: Any) -> _Entry:
    gone = item["gone_at"]
    # Once only announced problems were written, without a stage.
    stage = _Stage(item.get("stage", _Stage.ANNOUNCED))
    return _Entry(
        str(item["id"]),
        dict(item["problem"]),
        _time(item["first_seen"]),
        stage,
        # The attempt may have ended with the process.
        doubtful=stage is _Stage.BEGINNING,
        gone_at=None if gone is None else _time(gone),
    )


def _time(text: str) -> datetime:
    time = datetime.fromisoformat(text)
    if time.tzinfo is None:
        raise ValueError("a time without a time zone")
    return time


def _as_json(problem: Problem) -> dict[str, Any]:
    fields = asdict(problem)
    return {
        name: value.isoformat()
        if isinstance(value, datetime)
        else str(value)
        if value is not None
        else None
        for name, value in fields.items()
    }


def _key(problem: Mapping[str, Any]) -> ProblemKey:
    return (
        str(problem["kind"]),
        problem["subscription"] or "",
        problem["table"] or "",
        problem["subject"] or "",
    )
