"""Initial copies whose connections or processes go: what is read again, and what is left behind."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count

import pytest
from tests.conftest import FAST_RETRY, Database

from wal2lake.catalog import Catalog
from wal2lake.model import SyncState
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.proxy import TcpProxy
from wal2lake.testing.waits import wait_until

STEADY = 1_000_000
"""Bytes per second of a connection: a range takes a second."""

_LONG_SECONDS = 240.0
"""A first Spark job of a node may take a minute on a busy machine."""

CRAWL = 10_000
"""No range ends at all while a test looks around."""

FILL = """
    create table wide (id int primary key, v text);
    insert into wide select i, repeat('x', 230) || i from generate_series(1, {rows}) i;
    create table a (id int primary key, v text);
    insert into a select i, 'a' from generate_series(1, 100) i;
    create table b (id int primary key, v text);
    insert into b select i, 'b' from generate_series(1, 100) i;
    create publication p for table wide, a, b;
"""
TABLES = ("public.wide", "public.a", "public.b")
WRITE = """
    update wide set v = 'round {n}' where id % 997 = {n};
    update wide set id = -id where id = {n} + 100;
    insert into wide values ({n} + 1000000, 'new'); insert into a values ({n} + 1000, 'new');
    delete from wide where id = {n} + 200; delete from b where id = {n};
"""
SLOTS = (
    "select coalesce(string_agg(slot_name, ' ' order by slot_name), '')"
    " from pg_replication_slots where database = current_database()"
)
STATE = (
    "select srsubstate, srsublsn from pg_subscription_rel"
    " where srrelid = 'public.wide'::regclass"
)
ERRORS = "select tablename, worker, error from wal2lake.subscription_errors"
_COPY = re.compile(r"COPY \(SELECT .* FROM ONLY \"public\"\.\"(\w+)\"( WHERE .*)?\) TO")


@pytest.fixture
def proxy(pg18: Database) -> Iterator[TcpProxy]:
    with TcpProxy("127.0.0.1", pg18.server.port) as found:
        yield found


def subscribe(node: Node, source: Database, proxy: TcpProxy, name: str) -> Mirror:
    through = source.conninfo(host="127.0.0.1", port=str(proxy.port))
    node.sql(
        f"create subscription {name} connection {quote_literal(through)} publication p"
    )
    return Mirror(node, source.conninfo(), name)


@dataclass(frozen=True)
class Copy:
    """The wide table's, as the catalog knows it."""

    snapshot: str | None = None
    finished: int = 0
    ranges: int = 0


def copy_of(node: Node) -> Copy:
    with closing(Catalog(node.directory / "catalog.sqlite")) as catalog:
        rel = next(r for r in catalog.rels() if r.remote_name == "wide")
        if rel.copy_plan is None or rel.state is not SyncState.DATASYNC:
            return Copy()
        plan = json.loads(rel.copy_plan)
        done = catalog.ranges(rel.subid, rel.relid)
        finished = sum(one.snapshot == plan["snapshot"] for one in done)
        return Copy(plan["snapshot"], finished, len(plan["bounds"]))


def copying(node: Node, condition: Callable[[Copy], bool]) -> Copy:
    """The copy, once it is so."""
    return wait_until(
        lambda: found if condition(found := copy_of(node)) else None,
        timeout_seconds=_LONG_SECONDS,
        describe=lambda: f"{copy_of(node)}\n{node.log_text()[-3000:]}",
    )


@contextmanager
def statements(source: Database) -> Iterator[Callable[[], Counter[tuple[str, str]]]]:
    """How often each range of each table was asked for: table, condition."""
    source.psql(f"alter database {source.name} set log_statement = 'all'")
    start = len(source.server.log_text())

    def asked() -> Counter[tuple[str, str]]:
        log = source.server.log_text()[start:]
        return Counter((m[1], m[2] or "") for m in _COPY.finditer(log))

    yield asked


@pytest.mark.slow
def test_connections_cut_and_stalled_during_an_initial_copy(
    make_node: Callable[..., Node], pg18: Database, proxy: TcpProxy
) -> None:
    """All of them, the snapshot's alone, and a network that swallows everything."""
    settings = {
        **FAST_RETRY,
        "subscription.copy_range_bytes": 1 << 20,
        "subscription.wal_receiver_timeout_ms": 3000,
    }
    node = make_node(settings=settings).start()
    node.sql("create table here (id int)")
    node.sql("insert into here values (1)")
    pg18.psql(FILL.format(rows=48_000))
    proxy.limit(STEADY)
    mirror = subscribe(node, pg18, proxy, "n")
    numbers = count(1)
    now = Copy()

    def goes_on() -> Copy:
        """Once there is something of it under another snapshot; more is written then."""
        proxy.limit(STEADY)
        found = copying(node, lambda c: bool(c.finished) and c.snapshot != now.snapshot)
        proxy.limit(CRAWL)
        pg18.psql(WRITE.format(n=next(numbers)))
        assert node.sql(STATE) == [("d", None)]
        # Readers that wait for their publisher leave room for who does not.
        assert node.sql("select count(*) from here") == [("1",)]
        return found

    now = goes_on()
    assert "_sync_" in pg18.psql(SLOTS)
    assert proxy.cut() >= 4, "stream, slot, snapshot, at least one reader"
    # Whoever holds the snapshot, and nobody else: the ranges that are there are void.
    for holder in ("walsender", "client backend"):
        now = goes_on()
        cut = pg18.psql(
            "select count(pg_terminate_backend(pid)) from pg_stat_activity"
            f" where datname = '{pg18.name}' and backend_type = '{holder}'"
            " and application_name ~ '_sync_[0-9]+$' and state like 'idle%'"
        )
        assert int(cut) >= 1, holder
    now = goes_on()
    proxy.stall()
    wait_until(
        lambda: "due to timeout" in node.log_text(),
        describe="the stalled stream is given up",
    )
    assert node.sql(STATE) == [("d", None)]
    proxy.cut()
    proxy.limit(None)
    proxy.resume()
    mirror.synced(_LONG_SECONDS)
    mirror.assert_equal(TABLES)
    assert node.sql(ERRORS) == []
    wait_until(lambda: pg18.psql(SLOTS) == "n", describe="the slots of copies are gone")


@pytest.mark.slow
def test_after_sigkill_at_nine_tenths_only_what_was_not_finished_is_read_again(
    make_node: Callable[..., Node], pg18: Database, proxy: TcpProxy
) -> None:
    """Of the engine: ranges. Of the whole tree, and with it the snapshot: tables."""
    readers = 2
    settings = {
        **FAST_RETRY,
        "subscription.copy_range_bytes": 1 << 20,
        "spark.master": f"local[{readers}]",
    }
    node = make_node(settings=settings).start()
    pg18.psql(FILL.format(rows=64_000))
    with statements(pg18) as asked:
        proxy.limit(STEADY)
        mirror = subscribe(node, pg18, proxy, "k")
        copying(node, lambda c: c.ranges / 2 <= c.finished)
        # The others end meanwhile, however slowly this is seen.
        proxy.limit(STEADY // 8)
        node.wait_for(
            "select count(*) from pg_subscription_rel where srsubstate = 'f'",
            lambda rows: rows == [("2",)],
            timeout_seconds=_LONG_SECONDS,
        )
        proxy.limit(STEADY // 3)
        copying(node, lambda c: 0 < 0.8 * c.ranges <= c.finished)
        proxy.limit(CRAWL)
        node.kill("engine")
        left = copy_of(node)
        assert left.ranges >= 10
        unfinished = left.ranges - left.finished
        assert 0 < unfinished <= 0.2 * left.ranges + readers
        pg18.psql(WRITE.format(n=1))
        first = asked()
        node.wait_ready()
        wait_until(
            lambda: (asked() - first).total() >= min(unfinished, readers),
            timeout_seconds=_LONG_SECONDS,
            describe=lambda: f"the rest is read again: {asked() - first}",
        )
        assert copy_of(node).snapshot == left.snapshot

        node.kill("tree")
        wait_until(lambda: "_sync_" not in pg18.psql(SLOTS), describe="no slot is left")
        done = copy_of(node)
        assert done.finished >= left.finished
        again = asked() - first
        assert {table for table, _ in again} == {"wide"}
        assert again.total() <= unfinished
        pg18.psql(WRITE.format(n=2))
        second = asked()
        proxy.limit(None)
        node.start()
        mirror.synced(_LONG_SECONDS)
        mirror.assert_equal(TABLES)
        again = asked() - second
        assert {table for table, _ in again} == {"wide"}, "the others were copied"
        assert again.total() >= left.ranges
    assert pg18.psql(SLOTS) == "k"
