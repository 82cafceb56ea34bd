"""``wal2lake verify`` with a node at one end or at both."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator

import pytest
from tests.conftest import Database
from tests.verifying import verify

from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

C = (
    "id int primary key, v text, n numeric(8,2), b bytea, f float8, r real, u uuid, j jsonb,"
    " at timestamptz, d date, k text[], i interval, o boolean, s smallint,"
    " c char(5), l varchar(3), x numeric, e time"
)
ROWS = (
    "({0}, {1}, {0}.5, '\\x00ff', {0}.14285714285714285, {0}.142857,"
    " 'a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11', '{{\"a\": [1, null]}}',"
    " '1999-12-31 23:59:59.000001+00', '2024-02-29', array['x', null, 'y z'],"
    " '1 day 02:00:00', true, -7,"
    " 'ab', 'l', 1.50, '12:00:00.5')"
)
VALUES = ("'plain'", "null", "''", "E'tab\\tand\\nline\\\\'", "'\\N'", "'ä'", "' '")


@pytest.fixture
def lake(node: Node) -> Iterator[Node]:
    """The shared node with two tables of its own, published."""
    node.sql("create schema vn")
    node.sql(f"create table vn.t ({C})")
    node.sql("create table vn.keyless (v text, w int)")
    node.sql("alter table vn.keyless replica identity full")
    rows = ", ".join(ROWS.format(n, VALUES[n % 7]) for n in range(1, 41))
    node.sql(f"insert into vn.t values {rows}")
    node.sql("insert into vn.keyless values ('a', 1), ('a', 1), ('b', 2), (null, null)")
    node.sql("create publication vn for table vn.t where (id > 10), vn.keyless")
    node.sql("create role vn_reader login replication password 'secret'")
    node.sql("grant usage on schema vn to vn_reader")
    node.sql("grant select on vn.t, vn.keyless to vn_reader")
    yield node
    node.sql("drop publication vn")
    node.sql("drop table vn.t")
    node.sql("drop table vn.keyless")
    node.sql("drop schema vn")
    node.sql("drop role vn_reader")


def subscribed(lake: Node, copy: Database) -> str:
    """Subscribe to the node; returns the subscription's name."""
    name = f"vn_{copy.name}"
    copy.psql(
        f"create schema vn; create table vn.t ({C});"
        " create table vn.keyless (v text, w int)"
    )
    (port,) = re.findall(r"\bport='?(\d+)", lake.conninfo())
    conninfo = f"host=127.0.0.1 port={port} dbname=lake user=vn_reader password=secret"
    copy.psql(f"create subscription {name} connection '{conninfo}' publication vn")
    ready = "select count(*) from pg_subscription_rel where srsubstate = 'r'"
    wait_until(lambda: copy.psql(ready).strip() == "2", timeout_seconds=120)
    return name


@pytest.mark.parametrize("version", [18, pytest.param(16, marks=pytest.mark.slow)])
def test_a_subscriber_of_the_node_is_proved_while_rows_come_in(
    lake: Node, database: Callable[[int], Database], version: int
) -> None:
    copy = database(version)
    name = subscribed(lake, copy)
    command = (
        *("-D", str(lake.directory), "--subscriber", copy.conninfo()),
        *("--format", "json"),
    )
    enough = threading.Event()
    failed: list[BaseException] = []

    def write() -> None:
        number = 1000
        try:
            while not enough.is_set():
                number += 1
                lake.sql(
                    f"begin; insert into vn.t values {ROWS.format(number, 'null')};"
                    f" update vn.t set v = 'w{number}' where id % 50 = {number % 50};"
                    f" insert into vn.keyless values ('k', {number}); commit"
                )
        except BaseException as error:
            failed.append(error)

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            ended = verify(*command)
            assert ended.returncode == 0, ended.stdout + ended.stderr
            assert {each["result"] for each in ended.tables.values()} == {"equal"}
    finally:
        enough.set()
        writer.join()
    assert not failed, failed

    copy.psql(
        "update vn.t set f = '-0', v = null where id = 12;"
        " update vn.t set n = n + 0.01, k = null where id = 13;"
        " delete from vn.t where id = 30;"
        " insert into vn.keyless values ('a', 1), ('a', 1)"
    )
    ended = verify(*command)
    assert ended.returncode == 1, ended.stdout + ended.stderr
    report = ended.tables
    assert report["vn.t"]["differing_rows"] == 3
    assert report["vn.keyless"]["differing_rows"] == 2
    assert {
        (each["kind"], each["key"]["id"], *(c["column"] for c in each["columns"]))
        for each in report["vn.t"]["differences"]
    } == {
        ("changed", "12", "v", "f"),
        ("changed", "13", "n", "k"),
        ("missing", "30"),
    }
    copy.psql(f"drop subscription {name}")


def test_a_node_and_a_server_and_a_node_and_itself(lake: Node, pg18: Database) -> None:
    pg18.psql(
        f"create schema vn; create table vn.t ({C});"
        " create table vn.keyless (v text, w int);"
        f" insert into vn.t values"
        f" {', '.join(ROWS.format(n, VALUES[n % 7]) for n in range(1, 41))};"
        " insert into vn.keyless values ('a', 1), ('a', 1), ('b', 2), (null, null)"
    )
    here = ("-D", str(lake.directory), "--format", "json", "-t", "vn.*")
    for end in ("--source", "--target"):
        ended = verify(*here, end, pg18.conninfo())
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert {name: each["rows"] for name, each in ended.tables.items()} == {
            "vn.t": 40,
            "vn.keyless": 4,
        }
    lake.sql("create table vn.copy (v text, w bigint)")
    lake.sql("insert into vn.copy select v, w from vn.keyless where v is not null")
    ended = verify(
        *("-D", str(lake.directory), "--source", lake.conninfo()),
        *("-t", "keyless=vn.copy", "--format", "json"),
    )
    assert ended.returncode == 1, ended.stdout + ended.stderr
    (report,) = ended.tables.values()
    assert report["differences"] == [
        {"kind": "missing", "key": {"v": None, "w": None}, "columns": []}
    ]
    ended = verify(
        *("-D", str(lake.directory), "--source", lake.conninfo()),
        *("-t", "keyless=vn.copy", "--where", "v is not null"),
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    lake.sql("drop table vn.copy")
