"""Problems of the node itself: processes, file systems, certificate, settings.

Called by ``problems``. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from wal2lake.health.facts import DiskFacts, NodeFacts, ProcessFacts
from wal2lake.health.problem import Concern, Problem, ProblemKind, Severity
from wal2lake.health.rules.words import in_bytes, in_words

_GIB: Final = 1 << 30

_DISK: Final = (
    (Severity.ERROR, 3, 5 * _GIB),
    (Severity.WARNING, 10, 20 * _GIB),
)
"""Percent of a file system, and bytes, below both of which its free space is a problem. Ten percent
of a large disk is no reason to worry; a Delta commit needs room for its files."""

_CERTIFICATE: Final = (
    (Severity.ERROR, timedelta(days=7)),
    (Severity.WARNING, timedelta(days=30)),
)
"""Remaining validity from which it is a problem. Automatic renewals happen 30 days before."""

_RESTARTED: Final = timedelta(seconds=60)
"""Age below which a restarted engine is a problem; the supervisor takes it for stable then."""

_BEGIN: Final = timedelta(seconds=5)
"""Age of a node below which its engine may not have been started yet."""

_LONG_START: Final = timedelta(minutes=3)
"""Time after which an engine should be ready. It takes seconds, a minute on a busy machine."""

_REASON: Final = "The server log has the reason of the restart."

_SILENT: Final = timedelta(seconds=60)
"""Time without a report after which an engine is a problem. It reports each few seconds."""


def node_problems(facts: NodeFacts, now: datetime) -> Iterator[Problem]:
    """Yield the problems of processes, file systems, certificate and settings."""
    yield from _processes(facts, now)
    yield from _disks(facts)
    yield from _certificate(facts, now)
    if facts.settings_error is not None:
        yield Problem(
            ProblemKind.SETTINGS,
            Severity.WARNING,
            f"the settings are invalid: {facts.settings_error}",
            Concern.OPERATOR,
            hint="Correct wal2lake.toml. A node that runs goes on with the settings that it"
            " has read before, but it would not start again.",
        )


# ---- processes ---------------------------------------------------------------------------


def _processes(facts: NodeFacts, now: datetime) -> Iterator[Problem]:
    if facts.state == "stopped":
        yield Problem(
            ProblemKind.STOPPED,
            Severity.ERROR,
            f'no node is running in "{facts.directory}"',
            Concern.OPERATOR,
            since=facts.stopped_at,
            hint=f"Start it with: wal2lake start -D {facts.directory}",
        )
    if facts.state not in ("starting", "ready"):
        return
    engine = next((p for p in facts.processes if p.role == "engine"), None)
    if engine is None:
        yield from _down(facts, now)
    elif facts.state == "starting":
        yield from _starting(engine, now)
    else:
        yield from _restarted(engine, now)
        yield from _silent(facts, engine, now)


def _down(facts: NodeFacts, now: datetime) -> Iterator[Problem]:
    started = facts.started_at
    if started is None or now - started < _BEGIN:
        return
    yield Problem(
        ProblemKind.ENGINE,
        Severity.ERROR,
        "the engine is not running: nothing is applied, and clients wait",
        Concern.NOBODY,
        hint="The supervisor starts it again. If it does not stay, the server log has the"
        " reason.",
    )


def _starting(engine: ProcessFacts, now: datetime) -> Iterator[Problem]:
    started = engine.started_at
    if engine.restarts:
        yield Problem(
            ProblemKind.ENGINE,
            Severity.ERROR,
            f"the engine is starting again, {_times(engine.restarts)} since the node's"
            " start: nothing is applied, and clients wait",
            Concern.NOBODY,
            since=started,
            hint=_REASON,
        )
    elif started is not None and now - started > _LONG_START:
        yield Problem(
            ProblemKind.ENGINE,
            Severity.WARNING,
            f"the engine has been starting for {in_words(now - started)}",
            Concern.OPERATOR,
            since=started,
            hint="The server log says what it waits for. The first start on a machine"
            " downloads Spark's jars.",
        )


def _restarted(engine: ProcessFacts, now: datetime) -> Iterator[Problem]:
    started = engine.started_at
    if not engine.restarts or started is None or now - started > _RESTARTED:
        return
    yield Problem(
        ProblemKind.ENGINE,
        Severity.WARNING,
        f"the engine was restarted {_times(engine.restarts)} since the node's start",
        Concern.NOBODY,
        since=started,
        hint=_REASON,
    )


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _silent(facts: NodeFacts, engine: ProcessFacts, now: datetime) -> Iterator[Problem]:
    reported, started = facts.engine_told_at, engine.started_at
    if reported is None or started is None or now - max(reported, started) <= _SILENT:
        return
    yield Problem(
        ProblemKind.ENGINE_SILENT,
        Severity.ERROR,
        f"the engine (PID {engine.pid}) has not reported for"
        f" {in_words(now - max(reported, started))}",
        Concern.OPERATOR,
        since=max(reported, started),
        hint="It may be out of memory, or wait for a disk. If it does not recover, end the"
        " process: the supervisor starts it again, and nothing is lost.",
    )


# ---- disks, certificate ------------------------------------------------------------------


def _disks(facts: NodeFacts) -> Iterator[Problem]:
    seen: set[int] = set()
    for disk in facts.disks:
        if disk.device and disk.device in seen:
            continue
        seen.add(disk.device)
        shared = [
            other.purpose
            for other in facts.disks
            if other is disk or (disk.device and other.device == disk.device)
        ]
        severity = _disk_severity(disk)
        if severity is not None:
            yield Problem(
                ProblemKind.DISK,
                severity,
                f"the file system of {' and '.join(shared)} has only"
                f" {in_bytes(disk.free_bytes)} of {in_bytes(disk.size_bytes)} left",
                Concern.OPERATOR,
                subject=disk.purpose,
                detail=f"It contains {disk.path}.",
                hint="Free space, or enlarge it. Files of old versions of tables go with"
                ' VACUUM; "log.size_limit_bytes" bounds the log.',
            )


def _disk_severity(disk: DiskFacts) -> Severity | None:
    for severity, percent, most in _DISK:
        if disk.free_bytes < min(disk.size_bytes * percent // 100, most):
            return severity
    return None


def _certificate(facts: NodeFacts, now: datetime) -> Iterator[Problem]:
    ends = facts.certificate_ends
    if ends is None:
        return
    for severity, before in _CERTIFICATE:
        if ends - now < before:
            expired = ends <= now
            text = (
                f"the TLS certificate has expired on {ends:%Y-%m-%d %H:%M} UTC"
                if expired
                else f"the TLS certificate expires in {in_words(ends - now)}"
            )
            yield Problem(
                ProblemKind.CERTIFICATE,
                severity,
                text,
                Concern.OPERATOR,
                since=ends if expired else ends - before,
                detail=None
                if expired
                else f"It is valid until {ends:%Y-%m-%d %H:%M} UTC.",
                remedy="SELECT pg_reload_conf();",
                hint='Replace "node.ssl_cert_file" and its key first: a reload reads them'
                " again.",
            )
            return
