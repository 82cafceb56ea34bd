"""PREPARE TRANSACTION at a source: durable here, visible at COMMIT PREPARED, once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conftest import Database

from wal2lake.errors import PublisherError
from wal2lake.pg import connect
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

STATE = "select subtwophasestate from pg_subscription where subname = 'tp'"
SLOT = "select two_phase from pg_replication_slots where slot_name = 'tp'"
COPYING = (
    "select count(*) from pg_replication_slots"
    " where temporary and confirmed_flush_lsn is not null"
    " and database = current_database()"
)
GIDS = "select gid, owner, database from pg_prepared_xacts order by gid"
TABLES = ("tp.t", "tp.u")


def fill(source: Database) -> None:
    source.psql(
        "create schema tp; create table tp.t (id int primary key, v text);"
        " create table tp.u (id int primary key); insert into tp.t values (0, 'copied');"
        " create publication tp for table tp.t, tp.u"
    )
    source.psql(f"alter database {source.name} set logical_decoding_work_mem = '64kB'")


def prepare(source: Database, gid: str, *statements: str) -> str:
    """Run a transaction up to PREPARE; answers its xid."""
    with connect(source.conninfo(), application_name="prepare") as session:
        session.execute("begin")
        for statement in statements:
            session.execute(statement)
        xid = session.query("select pg_catalog.pg_current_xact_id()::text")[0][0]
        session.execute(f"prepare transaction {quote_literal(gid + source.name)}")
    return str(xid)


def end(source: Database, gid: str, how: str) -> None:
    with connect(source.conninfo(), application_name="end") as session:
        session.execute(f"{how} prepared {quote_literal(gid + source.name)}")


def enabled(node: Node) -> None:
    node.wait_for(STATE, lambda rows: rows == [("e",)], timeout_seconds=60)


@pytest.mark.parametrize(
    "version",
    [
        pytest.param(15, marks=pytest.mark.slow),
        pytest.param(16, marks=pytest.mark.slow),
        pytest.param(17, marks=pytest.mark.slow),
        18,
    ],
)
def test_what_is_prepared_is_listed_and_comes_with_its_commit(
    database: Callable[[int], Database],
    node: Node,
    subscribe: Callable[..., Mirror],
    version: int,
) -> None:
    source = database(version)
    fill(source)
    mirror = subscribe(source, "tp", "with (two_phase = true)")
    # Prepared before the tables are ready, behind their snapshot (which would wait for its
    # end): it comes with its COMMIT PREPARED.
    wait_until(lambda: source.psql(COPYING) != "0", describe="a snapshot is exported")
    prepare(source, "early", "insert into tp.t values (1, 'early')")
    assert node.value(STATE) == "p"
    mirror.synced()
    enabled(node)
    assert source.psql(SLOT) == "t"
    mirror.assert_equal(TABLES)
    end(source, "early", "commit")
    mirror.assert_equal(TABLES)
    subid = node.value("select oid from pg_subscription where subname = 'tp'")
    kept = prepare(
        source,
        "kept",
        "insert into tp.t values (2, 'kept')",
        "savepoint a",
        "insert into tp.u values (99)",
        "rollback to a",
        "insert into tp.u values (2)",
    )
    prepare(source, "gone", "insert into tp.t values (3, 'gone')", "delete from tp.u")
    source.psql("insert into tp.u values (1)")
    # A transaction of its own that is streamed before it is prepared.
    large = prepare(
        source,
        "large",
        "insert into tp.t select i, repeat('x', 2000) from generate_series(10, 900) i",
    )
    end(source, "gone", "rollback")
    mirror.assert_equal(TABLES)
    listed = [
        (f"pg_gid_{subid}_{xid}", node.value("select current_user"), "lake")
        for xid in sorted((kept, large))
    ]
    node.wait_for(GIDS, lambda rows: sorted(rows) == listed)
    node.sql("alter subscription tp disable")
    end(source, "large", "commit")
    node.sql("alter subscription tp enable")
    mirror.assert_equal(TABLES)
    end(source, "kept", "commit")
    mirror.assert_equal(TABLES)
    node.wait_for(GIDS, lambda rows: rows == [])
    assert node.value("select count(*) from tp.t") == "894"


@pytest.mark.slow
@pytest.mark.parametrize("copied", ["true", "false"])
def test_from_postgresql_14_everything_comes_with_its_commit_prepared(
    database: Callable[[int], Database],
    node: Node,
    subscribe: Callable[..., Mirror],
    copied: str,
) -> None:
    """Its pgoutput has no two_phase. The option is taken, and stays pending."""
    source = database(14)
    fill(source)
    mirror = subscribe(source, "tp", f"with (two_phase = true, copy_data = {copied})")
    mirror.synced()
    mirror.caught_up()
    assert (node.value(STATE), source.psql(SLOT)) == ("p", "f")
    rows = "select i, repeat('x', 2000) from generate_series({}, {}) i"
    prepare(source, "large", f"insert into tp.t {rows.format(10, 300)}")
    prepare(source, "gone", f"insert into tp.t {rows.format(1000, 1300)}")
    source.psql("insert into tp.u values (1)")
    mirror.caught_up()
    assert node.sql(GIDS) == []
    copies = "1" if copied == "true" else "0"
    assert node.value("select count(*) from tp.t") == copies
    end(source, "gone", "rollback")
    end(source, "large", "commit")
    mirror.caught_up()
    if copied == "true":
        assert not mirror.differences(TABLES)
    counts = "select count(*), min(id) from tp.t where id > 0"
    assert node.sql(counts) == [("291", "10")]
    assert (node.value(STATE), node.sql(GIDS)) == ("p", [])


def test_two_phase_is_altered_as_in_postgresql(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    fill(pg18)
    mirror = subscribe(pg18, "tp", "with (two_phase = true, copy_data = false)")
    assert node.value(STATE) == "e", "nothing is copied: enabled at once"
    assert pg18.psql(SLOT) == "t"
    mirror.synced()
    alter = "alter subscription tp set (two_phase = {})"
    with pytest.raises(PublisherError) as caught:
        node.sql(alter.format("false"))
    assert (caught.value.sqlstate, caught.value.message) == (
        "55000",
        'cannot set option "two_phase" for enabled subscription',
    )
    node.sql("alter subscription tp refresh publication with (copy_data = false)")
    prepare(pg18, "p", "insert into tp.u values (7)")
    mirror.caught_up()
    node.sql("alter subscription tp disable")

    def answer() -> str:
        try:
            node.sql(alter.format("false"))
        except PublisherError as error:
            again = error.hint == "Try again after some time."
            assert again == ("still running" in error.message)
            return f"{error.message}: {error.hint}"
        return ""

    wait_until(lambda: "still running" not in answer(), describe="the receiver ends")
    assert answer() == (
        'cannot disable "two_phase" when prepared transactions exist: Resolve these'
        " transactions and try again."
    )
    end(pg18, "p", "rollback")
    node.sql("alter subscription tp enable")
    mirror.caught_up()
    node.wait_for(GIDS, lambda rows: rows == [])
    node.sql("alter subscription tp disable")
    wait_until(lambda: answer() == "", describe=lambda: answer())
    assert (node.value(STATE), pg18.psql(SLOT)) == ("d", "f")
    node.sql(alter.format("true"))
    assert node.value(STATE) == "p"
    node.sql("alter subscription tp enable")
    enabled(node)
    assert pg18.psql(SLOT) == "t"
    prepare(pg18, "q", "insert into tp.u values (8)")
    end(pg18, "q", "commit")
    mirror.assert_equal(("tp.u",))


def new_table(source: Database, name: str) -> None:
    """Not published yet; row 0 is ours to be copied."""
    source.psql(
        f"create table tp.{name} (id int primary key); insert into tp.{name} values (0)"
    )


@pytest.mark.slow
@pytest.mark.parametrize("how", ["refresh publication", "add publication tp_n"])
def test_a_table_is_copied_while_two_phase_is_enabled_whatever_is_prepared(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror], how: str
) -> None:
    """Two of each: one is committed, the other rolled back."""
    source, number = pg18, iter(range(1, 100))
    ends = {"c": "commit", "r": "rollback"}

    def prepared(when: str) -> None:
        for which in ends:
            statement = f"insert into tp.n values ({next(number)})"
            prepare(source, f"{when}_{which}", statement)

    def ended(*whens: str) -> None:
        for when in whens:
            for which, by in ends.items():
                end(source, f"{when}_{which}", by)

    state = (
        "select srsubstate from pg_subscription_rel where srrelid = 'tp.n'::regclass"
    )
    fill(source)
    mirror = subscribe(source, "tp", "with (two_phase = true)")
    mirror.synced()
    enabled(node)
    new_table(source, "n")
    prepared("before")
    if how.startswith("add"):
        source.psql("create publication tp_n for table tp.n")
    else:
        source.psql("alter publication tp add table tp.n")
    prepared("between")
    # A row of ours: the copy fails, and its snapshot is held while it is tried again.
    node.sql("create table tp.n (id int primary key); insert into tp.n values (0)")
    node.sql(f"alter subscription tp {how}")
    node.wait_for(state, lambda rows: rows == [("d",)])
    wait_until(
        lambda: source.psql(
            "select 1 from pg_stat_activity where query like 'CREATE_REPLICATION_SLOT%'"
            f" and state = 'active' and datname = '{source.name}'"
        ),
        describe="the copy's slot waits for what is prepared",
    )
    prepared("waiting")
    assert node.value(STATE) == "e"
    ended("before", "between", "waiting")
    wait_until(lambda: source.psql(COPYING) != "0", describe="a snapshot is exported")
    prepared("copying")
    prepared("across")
    source.psql(f"insert into tp.n values ({next(number)})")
    ended("copying")
    node.wait_for(
        "select 1 from wal2lake.subscription_errors where tablename = 'n'",
        timeout_seconds=60,
    )
    node.sql("delete from tp.n")
    mirror.synced()
    assert node.value(STATE) == "e"
    mirror.assert_equal((*TABLES, "tp.n"))
    ended("across")
    prepared("after")
    ended("after")
    mirror.assert_equal((*TABLES, "tp.n"))
    assert source.psql("select count(*) from tp.n") == "8", (
        "row 0, six commits, one plain"
    )


def test_a_transaction_may_be_prepared_without_a_name(
    pg18: Database, node: Node, subscribe: Callable[..., Mirror]
) -> None:
    source = pg18
    fill(source)
    mirror = subscribe(source, "tp", "with (two_phase = true)")
    mirror.synced()
    enabled(node)
    listed = "select count(*) from pg_prepared_xacts"
    for key, how in ((1, "commit"), (2, "rollback"), (3, "commit")):
        source.psql(
            f"begin; insert into tp.t values ({key}, 'x'); prepare transaction ''"
        )
        node.wait_for(listed, lambda rows: rows == [("1",)])
        source.psql(f"{how} prepared ''")
        node.wait_for(listed, lambda rows: rows == [("0",)])
        mirror.caught_up()
        mirror.assert_equal(TABLES)
    assert node.sql("select id from tp.t order by id") == [("0",), ("1",), ("3",)]
