"""Problems of the publisher half: slots that hold the node's own log, and transactions that wait.

Called by ``problems``. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Final

from wal2lake.health.facts import NodeFacts, SlotFacts
from wal2lake.health.problem import Concern, Problem, ProblemKind, Severity
from wal2lake.health.rules.remedies import literal
from wal2lake.health.rules.words import in_bytes, in_words

NEAR_PERCENT: Final = 80
"""Part of a limit from which a size is near it, as log.size_warning_percent has by default."""

_MUCH: Final = 1 << 30
"""Bytes that a slot may hold while nobody uses it. Chosen arbitrarily: a subscriber that is away
for a weekend is worth a look if it holds more."""

_OLD: Final = timedelta(hours=1)
"""Age from which a prepared transaction is a problem. A coordinator that lives ends it at once."""

_SLOW: Final = timedelta(seconds=60)
"""Time after which a commit to several tables should have ended."""


def publisher_problems(facts: NodeFacts, now: datetime) -> Iterator[Problem]:
    """Yield the problems of slots, prepared transactions and local commits."""
    for slot in facts.slots:
        if not slot.temporary:
            yield from _slot(slot)
    yield from _prepared(facts, now)
    since = facts.unfinished_since
    if facts.state == "ready" and since is not None and now - since > _SLOW:
        yield Problem(
            ProblemKind.LOCAL_COMMIT,
            Severity.WARNING,
            f"a commit to several tables has not ended for {in_words(now - since)}",
            Concern.NOBODY,
            since=since,
            hint="The node finishes it by itself as soon as its tables can be written; the"
            " server log says what prevents it.",
        )


def _slot(slot: SlotFacts) -> Iterator[Problem]:
    drop = f"SELECT pg_drop_replication_slot({literal(slot.name)});"
    if slot.wal_status == "lost":
        reason = slot.invalidation or "wal_removed"
        yield Problem(
            ProblemKind.PUBLISHER_SLOT_LOST,
            Severity.ERROR,
            f'replication slot "{slot.name}" of this node was invalidated'
            f' due to "{reason}"',
            Concern.OPERATOR,
            subject=slot.name,
            remedy=drop,
            hint="Its subscriber must be created anew: it has missed changes. Then the slot"
            " can be dropped.",
        )
        return
    limit, held = slot.limit_bytes, slot.retained_bytes
    if limit is not None and held * 100 >= limit * NEAR_PERCENT:
        beyond = held > limit or slot.wal_status == "unreserved"
        yield Problem(
            ProblemKind.PUBLISHER_WAL_HELD,
            Severity.ERROR if beyond else Severity.WARNING,
            f'replication slot "{slot.name}" of this node holds {in_bytes(held)} of its'
            f" log, and may hold {in_bytes(limit)}",
            Concern.OPERATOR,
            subject=slot.name,
            remedy=None if slot.active_pid else drop,
            hint="At the limit the slot is invalidated. Let its subscriber go on, raise"
            ' "publish.max_slot_wal_keep_size", or drop the slot if nobody needs it.',
        )
    elif slot.active_pid is None and held >= _MUCH:
        yield Problem(
            ProblemKind.PUBLISHER_SLOT_INACTIVE,
            Severity.WARNING,
            f'replication slot "{slot.name}" of this node is not in use, and holds'
            f" {in_bytes(held)} of its log",
            Concern.OPERATOR,
            subject=slot.name,
            remedy=drop,
            hint="Start its subscriber, or drop the slot if nobody needs it.",
        )


def _prepared(facts: NodeFacts, now: datetime) -> Iterator[Problem]:
    for prepared in facts.prepared:
        age = now - prepared.prepared_at
        if age > _OLD:
            gid = literal(prepared.gid)
            yield Problem(
                ProblemKind.PREPARED,
                Severity.WARNING,
                f'transaction "{prepared.gid}" has been prepared for {in_words(age)}',
                Concern.OPERATOR,
                since=prepared.prepared_at,
                subject=prepared.gid,
                remedy=f"ROLLBACK PREPARED {gid};",
                hint=f"If its coordinator has committed it elsewhere: COMMIT PREPARED {gid}.",
            )
