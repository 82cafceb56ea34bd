"""Conflicts that a Spark SQL expression of the user's resolves."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conftest import FAST_RETRY, Database

from wal2lake.errors import PublisherError
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

SETTINGS = {
    **FAST_RETRY,
    "apply.track_commit_timestamp": True,
    "log.segment_interval_ms": 100,
}

RESOLUTION = (
    "ce.stock.insert_exists = set (qty = local.qty + remote.qty),"
    " ce.stock.update_origin_differs = set (qty = local.qty + remote.qty,"
    " note = concat_ws(',', local.note, remote.note)),"
    " ce.stock.delete_origin_differs = (if(local.qty > 0, 'keep_local', 'apply_remote')),"
    " ce.t.update_origin_differs = (case when remote_commit_time > local_commit_time"
    " and remote.v <> 'old' then 'apply_remote' when local.v = 'stop' then 'error'"
    " else 'keep_local' end)"
)

CONFLICTS = (
    "select tablename, conflict_type, resolution, key from wal2lake.conflicts"
    " where subname = 'ce' order by 1, 4, 2"
)


@pytest.mark.slow
def test_rows_are_merged_and_chosen_by_expressions(
    pg18: Database, make_node: Callable[..., Node]
) -> None:
    pg18.psql(
        "create schema ce; create table ce.stock (id int primary key, qty numeric(9,2),"
        " note varchar(20)); create table ce.t (id int primary key, v text);"
        " insert into ce.stock select g, 10, 'n' from generate_series(1, 5) g;"
        " insert into ce.t select g, 'v' from generate_series(1, 3) g;"
        " create publication ce for tables in schema ce"
    )
    node = make_node(settings=SETTINGS).start()
    source = quote_literal(pg18.conninfo())
    for wrong, sqlstate in (
        ("ce.stock.insert_exists = set (none = 1)", "42703"),
        ("ce.stock.insert_exists = (rand() > local.qty)", "0A000"),
        ("ce.stock.insert_exists = (", "42601"),
    ):
        with pytest.raises(PublisherError) as refused:
            node.sql(
                f"create subscription ce connection {source} publication ce"
                f" with (conflict_resolution = {quote_literal(wrong)})"
            )
        assert refused.value.sqlstate == sqlstate, refused.value
    node.sql(
        f"create subscription ce connection {source} publication ce"
        f" with (conflict_resolution = {quote_literal(RESOLUTION)})"
    )
    mirror = Mirror(node, pg18.conninfo(), "ce")
    mirror.synced()
    with pytest.raises(PublisherError, match='column "none" does not exist'):
        node.sql(
            "alter subscription ce set (conflict_resolution ="
            " 'ce.stock.insert_exists = (local.none)')"
        )
    node.sql("update ce.stock set qty = qty + 1, note = 'here'")
    node.sql("insert into ce.stock values (9, 5, 'ours')")
    node.sql("update ce.stock set qty = 0 where id = 4")
    node.sql("update ce.t set v = 'ours'")
    pg18.transactions(
        [
            # Twice: the second one meets the row that the first one has made.
            "update ce.stock set qty = 2, note = 'there' where id = 1",
            "update ce.stock set qty = 3 where id = 1",
            "insert into ce.stock values (9, 7, 'theirs')",
            "delete from ce.stock where id in (3, 4)",
            "update ce.t set v = 'new' where id = 1; update ce.t set v = 'old' where id = 2",
        ]
    )
    mirror.caught_up()
    assert node.sql("select * from ce.stock order by id") == [
        ("1", "3.00", "there"),
        ("2", "11.00", "here"),
        ("3", "11.00", "here"),
        ("5", "11.00", "here"),
        ("9", "12.00", "theirs"),
    ]
    assert node.sql("select v from ce.t order by id") == [
        ("new",),
        ("ours",),
        ("ours",),
    ]
    key = "(id)=({})".format
    assert node.sql(CONFLICTS) == [
        ("stock", "update_origin_differs", "merge", key(1)),
        ("stock", "delete_origin_differs", "keep_local", key(3)),
        ("stock", "delete_origin_differs", "apply_remote", key(4)),
        ("stock", "insert_exists", "merge", key(9)),
        ("t", "update_origin_differs", "apply_remote", key(1)),
        ("t", "update_origin_differs", "keep_local", key(2)),
    ]
    # What cannot be evaluated stops at its own transaction.
    pg18.transactions(
        [
            "insert into ce.stock values (10, 1, 'before')",
            "update ce.stock set note = repeat('x', 20) where id = 2",
        ]
    )
    found = node.wait_for(
        "select error from wal2lake.subscription_errors where subname = 'ce'",
    )
    text = str(found[0][0])
    assert "value too long for type character varying(20)" in text
    assert "could not be evaluated" in text
    assert "finished at" in text
    assert node.sql("select id from ce.stock where id = 10") == [("10",)]
    node.sql(
        "alter subscription ce set (conflict_resolution ="
        " 'ce.stock.update_origin_differs = keep_local')"
    )
    mirror.caught_up()
    assert node.sql("select note from ce.stock where id = 2") == [("here",)]
