"""WAIT FOR LSN at a node: a client of the source reads at the node what it has just written."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from tests.conftest import Database
from tests.node.conftest import Psql

from wal2lake.errors import PublisherError
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

Subscribe = Callable[..., Mirror]


def test_a_client_reads_its_writes(
    pg18: Database,
    subscriber: Node,
    subscribe: Subscribe,
    psql: Psql,
) -> None:
    node = subscriber
    pg18.psql(
        "create schema wf; create table wf.t (id int primary key, v text);"
        " insert into wf.t values (1, 'a'); create table wf.other (i int);"
        " create publication wf for table wf.t"
    )
    mirror = subscribe(pg18, "wf")
    mirror.synced()
    for i in range(2, 5):
        pg18.psql(f"insert into wf.t values ({i}, 'b')")
        lsn = pg18.psql("select pg_current_wal_lsn()")
        shown = psql(
            node.conninfo(),
            "-At",
            stdin=f"wait for lsn '{lsn}' with (timeout '2min', subscription wf);"
            " select count(*) from wf.t;"
            f" select wal2lake.visible_lsn('wf') >= '{lsn}';",
        )
        assert shown.stdout.split() == ["success", str(i), "t"]
    # What concerns no table is reached, too.
    pg18.psql("insert into wf.other values (1)")
    lsn = pg18.psql("select pg_current_wal_lsn()")
    ended = node.sql(f"wait for lsn '{lsn}' with (timeout '2min', no_throw)")
    assert ended == [("success",)]

    far = "wait for lsn 'FFFFFFFF/0'"
    assert node.sql(f"{far} with (timeout 10, no_throw)") == [("timeout",)]
    with pytest.raises(PublisherError, match="timed out while waiting for target LSN"):
        node.sql(f"{far} with (timeout 10)")
    refused = psql(
        node.conninfo(),
        stdin="begin isolation level repeatable read; select count(*) from wf.t;"
        f" {far}; rollback; set statement_timeout = '300ms'; {far};",
    )
    assert "while the current transaction holds a snapshot" in refused.stderr
    assert "canceling statement due to statement timeout" in refused.stderr

    said = what_a_wait_says(node, far, "alter subscription wf disable")
    assert 'subscription "wf" is disabled' in said
    node.sql("alter subscription wf enable")
    said = what_a_wait_says(node, far, "drop subscription wf")
    assert 'subscription "wf"' in said
    assert "dropped" in said


def what_a_wait_says(node: Node, wait: str, command: str) -> str:
    """Return the error of a wait that a command ends."""
    result: list[str] = []

    def run() -> None:
        with pytest.raises(PublisherError) as caught:
            node.sql(wait)
        result.append(str(caught.value))

    waiting = threading.Thread(target=run)
    waiting.start()
    active = f"select 1 from pg_stat_activity where query = {quote_literal(wait)}"
    wait_until(lambda: node.sql(active))
    assert waiting.is_alive()
    node.sql(command)
    waiting.join(30)
    assert not waiting.is_alive()
    return result[0]
