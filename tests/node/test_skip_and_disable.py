"""ALTER SUBSCRIPTION ... SKIP and disable_on_error, against a real publisher."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from tests.conftest import Database

from wal2lake.errors import PublisherError
from wal2lake.model import Lsn
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

Subscribe = Callable[..., Mirror]


def publish(source: Database, name: str) -> None:
    """Two tables with a row each."""
    source.psql(
        f"create schema {name};"
        f" create table {name}.t (id int primary key, v text);"
        f" create table {name}.u (id int primary key, v text);"
        f" insert into {name}.t values (1, 'one'); insert into {name}.u values (1, 'one');"
        f" create publication {name} for tables in schema {name}"
    )


def stopped(node: Node, name: str) -> str:
    """The finish LSN of the transaction that cannot be applied."""
    (row,) = node.wait_for(
        "select error from wal2lake.subscription_errors"
        f" where subname = '{name}' and worker = 'apply'"
    )
    found = re.search(r"finished at ([0-9A-F]+/[0-9A-F]+)", str(row[0]))
    assert found is not None, row
    return found[1]


def cannot_be_applied(source: Database, node: Node, name: str) -> None:
    """A transaction with a key of table t that the node has a row of, and one behind it."""
    node.sql(f"insert into {name}.t values (5, 'ours')")
    source.transactions(
        [
            f"insert into {name}.u values (2, 'before')",
            f"insert into {name}.u values (3, 'with it');"
            f" insert into {name}.t values (5, 'theirs'), (6, 'with it')",
            f"insert into {name}.t values (7, 'behind')",
        ]
    )


@pytest.fixture
def decoder(node: Node) -> Iterator[str]:
    """A slot of the node's own changes."""
    node.sql("select pg_create_logical_replication_slot('decoder', 'test_decoding')")
    yield "decoder"
    node.sql("select pg_drop_replication_slot('decoder')")


STATUS = (
    "select remote_lsn, local_lsn from pg_replication_origin_status o"
    " join pg_subscription s on o.external_id = 'pg_' || s.oid where subname = '{}'"
)

COMMITS = (
    "select lsn from pg_logical_slot_peek_binary_changes('{}', null, null,"
    " 'proto_version', '1', 'publication_names', 'ors')"
    " where get_byte(data, 0) = ascii('C')"
)
"""Where transactions end."""


def test_an_origin_stands_where_the_last_applied_transaction_ends(
    pg18: Database,
    database: Callable[[int], Database],
    node: Node,
    subscribe: Subscribe,
    decoder: str,
) -> None:
    publish(pg18, "ors")
    peer = database(18)
    peer.psql(
        "create schema ors; create table ors.t (id int primary key, v text);"
        " create table ors.u (id int primary key, v text);"
        " create publication ors for tables in schema ors"
    )
    # On the server that it subscribes to, the command cannot wait for its own slot.
    pg18.psql("select pg_create_logical_replication_slot('ors_native', 'pgoutput')")
    peer.psql(
        f"create subscription ors_native connection {quote_literal(pg18.conninfo())}"
        " publication ors with (create_slot = false, slot_name = ors_native)"
    )
    subscribe(pg18, "ors").synced()
    states = "select string_agg(distinct srsubstate::text, '') from pg_subscription_rel"
    wait_until(lambda: peer.psql(states) == "r")
    for name, one in (("ors_source", pg18), ("ors_peer", peer)):
        one.psql(f"select pg_create_logical_replication_slot('{name}', 'pgoutput')")
    try:
        peer.psql("insert into ors.t values (5, 'ours')")
        cannot_be_applied(pg18, node, "ors")
        failing = Lsn.parse(stopped(node, "ors"))
        good, failed, _ = pg18.psql(COMMITS.format("ors_source")).splitlines()
        told = f"finished at {failing}"
        wait_until(lambda: told in peer.server.log_text(), describe=told)
        assert Lsn.parse(good) <= failing < Lsn.parse(failed)
        remote, local = peer.psql(STATUS.format("ors_native")).split("|")
        assert remote == good
        assert local == peer.psql(COMMITS.format("ors_peer")).splitlines()[-1]
        ((ours, own),) = node.sql(STATUS.format("ors"))
        assert ours == good
        assert Lsn.parse(good) < failing
        # The last one of the node's own transactions is not the subscription's.
        ends = (
            f"select lsn from pg_logical_slot_peek_changes('{decoder}', null, null)"
            " where data like 'COMMIT %'"
        )
        assert own in [row[0] for row in node.sql(ends)]
        progress = "select pg_replication_origin_progress('pg_' || oid, true)"
        where = " from pg_subscription where subname = '{}'"
        assert peer.psql(progress + where.format("ors_native")) == good
        assert node.sql(progress + where.format("ors")) == [(good,)]

        # It is durable, and goes on behind what is skipped.
        node.sql(f"alter subscription ors skip (lsn = '{failing}')")
        peer.psql(f"alter subscription ors_native skip (lsn = '{failing}')")
        last = pg18.psql(COMMITS.format("ors_source")).splitlines()[-1]
        node.wait_for(STATUS.format("ors"), lambda rows: rows[0][0] == last)
        wait_until(lambda: peer.psql(STATUS.format("ors_native")).split("|")[0] == last)
    finally:
        peer.psql("drop subscription ors_native")
        pg18.psql("select pg_drop_replication_slot('ors_source')")
        peer.psql("select pg_drop_replication_slot('ors_peer')")


def test_the_transaction_of_the_reported_lsn_is_skipped_and_no_other(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "sk")
    mirror = subscribe(pg18, "sk")
    mirror.synced()
    cannot_be_applied(pg18, node, "sk")
    lsn = stopped(node, "sk")
    assert node.sql("select v from sk.u order by id") == [("one",), ("before",)]
    origin = node.value("select remote_lsn from pg_replication_origin_status")
    try:
        node.sql("alter subscription sk skip (lsn = '0/1')")
    except PublisherError as error:
        assert (error.sqlstate, error.message) == (
            "22023",
            f"skip WAL location (LSN 0/1) must be greater than origin LSN {origin}",
        )
    else:
        raise AssertionError("not refused")
    node.sql(f"alter subscription sk skip (lsn = '{lsn}')")
    mirror.caught_up()
    assert node.sql("select * from sk.t order by id") == [
        ("1", "one"),
        ("5", "ours"),
        ("7", "behind"),
    ]
    assert node.sql("select v from sk.u order by id") == [("one",), ("before",)]
    state = "select subskiplsn, subenabled from pg_subscription where subname = 'sk'"
    assert node.sql(state) == [("0/0", "t")]
    node.wait_for(
        "select 1 from wal2lake.subscription_errors where subname = 'sk'",
        lambda rows: rows == [],
    )
    log = node.log_text()
    assert f"logical replication starts skipping transaction at LSN {lsn}" in log
    assert f"logical replication completed skipping transaction at LSN {lsn}" in log


@pytest.mark.slow
def test_an_error_that_stays_is_said_once(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "once")
    mirror = subscribe(pg18, "once")
    mirror.synced()
    cannot_be_applied(pg18, node, "once")
    node.wait_for(
        "select apply_error_count from pg_stat_subscription_stats where subname = 'once'",
        lambda rows: int(rows[0][0] or 0) >= 12,
    )
    said = 'conflict detected on relation "once.t": conflict=insert_exists'
    wait_until(lambda: "the same error for the 10th time" in node.log_text())
    lines = [line for line in node.log_text().splitlines() if said in line]
    assert [("the same error" in line) for line in lines] == [False, True]
    node.sql("delete from once.t where id = 5")
    mirror.assert_equal(["once.t", "once.u"])


def test_a_position_to_be_skipped_can_be_taken_back(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "sn")
    mirror = subscribe(pg18, "sn", "with (enabled = true)")
    mirror.synced()
    node.sql("alter subscription sn skip (lsn = 'FF/1')")
    state = "select subskiplsn from pg_subscription where subname = 'sn'"
    assert node.value(state) == "FF/1"
    node.sql("alter subscription sn skip (lsn = none)")
    assert node.value(state) == "0/0"
    pg18.psql("insert into sn.t values (2, 'two')")
    mirror.assert_equal(["sn.t", "sn.u"])


def test_a_name_that_is_not_the_next_ones_is_cleared(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(
        "create schema sc; create table sc.t (id int primary key);"
        " create publication sc for tables in schema sc"
    )
    mirror = subscribe(pg18, "sc")
    mirror.synced()
    node.sql("alter subscription sc skip (lsn = 'F/0')")
    assert (
        node.value("select subskiplsn from pg_subscription where subname = 'sc'")
        == "F/0"
    )
    node.sql("alter subscription sc skip (lsn = none)")
    assert (
        node.value("select subskiplsn from pg_subscription where subname = 'sc'")
        == "0/0"
    )
    node.sql("alter subscription sc skip (lsn = 'F/0')")
    pg18.psql("insert into sc.t values (1)")
    mirror.caught_up()
    node.wait_for(
        "select subskiplsn from pg_subscription where subname = 'sc'",
        lambda rows: rows == [("0/0",)],
    )
    assert 'skip-LSN of subscription "sc" cleared' in node.log_text()
    assert "DETAIL:  Remote transaction's finish WAL location" in node.log_text()
    mirror.assert_equal(["sc.t"])


def test_an_error_disables_a_subscription_that_asks_for_it(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "de")
    mirror = subscribe(pg18, "de", "with (disable_on_error = true)")
    mirror.synced()
    cannot_be_applied(pg18, node, "de")
    disabled = (
        "select subenabled, subdisableonerr from pg_subscription where subname = 'de'"
    )
    node.wait_for(disabled, lambda rows: rows == [("f", "t")])
    stopped(node, "de")
    counts = (
        "select apply_error_count, sync_error_count from pg_stat_subscription_stats"
        " where subname = 'de'"
    )
    assert node.sql(counts) == [("1", "0")], "it was not tried again"
    assert 'subscription "de" has been disabled because of an error' in node.log_text()
    node.sql("delete from de.t where id = 5")
    node.sql("alter subscription de enable")
    mirror.assert_equal(["de.t", "de.u"])
    assert node.sql(disabled) == [("t", "t")]


@pytest.mark.slow
def test_an_error_of_a_copy_disables_it_too(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "dc")
    node.sql("create schema dc; create table dc.t (id int primary key, v text)")
    node.sql("insert into dc.t values (1, 'ours')")
    mirror = subscribe(pg18, "dc", "with (disable_on_error = true)")
    node.wait_for(
        "select subenabled from pg_subscription where subname = 'dc'",
        lambda rows: rows == [("f",)],
    )
    assert node.sql(
        "select tablename, worker from wal2lake.subscription_errors"
        " where subname = 'dc'"
    ) == [("t", "table synchronization")]
    assert node.sql(
        "select sync_error_count from pg_stat_subscription_stats where subname = 'dc'"
    ) == [("1",)]
    node.sql("delete from dc.t")
    node.sql("alter subscription dc enable")
    mirror.synced()
    mirror.assert_equal(["dc.t", "dc.u"])
