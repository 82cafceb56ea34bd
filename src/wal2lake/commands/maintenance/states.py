"""The state of a subscription at the LSN of a snapshot of its publisher.

Takes the launcher of apply workers, and two functions that make a snapshot and open it; returns the
opened session, the LSN and the vector of that state. Called by ``verifying``.

The worker is told the LSN as soon as it is known. If the worker has published a later state by
then, the snapshot is of no use, and another one is taken.

    slot       ----------|                 holds the publisher's WAL, so it ends
    session           |------------------- as soon as a session has imported its snapshot
    mark         |------------|            ends with the state
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Final, Protocol

from wal2lake.apply.step.repairs.sourcerows import RowRepair
from wal2lake.apply.step.statemarks import StateMark
from wal2lake.catalog import SnapshotVector, Subscription
from wal2lake.errors import UsageError
from wal2lake.model import Lsn, Oid
from wal2lake.pg import Check, Session
from wal2lake.pg.publisher import SlotCreated

PREREQUISITE: Final = "55000"

STATE_SECONDS: Final = 300.0
"""Longest wait for the state of a snapshot's LSN. Apply may be behind by some batches."""

_ATTEMPTS: Final = 5
"""Snapshots that are taken if apply has passed each one's position before it was told. It is told
within milliseconds, so one is nearly always enough."""

_HINT: Final = "SELECT * FROM wal2lake.problems says why its tables stand still."


class MarksStates(Protocol):
    """The launcher of apply workers."""

    def mark(self, subid: Oid, lsn: Lsn, *, holds: bool) -> StateMark | None:
        """Have the worker publish exactly the state of ``lsn``. None: no worker runs. ``holds``:
        have it wait there for a repair."""
        ...

    def unmark(self, subid: Oid, mark: StateMark) -> None:
        """Forget a mark that nobody waits for any more."""
        ...


def state_at_snapshot(
    apply: MarksStates,
    subscription: Subscription,
    take: Callable[[int], AbstractContextManager[SlotCreated]],
    opened: Callable[[str], Session],
    check: Check,
    sessions: ExitStack,
    *,
    read: Callable[[Session, Lsn], RowRepair | None] | None = None,
    seconds: float = STATE_SECONDS,
) -> tuple[Session, Lsn, SnapshotVector]:
    """Return a session that sees a snapshot, the snapshot's LSN, and the state of that LSN.

    ``take``: takes the snapshot of this attempt, whose slot exists until the block ends.
    ``opened``: opens a session that sees a snapshot, by its name. ``sessions`` closes the one that
    is returned. ``read``: reads rows in the snapshot, which the worker then writes at the state of
    its LSN, before any later one. Raises UsageError (55000) if there is no such state, and the
    error of a row that cannot be written."""
    name = subscription.name
    for attempt in range(_ATTEMPTS):
        with ExitStack() as ends:
            with take(attempt) as created:
                lsn = created.consistent_point
                mark = apply.mark(subscription.oid, lsn, holds=read is not None)
                if mark is None:
                    raise UsageError(
                        f'subscription "{name}" has no running apply worker',
                        sqlstate=PREREQUISITE,
                        hint=_HINT,
                    )
                ends.callback(apply.unmark, subscription.oid, mark)
                session = ends.enter_context(opened(str(created.snapshot)))
            repair = None if read is None else read(session, lsn)
            if not mark.wait(seconds, check):
                raise UsageError(
                    f'subscription "{name}" has not reached {lsn} within {seconds:.0f} s',
                    sqlstate=PREREQUISITE,
                    hint=_HINT,
                )
            if mark.stopped_by is not None:
                raise UsageError(
                    f'subscription "{name}" has stopped before {lsn}',
                    sqlstate=PREREQUISITE,
                    detail=mark.stopped_by.message,
                    hint=_HINT,
                )
            if mark.vector is not None:
                if repair is not None:
                    _repair(mark, repair, name, seconds, check)
                sessions.push(ends.pop_all())
                return session, lsn, mark.vector
    raise UsageError(
        f'subscription "{name}" was ahead of each of {_ATTEMPTS} snapshots',
        sqlstate=PREREQUISITE,
        hint="Repeat the statement when fewer transactions commit at the source.",
    )


def _repair(
    mark: StateMark, repair: RowRepair, name: str, seconds: float, check: Check
) -> None:
    """Have the worker, which waits at the mark, write the rows."""
    if not mark.hand(repair):
        raise UsageError(
            f'subscription "{name}" has gone on before the rows were read',
            sqlstate=PREREQUISITE,
            hint="Repeat the statement.",
        )
    if not mark.wait_finished(seconds, check):
        raise UsageError(
            f'subscription "{name}" has not written the rows within {seconds:.0f} s',
            sqlstate=PREREQUISITE,
            hint=_HINT,
        )
    if mark.error is not None:
        raise mark.error
