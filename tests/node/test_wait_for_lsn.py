"""WAIT FOR LSN at a node: a client of the source reads at the node what it has just written."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from tests.conftest import Database
from tests.node.conftest import Psql

from wal2lake.errors import PublisherError
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

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

    result: list[str] = []

    def wait() -> None:
        with pytest.raises(PublisherError) as caught:
            node.sql(far)
        result.append(str(caught.value))

    waiting = threading.Thread(target=wait)
    waiting.start()
    time.sleep(0.5)
    assert waiting.is_alive()
    node.sql("alter subscription wf disable")
    waiting.join(30)
    assert not waiting.is_alive()
    assert 'subscription "wf" is disabled' in result[0]
