"""What is prepared at a publisher of the node is prepared at the node's subscribers, as behind a
PostgreSQL in the middle: between servers, through a node."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from tests.conftest import Database
from tests.node.test_walsender import same

from wal2lake.launch.directory.passfile import connection_parameters
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

TABLES = (
    "create table public.t (id int primary key, v text, n numeric(8,2))",
    "create table public.u (id int primary key, big text)",
)
GIDS = (
    "select gid from pg_prepared_xacts where database = current_database() order by gid"
)
GET = (
    "select data from pg_logical_slot_get_changes('two', null, null,"
    " 'include-xids', 'off')"
)
LONG = "(select string_agg(md5(g::text), '') from generate_series(1, 300) g)"


class Chain:
    """A publisher, the node, a subscriber of the node."""

    def __init__(self, node: Node, source: Database, leaf: Database) -> None:
        self.node, self.source, self.leaf = node, source, leaf
        for sql in TABLES:
            source.psql(sql)
            leaf.psql(sql)
        source.psql(
            f"insert into t values (1, 'one', 1), (2, 'two', 2); insert into u values (1, {LONG})"
        )
        source.psql("create publication h for table t, u")
        node.sql(
            f"create subscription h connection {quote_literal(source.conninfo())}"
            " publication h with (two_phase = true, streaming = parallel)"
        )
        self.mirror = Mirror(node, source.conninfo(), "h")
        self.mirror.synced()
        node.wait_for(
            "select subtwophasestate from pg_subscription", lambda r: r == [("e",)]
        )
        node.sql("create publication p for all tables")
        leaf.psql(
            f"create subscription {leaf.name} connection {self.address()}"
            " publication p with (two_phase = on, streaming = off)"
        )
        state = f"select subtwophasestate from pg_subscription where subname = '{leaf.name}'"
        wait_until(
            lambda: leaf.psql(state) == "e",
            timeout_seconds=120,
            describe=lambda: node.log_text()[-4000:],
        )
        node.sql(
            "select pg_create_logical_replication_slot('two', 'test_decoding', false, true)"
        )

    def address(self) -> str:
        """Where the subscriber finds the node, as SQL has it; its server cannot read the node's
        password file."""
        passfile = str(connection_parameters(self.node.directory)["passfile"])
        password = Path(passfile).read_text().strip().rpartition(":")[2]
        name = self.leaf.name
        return quote_literal(
            self.node.conninfo(password=password, application_name=name)
        )

    def prepare(self, gid: str, sql: str) -> None:
        self.source.psql(
            f"begin; {sql}; prepare transaction '{gid}_{self.source.name}'"
        )

    def end(self, gid: str, how: str = "commit") -> None:
        self.source.psql(f"{how} prepared '{gid}_{self.source.name}'")

    def prepared(self, count: int) -> None:
        """At the subscriber."""
        wait_until(
            lambda: len(self.leaf.psql(GIDS).split()) == count,
            timeout_seconds=60,
            describe=lambda: f"{self.leaf.psql(GIDS)}\n{self.node.log_text()[-4000:]}",
        )

    def equal(self) -> None:
        self.mirror.assert_equal(["public.t", "public.u"])
        for table in ("t", "u"):
            same(self.node, self.leaf, table)

    def lines(self) -> list[str]:
        return [str(row[0]) for row in self.node.sql(GET)]


@pytest.mark.slow
def test_what_a_publisher_prepares_is_prepared_behind_the_node(
    lend_node: Callable[[Path], Node],
    database: Callable[[int], Database],
    tmp_path: Path,
) -> None:
    node = lend_node(tmp_path)
    chain = Chain(node, database(18), database(18))
    try:
        committed_and_rolled_back(chain)
    finally:
        chain.leaf.psql(f"drop subscription {chain.leaf.name}")
        node.sql("drop publication p")
        for one in (chain.leaf, chain.source):
            for gid in one.psql(GIDS).split():
                one.psql(f"rollback prepared '{gid}'")


def committed_and_rolled_back(chain: Chain) -> None:
    node = chain.node
    chain.prepare(
        "one",
        "insert into t values (3, 'three', 3); update t set v = 'uno' where id = 1;"
        " insert into u values (3, 'u'); update t set id = 20 where id = 2;"
        " savepoint a; insert into t values (99); rollback to a; delete from t where id = 3",
    )
    chain.prepared(1)
    told = chain.lines()
    ((subid,),) = node.sql("select oid from pg_subscription")
    ((gid,),) = node.sql("select gid from pg_prepared_xacts")
    assert str(gid).startswith(f"pg_gid_{subid}_")
    assert told == [
        "BEGIN",
        "table public.t: INSERT: id[integer]:3 v[text]:'three' n[numeric]:3.00",
        "table public.t: UPDATE: id[integer]:1 v[text]:'uno' n[numeric]:1.00",
        "table public.u: INSERT: id[integer]:3 big[text]:'u'",
        "table public.t: UPDATE: old-key: id[integer]:2 new-tuple: id[integer]:20"
        " v[text]:'two' n[numeric]:2.00",
        "table public.t: DELETE: id[integer]:3",
        f"PREPARE TRANSACTION '{gid}'",
    ]
    # What goes on beside it is sent.
    chain.source.psql("insert into t values (4, 'four', 4)")
    chain.equal()
    chain.lines()
    node.kill("tree")
    node.start()
    chain.leaf.psql(
        f"alter subscription {chain.leaf.name} connection {chain.address()}"
    )
    chain.prepared(1)
    chain.end("one")
    chain.prepared(0)
    chain.equal()
    assert chain.lines() == [f"COMMIT PREPARED '{gid}'"]
    # Rolled back; what was locked is free behind it.
    chain.prepare("two", "update t set v = 'no'; delete from u where id = 3")
    chain.prepared(1)
    chain.end("two", "rollback")
    chain.source.psql("update t set v = v || '!'; delete from u where id = 3")
    chain.prepared(0)
    chain.equal()
    # Several, and TRUNCATE among them.
    chain.prepare("three", "truncate u; insert into u values (7, 'seven')")
    chain.prepare(
        "four", "insert into t select i, 'row', i from generate_series(100, 3000) i"
    )
    chain.prepared(2)
    chain.end("four")
    chain.prepared(1)
    chain.end("three")
    chain.prepared(0)
    chain.equal()
    withdrawn(chain)


def withdrawn(chain: Chain) -> None:
    """Somebody else writes the table: the subscriber must not wait for what is prepared."""
    node = chain.node
    chain.source.psql(f"insert into u values (50, {LONG})")
    chain.equal()
    chain.lines()
    # A value that is not sent is the row's: it comes with COMMIT PREPARED.
    chain.prepare("toast", "update u set id = 51 where id = 50")
    chain.prepare("five", "update t set v = 'five' where id = 1")
    chain.prepared(1)
    node.sql("update t set v = 'mine' where id = 1")
    chain.prepared(0)
    same(node, chain.leaf, "t")
    chain.end("five")
    chain.end("toast")
    chain.equal()
    told = chain.lines()
    steps = [line.split(" '")[0] for line in told if "PREPARE" in line]
    assert steps == ["PREPARE TRANSACTION", "ROLLBACK PREPARED"]
    # The table is not the publisher's alone any more.
    chain.prepare("six", "update t set v = 'six' where id = 1")
    chain.prepare("seven", "insert into u values (60, 'u')")
    chain.prepared(1)
    chain.end("seven")
    chain.end("six")
    chain.prepared(0)
    chain.equal()
