"""ALTER SUBSCRIPTION in all its forms, and COMMENT ON SUBSCRIPTION, against a real publisher."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conftest import Database
from tests.node.conftest import Psql

from wal2lake.errors import PublisherError
from wal2lake.pg.client import Client, Failure
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.proxy import TcpProxy
from wal2lake.testing.waits import wait_until

Subscribe = Callable[..., Mirror]


def publish(source: Database, name: str, *tables: str) -> None:
    """Tables with one row each in a schema, each with a publication: the first has the
    schema's name, others ``<schema>_<table>``."""
    source.psql(f"create schema {name}")
    for table in tables:
        publication = name if table == tables[0] else f"{name}_{table}"
        source.psql(
            f"create table {name}.{table} (id int primary key, v text);"
            f" insert into {name}.{table} values (1, 'one');"
            f" create publication {publication} for table {name}.{table}"
        )


def refused(node: Node, sql: str) -> tuple[str, str, str | None]:
    """SQLSTATE, text and hint of a statement that must fail."""
    try:
        node.sql(sql)
    except PublisherError as error:
        return error.sqlstate, error.message, error.hint
    raise AssertionError(f"not refused: {sql}")


def heard(node: Node, sql: str) -> list[tuple[str, str, str]]:
    """Severity, SQLSTATE and text of a statement's notices."""
    told: list[Failure] = []
    with Client(node.conninfo(), on_notice=told.append) as client:
        client.rows(sql)
    return [(n.severity, n.sqlstate, n.message) for n in told]


def option(node: Node, name: str, column: str) -> str | None:
    return node.value(f"select {column} from pg_subscription where subname = '{name}'")


# ---- SET --------------------------------------------------------------------------------


def test_what_set_is_given_is_kept_and_shown(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "av", "t")
    subscribe(pg18, "av").synced()
    columns = "subrunasowner, subpasswordrequired, subdisableonerr, subsynccommit"
    shown = f"select {columns} from pg_subscription where subname = 'av'"
    assert node.sql(shown) == [("f", "t", "f", "off")]
    node.sql(
        "alter subscription av set (run_as_owner = true, password_required = false,"
        " disable_on_error = false, synchronous_commit = 'on')"
    )
    assert node.sql(shown) == [("t", "f", "f", "on")]
    node.sql(
        "alter subscription av set (run_as_owner = false, password_required = true)"
    )
    assert node.sql(shown) == [("f", "t", "f", "on")]


def test_failover_is_the_slots(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "af", "t")
    mirror = subscribe(pg18, "af", "with (failover = true)")
    slot = "select failover from pg_replication_slots where slot_name = 'af'"
    assert (option(node, "af", "subfailover"), pg18.psql(slot)) == ("t", "t")
    mirror.synced()
    assert refused(node, "alter subscription af set (failover = false)") == (
        "55000",
        'cannot set option "failover" for enabled subscription',
        None,
    )
    node.sql("alter subscription af disable")
    wait_until(lambda: pg18.psql("select active from pg_replication_slots") == "f")
    node.sql("alter subscription af set (failover = false)")
    assert (option(node, "af", "subfailover"), pg18.psql(slot)) == ("f", "f")
    node.sql("alter subscription af set (failover = true, two_phase = false)")
    assert (option(node, "af", "subfailover"), pg18.psql(slot)) == ("t", "t")
    pg18.psql("select pg_drop_replication_slot('af')")
    assert refused(node, "alter subscription af set (failover = false)")[:2] == (
        "08P01",
        'could not alter replication slot "af": ERROR:  replication slot "af" does not'
        " exist",
    )
    assert option(node, "af", "subfailover") == "t", "nothing has changed"
    node.sql("alter subscription af set (slot_name = none)")
    assert refused(node, "alter subscription af set (failover = false)")[:2] == (
        "55000",
        'cannot set option "failover" for a subscription that does not have a slot name',
    )


def test_a_publisher_that_knows_no_failover_says_so(
    pg16: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg16, "ag", "t")
    create = f"create subscription ag connection {quote_literal(pg16.conninfo())}"
    error = refused(node, f"{create} publication ag with (failover = true)")
    assert error[0] == "08P01"
    assert error[1].startswith('could not create replication slot "ag": ERROR:  ')
    assert "failover" in error[1]
    assert pg16.psql("select count(*) from pg_replication_slots") == "0"


# ---- RENAME, CONNECTION -----------------------------------------------------------------


def test_under_a_new_name_it_goes_on_where_it_was(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "an", "t")
    subscribe(pg18, "an").synced()
    oid = option(node, "an", "oid")
    assert refused(node, "alter subscription an rename to an")[:2] == (
        "42710",
        'subscription "an" already exists',
    )
    node.sql("alter subscription an rename to an2")
    try:
        assert option(node, "an", "oid") is None
        assert option(node, "an2", "oid") == oid
        assert option(node, "an2", "subslotname") == "an"
        pg18.psql("insert into an.t values (2, 'two')")
        # The publisher sees it by its new name.
        Mirror(node, pg18.conninfo(), "an2").assert_equal(["an.t"])
        assert node.value("select subname from pg_stat_subscription") == "an2"
    finally:
        node.sql("alter subscription an2 rename to an")


@pytest.mark.slow
def test_another_connection_to_the_same_publisher_goes_on_without_loss(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "ac", "t")
    with TcpProxy("127.0.0.1", pg18.server.port) as proxy:
        mirror = subscribe(pg18, "ac")
        mirror.synced()
        assert (
            refused(node, "alter subscription ac connection 'nonsense'")[0] == "42601"
        )
        through = pg18.conninfo(host="127.0.0.1", port=str(proxy.port))
        pg18.psql("insert into ac.t select i, 'x' from generate_series(2, 1000) i")
        node.sql(f"alter subscription ac connection {quote_literal(through)}")
        assert str(proxy.port) in str(option(node, "ac", "subconninfo"))
        pg18.psql("update ac.t set v = 'y' where id > 500")
        mirror.assert_equal(["ac.t"])
        # It is what is used: without it nothing comes.
        proxy.refuse()
        proxy.cut()
        node.wait_for(
            "select 1 from wal2lake.subscription_errors"
            " where subname = 'ac' and worker = 'receiver'"
        )
        direct = quote_literal(pg18.conninfo())
        node.sql(f"alter subscription ac connection {direct}")
        pg18.psql("delete from ac.t where id = 7")
        mirror.assert_equal(["ac.t"])
    node.wait_for(
        "select 1 from wal2lake.subscription_errors where subname = 'ac'",
        lambda rows: rows == [],
    )


def test_a_connection_to_another_server_stops_it_before_anything_is_lost(
    pg18: Database, pg16: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "ad", "t")
    publish(pg16, "ad", "t")
    mirror = subscribe(pg18, "ad")
    mirror.synced()
    pg16.psql("select pg_create_logical_replication_slot('ad', 'pgoutput')")
    pg16.psql("insert into ad.t values (99, 'foreign')")
    other = quote_literal(pg16.conninfo())
    node.sql(f"alter subscription ad connection {other}")
    (error,) = node.wait_for(
        "select error from wal2lake.subscription_errors where subname = 'ad'"
    )
    assert "system identifier" in str(error[0])
    node.sql(f"alter subscription ad connection {quote_literal(pg18.conninfo())}")
    pg18.psql("insert into ad.t values (2, 'two')")
    mirror.assert_equal(["ad.t"])


# ---- PUBLICATION ------------------------------------------------------------------------


@pytest.mark.slow
def test_publications_are_added_dropped_and_set_with_their_tables(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "ap", "t", "u", "w")
    mirror = subscribe(pg18, "ap")
    mirror.synced()

    def listed() -> tuple[str | None, list[tuple[str | None, ...]]]:
        return option(node, "ap", "subpublications"), node.sql(
            "select srrelid::regclass::text from pg_subscription_rel r"
            " join pg_subscription s on s.oid = srsubid where subname = 'ap' order by 1"
        )

    node.sql("alter subscription ap add publication ap_u")
    pg18.psql("insert into ap.u values (2, 'two'); insert into ap.t values (2, 'two')")
    assert listed() == ("{ap,ap_u}", [("ap.t",), ("ap.u",)])
    mirror.synced()
    mirror.assert_equal(["ap.t", "ap.u"])

    # Without its publication a table stays as it is, and is no longer written.
    node.sql("alter subscription ap drop publication ap with (copy_data = false)")
    assert listed() == ("{ap_u}", [("ap.u",)])
    pg18.psql("insert into ap.t values (3, 'three'); insert into ap.u values (3, 'x')")
    mirror.assert_equal(["ap.u"])
    assert node.sql("select count(*) from ap.t") == [("2",)]

    # Without a copy, what comes from now on.
    node.sql("alter subscription ap set publication ap_w, ap_u with (copy_data = off)")
    assert listed() == ("{ap_w,ap_u}", [("ap.u",), ("ap.w",)])
    pg18.psql("insert into ap.w values (2, 'two'); delete from ap.u where id = 1")
    mirror.assert_equal(["ap.u"])
    assert node.sql("select * from ap.w") == [("2", "two")]

    # Without a refresh the list alone.
    node.sql("alter subscription ap drop publication ap_w with (refresh = false)")
    assert listed() == ("{ap_u}", [("ap.u",), ("ap.w",)])
    node.sql("alter subscription ap refresh publication")
    assert listed() == ("{ap_u}", [("ap.u",)])


@pytest.mark.slow
def test_rows_written_while_a_publication_is_added_are_there_once(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    """The old receiver's stream lacks the new table: its snapshot must not be used."""
    publish(pg18, "aq", "t", "u")
    mirror = subscribe(pg18, "aq")
    mirror.synced()
    for round_ in range(3):
        first = 10 + round_ * 2000
        pg18.psql(
            f"insert into aq.u select i, 'x' from generate_series({first},"
            f" {first + 999}) i"
        )
        node.sql("alter subscription aq add publication aq_u")
        for i in range(first + 1000, first + 1040):
            pg18.psql(f"insert into aq.u values ({i}, 'y'), (-{i}, 'z')")
        mirror.synced()
        mirror.assert_equal(["aq.t", "aq.u"])
        node.sql("alter subscription aq drop publication aq_u")
        # A table that comes again is copied again: here onto nothing.
        node.sql("drop table aq.u")


def test_wrong_publications_are_refused_in_postgresqls_words(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "ar", "t")
    subscribe(pg18, "ar").synced()
    alter = "alter subscription ar"
    assert refused(node, f"{alter} add publication ar")[:2] == (
        "42710",
        'publication "ar" is already in subscription "ar"',
    )
    assert refused(node, f"{alter} drop publication nope")[:2] == (
        "42P17",
        'publication "nope" is not in subscription "ar"',
    )
    assert refused(node, f"{alter} drop publication ar")[:2] == (
        "42P17",
        "cannot drop all the publications from a subscription",
    )
    assert heard(node, f"{alter} add publication nope, nada") == [
        (
            "WARNING",
            "42704",
            'publications "nope", "nada" do not exist on the publisher',
        )
    ]
    assert heard(node, f"{alter} drop publication nope, nada") == []
    node.sql(f"{alter} disable")
    assert refused(node, f"{alter} set publication ar") == (
        "55000",
        "ALTER SUBSCRIPTION with refresh is not allowed for disabled subscriptions",
        "Use ALTER SUBSCRIPTION ... SET PUBLICATION ... WITH (refresh = false).",
    )
    assert refused(node, f"{alter} add publication p")[2] == (
        "Use ALTER SUBSCRIPTION ... ADD PUBLICATION ... WITH (refresh = false) instead."
    )
    node.sql(f"{alter} add publication p with (refresh = false)")
    assert option(node, "ar", "subpublications") == "{ar,p}"


# ---- COMMENT, statistics ----------------------------------------------------------------


def test_a_comment_is_shown_and_psql_lists_subscriptions_as_before(
    pg18: Database, node: Node, subscribe: Subscribe, psql: Psql
) -> None:
    publish(pg18, "ao", "t")
    subscribe(pg18, "ao").synced()
    described = (
        "select obj_description(oid, 'pg_subscription') from pg_subscription"
        " where subname = 'ao'"
    )
    assert node.value(described) is None
    done = psql(
        node.conninfo(),
        *("-c", "comment on subscription ao is 'what it''s for'"),
        *("-c", r"\dRs+ ao"),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("COMMENT\n")
    assert " ao " in done.stdout
    assert node.value(described) == "what it's for"
    assert refused(node, "comment on subscription nope is 'x'")[:2] == (
        "42704",
        'subscription "nope" does not exist',
    )
    assert refused(node, "comment on table ao.t is 'x'")[0] == "0A000"
    node.sql("comment on subscription ao is null")
    assert node.value(described) is None


@pytest.mark.slow
def test_failures_are_counted_until_the_counts_are_reset(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    publish(pg18, "at", "t")
    subscribe(pg18, "at").synced()
    counts = (
        "select apply_error_count > 0, sync_error_count > 0, confl_insert_exists,"
        " stats_reset is null from pg_stat_subscription_stats where subname = 'at'"
    )
    assert node.sql(counts) == [("f", "f", "0", "t")]
    node.sql("drop subscription at")
    subscribe(pg18, "at")
    node.wait_for(counts, lambda rows: rows == [("f", "t", "0", "t")])
    node.sql("delete from at.t")
    Mirror(node, pg18.conninfo(), "at").synced()
    node.sql(
        "select pg_stat_reset_subscription_stats(oid) from pg_subscription"
        " where subname = 'at'"
    )
    assert node.sql(counts) == [("f", "f", "0", "f")]
