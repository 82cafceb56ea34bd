"""One script about subscriptions, run by PostgreSQL 18 and by the node: the same errors, warnings
and notices, with severity, SQLSTATE, message, DETAIL and HINT.

The statements are those of PostgreSQL's regression test of subscriptions, written anew, and what
they leave out. None of them needs a publisher; where one tries to connect, nobody answers.

A statement whose answers may differ is in ``DIFFERENT`` with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from tests.conftest import Database

from wal2lake.pg.client import Client, Failure
from wal2lake.testing.node import Node

Answer = tuple[str, str, str, str | None, str | None]

NOBODY = "host=127.0.0.1 port=1 dbname=nope connect_timeout=2"
OFF = "with (connect = false)"
NAMES = "a b c slot none two origin"
"""What the script may leave, each behind tx_."""


def create(name: str, options: str = "connect = false", publications: str = "p") -> str:
    return (
        f"create subscription {name} connection '{NOBODY}' publication {publications}"
        f" with ({options})"
    )


SCRIPT = (
    # ---- CREATE: grammar
    "create subscription tx_a connection 'dbname=x'",
    "create subscription tx_a publication p",
    "create subscription connection 'dbname=x' publication p",
    "create subscription tx_a connection dbname publication p",
    "create subscription tx_a connection 'dbname=x' publication p,",
    "create subscription tx_a connection 'dbname=x' publication p with ()",
    "create subscription tx_a connection 'dbname=x' publication p with connect",
    "create subscription tx.a connection 'dbname=x' publication p",
    "create subscription if not exists tx_a connection 'dbname=x' publication p",
    # ---- CREATE: options
    create("tx_a", "frob = 1"),
    create("tx_a", "connect = maybe"),
    create("tx_a", "connect = 2"),
    create("tx_a", "connect = false, connect = true"),
    create("tx_a", "enabled, enabled"),
    create("tx_a", "connect = false, copy_data = true"),
    create("tx_a", "connect = false, enabled = true"),
    create("tx_a", "connect = false, create_slot = true"),
    create("tx_a", "slot_name = none, enabled = true"),
    create("tx_a", "slot_name = none, create_slot = true"),
    create("tx_a", "slot_name = none, enabled = false, create_slot = true"),
    create("tx_a", "slot_name = none"),
    create("tx_a", "slot_name = none, enabled = false"),
    create("tx_a", "slot_name = none, create_slot = false"),
    create("tx_a", "connect = false, slot_name = ''"),
    create("tx_a", "connect = false, slot_name = 'Upper'"),
    create("tx_a", "connect = false, slot_name = 'a b'"),
    create("tx_a", f"connect = false, slot_name = '{'x' * 64}'"),
    create("tx_a", "connect = false, slot_name"),
    create("tx_slot", "connect = false, slot_name = pg_conflict_detection"),
    create("tx_a", "connect = false, synchronous_commit = frob"),
    create("tx_a", "connect = false, binary = foo"),
    create("tx_a", "connect = false, streaming = foo"),
    create("tx_a", "connect = false, two_phase = foo"),
    create("tx_a", "connect = false, disable_on_error = foo"),
    create("tx_a", "connect = false, password_required = foo"),
    create("tx_a", "connect = false, run_as_owner = foo"),
    create("tx_a", "connect = false, failover = foo"),
    create("tx_a", "connect = false, origin = foo"),
    create("tx_a", "connect = false, origin"),
    create("tx_a", "connect = false, refresh = true"),
    create("tx_a", "connect = false, lsn = '0/1'"),
    create("tx_a", "connect = false", "p, q, p"),
    "create subscription tx_a connection 'testconn' publication p " + OFF,
    "create subscription tx_a connection 'i_dont_exist=1' publication p " + OFF,
    "create subscription tx_a connection 'port = ''' publication p " + OFF,
    # ---- CREATE: nobody there
    create("tx_a", "enabled = true"),
    create("tx_a", "create_slot = false, slot_name = x"),
    # ---- CREATE
    create("tx_a"),
    create("tx_a"),
    # The name counts before the connection string and the publications.
    "create subscription tx_a connection 'testconn' publication p, p " + OFF,
    create("tx_none", "connect = false, slot_name = none"),
    create("tx_two", "connect = false, two_phase = true, streaming = off"),
    create("tx_origin", "connect = false, origin = none, binary, run_as_owner"),
    # ---- ALTER: grammar
    "alter subscription tx_a",
    "alter subscription tx_a frob",
    "alter subscription if exists tx_a enable",
    "alter subscription tx_a enable now",
    "alter subscription tx_a set",
    "alter subscription tx_a set ()",
    "alter subscription tx_a set publication",
    "alter subscription tx_a add p",
    "alter subscription tx_a rename tx_b",
    "alter subscription tx_a owner postgres",
    "alter subscription tx_a connection x",
    "alter subscription tx_a refresh",
    "alter subscription tx_a refresh publication p",
    "alter subscription tx_a skip",
    # ---- ALTER: no such subscription, which counts before the options
    "alter subscription nope enable",
    "alter subscription nope disable",
    "alter subscription nope connection 'testconn'",
    "alter subscription nope set (frob = 1)",
    "alter subscription nope set publication p with (frob = 1)",
    "alter subscription nope add publication p",
    "alter subscription nope drop publication p",
    "alter subscription nope refresh publication with (frob = 1)",
    "alter subscription nope skip (frob = 1)",
    "alter subscription nope rename to other",
    # ---- ENABLE, CONNECTION
    "alter subscription tx_none enable",
    "alter subscription tx_none disable",
    "alter subscription tx_a connection 'foobar'",
    "alter subscription tx_a connection 'i_dont_exist=1'",
    f"alter subscription tx_a connection '{NOBODY} application_name=x'",
    # ---- SET
    "alter subscription tx_a set (frob = 1)",
    "alter subscription tx_a set (create_slot = false)",
    "alter subscription tx_a set (connect = false)",
    "alter subscription tx_a set (enabled = true)",
    "alter subscription tx_a set (copy_data = true)",
    "alter subscription tx_a set (refresh = true)",
    "alter subscription tx_a set (lsn = '0/1')",
    "alter subscription tx_a set (binary = on, binary = off)",
    "alter subscription tx_a set (slot_name = '')",
    "alter subscription tx_a set (slot_name = 'Upper')",
    "alter subscription tx_a set (synchronous_commit = foobar)",
    "alter subscription tx_a set (streaming = foo)",
    "alter subscription tx_a set (origin = foo)",
    "alter subscription tx_a set (password_required = foo)",
    "alter subscription tx_a set (slot_name = x, two_phase = false)",
    "alter subscription tx_none set (two_phase = false)",
    "alter subscription tx_none set (failover = true)",
    "alter subscription tx_none set (failover = false)",
    "alter subscription tx_none set (two_phase = true)",
    "alter subscription tx_a set (two_phase = false)",
    "alter subscription tx_a set (failover = true)",
    "alter subscription tx_a set (slot_name = newname)",
    "alter subscription tx_a set (slot_name = none)",
    "alter subscription tx_a set (slot_name = tx_a, synchronous_commit = 'remote_write')",
    "alter subscription tx_a set (binary, streaming = parallel, origin = 'ANY')",
    "alter subscription tx_a set (run_as_owner = true, password_required = false)",
    "alter subscription tx_a set (disable_on_error = true)",
    # ---- publications, while it is disabled
    "alter subscription tx_a set publication q",
    "alter subscription tx_a set publication q with (refresh = false, frob = 1)",
    "alter subscription tx_a set publication q, q with (refresh = false)",
    "alter subscription tx_a set publication q, q",
    "alter subscription tx_a add publication p",
    "alter subscription tx_a add publication p with (refresh = false)",
    "alter subscription tx_a add publication q, q with (refresh = false)",
    "alter subscription tx_a add publication q",
    "alter subscription tx_a add publication q, r with (refresh = false)",
    "alter subscription tx_a add publication q, r with (refresh = false)",
    "alter subscription tx_a drop publication nope with (refresh = false)",
    "alter subscription tx_a drop publication q, q with (refresh = false)",
    "alter subscription tx_a drop publication p, q, r with (refresh = false)",
    "alter subscription tx_a drop publication p",
    "alter subscription tx_a drop publication p with (refresh = false, copy_data = false)",
    "alter subscription tx_a set publication q with (refresh = 3)",
    "alter subscription tx_a set publication p with (refresh = false)",
    "alter subscription tx_a refresh publication",
    "alter subscription tx_a refresh publication with (frob = 1)",
    # ---- SKIP
    "alter subscription tx_a skip (frob = 1)",
    "alter subscription tx_a skip (lsn = 1)",
    "alter subscription tx_a skip (lsn = '0/0')",
    "alter subscription tx_a skip (lsn = 'zero')",
    "alter subscription tx_a skip (lsn)",
    "alter subscription tx_a skip (lsn = none, lsn = none)",
    "alter subscription tx_a skip (lsn = none)",
    "alter subscription tx_a skip (lsn = '0/12345')",
    # ---- RENAME
    "alter subscription tx_a rename to tx_none",
    "alter subscription tx_a rename to tx_a",
    "alter subscription tx_a rename to tx_b",
    "alter subscription tx_b rename to tx_a",
    # ---- COMMENT
    "comment on subscription nope is 'x'",
    "comment on subscription tx_a is x",
    "comment on subscription tx_a",
    "comment on subscription tx_a is 'x'",
    "comment on subscription tx_a is null",
    # ---- while it is enabled
    "alter subscription tx_a enable",
    "alter subscription tx_a set (slot_name = none)",
    "alter subscription tx_a set (two_phase = true)",
    "alter subscription tx_a set (two_phase = false)",
    "alter subscription tx_a set (failover = true)",
    "alter subscription tx_a refresh publication with (frob = 1)",
    "alter subscription tx_a refresh publication",
    "alter subscription tx_a set publication q",
    "alter subscription tx_a add publication p",
    "alter subscription tx_a drop publication p",
    "begin; alter subscription tx_a refresh publication with (frob = 1)",
    "begin; alter subscription tx_a refresh publication",
    "begin; alter subscription tx_a set publication q",
    "begin; alter subscription tx_a add publication q",
    "begin; alter subscription tx_a add publication q with (copy_data = false)",
    "begin; alter subscription tx_a disable; select 1/0",
    "alter subscription tx_a disable",
    # ---- in a block
    "begin; " + create("tx_c", "enabled = false"),
    "begin; " + create("tx_c", "frob = 1"),
    "begin; drop subscription tx_a",
    "begin; drop subscription nope",
    "begin; drop subscription if exists nope",
    "begin; alter subscription tx_a refresh publication",
    "begin; alter subscription tx_a set publication q",
    "begin; alter subscription tx_a set (two_phase = false)",
    "begin; alter subscription tx_a set (failover = true)",
    "begin; alter subscription tx_a set (two_phase = false, slot_name = y)",
    # ---- DROP
    "drop subscription",
    "drop subscription tx_a, tx_none",
    "drop subscription nope",
    "drop subscription if exists nope",
    "drop subscription if exists nope cascade",
    "drop subscription tx_a",
    "alter subscription tx_a set (slot_name = none)",
    "drop subscription tx_a",
    "drop subscription tx_a",
    "drop subscription tx_none restrict",
    "alter subscription tx_slot set (slot_name = none)",
    "drop subscription tx_slot",
    "alter subscription tx_two set (slot_name = none)",
    "drop subscription tx_two",
    "alter subscription tx_origin set (slot_name = none)",
    "drop subscription if exists tx_origin",
    # ---- statistics
    "select pg_stat_reset_subscription_stats(0)",
    "select pg_stat_reset_subscription_stats(1)",
)

TABLES = re.compile(r'^table ".*" (added to|removed from) subscription')
"""NOTICEs of the node, which PostgreSQL has at DEBUG1."""

HINTED = re.compile(r"could not connect to the publisher")
"""Messages to which the node adds a hint, where PostgreSQL has none."""


def answers(conninfo: str) -> Iterator[tuple[str, list[Answer]]]:
    """Each statement with what it was answered."""
    told: list[Answer] = []

    def tell(one: Failure) -> None:
        # PostgreSQL leaves the line end of libpq's text in its own.
        message = one.message.rstrip("\n")
        told.append((one.severity, one.sqlstate, message, one.detail, one.hint))

    for sql in SCRIPT:
        # A session of its own: a block that fails is left with it.
        with Client(conninfo, on_notice=tell) as client:
            for outcome in client.run(sql):
                if isinstance(outcome, Failure):
                    tell(outcome)
        yield sql, told.copy()
        told.clear()


def comparable(ours: list[Answer], theirs: list[Answer]) -> list[Answer]:
    """Ours, without a hint that is allowed where PostgreSQL has none."""
    found = []
    ours = [one for one in ours if not TABLES.search(one[2])]
    for i, one in enumerate(ours):
        other = theirs[i] if i < len(theirs) else None
        bare = other is not None and other[4] is None
        found.append((*one[:4], None) if bare and HINTED.search(one[2]) else one)
    return found


@pytest.fixture
def cleaned(pg18: Database, node: Node) -> Iterator[None]:
    """No subscription of the script outlives it."""
    yield
    for run in (pg18.psql, node.sql):
        for name in (f"tx_{word}" for word in NAMES.split()):
            rows = run(f"select 1 from pg_subscription where subname = '{name}'")
            if rows:
                run(f"alter subscription {name} disable")
                run(f"alter subscription {name} set (slot_name = none)")
                run(f"drop subscription {name}")


def test_every_error_and_notice_is_postgresqls(
    pg18: Database, node: Node, cleaned: None
) -> None:
    theirs = dict(enumerate(answers(pg18.conninfo())))
    differences = []
    for i, (sql, ours) in enumerate(answers(node.conninfo())):
        expected = theirs[i][1]
        if comparable(ours, expected) == expected:
            continue
        differences.append(f"{sql}\n    PostgreSQL: {expected}\n    node:       {ours}")
    assert not differences, "\n".join(differences)
    assert any(answer for _, answer in theirs.values())
