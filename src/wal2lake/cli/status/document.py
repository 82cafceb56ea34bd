"""Facts and problems of a node as JSON. Names are a contract: they are added, never changed.

Pure. Called by ``run``.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any, Final

from wal2lake.cli.looking import Look, condition
from wal2lake.health import (
    CopyFacts,
    NodeFacts,
    Problem,
    StageLag,
    SubscriptionFacts,
    TableFacts,
)
from wal2lake.model import SyncState

STAGES: Final = ("received", "durable", "applied", "visible")
"""Stages of a subscription's pipeline, in the order of the way of a change."""

_JVM: Final = "jvm"


def document(look: Look) -> dict[str, Any]:
    """Return all facts in JSON's types."""
    facts = look.facts
    return {
        "directory": facts.directory,
        "state": facts.state,
        "version": facts.version,
        "pid": facts.pid,
        "address": facts.address,
        "port": facts.port,
        "started_at": _time(facts.started_at),
        "processes": list(_processes(facts)),
        "web": {"urls": list(facts.web_urls), "error": facts.web_error},
        "condition": condition(look).name.lower(),
        "taken_at": _time(facts.taken_at),
        "engine_told_at": _time(facts.engine_told_at),
        "jvm": _jvm(facts),
        "disks": [
            {
                "purpose": disk.purpose,
                "path": disk.path,
                "free_bytes": disk.free_bytes,
                "size_bytes": disk.size_bytes,
            }
            for disk in facts.disks
        ],
        "subscriptions": [_subscription(s) for s in facts.subscriptions],
        "slots": [
            {
                "name": slot.name,
                "plugin": slot.plugin,
                "active_pid": slot.active_pid,
                "confirmed_lsn": str(slot.confirmed_lsn),
                "retained_bytes": slot.retained_bytes,
                "wal_status": slot.wal_status,
            }
            for slot in facts.slots
        ],
        "problems": [_problem(problem) for problem in look.problems],
    }


def _processes(facts: NodeFacts) -> Iterator[dict[str, Any]]:
    for process in facts.processes:
        # It has always been the engine's own affair.
        if process.role == _JVM:
            continue
        row: dict[str, Any] = {
            "role": process.role,
            "pid": process.pid,
            "started_at": _time(process.started_at),
        }
        if process.role not in ("supervisor", "guardian"):
            row["starts"] = process.restarts + 1
        if process.subscription:
            row["subscription"] = process.subscription
        row["rss_bytes"] = process.rss_bytes
        yield row


def _jvm(facts: NodeFacts) -> dict[str, Any] | None:
    for process in facts.processes:
        if process.role == _JVM:
            return {
                "pid": process.pid,
                "rss_bytes": process.rss_bytes,
                "heap_bytes": facts.heap_bytes,
                "heap_limit_bytes": facts.heap_limit_bytes,
            }
    return None


def _subscription(facts: SubscriptionFacts) -> dict[str, Any]:
    errors = {worker: text for worker, (text, _, _) in facts.errors.items()}
    ready = [t for t in facts.tables if t.state is SyncState.READY]
    source = facts.source
    return {
        "name": facts.name,
        "enabled": facts.enabled,
        "state": facts.state,
        "receiver_pid": facts.receiver_pid,
        "received_lsn": str(facts.received.lsn),
        "logged_lsn": str(facts.durable.lsn),
        "applied_lsn": str(facts.applied.lsn),
        "lag_bytes": int(facts.received.lsn) - int(facts.applied.lsn),
        "tables": len(facts.tables),
        "tables_ready": len(ready),
        "rows_copied": sum(table.rows_copied for table in facts.tables),
        "last_error": next(reversed(errors.values()), None),
        "errors": errors,
        "lag_seconds": _rounded(facts.visible.behind_seconds),
        "stages": {stage: _stage(getattr(facts, stage)) for stage in STAGES},
        "last_message_at": _time(facts.last_message_at),
        "log_bytes": facts.log_bytes,
        "log_limit_bytes": facts.log_limit_bytes,
        "slot": {
            "name": source.slot_name,
            "asked_at": _time(source.asked_at),
            "wal_status": source.wal_status,
            "retained_bytes": source.retained_bytes,
            "safe_wal_bytes": source.safe_wal_bytes,
        },
        "table_states": [_table(table) for table in facts.tables],
    }


def _stage(lag: StageLag) -> dict[str, Any]:
    return {
        "lsn": str(lag.lsn),
        "behind_bytes": lag.behind_bytes,
        "behind_seconds": _rounded(lag.behind_seconds),
    }


def _table(facts: TableFacts) -> dict[str, Any]:
    return {
        "schema": facts.namespace,
        "name": facts.name,
        "state": facts.state.value,
        "paused_since": _time(facts.paused_since),
        "error": facts.error,
        "applied_lsn": str(facts.applied_lsn),
        "lag_seconds": _rounded(facts.behind_seconds),
        "freshness_seconds": facts.freshness,
        "version": facts.version,
        "size_bytes": facts.size_bytes,
        "copy": None if facts.copy is None else _copy(facts.copy),
    }


def _copy(facts: CopyFacts) -> dict[str, Any]:
    return {
        "rows": facts.rows,
        "rows_expected": facts.rows_expected,
        "bytes": facts.bytes_done,
        "bytes_expected": facts.bytes_expected,
        "ranges_done": facts.ranges_done,
        "ranges": facts.ranges,
        "started_at": _time(facts.started_at),
        "ends_at": _time(facts.ends_at),
    }


def _problem(problem: Problem) -> dict[str, Any]:
    return {
        "kind": str(problem.kind),
        "severity": str(problem.severity),
        "message": problem.message,
        "concern": str(problem.concern),
        "since": _time(problem.since),
        "subscription": problem.subscription,
        "table": problem.table,
        "subject": problem.subject,
        "stage": problem.stage,
        "sqlstate": problem.sqlstate,
        "detail": problem.detail,
        "remedy": problem.remedy,
        "hint": problem.hint,
    }


def _time(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat(timespec="seconds")


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 3)
