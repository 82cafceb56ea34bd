"""Decides which children to start, stop and kill: a pure function of desired and running workers.

Takes the desired workers (from the catalog), the running workers, facts about ended workers, and
the time. Returns actions, and when to decide again. The supervisor calls it after every event and
carries the actions out, without decisions of its own.

The rules are those of PostgreSQL's logical replication launcher:

    worker               running as desired    other generation    not desired
    ------------------   ------------------    ----------------    -----------
    running              nothing               stop                stop
    asked to stop        kill when overdue     kill when overdue   kill when overdue
    absent               start when due        start at once       nothing

A receiver is due ``wal_retrieve_retry_interval`` after its last *start*: a receiver that ran for
long is restarted at once, and one that fails at once is throttled. A new generation (ALTER
SUBSCRIPTION) is never throttled. The engine is due at once after its first death, since every
client waits for it. Later it is due after growing pauses, counted from its end; none is longer
than ``wal_retrieve_retry_interval``. The web process follows the engine's rule.

Sources: launcher.c, ApplyLauncherMain and logicalrep_worker_stop.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from wal2lake.model import INVALID_OID, Oid

ENGINE_PAUSES_SECONDS: Final = (0.0, 1.0, 2.0, 4.0, 5.0)
"""Pauses before the restarts of an engine that keeps dying; the last one repeats. A session needs
about five seconds to start, so longer pauses would save little. The web process has the same."""

ENGINE_STABLE_SECONDS: Final = 60.0
"""An engine that has lived this long did not die of its start. Chosen arbitrarily."""


class ChildRole(Enum):
    """The kinds of children."""

    ENGINE = "engine"
    """Spark's driver, the workers and the listener. There is one."""
    RECEIVER = "receiver"
    """The walreceiver of one subscription."""
    WEB = "web"
    """Metrics, health and the page. There is one, unless [web] listen is empty and there are no
    alerts."""


@dataclass(frozen=True, slots=True)
class WorkerKey:
    """Identifies a worker; at any time at most one process has the key."""

    role: ChildRole
    subid: Oid = INVALID_OID
    """The subscription of a receiver."""


ENGINE: Final = WorkerKey(ChildRole.ENGINE)
WEB: Final = WorkerKey(ChildRole.WEB)


@dataclass(frozen=True, slots=True)
class Desired:
    """A worker that should run."""

    key: WorkerKey
    name: str = ""
    """The subscription's name, for messages."""
    generation: int = 0
    """A running worker of another generation must be replaced."""


@dataclass(frozen=True, slots=True)
class Running:
    """A worker that runs. Times are seconds of one monotonic clock."""

    key: WorkerKey
    generation: int
    started_at: float
    stopping_since: float | None = None
    """Time of the request to stop; None without a request."""
    killed: bool = False
    """True after SIGKILL: nothing more can be done."""


@dataclass(frozen=True, slots=True)
class Past:
    """Facts kept about a worker that has ended."""

    generation: int
    started_at: float
    ended_at: float
    failures: int
    """Number of consecutive deaths without a request, each soon after the start."""


@dataclass(frozen=True, slots=True)
class LaunchPolicy:
    """The settings that the plan depends on."""

    retry_interval_seconds: float
    """wal_retrieve_retry_interval, in seconds."""
    stop_timeout_seconds: Mapping[ChildRole, float]
    """Time from the request to stop to SIGKILL."""
    max_receivers: int
    """max_logical_replication_workers."""


@dataclass(frozen=True, slots=True)
class Start:
    """Start this worker now."""

    worker: Desired


@dataclass(frozen=True, slots=True)
class Stop:
    """Ask this worker to end."""

    key: WorkerKey


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill this worker, which has not ended in time."""

    key: WorkerKey


Action = Start | Stop | Kill


@dataclass(frozen=True, slots=True)
class Plan:
    """Actions to carry out now."""

    actions: tuple[Action, ...] = ()
    wake_at: float | None = None
    """When the plan may change without an event; None if it needs an event."""
    out_of_slots: tuple[Desired, ...] = field(default=())
    """Receivers that are due but exceed max_logical_replication_workers."""


def plan(
    desired: Sequence[Desired],
    running: Sequence[Running],
    past: Mapping[WorkerKey, Past],
    now: float,
    policy: LaunchPolicy,
) -> Plan:
    """Return the actions. Carrying them out and asking again gives no further actions."""
    targets = {d.key: d for d in desired}
    there = {r.key for r in running}
    actions: list[Action] = []
    wake: list[float] = []
    for worker in running:
        target = targets.get(worker.key)
        if worker.stopping_since is not None:
            overdue = (
                worker.stopping_since + policy.stop_timeout_seconds[worker.key.role]
            )
            if worker.killed:
                continue
            if now >= overdue:
                actions.append(Kill(worker.key))
            else:
                wake.append(overdue)
        elif target is None or target.generation != worker.generation:
            actions.append(Stop(worker.key))
    room = policy.max_receivers - sum(k.role is ChildRole.RECEIVER for k in there)
    out_of_slots: list[Desired] = []
    for worker_due, due in _absent(desired, there, past, policy):
        if due > now:
            wake.append(due)
        elif worker_due.key.role is ChildRole.RECEIVER and room <= 0:
            out_of_slots.append(worker_due)
        else:
            room -= worker_due.key.role is ChildRole.RECEIVER
            actions.append(Start(worker_due))
    return Plan(tuple(actions), min(wake, default=None), tuple(out_of_slots))


def _absent(
    desired: Sequence[Desired],
    there: set[WorkerKey],
    past: Mapping[WorkerKey, Past],
    policy: LaunchPolicy,
) -> Iterator[tuple[Desired, float]]:
    for worker in desired:
        if worker.key not in there:
            yield worker, _due(worker, past.get(worker.key), policy)


def _due(worker: Desired, before: Past | None, policy: LaunchPolicy) -> float:
    if before is None or before.generation != worker.generation:
        return float("-inf")
    if worker.key.role is ChildRole.RECEIVER:
        return before.started_at + policy.retry_interval_seconds
    if before.failures == 0:
        return before.ended_at
    step = min(before.failures, len(ENGINE_PAUSES_SECONDS)) - 1
    pause = min(ENGINE_PAUSES_SECONDS[step], policy.retry_interval_seconds)
    return before.ended_at + pause


def remember(worker: Running, before: Past | None, now: float) -> Past:
    """Return the facts to keep of a worker that has just ended."""
    lived = now - worker.started_at
    if worker.stopping_since is not None:
        failures = 0
    elif before is None or lived >= ENGINE_STABLE_SECONDS:
        failures = 1
    else:
        failures = before.failures + 1
    return Past(worker.generation, worker.started_at, now, failures)
