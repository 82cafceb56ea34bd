"""Problems of a whole node: each begins, its remedy is run as it is written, and it ends."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.conftest import Database
from tests.node.conftest import Psql, Subscribe

from wal2lake.health import FactReader, problems
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.proxy import TcpProxy

COLUMNS = (
    "kind, severity, subname, tablename, concern, sqlstate, remedy, since, message"
)


def found(node: Node, name: str, kind: str) -> dict[str, Any]:
    """The subscription's problem of this kind, once it is there."""
    (row,) = node.wait_for(
        f"select {COLUMNS} from wal2lake.problems"
        f" where subname = '{name}' and kind = '{kind}'"
    )
    return dict(zip(COLUMNS.split(", "), row, strict=True))


def ended(node: Node, name: str) -> None:
    """Until the subscription has no problem."""
    node.wait_for(
        f"select message from wal2lake.problems where subname = '{name}'",
        lambda rows: not rows,
    )


def publish(source: Database, name: str) -> None:
    source.psql(
        f"create schema {name}; create table {name}.t (id int primary key, v text);"
        f" insert into {name}.t values (1, 'one');"
        f" create publication {name} for tables in schema {name}"
    )


@pytest.fixture
def mirror(pg18: Database, node: Node, subscribe: Subscribe) -> Mirror:
    publish(pg18, "prob")
    mirror = subscribe(pg18, "prob", "with (disable_on_error = true)")
    mirror.synced()
    return mirror


def test_a_row_in_the_way_is_removed_and_the_subscription_enabled(
    pg18: Database, node: Node, mirror: Mirror
) -> None:
    ended(node, "prob")
    node.sql("insert into prob.t values (2, 'ours')")
    pg18.psql("insert into prob.t values (2, 'theirs')")
    disabled = found(node, "prob", "disabled")
    errored = found(node, "prob", "errored")
    assert (errored["tablename"], errored["sqlstate"]) == ("t", "23505")
    assert (errored["severity"], disabled["severity"]) == ("error", "error")
    since = datetime.fromisoformat(errored["since"])
    assert datetime.now(UTC) - since < timedelta(minutes=1)
    # Every surface has the same words: this is what other processes read.
    reader = FactReader(node.directory)
    now = datetime.now(UTC)
    told = {problem.message for problem in problems(reader.read(now), now)}
    assert {errored["message"], disabled["message"]} <= told
    reader.close()
    assert errored["remedy"] == """DELETE FROM "prob"."t" WHERE "id" = '2';"""
    node.sql(errored["remedy"])
    node.sql(disabled["remedy"])
    ended(node, "prob")
    mirror.caught_up()
    assert node.sql("select v from prob.t where id = 2") == [("theirs",)]


def test_a_paused_table_breaks_its_freshness_until_it_is_resumed(
    pg18: Database, node: Node, mirror: Mirror
) -> None:
    node.sql("alter table prob.t set (freshness = '200 ms')")
    assert node.sql(
        "select reloptions from pg_class where oid = 'prob.t'::regclass"
    ) == [("{freshness=00:00:00.2}",)]
    node.sql("select wal2lake.pause_table('prob.t')")
    paused = found(node, "prob", "paused")
    assert (paused["severity"], paused["tablename"]) == ("warning", "t")
    pg18.psql("insert into prob.t values (3, 'three')")
    late = found(node, "prob", "late")
    assert (late["severity"], late["tablename"]) == ("error", "t")
    node.sql(paused["remedy"])
    ended(node, "prob")
    mirror.caught_up()
    node.sql("alter table prob.t reset (freshness)")
    assert node.sql(
        "select reloptions from pg_class where oid = 'prob.t'::regclass"
    ) == [(None,)]


@pytest.fixture
def proxied(pg18: Database, node: Node) -> Iterator[TcpProxy]:
    """A subscription that reaches its source through a proxy."""
    publish(pg18, "proxied")
    with TcpProxy("127.0.0.1", pg18.server.port) as proxy:
        conninfo = pg18.conninfo(host="127.0.0.1", port=str(proxy.port))
        node.sql(
            f"create subscription proxied connection {quote_literal(conninfo)}"
            " publication proxied"
        )
        yield proxy
        proxy.accept()
        node.sql("drop subscription if exists proxied")
        node.sql("drop schema if exists proxied cascade")


def test_a_source_that_is_away_concerns_its_administrator(
    node: Node, proxied: TcpProxy
) -> None:
    ended(node, "proxied")
    proxied.refuse()
    proxied.cut()
    away = found(node, "proxied", "receiver")
    assert (away["concern"], away["remedy"]) == ("source", None)
    assert away["sqlstate"].startswith("08")
    proxied.accept()
    ended(node, "proxied")


def test_psql_describes_the_view(node: Node, psql: Psql) -> None:
    described = psql(node.conninfo(), "-c", r"\d wal2lake.problems")
    assert described.returncode == 0, described.stderr
    assert "since" in described.stdout
    assert "timestamp with time zone" in described.stdout
