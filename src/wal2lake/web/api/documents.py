"""Facts and problems as the page's JSON.

In: ``NodeFacts``, ``Problem``, rates. Out: values of JSON's types. Pure. The page shows what stands
here and has no rule of its own: whether a stage or a table is late follows from the problems, as
everywhere else.

    state     node, subscriptions with their stages, copies, publisher: small, for each second
    problems  each problem, the worst first; at most ``PROBLEMS`` of them
    tables    one array per table, in the order of ``TABLE_COLUMNS``: 1,000 tables are 150 kB

Positions are texts (``0/16B3748``), durations seconds, sizes bytes, times ISO 8601 in UTC. Texts of
errors are cut: the page is not a log.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from wal2lake.catalog import WorkerKind
from wal2lake.health import (
    CopyFacts,
    NodeFacts,
    Problem,
    ProblemKind,
    Severity,
    SourceFacts,
    StageLag,
    SubscriptionFacts,
    TableFacts,
)
from wal2lake.model import Lsn, SyncState

Json = dict[str, Any]
Worst = Mapping[tuple[str, str], Problem]

TABLE_COLUMNS: Final = (
    "subscription",
    "oid",
    "schema",
    "name",
    "state",
    "paused_since",
    "error",
    "rows_per_second",
    "behind_seconds",
    "freshness",
    "size_bytes",
    "files",
    "deletion_vectors",
    "version",
    "rows",
    "conflicts",
    "coercions",
    "severity",
    "problem",
)
"""Columns of a table's row. ``subscription`` is an OID, ``state`` a letter of srsubstate;
``severity`` and ``problem`` are severity and kind of its worst problem."""

PROBLEMS: Final = 200
"""Problems that a page gets. It says how many there are in all."""

TEXT_CHARACTERS: Final = 2000
"""Characters of an error's text that a page gets."""

ERROR_CHARACTERS: Final = 300
"""Characters of the error in a table's row."""

_STAGES: Final = ("received", "durable", "applied", "visible")
_STAGES_OF_KINDS: Final[Mapping[str, str]] = {
    ProblemKind.NO_SLOT: "source",
    ProblemKind.WAL_HELD: "source",
    ProblemKind.SLOT_LOST: "source",
    ProblemKind.RECEIVER: "received",
    ProblemKind.DISABLED: "received",
    ProblemKind.LOG_NEAR_LIMIT: "durable",
    ProblemKind.LOG_LIMIT: "durable",
}
_STAGES_OF_WORKERS: Final = {
    WorkerKind.RECEIVER.value: "received",
    WorkerKind.SNAPSHOT.value: "received",
    WorkerKind.ARCHIVER.value: "durable",
    WorkerKind.APPLY.value: "applied",
}
_ORDER: Final = {Severity.ERROR: 0, Severity.WARNING: 1}


# ---- counters ---------------------------------------------------------------------


def totals(facts: NodeFacts) -> dict[Hashable, float]:
    """Return the counters of which the page shows rates: rows by subscription and by table,
    received WAL bytes and commits by subscription."""
    counters: dict[Hashable, float] = {}
    for s in facts.subscriptions:
        oid = int(s.oid)
        rows = 0
        commits = 0
        for table in s.tables:
            count = sum(table.rows.values())
            counters["rows", oid, int(table.oid)] = count
            rows += count
            commits += sum(table.batches.values())
        counters["rows", oid] = rows
        counters["commits", oid] = commits
        counters["bytes", oid] = int(s.received.lsn)
    return counters


# ---- problems ---------------------------------------------------------------------


def worst_problems(problems: Iterable[Problem]) -> Worst:
    """Return the worst problem by subscription and table; that of the subscription itself has
    an empty table."""
    worst: dict[tuple[str, str], Problem] = {}
    for problem in problems:
        key = (problem.subscription or "", problem.table or "")
        worst_yet = worst.get(key)
        if worst_yet is None or _ORDER[problem.severity] < _ORDER[worst_yet.severity]:
            worst[key] = problem
    return worst


def problems(all_problems: Sequence[Problem]) -> Json:
    """Return the problems, errors first, then the oldest first."""
    ordered = sorted(
        all_problems,
        key=lambda p: (
            (_ORDER[p.severity], p.since is None, p.since, p.key)
            if p.since is not None
            else (_ORDER[p.severity], True, datetime.max, p.key)
        ),
    )
    return {
        "total": len(ordered),
        "errors": sum(p.severity is Severity.ERROR for p in ordered),
        "problems": [_problem(p) for p in ordered[:PROBLEMS]],
    }


def _problem(problem: Problem) -> Json:
    return {
        "kind": problem.kind,
        "severity": problem.severity.value,
        "message": _cut(problem.message),
        "concern": problem.concern.value,
        "since": _time(problem.since),
        "subscription": problem.subscription,
        "table": problem.table,
        "subject": problem.subject,
        "stage": problem.stage,
        "sqlstate": problem.sqlstate,
        "detail": _cut(problem.detail),
        "remedy": problem.remedy,
        "hint": _cut(problem.hint),
    }


# ---- the node ---------------------------------------------------------------------


def state(
    facts: NodeFacts, problems: Sequence[Problem], rates: Mapping[Hashable, float]
) -> Json:
    """Return what the page shows of the whole node, without the tables' rows."""
    worst = worst_problems(problems)
    return {
        "taken_at": _time(facts.taken_at),
        "node": {
            "state": facts.state,
            "version": facts.version,
            "pid": facts.pid,
            "address": facts.address,
            "port": facts.port,
            "directory": facts.directory,
            "started_at": _time(facts.started_at),
            "engine_told_at": _time(facts.engine_told_at),
            "certificate_ends": _time(facts.certificate_ends),
            "heap_bytes": facts.heap_bytes,
            "heap_limit_bytes": facts.heap_limit_bytes,
        },
        "processes": [
            {
                "role": p.role,
                "pid": p.pid,
                "subscription": p.subscription,
                "started_at": _time(p.started_at),
                "restarts": p.restarts,
                "rss_bytes": p.rss_bytes,
            }
            for p in facts.processes
        ],
        "disks": [
            {
                "purpose": d.purpose,
                "path": d.path,
                "free_bytes": d.free_bytes,
                "size_bytes": d.size_bytes,
            }
            for d in facts.disks
        ],
        "subscriptions": [
            _subscription(s, problems, rates, worst) for s in facts.subscriptions
        ],
        "copies": [
            _copy(s, t, t.copy)
            for s in facts.subscriptions
            for t in s.tables
            if t.copy is not None
        ],
        "publisher": _publisher(facts),
    }


def _subscription(
    s: SubscriptionFacts,
    problems: Sequence[Problem],
    rates: Mapping[Hashable, float],
    worst: Worst,
) -> Json:
    oid = int(s.oid)
    problem = worst.get((s.name, ""))
    return {
        "oid": oid,
        "name": s.name,
        "enabled": s.enabled,
        "state": s.state,
        "severity": None if problem is None else problem.severity,
        "receiver_pid": s.receiver_pid,
        "publications": list(s.publications),
        "last_message_at": _time(s.last_message_at),
        "stages": _stages(s, problems),
        "source": _source(s.source),
        "log": {"bytes": s.log_bytes, "limit_bytes": s.log_limit_bytes},
        "rates": {
            "rows": rates.get(("rows", oid)),
            "bytes": rates.get(("bytes", oid)),
            "commits": rates.get(("commits", oid)),
        },
        "tables": _table_counts(s, worst),
        "errors": [
            {
                "worker": worker,
                "text": _cut(text),
                "sqlstate": sqlstate,
                "since": _time(since),
            }
            for worker, (text, sqlstate, since) in s.errors.items()
        ],
        "error_counts": dict(s.error_counts),
        "conflicts": sum(s.conflicts.values()),
    }


def _stages(s: SubscriptionFacts, problems: Sequence[Problem]) -> list[Json]:
    severity: dict[str, Severity] = {}
    for problem in problems:
        stage = _stage_of(problem)
        if (
            problem.subscription == s.name
            and stage is not None
            and severity.get(stage) is not Severity.ERROR
        ):
            severity[stage] = problem.severity
    lags: dict[str, StageLag] = {
        "received": s.received,
        "durable": s.durable,
        "applied": s.applied,
        "visible": s.visible,
    }
    source = s.source.wal_lsn or s.received.lsn
    stages: list[Json] = [
        {
            "stage": "source",
            "lsn": str(source),
            "behind_bytes": 0,
            "behind_seconds": 0,
            "severity": severity.get("source"),
        }
    ]
    stages += [
        {
            "stage": name,
            "lsn": str(lags[name].lsn),
            "behind_bytes": lags[name].behind_bytes,
            "behind_seconds": _seconds(lags[name].behind_seconds),
            "severity": severity.get(name),
        }
        for name in _STAGES
    ]
    return stages


def _stage_of(problem: Problem) -> str | None:
    """Return the part of the picture that a problem is about."""
    if problem.stage is not None:
        return problem.stage
    if problem.table is not None:
        return None
    if problem.kind == ProblemKind.ERRORED:
        return _STAGES_OF_WORKERS.get(problem.subject or "")
    return _STAGES_OF_KINDS.get(problem.kind)


def _source(source: SourceFacts) -> Json:
    return {
        "asked_at": _time(source.asked_at),
        "wal_lsn": _lsn(source.wal_lsn),
        "slot": source.slot_name,
        "active": source.slot_active,
        "wal_status": source.wal_status,
        "retained_bytes": source.retained_bytes,
        "safe_bytes": source.safe_wal_bytes,
        "limit_bytes": source.limit_bytes,
    }


def _table_counts(s: SubscriptionFacts, worst: Worst) -> Json:
    states = Counter(t.state for t in s.tables)
    return {
        "total": len(s.tables),
        "ready": states[SyncState.READY],
        "waiting": states[SyncState.INIT],
        "copying": sum(t.copy is not None for t in s.tables),
        "paused": sum(t.paused_since is not None for t in s.tables),
        "troubled": sum((s.name, t.qualified) in worst for t in s.tables),
        "size_bytes": sum(t.size_bytes or 0 for t in s.tables),
        "files": sum(t.files or 0 for t in s.tables),
    }


def _copy(s: SubscriptionFacts, table: TableFacts, copy: CopyFacts) -> Json:
    return {
        "subscription": int(s.oid),
        "oid": int(table.oid),
        "schema": table.namespace,
        "name": table.name,
        "rows": copy.rows,
        "rows_expected": copy.rows_expected,
        "bytes": copy.bytes_done,
        "bytes_expected": copy.bytes_expected,
        "ranges": copy.ranges,
        "ranges_done": copy.ranges_done,
        "share": copy.share,
        "started_at": _time(copy.started_at),
        "ends_at": _time(copy.ends_at),
        "error": _cut(table.error),
    }


def _publisher(facts: NodeFacts) -> Json:
    end = facts.published_lsn
    return {
        "lsn": _lsn(end),
        "slots": [
            {
                "name": slot.name,
                "plugin": slot.plugin,
                "active_pid": slot.active_pid,
                "confirmed_lsn": str(slot.confirmed_lsn),
                "behind_bytes": max(0, int(end) - int(slot.confirmed_lsn)),
                "retained_bytes": slot.retained_bytes,
                "wal_status": slot.wal_status,
                "limit_bytes": slot.limit_bytes,
            }
            for slot in facts.slots
        ],
        "subscribers": [
            {
                "pid": w.pid,
                "application_name": w.application_name,
                "client": w.client,
                "slot": w.slot_name,
                "state": w.state,
                "sent_lsn": str(w.sent_lsn),
                "flushed_lsn": str(w.flushed_lsn),
                "replayed_lsn": str(w.replayed_lsn),
                "behind_bytes": max(0, int(end) - int(w.replayed_lsn)),
            }
            for w in facts.walsenders
        ],
    }


# ---- tables -----------------------------------------------------------------------


def table_row(
    subscription: int, table: TableFacts, rate: float | None, problem: Problem | None
) -> list[Any]:
    """Return one table's row, in the order of ``TABLE_COLUMNS``. ``subscription`` is an OID,
    ``rate`` the table's rows a second, ``problem`` its worst one."""
    error = table.error
    if error is not None and len(error) > ERROR_CHARACTERS:
        error = error[: ERROR_CHARACTERS - 1] + "…"
    return [
        subscription,
        int(table.oid),
        table.namespace,
        table.name,
        table.state.value,
        _time(table.paused_since),
        error,
        None if rate is None else round(rate, 1),
        _seconds(table.behind_seconds),
        table.freshness,
        table.size_bytes,
        table.files,
        table.deletion_vectors,
        table.version,
        sum(table.rows.values()),
        table.conflicts,
        table.coercions,
        None if problem is None else problem.severity,
        None if problem is None else problem.kind,
    ]


# ---- values -----------------------------------------------------------------------


def _time(moment: datetime | None) -> str | None:
    if moment is None:
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _lsn(lsn: Lsn) -> str | None:
    return str(lsn) if lsn else None


def _seconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


def _cut(text: str | None) -> str | None:
    if text is None or len(text) <= TEXT_CHARACTERS:
        return text
    return text[: TEXT_CHARACTERS - 1] + "…"
