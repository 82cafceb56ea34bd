"""Nodes between servers, behind each other, and beside them: who gets which rows, once."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.conftest import FAST_RETRY, Database

from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

Ask = Callable[[str], str]


@pytest.fixture
def open_node(make_node: Callable[..., Node]) -> Callable[[], Node]:
    """Starts a node that anybody may log in to."""
    settings = {**FAST_RETRY, "node.authentication": "trust"}
    return lambda: make_node(settings=settings).start()


def source(node: Node) -> str:
    facts = dict(one.split("=", 1) for one in node.conninfo().split(" ") if "=" in one)
    port, user = facts["port"].strip("'"), facts["user"].strip("'")
    return f"host=127.0.0.1 port={port} dbname=lake user={user}"


def asking(what: Node | Database) -> Ask:
    """Rows as psql's unaligned text, from either."""
    if not isinstance(what, Node):
        return what.psql
    return lambda sql: "\n".join(
        "|".join(v or "" for v in row) for row in what.sql(sql)
    )


def becomes(what: Node | Database, sql: str, wanted: str, *nodes: Node) -> None:
    ask, found = asking(what), [""]

    def equal() -> bool:
        found[0] = ask(sql)
        return found[0] == wanted

    logs = lambda: "\n".join(n.log_text()[-4000:] for n in nodes)  # noqa: E731
    wait_until(
        equal,
        timeout_seconds=120,
        describe=lambda: f"{sql}: {found[0]!r} is {wanted!r}\n{logs()}",
    )


@pytest.mark.slow
def test_a_chain_of_postgresql_node_node_postgresql(
    pg16: Database, pg18: Database, open_node: Callable[[], Node]
) -> None:
    """Each hop has what the one before has, also what is truncated, large, or changed while
    the others are away."""
    first, second = open_node(), open_node()
    t = (
        "create table public.t (id int primary key, v text, n numeric(8,2),"
        " j jsonb, a int[], at timestamptz)"
    )
    u = "create table public.u (k bigint, v text)"
    for sql in (t, u):
        pg18.psql(sql)
        pg16.psql(sql)
    pg18.psql(
        "alter table u replica identity full;"
        " insert into t select i, repeat(md5(i::text), 10), i / 3.0,"
        " jsonb_build_object('i', i), array[i, null], '2026-01-01 12:00+00'"
        " from generate_series(1, 5000) i;"
        " update t set v = (select string_agg(md5(g::text), '')"
        " from generate_series(1, 500) g) where id = 7;"
        " insert into u values (1, 'x'), (1, 'x'), (null, null);"
        " create publication p for table t, u"
    )
    first.sql(
        f"create subscription hop1 connection {quote_literal(pg18.conninfo())} publication p"
        " with (create_tables = true)"
    )
    becomes(first, "select count(*) from public.t", "5000", first)
    first.sql("create publication p for table public.t, public.u")
    second.sql(
        f"create subscription hop2 connection '{source(first)}' publication p"
        " with (create_tables = true)"
    )
    becomes(second, "select count(*) from public.u", "3", first, second)
    becomes(second, "select count(*) from public.t", "5000", first, second)
    second.sql("create publication p for table public.t, public.u")
    pg16.psql(f"create subscription hop3 connection '{source(second)}' publication p")
    becomes(pg16, "select count(*) from t", "5000", second)
    becomes(pg16, "select count(*) from u", "3", second)

    everything = (
        "select count(*) || ' ' || sum(hashtext(t::text)::bigint) from t",
        "select count(*) || ' ' || sum(hashtext(u::text)::bigint) from u",
    )

    def arrives() -> None:
        for sql in everything:
            becomes(pg16, sql, pg18.psql(sql), first, second)

    arrives()
    pg18.psql(
        "begin; update t set v = 'short' where id % 10 = 0; delete from t where id > 4000;"
        " update t set id = -id where id < 10; delete from u where ctid = '(0,1)';"
        " insert into u values (2, 'two'); commit"
    )
    arrives()
    # The middle of the chain dies, and the end of it, and changes come meanwhile.
    second.kill("tree")
    pg18.psql("update t set n = n + 1, at = now() where id % 7 = 0")
    first.kill("tree")
    pg18.psql("begin; truncate u; insert into u values (3, 'three'); commit")
    first.start()
    second.start()
    # They have other ports now.
    second.sql(f"alter subscription hop2 connection '{source(first)}'")
    pg16.psql(f"alter subscription hop3 connection '{source(second)}'")
    arrives()
    assert "duplicate key" not in pg16.server.log_text()

    pg16.psql("drop subscription hop3")
    second.sql("drop subscription hop2")
    for node in (first, second):
        assert node.sql("select slot_name from pg_replication_slots") == []
    first.sql("drop subscription hop1")


@pytest.mark.slow
def test_a_node_between_two_servers_that_both_write(
    pg16: Database,
    pg18: Database,
    database: Callable[[int], Database],
    open_node: Callable[[], Node],
) -> None:
    """With origin = none nothing comes back to where it was written. Others follow the same
    table at their own pace, with filters of their own."""
    node = open_node()
    table = "create table public.t (id int primary key, v text)"
    servers = {"a": pg18, "b": pg16}
    node.sql(table)
    node.sql("insert into public.t values (1, 'node')")
    node.sql("create publication p for table public.t")
    for number, (name, server) in enumerate(servers.items(), 2):
        server.psql(table)
        server.psql(
            f"create publication p; alter publication p add table t;"
            f" insert into t values ({number}, '{name}')"
        )
        node.sql(
            f"create subscription from_{name} connection {quote_literal(server.conninfo())}"
            " publication p with (origin = none)"
        )
    becomes(node, "select v from public.t order by id", "node\na\nb", node)
    for name, server in servers.items():
        server.psql(
            f"create subscription to_{name} connection '{source(node)}' publication p"
            " with (origin = none, copy_data = false)"
        )
    node.sql("insert into public.t values (10, 'node')")
    for number, (name, server) in enumerate(servers.items(), 11):
        becomes(server, "select v from t where id = 10", "node", node)
        server.psql(f"insert into t values ({number}, '{name}')")
    becomes(node, "select v from public.t where id > 10 order by id", "a\nb", node)
    # A row goes around: each hop updates what another one wrote.
    node.sql("update public.t set v = v || ' node' where id = 11")
    becomes(pg18, "select v from t where id = 11", "a node", node)
    pg18.psql("update t set v = v || ' a' where id in (10, 11)")
    becomes(
        node,
        "select v from public.t where id in (10, 11) order by id",
        "node a\na node a",
        node,
    )
    pg18.psql("delete from t where id = 10")
    becomes(node, "select count(*) from public.t where id = 10", "0", node)
    # What came from one server is not sent to the other, and nothing to where it came from.
    node.sql("insert into public.t values (20, 'last')")
    for server in servers.values():
        becomes(server, "select v from t where id = 20", "last", node)
    assert pg18.psql("select id, v from t order by id") == "2|a\n11|a node a\n20|last"
    assert pg16.psql("select id, v from t order by id") == "3|b\n10|node\n12|b\n20|last"
    for server in servers.values():
        assert "conflict detected" not in server.server.log_text()

    # Two more, each with its part; one is away for a while.
    parts = {"low": database(18), "high": database(16)}
    node.sql("create publication low for table public.t where (id < 100)")
    node.sql("create publication high for table public.t where (id >= 100)")
    for name, part in parts.items():
        part.psql(table)
        part.psql(
            f"create subscription {name} connection '{source(node)}' publication {name}"
        )
    becomes(parts["low"], "select id from t order by id", "1\n2\n3\n11\n12\n20", node)
    parts["high"].psql("alter subscription high disable")
    node.sql("insert into public.t values (100, 'high'), (99, 'low')")
    becomes(parts["low"], "select max(id) from t", "99", node)
    node.sql("update public.t set id = 101 where id = 99")
    node.sql("update public.t set id = 50 where id = 100")
    becomes(parts["low"], "select max(id) from t", "50", node)
    assert parts["high"].psql("select * from t") == ""
    parts["high"].psql("alter subscription high enable")
    becomes(parts["high"], "select * from t order by id", "101|low", node)
    slots = "select count(distinct confirmed_flush_lsn) from pg_replication_slots"
    becomes(node, slots, "1", node)
    assert node.sql("select count(*) from pg_replication_slots") == [("4",)]
    for name, part in {**servers, **parts}.items():
        part.psql(f"drop subscription {'' if name in parts else 'to_'}{name}")
    assert node.sql("select slot_name from pg_replication_slots") == []
