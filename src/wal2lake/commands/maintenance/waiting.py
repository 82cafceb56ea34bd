"""WAIT FOR LSN: waits until readers see a position of the source, so a client reads its writes.

Takes the parsed statement; returns its status. A table is there when it is part of the published
state, not apart from it, and the state is that of the position or of a later one. All tables of the
subscription are waited for; without an option, those of all subscriptions of the node's only
source, because the positions of two sources cannot be compared.

    event                                      woken by
    a state is published, a worker is idle     the apply worker (``VisiblePositions``)
    DISABLE, DROP, a table joins or is paused  the launcher, which follows the catalog; while that
                                               cannot, a look at the catalog's counter
    cancel, statement_timeout, shutdown        the session's check
    standby_write, standby_flush               a look at the positions in mapped memory

Whatever else holds the position up (a paused table, a failing worker, a source that cannot be
reached) may end, so the wait goes on until the time-out, as PostgreSQL's does while replay is
paused. A subscription that is disabled or dropped ends it, as the end of recovery does there.

Source: ExecWaitStmt() in wait.c, WaitForLSN() in xlogwait.c, PostgreSQL 19.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from typing import Final, Protocol

from wal2lake.apply.launcher import ApplyLauncher
from wal2lake.catalog import (
    Catalog,
    SnapshotVector,
    Subscription,
    SubscriptionRel,
    read_progress,
)
from wal2lake.errors import SqlSyntaxError, UsageError
from wal2lake.local.node import Caller, need_subscription
from wal2lake.local.ports import HasCatalog, HasSettings
from wal2lake.model import INVALID_LSN, Lsn, Oid, SyncState
from wal2lake.sql.backend import Notice, Outcome, ResultBatch
from wal2lake.sql.grammar.maintenance import WaitForLsn, WaitMode
from wal2lake.sql.parameters import milliseconds
from wal2lake.wire.frontback import FieldDescription

STATUS: Final = (FieldDescription("status", 25),)
"""The column of the answer."""

_PREREQUISITE: Final = "55000"
_QUERY_CANCELED: Final = "57014"

_CHECK_SECONDS: Final = 0.1
"""How soon a wait notices that the statement shall end, or by itself that the catalog has changed.
One number is read for that."""

_LOOK_SECONDS: Final = 0.02
"""Interval between looks at a receiver's positions, each of which maps one page."""

_VISIBLE: Final = (SyncState.SYNCDONE, SyncState.READY)

_REACHED: Final = {
    WaitMode.REPLAY: "replayed",
    WaitMode.WRITE: "written",
    WaitMode.FLUSH: "flushed",
}

_NAME_ONE: Final = (
    "WAIT FOR LSN '...' WITH (subscription 'name') waits for one of them."
)


class WaitingParts(HasSettings, Protocol):
    """Parts of the node that a wait needs."""

    apply: ApplyLauncher


class _Ended(Exception):
    """The position cannot be reached, because of one subscription."""

    def __init__(self, why: str, position: Lsn) -> None:
        super().__init__(why)
        self.why = why
        self.position = position


def wait_for_lsn(node: WaitingParts, caller: Caller, statement: WaitForLsn) -> Outcome:
    """Execute WAIT FOR LSN."""
    timeout_ms = _timeout_ms(statement)
    if caller.holds_snapshot():
        raise UsageError(
            "WAIT cannot be executed while the current transaction holds a snapshot",
            sqlstate=_PREREQUISITE,
        )
    if caller.block is not None:
        raise UsageError(
            "cannot wait for a standby LSN while holding locks",
            sqlstate=_PREREQUISITE,
            detail="This transaction has changed subscriptions or publications.",
            hint="Commit first, or execute WAIT FOR before these statements.",
        )
    if statement.mode is WaitMode.PRIMARY_FLUSH:
        raise UsageError(
            "recovery is in progress",
            sqlstate=_PREREQUISITE,
            hint="Waiting for primary_flush can only be done on a primary server. Use"
            " standby_flush mode on a standby server.",
        )
    chosen = _chosen(node, statement.subscription)
    return _answer(_status(_Wait(node, caller, statement, chosen), timeout_ms))


def visible_lsn(node: WaitingParts, caller: Caller, name: str | None = None) -> Lsn:
    """Return the position below which readers see everything (wal2lake.visible_lsn)."""
    subscriptions = _chosen(node, name)
    return min(_visible(node, subscription) for subscription in subscriptions)


def _status(wait: _Wait, timeout_ms: int) -> str:
    """Wait, and return the status; raises an error instead if the statement wants one."""
    statement = wait.statement
    try:
        if wait.run(timeout_ms):
            return "success"
    except _Ended as ended:
        if not statement.throws:
            return "not in recovery"
        raise UsageError(
            ended.why,
            sqlstate=_PREREQUISITE,
            detail=f"It ended before target LSN {statement.lsn} was"
            f" {_REACHED[statement.mode]}; last {statement.mode.value} LSN"
            f" {ended.position}.",
        ) from None
    if not statement.throws:
        return "timeout"
    position, reason = wait.standing()
    raise UsageError(
        f"timed out while waiting for target LSN {statement.lsn} to be"
        f" {_REACHED[statement.mode]}; current {statement.mode.value} LSN {position}",
        sqlstate=_QUERY_CANCELED,
        detail=reason,
        hint="SELECT * FROM wal2lake.problems says what holds a subscription up.",
    )


def _answer(status: str) -> Outcome:
    batch = ResultBatch(1, ([status.encode()],))
    return Outcome("WAIT", STATUS, iter((batch,)))


def _timeout_ms(statement: WaitForLsn) -> int:
    """Return the time limit; 0 for none."""
    if statement.timeout is None:
        return 0
    value, hint = milliseconds(statement.timeout)
    if value is not None and value >= 0:
        return value
    message = "timeout cannot be negative"
    if value is None:
        message = f'invalid timeout value: "{statement.timeout}"'
    error = SqlSyntaxError(message, sqlstate="22023", hint=hint)
    error.position = statement.timeout_at + 1
    raise error


# ---- which subscriptions ---------------------------------------------------------------


def _chosen(node: HasCatalog, name: str | None) -> Sequence[Subscription]:
    """Return the subscriptions that are waited for: the named one, or those of the only source."""
    if name is not None:
        return [need_subscription(node, name)]
    subscriptions = list(node.catalog.subscriptions())
    if not subscriptions:
        raise UsageError("there is no subscription to wait for", sqlstate=_PREREQUISITE)
    sources = {subscription.system_identifier for subscription in subscriptions}
    if len(subscriptions) > 1 and (len(sources) > 1 or None in sources):
        names = ", ".join(f'"{s.name}"' for s in subscriptions)
        raise UsageError(
            "the subscription to wait for must be named",
            sqlstate=_PREREQUISITE,
            detail=f"The subscriptions {names} have several sources, whose positions"
            " cannot be compared.",
            hint=_NAME_ONE,
        )
    return subscriptions


# ---- the wait --------------------------------------------------------------------------


class _Wait:
    """One statement's wait for all of its subscriptions."""

    def __init__(
        self,
        node: WaitingParts,
        caller: Caller,
        statement: WaitForLsn,
        subscriptions: Sequence[Subscription],
    ) -> None:
        self.statement = statement
        self._node = node
        self._caller = caller
        self._positions = node.apply.positions
        self._left = [subscription.oid for subscription in subscriptions]
        """Subscriptions that have not reached the position."""
        self._names = {s.oid: s.name for s in subscriptions}
        self._told: set[Oid] = set()

    def run(self, timeout_ms: int) -> bool:
        """Wait. Return False on a time-out; raise _Ended if the position cannot be reached."""
        deadline = time.monotonic() + timeout_ms / 1000 if timeout_ms else None
        while True:
            number = self._positions.number
            counter = self._node.catalog.change_counter
            self._left = [subid for subid in self._left if not self._there(subid)]
            if not self._left:
                return True
            if deadline is not None and time.monotonic() >= deadline:
                return False
            self._await(number, counter, deadline)

    def standing(self) -> tuple[Lsn, str | None]:
        """Return the lowest position, and what holds its subscription up, if it is known."""
        standings = [
            (self._position(subscription), self._held_up(subscription))
            for subid in self._left
            if (subscription := self._node.catalog.subscription(subid)) is not None
        ]
        return min(standings, key=lambda each: each[0], default=(INVALID_LSN, None))

    def _await(self, number: int, counter: int, deadline: float | None) -> None:
        """Wait for a change, the time limit, or the end of the statement."""
        replay = self.statement.mode is WaitMode.REPLAY
        while True:
            self._caller.check()
            seconds = _CHECK_SECONDS if replay else _LOOK_SECONDS
            if deadline is not None:
                seconds = max(0.0, min(seconds, deadline - time.monotonic()))
            changed = self._positions.wait(number, seconds)
            past = deadline is not None and time.monotonic() >= deadline
            if changed or past or not replay:
                return
            if self._node.catalog.change_counter != counter:
                return

    def _there(self, subid: Oid) -> bool:
        """Whether a subscription has reached the position, with all of its tables."""
        subscription = self._node.catalog.subscription(subid)
        if subscription is None:
            raise _Ended(
                f'subscription "{self._names[subid]}" was dropped', INVALID_LSN
            )
        position = self._position(subscription)
        if position >= self.statement.lsn and self._held_up(subscription) is None:
            return True
        if subscription.dropping or not subscription.enabled:
            state = "being dropped" if subscription.dropping else "disabled"
            raise _Ended(f'subscription "{subscription.name}" is {state}', position)
        return False

    def _position(self, subscription: Subscription) -> Lsn:
        if self.statement.mode is WaitMode.REPLAY:
            return _visible(self._node, subscription)
        directory = self._node.settings.run_directory
        progress = read_progress(directory, subscription.oid)
        if progress is None:
            return INVALID_LSN
        written = self.statement.mode is WaitMode.WRITE
        return progress.received if written else progress.logged

    def _held_up(self, subscription: Subscription) -> str | None:
        """Return why a table is not at the position of its subscription; None if all are."""
        if self.statement.mode is not WaitMode.REPLAY:
            return None
        catalog, subid = self._node.catalog, subscription.oid
        rels = catalog.rels(subid)
        self._tell_of_paused(subscription, rels)
        vector = catalog.newest_vector(subid)
        for rel in rels:
            reason = _reason(rel, vector, self.statement.lsn)
            if reason is not None:
                return f'Table "{_table_name(catalog, rel)}" {reason}.'
        return None

    def _tell_of_paused(
        self, subscription: Subscription, rels: Collection[SubscriptionRel]
    ) -> None:
        """Send a notice about each paused table, once."""
        for rel in rels:
            if rel.paused and rel.relid not in self._told:
                self._told.add(rel.relid)
                name = _table_name(self._node.catalog, rel)
                self._caller.notice(
                    Notice(
                        f'table "{name}" of subscription "{subscription.name}" is paused',
                        hint=f"The wait goes on until SELECT wal2lake.resume_table('{name}').",
                    )
                )


def _reason(
    rel: SubscriptionRel, vector: SnapshotVector | None, lsn: Lsn
) -> str | None:
    """Return why readers do not see a table at ``lsn``, although its subscription is there."""
    if rel.paused:
        return "is paused"
    if rel.state not in _VISIBLE:
        return "is being copied"
    apart = None if vector is None else vector.elsewhere(rel.relid)
    return f"stands at {apart}" if apart is not None and apart < lsn else None


def _table_name(catalog: Catalog, rel: SubscriptionRel) -> str:
    table = catalog.table_by_oid(rel.relid)
    remote = f"{rel.remote_namespace}.{rel.remote_name}"
    return remote if table is None else table.qualified


def _visible(node: WaitingParts, subscription: Subscription) -> Lsn:
    """Return the position of which readers see a subscription's published state, or a later one."""
    vector = node.catalog.newest_vector(subscription.oid)
    idle = node.apply.positions.reached(subscription.oid, subscription.generation)
    published = INVALID_LSN if vector is None else vector.lsn
    return Lsn(max(subscription.floor, published, idle))
