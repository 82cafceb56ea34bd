"""REPAIR puts the listed rows right at one LSN while both sides go on: lost, extra, doubled and
changed rows, and values that were exchanged between two rows."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pyarrow as pa
import pytest
from deltalake import write_deltalake
from tests.conftest import Database

from wal2lake.errors import PublisherError
from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node

Subscribe = Callable[..., Mirror]

TABLES = """
create schema rp;
create table rp.t (id int primary key, v text, n numeric(12,2), f real, at timestamptz,
                   b bytea, j jsonb, a int[], ok bool);
insert into rp.t select i, nullif('v' || i % 7, 'v3'), i / 3.0, i / 7.0,
  timestamptz '2024-01-01 01:02:03.456+05' + i * interval '1 s', decode(md5(i::text), 'hex'),
  jsonb_build_object('i', i), array[i, null], i % 2 = 0
  from generate_series(1, 20000) i;
create table rp.pair (a text, "B c" uuid, v text, primary key (a, "B c"));
insert into rp.pair select 'it''s ' || i, md5(i::text)::uuid, 'v' || i
  from generate_series(1, 50) i;
create table rp.filtered (id int primary key, hidden text, v text, w text);
insert into rp.filtered select i, 'h', 'v', 'w' from generate_series(1, 100) i;
create table rp.doubled (id int primary key, v text);
insert into rp.doubled select i, 'v' || i from generate_series(1, 5) i;
create table rp.keyless (v text);
alter table rp.keyless replica identity full;
insert into rp.keyless select 'x' from generate_series(1, 3);
create publication rp for table rp.t, rp.pair, rp.doubled, rp.keyless,
  rp.filtered (id, v, w) where (id > 50 or id < 3);
"""

SABOTAGE = (
    "delete from rp.t where id in (100, 15000)",
    "update rp.t set v = null, n = -n, f = 0, b = '', j = '{}' where id = 7",
    # The values of a column of two rows are exchanged.
    "update rp.t set n = case id when 30 then 13.33 else 10 end where id in (30, 40)",
    "insert into rp.t (id, v) values (99999, 'extra')",
    "delete from rp.pair where a = 'it''s 3'",
    "update rp.pair set v = 'wrong' where a = 'it''s 4'",
    "insert into rp.filtered (id, v) values (20, 'filtered out at the source')",
    "update rp.filtered set w = 'wrong' where id = 1",
)


def result(node: Node, table: str) -> tuple[str | None, ...]:
    """Result and number of differing rows."""
    (row,) = node.sql(f"verify table {table}")
    return row[2], row[6]


def double(node: Node) -> None:
    """Give rp.doubled each row a second time, as a foreign writer might."""
    numbers = range(1, 6)
    rows = {"id": pa.array(numbers, pa.int32()), "v": [f"v{n}" for n in numbers]}
    write_deltalake(
        str(node.directory / "warehouse/rp/doubled"), pa.table(rows), mode="append"
    )


@pytest.mark.slow
def test_differing_rows_are_repaired_while_both_sides_go_on(
    pg18: Database, subscriber: Node, subscribe: Subscribe
) -> None:
    node = subscriber
    pg18.psql(TABLES)
    mirror = subscribe(pg18, "rp")
    mirror.synced()
    for statement in SABOTAGE:
        node.sql(statement)
    double(node)
    node.wait_for("select count(*) from rp.doubled", lambda rows: rows == [("10",)])
    assert result(node, "rp.t") == ("different", "6")
    assert result(node, "rp.pair") == ("different", "2")
    assert result(node, "rp.filtered") == ("different", "2")
    assert result(node, "rp.doubled") == ("different", "5")
    # Some listed rows change at the source before the repair.
    pg18.psql(
        "update rp.t set v = 'later' where id = 7; delete from rp.t where id = 100;"
        " insert into rp.t (id, v) values (99999, 'now at the source');"
        " delete from rp.pair where a = 'it''s 4'"
    )
    # The extra row is in the way of the insert, so no later state can be reached.
    with pytest.raises(PublisherError, match='"rp" has stopped before') as stopped:
        node.sql("repair table rp.t")
    assert "conflict=insert_exists" in str(stopped.value.detail)
    (proof,) = node.sql("verify table rp.t")
    assert proof[2] == "not comparable"
    assert "conflict=insert_exists" in str(proof[7])
    node.sql(
        "alter subscription rp set (conflict_resolution = 'insert_exists = apply_remote')"
    )
    stop = threading.Event()

    def write() -> None:
        n = 0
        while not stop.is_set():
            n += 1
            pg18.psql(
                f"update rp.t set n = {n} where id in (7, {n}, 15000, 40);"
                f" delete from rp.t where id = {n + 500};"
                f" delete from rp.doubled where id = 4;"
                f" insert into rp.doubled values (4, 'w{n}')"
            )

    writer = threading.Thread(target=write)
    writer.start()
    try:
        tables = "rp.t, rp.pair, rp.filtered, rp.doubled"
        assert node.sql(f"repair table {tables}") == [
            ("rp", "rp.t", "6", "0"),
            ("rp", "rp.pair", "2", "0"),
            ("rp", "rp.filtered", "2", "0"),
            ("rp", "rp.doubled", "5", "0"),
        ]
        for table in tables.split(", "):
            assert result(node, table) == ("equal", "0")
    finally:
        stop.set()
        writer.join()
    assert node.sql("select * from wal2lake.differences") == []
    assert node.sql(
        "select repaired_rows from wal2lake.verification where tablename = 't'"
    ) == [("6",)]
    mirror.caught_up()
    assert mirror.differences(["rp.t", "rp.pair", "rp.doubled"]) == []
    assert node.sql("repair table rp.t") == [("rp", "rp.t", "0", "0")]

    # Without a key, no row is meant.
    node.sql("insert into rp.keyless values ('y')")
    assert result(node, "rp.keyless") == ("different", "1")
    with pytest.raises(PublisherError, match="cannot be repaired") as refused:
        node.sql("repair table rp.keyless")
    assert refused.value.sqlstate == "0A000"
    assert "no primary key" in str(refused.value.detail)
    assert result(node, "rp.keyless") == ("different", "1")


@pytest.mark.slow
def test_verify_repairs_by_itself_if_it_shall(
    make_node: Callable[..., Node], pg18: Database
) -> None:
    node = make_node(
        settings={"node.authentication": "trust", "verify.repair": "automatic"}
    ).start()
    pg18.psql(TABLES)
    node.sql(
        f"create subscription rp connection {quote_literal(pg18.conninfo())}"
        " publication rp"
    )
    mirror = Mirror(node, pg18.conninfo(), "rp")
    mirror.synced()
    node.sql("update rp.pair set v = 'wrong' where a in ('it''s 3', 'it''s 4')")
    node.sql("insert into rp.keyless values ('y')")
    proofs = {row[1]: row for row in node.sql("verify subscription rp")}
    assert {name: row[2] for name, row in proofs.items() if row[2] != "equal"} == {
        "rp.pair": "different",
        "rp.keyless": "different",
    }
    assert str(proofs["rp.pair"][7]).endswith("\n2 rows repaired")
    (reason,) = str(proofs["rp.keyless"][7]).splitlines()[-2:][:1]
    assert reason == 'not repaired: rows of table "rp.keyless" cannot be repaired'
    assert result(node, "rp.pair") == ("equal", "0")
    mirror.assert_equal(["rp.pair"])
    node.sql("drop subscription rp")
