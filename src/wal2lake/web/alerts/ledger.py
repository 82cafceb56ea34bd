"""Which alerts are due: one when a problem begins, one when it ends, each once. Pure.

In: the problems of each look, the results of attempts to send. Out: the next alert to send. A
problem is announced after it has lasted for the delay, and its end after it has been gone for as
long, so a problem that flickers says nothing. The end of a problem that was never announced is not
announced either.

    absent ── lasts ──▶ begin is due ── sent ──▶ announced ── gone ──▶ end is due ── sent ──▶ absent
                          │ gone                     ▲                     │ back
                          ▼                          └─────────────────────┘
                        absent

The ledger is written to a file after each change, so a restart neither repeats nor forgets an
alert. A crash between a delivery and that write repeats the alert, a begin with another id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final, Literal
from uuid import uuid4

from wal2lake.health import Problem, ProblemKey

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 300.0

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


@dataclass(frozen=True, slots=True)
class _Entry:
    """One problem that has an alert, or will have one."""

    id: str
    problem: Mapping[str, Any]
    first_seen: datetime
    announced: bool = False
    gone_at: datetime | None = None
    failures: int = 0
    retry_at: datetime | None = None


class AlertLedger:
    """The alerts of one channel. For one thread at a time."""

    def __init__(self, delay_seconds: float) -> None:
        """Begin without any problem."""
        self.delay = timedelta(seconds=delay_seconds)
        self._entries: dict[ProblemKey, _Entry] = {}

    def observe(self, problems: Iterable[Problem], now: datetime) -> bool:
        """Take the problems of one look; returns whether the ledger's file must be written."""
        before = self._states()
        present = {problem.key: problem for problem in problems}
        for key, problem in present.items():
            entry = self._entries.get(key)
            if entry is None:
                entry = _Entry(str(uuid4()), _as_json(problem), now)
            elif entry.gone_at is not None:
                entry = replace(entry, gone_at=None, failures=0, retry_at=None)
            self._entries[key] = replace(entry, problem=_as_json(problem))
        for key, entry in list(self._entries.items()):
            if key in present:
                continue
            if not entry.announced:
                del self._entries[key]
            elif entry.gone_at is None:
                self._entries[key] = replace(
                    entry, gone_at=now, failures=0, retry_at=None
                )
        # The words of a problem may change with each look; a restart gets them from the first one.
        return self._states() != before

    def _states(self) -> dict[ProblemKey, tuple[str, datetime | None]]:
        return {
            key: (entry.id, entry.gone_at)
            for key, entry in self._entries.items()
            if entry.announced
        }

    def due(self, now: datetime) -> Alert | None:
        """Return the oldest alert that is to be sent now."""
        waiting = [
            (entry.gone_at or entry.first_seen, key)
            for key, entry in self._entries.items()
            if self._is_due(entry, now)
        ]
        if not waiting:
            return None
        entry = self._entries[min(waiting)[1]]
        event: Event = "end" if entry.announced else "begin"
        return Alert(entry.id, event, entry.problem, entry.gone_at)

    def _is_due(self, entry: _Entry, now: datetime) -> bool:
        if entry.announced and entry.gone_at is None:
            return False
        if entry.retry_at is not None and now < entry.retry_at:
            return False
        return now - (entry.gone_at or entry.first_seen) >= self.delay

    def sent(self, alert: Alert, now: datetime) -> None:
        """Note a delivery."""
        for key, entry in self._entries.items():
            if entry.id == alert.id:
                if alert.event == "end" and entry.gone_at is not None:
                    del self._entries[key]
                elif alert.event == "end":
                    # It came back while its end was being sent: it is a new problem.
                    self._entries[key] = _Entry(
                        str(uuid4()), entry.problem, entry.first_seen
                    )
                else:
                    self._entries[key] = replace(
                        entry, announced=True, failures=0, retry_at=None
                    )
                return
        if alert.event == "begin":
            # It ended while its begin was being sent: its end follows.
            self._entries.setdefault(
                _key(alert.problem),
                _Entry(alert.id, alert.problem, now, announced=True, gone_at=now),
            )

    def failed(self, alert: Alert, now: datetime) -> None:
        """Note an attempt that failed; the next one comes after a growing pause."""
        for key, entry in self._entries.items():
            if entry.id == alert.id:
                pause = min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(entry.failures, 16))
                self._entries[key] = replace(
                    entry,
                    failures=entry.failures + 1,
                    retry_at=now + timedelta(seconds=pause),
                )
                return

    def to_json(self) -> list[dict[str, Any]]:
        """Return the announced problems, which a restart must know."""
        return [
            {
                "id": entry.id,
                "problem": dict(entry.problem),
                "first_seen": entry.first_seen.isoformat(),
                "gone_at": entry.gone_at and entry.gone_at.isoformat(),
            }
            for entry in self._entries.values()
            if entry.announced
        ]

    def restore(self, content: Iterable[Mapping[str, Any]]) -> None:
        """Take over what ``to_json`` has returned. ValueError, KeyError and TypeError for anything
        else."""
        entries = {}
        for item in content:
            gone = item["gone_at"]
            entries[_key(item["problem"])] = _Entry(
                str(item["id"]),
                dict(item["problem"]),
                datetime.fromisoformat(item["first_seen"]),
                announced=True,
                gone_at=None if gone is None else datetime.fromisoformat(gone),
            )
        self._entries = entries


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
