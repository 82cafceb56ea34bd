"""REFRESH PUBLICATION WITH (heal = true): tables that missed changes get the differing rows only,
and readers see the old state until the new one is whole, at one LSN for all tables."""

from __future__ import annotations

import re
import shutil
import threading
from pathlib import Path

import pytest
from tests.conftest import Database
from tests.node.conftest import Subscribe, create

from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.postgres import PostgresServer
from wal2lake.testing.waits import wait_until

HEAL = "alter subscription {} refresh publication with (heal = true)"

TABLES = """
create schema hl;
create table hl.t (id int primary key, v text, n numeric(12,2), f real, at timestamptz,
                   b bytea, j jsonb, a int[], ok bool);
insert into hl.t select i, nullif('v' || i % 7, 'v3'), i / 3.0, i / 7.0,
  timestamptz '2024-01-01 01:02:03.456+05' + i * interval '1 s', decode(md5(i::text), 'hex'),
  jsonb_build_object('i', i), array[i, null], i % 2 = 0
  from generate_series(1, 100000) i;
create table hl.pair (a text, "B c" uuid, v bigint, primary key (a, "B c"));
insert into hl.pair select 'it''s ' || i, md5(i::text)::uuid, 100
  from generate_series(1, 500) i;
create table hl.filtered (id int primary key, hidden text, v text, w text);
insert into hl.filtered select i, 'h', 'v', 'w' from generate_series(1, 100) i;
create table hl.same (id int primary key, v text);
insert into hl.same select i, 'v' from generate_series(1, 100) i;
create table hl.bank (id int primary key, v bigint);
insert into hl.bank values (1, 0);
create table hl.keyless (v text);
alter table hl.keyless replica identity full;
insert into hl.keyless select 'x' from generate_series(1, 3);
create publication hl for table hl.t, hl.pair, hl.same, hl.bank, hl.keyless,
  hl.filtered (id, v, w) where (id > 50 or id < 3);
"""

EQUAL = ["hl.t", "hl.pair", "hl.same", "hl.bank", "hl.keyless"]

MISSED = """
update hl.t set v = 'missed', n = -n, j = '{}' where id between 50000 and 50200;
update hl.t set a = null, f = 'nan', at = 'infinity', b = '' where id = 7;
delete from hl.t where id in (1, 99, 60000);
insert into hl.t (id, v) select i, 'new' from generate_series(100001, 100050) i;
update hl.t set id = 200000 where id = 12;
delete from hl.pair where a = 'it''s 3';
update hl.pair set v = 99 where a = 'it''s 4';
insert into hl.pair values ('new', md5('new')::uuid, 1);
insert into hl.bank values (2, 100);
update hl.filtered set w = 'missed' where id = 1;
delete from hl.filtered where id = 40;
update hl.filtered set id = 40 where id = 60;
update hl.keyless set v = 'y';
"""
"""Rows of pair and bank have 50,000 together, before and after."""

TOTALS = (
    "select (select coalesce(sum(v), 0) from hl.pair), (select sum(v) from hl.bank),"
    " (select count(*) from hl.t), (select max(v) from hl.keyless)"
)


class TotalsWatcher:
    """Reads ``TOTALS`` without pause, and keeps each state that differs from the one before."""

    def __init__(self, node: Node) -> None:
        self.seen: list[tuple[str | None, ...]] = []
        self.failures: list[BaseException] = []
        self._node = node
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        try:
            with self._node.connect() as client:
                while not self._stop.is_set():
                    (row,) = client.rows(TOTALS)
                    if not self.seen or self.seen[-1] != tuple(row):
                        self.seen.append(tuple(row))
        except BaseException as error:
            self.failures.append(error)

    def __enter__(self) -> TotalsWatcher:
        self._thread.start()
        wait_until(lambda: self.seen or self.failures)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)


def log_of(node: Node, event: str) -> dict[str, dict[str, str]]:
    """The last log entry of an event for each table."""
    entries: dict[str, dict[str, str]] = {}
    for line in node.log_text().splitlines():
        if event in line:
            values = dict(re.findall(r"(\w+)=(\"[^\"]*\"|'[^']*'|\S+)", line))
            entries[values["table"].strip("\"'")] = values
    return entries


def lose_slot(node: Node, source: Database, name: str) -> None:
    """Disable the subscription and drop its slot."""
    node.sql(f"alter subscription {name} disable")
    wait_until(
        lambda: source.psql("select active from pg_replication_slots") == "f",
        describe="the slot is free",
    )
    source.psql(f"select pg_drop_replication_slot('{name}')")


def proofs(node: Node, name: str) -> dict[str | None, str | None]:
    return {row[1]: row[2] for row in node.sql(f"verify subscription {name}")}


@pytest.mark.slow
def test_after_a_lost_slot_differing_rows_are_copied_at_one_lsn(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(TABLES)
    mirror = subscribe(pg18, "hl")
    mirror.synced()
    mirror.assert_equal(EQUAL)
    files = {
        path.name for path in (node.directory / "warehouse/hl/t").glob("*.parquet")
    }
    # The last of a row is here, too, as a column that the source does not have.
    node.sql("alter table hl.same add column mine text")
    node.sql("update hl.same set mine = 'kept' where id = 5")
    lose_slot(node, pg18, "hl")
    pg18.psql(MISSED)
    # And rows that are wrong here.
    node.sql("update hl.t set v = 'wrong' where id = 80000")
    node.sql("insert into hl.pair values ('extra', gen_random_uuid(), 1)")
    node.sql("update hl.same set v = 'wrong' where id = 5")
    (before,) = node.sql(TOTALS)
    node.sql("alter subscription hl enable")
    with TotalsWatcher(node) as watcher:
        node.sql(HEAL.format("hl"))
        mirror.synced()
        wait_until(
            lambda: watcher.failures or len(watcher.seen) > 1, describe="the new state"
        )
    assert not watcher.failures
    assert watcher.seen == [tuple(before), ("49900", "100", "100047", "y")]
    assert set(proofs(node, "hl").values()) == {"equal"}
    healed = log_of(node, "table healed")
    assert healed["hl.t"]["rows_read"] == "254"
    assert healed["hl.t"]["rows_removed"] == "4"
    assert healed["hl.pair"]["rows_removed"] == "2"
    assert healed["hl.same"]["rows_read"] == "1"
    assert "hl.keyless" not in healed
    (whole,) = (
        line for line in node.log_text().splitlines() if "cannot be healed" in line
    )
    assert "hl.keyless" in whole
    assert "it has no primary key" in whole
    assert node.sql("select id, mine from hl.same where mine is not null") == [
        ("5", "kept")
    ]
    # The files of the table stay, but for the rows in them that have changed.
    now = {p.name for p in (node.directory / "warehouse/hl/t").glob("*.parquet")}
    assert files <= now
    pg18.psql(
        "update hl.t set v = 'streamed' where id % 1000 = 0;"
        " insert into hl.pair values ('later', md5('later')::uuid, 5);"
        " delete from hl.t where id = 200000"
    )
    mirror.caught_up()
    assert mirror.differences(["hl.t", "hl.pair", "hl.bank", "hl.keyless"]) == []
    assert set(proofs(node, "hl").values()) == {"equal"}


@pytest.mark.slow
def test_tables_are_healed_under_their_slot_while_the_source_is_written(
    pg18: Database, node: Node, subscribe: Subscribe
) -> None:
    pg18.psql(TABLES)
    mirror = subscribe(pg18, "hl")
    mirror.synced()
    stop = threading.Event()

    def write() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            pg18.psql(
                f"begin; update hl.t set n = {number} where id % 5000 = {number % 50};"
                f" update hl.pair set v = v - 1 where a = 'it''s {number % 500 + 1}';"
                " update hl.bank set v = v + 1 where id = 1;"
                f" delete from hl.t where id = {number + 2000};"
                f" insert into hl.t (id, v) values ({number + 300000}, 'w'); commit"
            )

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        for attempt in range(2):
            node.sql(f"delete from hl.t where id between 70000 and {70010 + attempt}")
            node.sql("update hl.pair set v = v + 7 where a = 'it''s 9'")
            node.sql(HEAL.format("hl"))
            mirror.synced()
            (row,) = node.sql(
                "select (select sum(v) from hl.pair) + (select sum(v) from hl.bank)"
            )
            assert row == ("50000",)
    finally:
        stop.set()
        writer.join(30)
    mirror.assert_equal(EQUAL)


@pytest.mark.slow
def test_a_source_restored_from_an_older_state_is_followed_back(
    node: Node, tmp_path: Path
) -> None:
    with PostgresServer(18, fsync=False, fresh=True) as server:
        source = Database(server, "postgres")
        source.psql(TABLES)
        create(node, source, "hl")
        mirror = Mirror(node, source.conninfo(), "hl")
        mirror.synced()
        node.sql("alter subscription hl disable")
        server.stop()
        shutil.copytree(server.data, tmp_path / "backup", symlinks=True)
        server.start()
        node.sql("alter subscription hl enable")
        source.psql(MISSED)
        mirror.assert_equal(EQUAL)
        node.sql("alter subscription hl disable")
        server.stop()
        shutil.rmtree(server.data)
        shutil.move(str(tmp_path / "backup"), server.data)
        server.installation.give(server.data)
        server.start()
        source.psql("insert into hl.pair values ('after', md5('after')::uuid, 3)")
        node.sql("alter subscription hl enable")
        node.wait_for(
            "select error from wal2lake.subscription_errors where subname = 'hl'"
        )
        node.sql(HEAL.format("hl"))
        mirror.synced()
        assert set(proofs(node, "hl").values()) == {"equal"}
        assert int(log_of(node, "table healed")["hl.t"]["rows_read"]) < 300
        source.psql("update hl.t set v = 'streamed' where id < 10")
        mirror.assert_equal(EQUAL)
        node.sql("drop subscription hl")
        node.sql("drop schema hl cascade")
