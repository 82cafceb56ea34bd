"""Problems of one subscription and of its tables.

Called by ``problems``. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from wal2lake.catalog import Verification, WorkerKind
from wal2lake.health.facts import (
    NodeFacts,
    SourceFacts,
    SubscriptionFacts,
    TableFacts,
)
from wal2lake.health.problem import Concern, Problem, ProblemKind, Severity
from wal2lake.health.rules.publisher import NEAR_PERCENT
from wal2lake.health.rules.remedies import (
    alter_subscription,
    call_for_table,
    failure_of,
    literal,
    recopy_all,
    remedy_of,
    table_name,
)
from wal2lake.health.rules.words import in_bytes, in_words

LATE_SECONDS: Final = 60.0
"""Seconds from which a subscription is late that declares no freshness. A batch takes seconds; a
minute is what an alert for a mirror usually waits."""

_PAUSED_LONG: Final = timedelta(days=1)
"""Time from which a pause may have been forgotten."""

_STUCK: Final = timedelta(minutes=15)
"""Time without a finished range after which a copy makes no progress. A range of 256 MB takes
seconds, or a quarter of an hour over a line of 2.5 Mbit/s."""

_VERBS: Final = {
    WorkerKind.RECEIVER.value: "receive",
    WorkerKind.SNAPSHOT.value: "take a snapshot for copies",
    WorkerKind.ARCHIVER.value: "put its log into the store",
    WorkerKind.APPLY.value: "apply",
    WorkerKind.DROP.value: "be dropped",
    WorkerKind.RECOPY.value: "be copied again",
    WorkerKind.AUTO_REFRESH.value: "follow its publications",
}
_LOST: Final = ("can no longer access replication slot", "replication slot")
_GONE: Final = "42704"
_LIMIT: Final = "change log has "
"""How the receiver's error begins whose log has reached its limit."""
_STAGES: Final = ("received", "durable", "applied", "visible")
_WORKS: Final = {
    "received": "not yet received from the source",
    "durable": "received, but not yet durable in the log",
    "applied": "in the log, but not yet applied to the tables",
    "visible": "applied, but not yet visible to readers",
}


def subscription_problems(
    facts: NodeFacts, subscription: SubscriptionFacts, now: datetime
) -> Iterator[Problem]:
    """Yield the problems of a subscription, then those of its tables."""
    runs = facts.state in ("starting", "ready")
    # Before the receiver's error, which says less of the same: receivers go on while the engine is
    # down.
    problems = [*_log(subscription)] if runs else []
    problems += [*_errors(subscription), *_standstill(facts, subscription)]
    if runs:
        problems += _source(subscription)
    for table in subscription.tables:
        problems += _table(subscription, table, now)
    yield from problems
    if runs:
        yield from _late(subscription, now, explained=bool(problems))


# ---- errors of workers -------------------------------------------------------------------


def _errors(subscription: SubscriptionFacts) -> Iterator[Problem]:
    for worker, (text, sqlstate, noted_at) in subscription.errors.items():
        if worker != WorkerKind.COPY.value:
            yield _error(subscription, worker, text, sqlstate, noted_at)


def _error(
    subscription: SubscriptionFacts,
    worker: str,
    text: str,
    sqlstate: str | None,
    noted_at: datetime | None,
) -> Problem:
    failure = failure_of(subscription, worker, text, sqlstate)
    remedy = remedy_of(failure)
    kind, subject = ProblemKind.ERRORED, worker
    if worker == WorkerKind.RECEIVER.value:
        kind, subject = ProblemKind.RECEIVER, ""
        if _is_lost_slot(failure.text.message, sqlstate):
            kind = ProblemKind.SLOT_LOST
        elif failure.text.message.startswith(_LIMIT):
            kind = ProblemKind.LOG_LIMIT
    verb = _VERBS.get(worker, worker)
    return Problem(
        kind,
        Severity.ERROR,
        f'subscription "{subscription.name}" cannot {verb}: {failure.text.first_line}',
        remedy.concern,
        since=noted_at,
        subscription=subscription.name,
        table=None if failure.table is None else failure.table.qualified,
        subject=subject or None,
        sqlstate=sqlstate,
        detail=failure.text.more,
        remedy=remedy.sql,
        hint=remedy.hint,
    )


def _is_lost_slot(message: str, sqlstate: str | None) -> bool:
    lost, slot = _LOST
    return message.startswith(lost) or (
        sqlstate == _GONE and message.startswith(slot) and "does not exist" in message
    )


def _standstill(facts: NodeFacts, subscription: SubscriptionFacts) -> Iterator[Problem]:
    """Yield why the subscription does not run, if it does not."""
    name = subscription.name
    if subscription.state == "no slot" or (
        not subscription.enabled and subscription.source.slot_name is None
    ):
        slot = f"SET (slot_name = {literal(name)})"
        yield Problem(
            ProblemKind.NO_SLOT,
            Severity.WARNING,
            f'subscription "{name}" has no replication slot',
            Concern.OPERATOR,
            subscription=name,
            remedy=f"{alter_subscription(subscription, slot)}\n"
            f"{alter_subscription(subscription, 'ENABLE')}",
            hint="Name a slot that the source has, or create one there:"
            f" SELECT pg_create_logical_replication_slot({literal(name)}, 'pgoutput').",
        )
    elif not subscription.enabled:
        by_error = subscription.disable_on_error and bool(subscription.errors)
        cause = " because of an error (disable_on_error)" if by_error else ""
        yield Problem(
            ProblemKind.DISABLED,
            Severity.ERROR if by_error else Severity.WARNING,
            f'subscription "{name}" is disabled{cause}',
            Concern.OPERATOR,
            since=_newest_error(subscription) if by_error else None,
            subscription=name,
            remedy=alter_subscription(subscription, "ENABLE"),
            hint="Remove the cause of the error first, or the subscription is disabled"
            " again."
            if by_error
            else "Until then the source keeps the WAL for its slot.",
        )
    elif (
        facts.state == "ready"
        and subscription.receiver_pid is None
        and WorkerKind.RECEIVER.value not in subscription.errors
    ):
        yield Problem(
            ProblemKind.RECEIVER,
            Severity.WARNING,
            f'the receiver of subscription "{name}" is not running',
            Concern.NOBODY,
            subscription=name,
            hint="The supervisor starts it again, at most"
            ' "subscription.max_logical_replication_workers" at once.',
        )


def _newest_error(subscription: SubscriptionFacts) -> datetime | None:
    times = [
        moment for _, _, moment in subscription.errors.values() if moment is not None
    ]
    return max(times, default=None)


# ---- log and source ----------------------------------------------------------------------


def _log(subscription: SubscriptionFacts) -> Iterator[Problem]:
    limit, warning = subscription.log_limit_bytes, subscription.log_warning_bytes
    size = subscription.log_bytes
    if limit is None or size < (warning or limit * NEAR_PERCENT // 100):
        return
    reached = size >= limit
    paused = [t for t in subscription.tables if t.paused_since is not None]
    calls = [call_for_table("resume_table", subscription, table) for table in paused]
    yield Problem(
        ProblemKind.LOG_LIMIT if reached else ProblemKind.LOG_NEAR_LIMIT,
        Severity.ERROR if reached else Severity.WARNING,
        f'the log of subscription "{subscription.name}" has'
        f" {in_bytes(size)}, and may have {in_bytes(limit)}"
        + (": receiving is paused, and the source keeps its WAL" if reached else ""),
        Concern.OPERATOR,
        subscription=subscription.name,
        remedy="\n".join(calls) or None,
        hint="wal2lake.log_readers says who needs the log. Remove what holds apply up,"
        ' resume or recopy paused tables, or raise "log.size_limit_bytes".',
    )


def _source(subscription: SubscriptionFacts) -> Iterator[Problem]:
    source = subscription.source
    name = source.slot_name or subscription.name
    if source.wal_status == "lost":
        yield Problem(
            ProblemKind.SLOT_LOST,
            Severity.ERROR,
            f'the source has lost replication slot "{name}" of subscription'
            f' "{subscription.name}"',
            Concern.OPERATOR,
            since=None,
            subscription=subscription.name,
            remedy=recopy_all(subscription),
            hint="What was committed since cannot be received any more. The statement makes"
            " a new slot and copies every table again; readers have the old rows until"
            " then.",
        )
    elif (held := _held(source)) is not None:
        retained, limit = held
        beyond = source.wal_status == "unreserved" or retained >= limit
        yield Problem(
            ProblemKind.WAL_HELD,
            Severity.ERROR if beyond else Severity.WARNING,
            f'replication slot "{name}" holds {in_bytes(retained)} of WAL at the source,'
            f" which keeps {in_bytes(limit)} for it",
            Concern.SOURCE,
            subscription=subscription.name,
            detail="The next checkpoint of the source invalidates the slot, and all tables"
            " must be copied again."
            if beyond
            else None,
            remedy=f"ALTER SYSTEM SET max_slot_wal_keep_size = '{_doubled(limit)}MB';\n"
            "SELECT pg_reload_conf();",
            hint="Let the subscription go on, or raise max_slot_wal_keep_size at the source"
            " as the statements do.",
        )


def _held(source: SourceFacts) -> tuple[int, int] | None:
    """Return bytes held and limit, if the limit is near."""
    limit, held = source.limit_bytes, source.retained_bytes
    if limit is None or limit <= 0 or held is None:
        return None
    near = held * 100 >= limit * NEAR_PERCENT or source.wal_status == "unreserved"
    return (held, limit) if near else None


def _doubled(limit: int) -> int:
    return max(1, 2 * limit >> 20)


# ---- tables ------------------------------------------------------------------------------


def _table(
    subscription: SubscriptionFacts, table: TableFacts, now: datetime
) -> Iterator[Problem]:
    if table.error is not None:
        yield _copy_error(subscription, table)
    if table.paused_since is not None:
        yield _paused(subscription, table, table.paused_since, now)
    verification = table.verification
    if verification is not None and verification.differing_rows:
        yield _different(subscription, table, verification)
    progress = None if table.copy is None else table.copy.progressed_at
    stands = progress is not None and now - progress > _STUCK
    if table.error is None and subscription.enabled and stands and progress is not None:
        yield Problem(
            ProblemKind.COPY_STUCK,
            Severity.WARNING,
            f'the copy of table "{table.qualified}" of subscription'
            f' "{subscription.name}" has made no progress for {in_words(now - progress)}',
            Concern.OPERATOR,
            since=progress,
            subscription=subscription.name,
            table=table.qualified,
            hint="Look at the source for a session that holds a lock on the table, and at"
            " the network between. wal2lake.recopy_table begins the copy anew.",
        )


def _copy_error(subscription: SubscriptionFacts, table: TableFacts) -> Problem:
    failure = failure_of(
        subscription,
        WorkerKind.COPY.value,
        table.error or "",
        table.sqlstate,
        table,
    )
    remedy = remedy_of(failure)
    return Problem(
        ProblemKind.TABLE_ERRORED,
        Severity.ERROR,
        f'table "{table.qualified}" of subscription "{subscription.name}" cannot be'
        f" copied: {failure.text.first_line}",
        remedy.concern,
        subscription=subscription.name,
        table=table.qualified,
        sqlstate=table.sqlstate,
        detail=failure.text.more,
        remedy=remedy.sql,
        hint=remedy.hint,
    )


def _different(
    subscription: SubscriptionFacts, table: TableFacts, verification: Verification
) -> Problem:
    rows = verification.differing_rows
    noted_at = verification.different_at
    return Problem(
        ProblemKind.DIFFERENT,
        Severity.ERROR,
        f'table "{table.qualified}" of subscription "{subscription.name}" differs from its'
        f" source in {rows} {'row' if rows == 1 else 'rows'}",
        Concern.OPERATOR,
        since=None if noted_at is None else datetime.fromisoformat(noted_at),
        subscription=subscription.name,
        table=table.qualified,
        detail=f"VERIFY has compared them at {verification.compared_lsn}.",
        remedy=f"REPAIR TABLE {table_name(table)};",
        hint="wal2lake.differences lists the rows. If the lake's rows are meant, because sessions"
        " have written them, do not repair them.",
    )


def _paused(
    subscription: SubscriptionFacts,
    table: TableFacts,
    since: datetime,
    now: datetime,
) -> Problem:
    long = now - since > _PAUSED_LONG
    duration = f" for {in_words(now - since)}" if long else ""
    return Problem(
        ProblemKind.PAUSED_LONG if long else ProblemKind.PAUSED,
        Severity.WARNING,
        f'table "{table.qualified}" of subscription "{subscription.name}" is paused'
        f"{duration}",
        Concern.OPERATOR,
        since=since,
        subscription=subscription.name,
        table=table.qualified,
        remedy=call_for_table("resume_table", subscription, table),
        hint="The log keeps what the table misses. wal2lake.recopy_table copies it again"
        " instead.",
    )


# ---- lateness ----------------------------------------------------------------------------


def _late(
    subscription: SubscriptionFacts, now: datetime, *, explained: bool
) -> Iterator[Problem]:
    """Yield the tables that break their freshness, and the subscription if it is far behind.
    ``explained``: another problem says why."""
    for table in subscription.tables:
        if table.freshness is not None and table.behind_seconds is not None:
            behind = table.behind_seconds
            if behind > table.freshness:
                yield _late_table(subscription, table, now, explained=explained)
    behind_all = subscription.visible.behind_seconds
    if explained or behind_all is None or behind_all <= LATE_SECONDS:
        return
    stage = late_stage(subscription)
    yield Problem(
        ProblemKind.LATE,
        Severity.WARNING,
        f'subscription "{subscription.name}" is {in_words(behind_all)} behind its source',
        Concern.NOBODY,
        since=now - timedelta(seconds=behind_all - LATE_SECONDS),
        subscription=subscription.name,
        stage=stage,
        detail=f"The oldest transaction that readers miss is {_WORKS[stage]}.",
        hint="It catches up by itself if the source does not write faster than the node"
        " applies; wal2lake.apply_methods says what takes the time.",
    )


def _late_table(
    subscription: SubscriptionFacts,
    table: TableFacts,
    now: datetime,
    *,
    explained: bool,
) -> Problem:
    behind, freshness = table.behind_seconds or 0.0, table.freshness or 0.0
    stage = late_stage(subscription, table)
    return Problem(
        ProblemKind.LATE,
        Severity.ERROR,
        f'table "{table.qualified}" of subscription "{subscription.name}" is'
        f" {in_words(behind)} behind its source, more than its freshness of"
        f" {in_words(freshness)}",
        Concern.OPERATOR if explained else Concern.NOBODY,
        since=now - timedelta(seconds=behind - freshness),
        subscription=subscription.name,
        table=table.qualified,
        stage=stage,
        detail=f"The oldest transaction that its readers miss is {_WORKS[stage]}.",
        hint="Another problem of the subscription says what holds it up."
        if explained
        else "It catches up by itself if the source does not write faster than the node"
        " applies.",
    )


def late_stage(subscription: SubscriptionFacts, table: TableFacts | None = None) -> str:
    """Return the stage that adds most to the lag: received, durable, applied or visible."""
    lags = [getattr(subscription, stage).behind_seconds or 0.0 for stage in _STAGES]
    behind = None if table is None else table.behind_seconds
    if behind is not None and behind > lags[-1]:
        # The table is behind its subscription: it is paused, or catches up.
        lags[2:] = [behind, behind]
    added = [after - before for before, after in zip([0.0, *lags], lags, strict=False)]
    return _STAGES[max(range(len(added)), key=lambda i: added[i])]
