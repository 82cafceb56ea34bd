"""Hints of problems, in full: what a person is told whom no statement helps."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest
from tests.fakes.facts import GIB, NOW, ago
from tests.pure.test_health_problems import (
    CONFLICT,
    ITEMS,
    NODE,
    SLOT,
    STOCK,
    failing,
    having,
    lag,
    of,
    registered,
)

from wal2lake.catalog import EntryState
from wal2lake.health import (
    CopyFacts,
    DiskFacts,
    NodeFacts,
    PreparedTransactionFacts,
    ProcessFacts,
    SourceFacts,
    SubscriptionFacts,
    TableFacts,
)


def stock(**changes: object) -> NodeFacts:
    changed: SubscriptionFacts = replace(STOCK, **changes)  # type: ignore[arg-type]
    return having(changed)


def items(**changes: object) -> NodeFacts:
    changed: TableFacts = replace(ITEMS, **changes)  # type: ignore[arg-type]
    return stock(tables=(changed,))


HINTS = [
    (
        replace(NODE, processes=()),
        "The supervisor starts it again. If it does not stay, the server log has the"
        " reason.",
    ),
    (
        replace(NODE, processes=(ProcessFacts("engine", 3, ago(seconds=5), 1),)),
        "The server log has the reason of the restart.",
    ),
    (
        replace(
            NODE,
            state="starting",
            processes=(ProcessFacts("engine", 3, ago(hours=1), 0),),
        ),
        "The server log says what it waits for. The first start on a machine downloads"
        " Spark's jars.",
    ),
    (
        replace(NODE, engine_told_at=ago(hours=1)),
        "It may be out of memory, or wait for a disk. If it does not recover, end the"
        " process: the supervisor starts it again, and nothing is lost.",
    ),
    (
        replace(NODE, settings_error="wrong"),
        "Correct wal2lake.toml. A node that runs goes on with the settings that it has"
        " read before, but it would not start again.",
    ),
    (
        replace(NODE, registered=registered(EntryState.PENDING)),
        "Check catalog.uri, and that its server runs.",
    ),
    (
        replace(NODE, disks=(DiskFacts("log", "/log", GIB, 100 * GIB, 1),)),
        "Free space, or enlarge it. Files of old versions of tables go with VACUUM;"
        ' "log.size_limit_bytes" bounds the log.',
    ),
    (
        replace(NODE, certificate_ends=NOW + timedelta(days=1)),
        'Replace "node.ssl_cert_file" and its key first: a reload reads them again.',
    ),
    (
        replace(NODE, unfinished_since=ago(hours=1)),
        "The node finishes it by itself as soon as its tables can be written; the server"
        " log says what prevents it.",
    ),
    (
        replace(NODE, prepared=(PreparedTransactionFacts("g", ago(hours=2)),)),
        "If its coordinator has committed it elsewhere: COMMIT PREPARED 'g'.",
    ),
    (
        replace(NODE, slots=(replace(SLOT, wal_status="lost"),)),
        "Its subscriber must be created anew: it has missed changes. Then the slot can be"
        " dropped.",
    ),
    (
        replace(NODE, slots=(replace(SLOT, retained_bytes=90, limit_bytes=100),)),
        "At the limit the slot is invalidated. Let its subscriber go on, raise"
        ' "publish.max_slot_wal_keep_size", or drop the slot if nobody needs it.',
    ),
    (
        replace(NODE, slots=(replace(SLOT, retained_bytes=2 * GIB),)),
        "Start its subscriber, or drop the slot if nobody needs it.",
    ),
    (
        failing("receiver", "connection refused", "08001"),
        "The node tries again by itself. If the source has moved, set its address with"
        ' ALTER SUBSCRIPTION "stock" CONNECTION.',
    ),
    (
        failing("receiver", "wrong password", "28P01"),
        'Set user and password with ALTER SUBSCRIPTION "stock" CONNECTION, or allow the'
        " connection in the source's pg_hba.conf.",
    ),
    (
        stock(state="down", receiver_pid=None),
        "The supervisor starts it again, at most"
        ' "subscription.max_logical_replication_workers" at once.',
    ),
    (
        stock(state="disabled", enabled=False),
        "Until then the source keeps the WAL for its slot.",
    ),
    (
        stock(state="no slot", source=SourceFacts(slot_name=None)),
        "Name a slot that the source has, or create one there: SELECT"
        " pg_create_logical_replication_slot('stock', 'pgoutput').",
    ),
    (
        stock(log_bytes=100, log_limit_bytes=100),
        "wal2lake.log_readers says who needs the log. Remove what holds apply up, resume"
        ' or recopy paused tables, or raise "log.size_limit_bytes".',
    ),
    (
        stock(source=SourceFacts(slot_name="s", wal_status="lost")),
        "What was committed since cannot be received any more. The statement makes a new"
        " slot and copies every table again; readers have the old rows until then.",
    ),
    (
        stock(source=SourceFacts(slot_name="s", retained_bytes=9, limit_bytes=10)),
        "Let the subscription go on, or raise max_slot_wal_keep_size at the source as the"
        " statements do.",
    ),
    (
        stock(visible=lag(100)),
        "It catches up by itself if the source does not write faster than the node"
        " applies; wal2lake.apply_methods says what takes the time.",
    ),
    (
        items(freshness=1.0, behind_seconds=9.0),
        "It catches up by itself if the source does not write faster than the node"
        " applies.",
    ),
    (
        items(paused_since=ago(hours=1)),
        "The log keeps what the table misses. wal2lake.recopy_table copies it again"
        " instead.",
    ),
    (
        items(copy=CopyFacts(0, 1, 0, None, 0, 1, None, None, ago(hours=1))),
        "Look at the source for a session that holds a lock on the table, and at the"
        " network between. wal2lake.recopy_table begins the copy anew.",
    ),
]


@pytest.mark.parametrize(("node", "hint"), HINTS)
def test_a_problem_has_its_hint(node: NodeFacts, hint: str) -> None:
    assert [problem.hint for problem in of(node)] == [hint]


def test_a_hint_depends_on_what_else_is_wrong() -> None:
    late = items(freshness=1.0, behind_seconds=9.0, paused_since=ago(hours=1))
    assert of(late)[0].hint == (
        "Another problem of the subscription says what holds it up."
    )
    disabled = failing("apply", CONFLICT, "23505", enabled=False, disable_on_error=True)
    hints = {problem.kind: problem.hint for problem in of(disabled)}
    assert hints["disabled"] == (
        "Remove the cause of the error first, or the subscription is disabled again."
    )
