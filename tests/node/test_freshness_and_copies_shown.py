"""Two numbers that every surface of a real node shows: a table's freshness, and a copy's end."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.conftest import FAST_RETRY, Database
from tests.node.conftest import Psql, Subscribe

from wal2lake.health import FactReader
from wal2lake.launch import read_web_status
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.node import Node, run_cli
from wal2lake.testing.proxy import TcpProxy
from wal2lake.testing.waits import wait_until

RANGE_BYTES = 1 << 20
RANGES = 24
BYTES_PER_SECOND = 2_000_000
"""Of each of the two readers."""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    settings = {
        **FAST_RETRY,
        "web.listen": "127.0.0.1:0",
        "subscription.copy_range_bytes": RANGE_BYTES,
    }
    with Node(tmp_path_factory.mktemp("shown") / "node", settings=settings) as node:
        node.init().start()
        run = node.directory / "run"
        wait_until(lambda: read_web_status(run) is not None, describe=node.log_text)
        yield node


@pytest.fixture
def subscriber(shown: Node) -> Node:
    return shown


def get(node: Node, path: str) -> str:
    status = read_web_status(node.directory / "run")
    assert status is not None
    port = urlsplit(status.urls[0]).port
    connection = http.client.HTTPConnection("127.0.0.1", port or 0, timeout=30)
    try:
        connection.request("GET", path)
        return connection.getresponse().read().decode()
    finally:
        connection.close()


def page_rows(node: Node) -> dict[str, dict[str, Any]]:
    """The page's tables, by name."""
    document = json.loads(get(node, "/api/tables"))
    rows = [dict(zip(document["columns"], r, strict=True)) for r in document["rows"]]
    return {f"{row['schema']}.{row['name']}": row for row in rows}


def test_every_surface_shows_a_tables_freshness_and_who_breaks_it(
    shown: Node, pg18: Database, subscribe: Subscribe, psql: Psql
) -> None:
    pg18.psql(
        "create schema fresh; create table fresh.t (id int primary key);"
        " create publication fresh for table fresh.t"
    )
    mirror = subscribe(pg18, "fresh")
    mirror.synced()
    shown.sql("alter table fresh.t set (freshness = '500 ms')")
    described = psql(shown.conninfo(), "-c", r"\d+ fresh.t").stdout
    assert "Options: freshness=00:00:00.5" in described, described
    sample = (
        'wal2lake_table_freshness_seconds{subscription="fresh",table="fresh.t"} 0.5'
    )
    wait_until(lambda: sample in get(shown, "/metrics").splitlines())
    wait_until(lambda: page_rows(shown)["fresh.t"]["freshness"] == 0.5)
    status = json.loads(run_cli("status", "-D", shown.directory, "--json").stdout)
    (subscription,) = status["subscriptions"]
    assert subscription["table_states"][0]["freshness_seconds"] == 0.5

    shown.sql("select wal2lake.pause_table('fresh.t')")
    pg18.psql("insert into fresh.t values (1)")
    shown.wait_for("select 1 from wal2lake.problems where kind = 'late'")
    words = "more than its freshness of 500 ms"
    told = shown.value("select message from wal2lake.problems where kind = 'late'")
    assert told is not None and words in told
    wait_until(lambda: words in get(shown, "/api/state"))
    late = 'wal2lake_problems{kind="late",severity="error",subscription="fresh"} 1'
    wait_until(lambda: late in get(shown, "/metrics").splitlines())
    for command in (["status"], ["top", "--once", "--page", "problems"]):
        printed = " ".join(run_cli(*command, "-D", shown.directory).stdout.split())
        assert words in printed, command
    shown.sql("select wal2lake.resume_table('fresh.t')")
    mirror.caught_up()
    shown.wait_for("select 1 from wal2lake.problems", lambda rows: not rows)


@dataclass(frozen=True)
class Guess:
    """What was said about a copy's end, and when."""

    at: datetime
    ends_at: datetime | None
    share: float | None


def watch_copy(node: Node) -> list[Guess]:
    """Look at the only copy from its beginning to its end."""
    reader, guesses = FactReader(node.directory), list[Guess]()

    def has_ended() -> bool:
        now = datetime.now(UTC)
        copies = [
            table.copy
            for subscription in reader.read(now).subscriptions
            for table in subscription.tables
            if table.copy is not None
        ]
        guesses.extend(Guess(now, copy.ends_at, copy.share) for copy in copies)
        return bool(guesses) and not copies

    try:
        wait_until(has_ended, timeout_seconds=60)
    finally:
        reader.close()
    return guesses


@pytest.mark.slow
def test_the_expected_end_of_a_copy_is_near_its_real_end(
    shown: Node, pg18: Database
) -> None:
    rows = RANGES * RANGE_BYTES // 8192
    pg18.psql(
        "create schema slow; create table slow.t (id int primary key, v text);"
        " alter table slow.t alter v set storage external;"
        " insert into slow.t select i, repeat('x', 1900) from"
        f" generate_series(1, {4 * rows}) i;"
        # As after a bulk load: the source knows no number of rows yet.
        " create publication slow for table slow.t"
    )
    with TcpProxy("127.0.0.1", pg18.server.port) as proxy:
        proxy.limit(BYTES_PER_SECOND)
        conninfo = pg18.conninfo(host="127.0.0.1", port=str(proxy.port))
        shown.sql(
            f"create subscription slow connection {quote_literal(conninfo)}"
            " publication slow"
        )
        guesses = watch_copy(shown)
        shown.sql("drop subscription slow; drop schema slow cascade")
    first, end = guesses[0].at, guesses[-1].at
    took = end - first
    assert took > timedelta(seconds=3), "too short to say anything"
    shares = [guess.share for guess in guesses if guess.share is not None]
    assert shares == sorted(shares) and shares[-1] > 0.9, shares
    second_half = [g for g in guesses if g.at > first + took / 2 and g.at < end]
    assert len(second_half) > 5
    allowed = took / 10
    for guess in second_half:
        assert guess.ends_at is not None, guess
        left, expected = end - guess.at, guess.ends_at - guess.at
        assert left / 2 - allowed <= expected <= left * 2 + allowed, (guess, end)
