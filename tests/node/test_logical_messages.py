"""Logical messages of a source, listed by a whole node: an outbox without a table."""

from __future__ import annotations

from collections.abc import Callable

from tests.conftest import Database

from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node


def test_messages_of_a_source_are_listed_beside_the_rows_they_came_with(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    pg18.psql(
        "create schema lm; create table lm.t (id int primary key);"
        " create publication lm for table lm.t"
    )
    mirror = subscribe(pg18, "lm")
    mirror.synced()
    emit = "select pg_logical_emit_message"
    answers = pg18.psql(
        f"begin; insert into lm.t values (1); {emit}(true, 'outbox', '{{\"id\": 1}}');"
        f" commit; begin; {emit}(true, 'outbox', 'never');"
        f" {emit}(false, 'audit', 'a rollback'); rollback; insert into lm.t values (2)"
    )
    inside, _, outside = (line for line in answers.splitlines() if "/" in line)
    mirror.assert_equal(["lm.t"])
    rows = node.wait_for(
        "select lsn, commit_lsn >= lsn, transactional, prefix, convert_from(content, 'utf8')"
        " from wal2lake.messages where subname = 'lm' order by lsn",
        lambda rows: len(rows) == 2,
    )
    assert rows == [
        (inside, "t", "t", "outbox", '{"id": 1}'),
        (outside, None, "f", "audit", "a rollback"),
    ]
    # A disabled subscription keeps its log, a dropped one does not.
    node.sql("alter subscription lm disable")
    assert (
        node.value("select count(*) from wal2lake.messages where subname = 'lm'") == "2"
    )
    node.sql("drop subscription lm")
    assert (
        node.value("select count(*) from wal2lake.messages where subname = 'lm'") == "0"
    )
