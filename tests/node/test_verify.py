"""VERIFY and ``wal2lake verify``: tables are proved equal to their sources while these change, and
each difference is found and named."""

from __future__ import annotations

import threading
from collections.abc import Callable
from hashlib import md5

import pytest
from tests.conftest import Database

from wal2lake.errors import PublisherError
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node, run_cli

Subscribe = Callable[..., Mirror]

TABLES = """
create schema pf;
create table pf.t (id int primary key, v text, n numeric(12,2), f float8, at timestamptz,
                   d date, b bytea, j jsonb, a int[]);
insert into pf.t select i, nullif('v' || i % 7, 'v3'), i / 3.0, i / 7.0,
  timestamptz '2024-01-01' + i * interval '1 s', date '2024-01-01' + i % 100,
  decode(md5(i::text), 'hex'), jsonb_build_object('i', i), array[i, null]
  from generate_series(1, 40000) i;
create table pf.named (a text, b uuid, primary key (a, b));
insert into pf.named select chr(64 + i), gen_random_uuid() from generate_series(1, 26) i;
create table pf.keyless (v text);
alter table pf.keyless replica identity full;
insert into pf.keyless select 'x' from generate_series(1, 3);
create table pf.filtered (id int primary key, hidden text, v text);
insert into pf.filtered select i, 'h', 'v' from generate_series(1, 100) i;
create publication pf for table pf.t, pf.named, pf.keyless,
  pf.filtered (id, v) where (id > 50);
"""

VALUE = "select v from pf.t where id = 20000"


def results(
    node: Node, sql: str = "verify subscription pf"
) -> dict[str, tuple[str, ...]]:
    """Result, rows and differing rows of each table."""
    return {
        str(row[1]): tuple(str(cell) for cell in (row[2], row[5], row[6], row[7]))
        for row in node.sql(sql)
    }


@pytest.mark.slow
def test_tables_are_proved_and_differences_are_named(
    pg18: Database, subscriber: Node, subscribe: Subscribe
) -> None:
    node = subscriber
    pg18.psql(TABLES)
    mirror = subscribe(pg18, "pf")
    mirror.synced()
    stop = threading.Event()

    def write() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            pg18.psql(
                f"update pf.t set v = 'w{n}' where id % 977 = {n};"
                f" insert into pf.keyless values ('k{n}');"
                f" delete from pf.t where id = {n}"
            )

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(3):
            found = results(node)
            assert {name: cells[0] for name, cells in found.items()} == {
                "pf.t": "equal",
                "pf.named": "equal",
                "pf.keyless": "equal",
                "pf.filtered": "equal",
            }, found
            assert found["pf.filtered"][1] == "50"
    finally:
        stop.set()
        writer.join()
    assert run_cli("verify", "-D", str(node.directory)).returncode == 0

    # Local writes are differences: a changed value, a lost row, an additional row.
    node.sql(f"update pf.t set f = -f, v = '{'x' * 2000}' where id = 20000")
    node.sql("delete from pf.t where id = 30000")
    node.sql("insert into pf.keyless values ('x')")
    found = results(node)
    assert found["pf.t"][0] == "different"
    assert found["pf.t"][2] == "2"
    assert "changed (id=20000): v, f" in found["pf.t"][3]
    assert "missing (id=30000)" in found["pf.t"][3]
    assert found["pf.keyless"][0] == "different"
    assert "extra (v=x)" in found["pf.keyless"][3]
    assert found["pf.named"][0] == "equal"
    shown = "x" * 200 + f"... (md5 {md5(b'x' * 2000).hexdigest()})"
    assert node.sql(
        "select kind, key, columnname, source_value, local_value"
        " from wal2lake.differences where tablename = 't' order by key, columnname"
    ) == [
        ("changed", "(id)=(20000)", "f", "2857.1428571428573", "-2857.1428571428573"),
        ("changed", "(id)=(20000)", "v", pg18.psql(VALUE).strip() or None, shown),
        ("missing", "(id)=(30000)", None, None, None),
    ]
    assert node.sql(
        "select tablename, differing_rows, verified_through < compared_lsn,"
        " last_difference_lsn = compared_lsn"
        " from wal2lake.verification order by tablename"
    ) == [
        ("filtered", "0", "f", None),
        ("keyless", "1", "t", "t"),
        ("named", "0", "f", None),
        ("t", "2", "t", "t"),
    ]
    ended = run_cli("verify", "-D", str(node.directory), "--table", "pf.t")
    assert ended.returncode == 1, ended.stderr
    assert "changed (id=20000): v, f" in ended.stdout

    node.sql("alter subscription pf disable")
    assert {cells[0] for cells in results(node).values()} == {"not comparable"}
    assert run_cli("verify", "-D", str(node.directory)).returncode == 2
    node.sql("create table pf.mine (i int)")
    with pytest.raises(
        PublisherError, match="does not belong to any subscription"
    ) as caught:
        node.sql("verify table pf.mine")
    assert caught.value.hint == (
        "SELECT * FROM pg_subscription_rel lists the tables that do."
    )
