"""PostgreSQL's conflicts, beside a native subscriber of PostgreSQL 18 that meets the same ones."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.conftest import Database

from wal2lake.pg.quoting import quote_literal
from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until

COUNTERS = (
    "select confl_insert_exists > 0, confl_update_exists > 0, confl_update_missing,"
    " confl_delete_missing from pg_stat_subscription_stats where subname = '{}'"
)

TABLES = (
    "create schema cf;"
    " create table cf.t (a int primary key, b int, v text);"
    " create table cf.pair (x int, y text, z text, primary key (y, x));"
    " create table cf.plain (n int, v text);"
    " alter table cf.plain replica identity full;"
)


def reports(log: str, relation: str = "cf.") -> list[tuple[str, str]]:
    """(relation, type) of each conflict in a server log, in order."""
    found = re.findall(
        r'LOG:  conflict detected on relation "([^"]+)": conflict=(\w+)', log
    )
    return [one for one in found if one[0].startswith(relation)]


def both_say(node: Node, peer: Database, *lines: str) -> None:
    """Wait until these are in both server logs."""

    def missing() -> list[tuple[str, str]]:
        logs = {"node": node.log_text(), "peer": peer.server.log_text()}
        return [
            (whose, line)
            for line in lines
            for whose, log in logs.items()
            if line not in log
        ]

    wait_until(lambda: not missing(), describe=lambda: str(missing()))


def test_changes_of_rows_that_are_not_there_are_reported_as_postgresql_reports_them(
    pg18: Database,
    peer: Database,
    make_node: Callable[..., Node],
) -> None:
    pg18.psql(
        TABLES + " insert into cf.t select i, i, 'v' from generate_series(1, 6) i;"
        " insert into cf.pair values (1, 'one', 'z'), (2, 'it''s', 'z');"
        " insert into cf.plain values (1, null), (2, 'x');"
        " create publication cf for tables in schema cf"
    )
    node = make_node(settings={"log.segment_interval_ms": 100}).start()
    source = quote_literal(pg18.conninfo())
    node.sql(f"create subscription cf connection {source} publication cf")
    mirror = Mirror(node, pg18.conninfo(), "cf")
    peer.psql(TABLES)
    # On the server that it subscribes to, the command cannot wait for its own slot.
    pg18.psql("select pg_create_logical_replication_slot('cf_native', 'pgoutput')")
    peer.psql(
        f"create subscription cf_native connection {source} publication cf"
        " with (create_slot = false, slot_name = cf_native)"
    )
    mirror.synced()
    wait_until(
        lambda: (
            peer.psql(
                "select string_agg(distinct srsubstate::text, '') from pg_subscription_rel"
            )
            == "r"
        )
    )
    gone = "delete from cf.t where a in (2, 3, 4); delete from cf.pair; delete from cf.plain"
    for statement in gone.split(";"):
        node.sql(statement)
    peer.psql(gone)
    pg18.transactions(
        [
            "update cf.t set v = 'q' where a = 2",
            "update cf.t set v = repeat('ü', 40) where a = 3; delete from cf.t where a = 4",
            # A key change whose row is not there; then what fills the key after all.
            "update cf.t set a = 20 where a = 2; insert into cf.t values (2, 2, 'new')",
            "delete from cf.t where a = 20; update cf.t set v = 'there' where a = 2",
            "update cf.pair set z = null; delete from cf.pair where x = 2",
            "update cf.plain set v = 'y' where n = 1; delete from cf.plain where n = 2",
        ]
    )
    mirror.caught_up()
    wait_until(
        lambda: (
            pg18.psql(
                "select replay_lsn >= pg_current_wal_lsn() from pg_stat_replication"
                " where application_name = 'cf_native'"
            )
            == "t"
        )
    )
    rows = "select * from cf.{} order by 1"
    for table in ("t", "pair", "plain"):
        theirs = peer.psql(rows.format(table)).splitlines()
        ours = ["|".join(v or "" for v in row) for row in node.sql(rows.format(table))]
        assert ours == theirs, table
    (counters,) = node.sql(COUNTERS.format("cf"))
    assert "|".join(map(str, counters)) == "f|f|6|4"
    # Its worker hands its counters on about once in a second.
    wait_until(lambda: peer.psql(COUNTERS.format("cf_native")) == "f|f|6|4")

    listed = node.sql(
        "select tablename, conflict_type, key, resolution, events, xid is not null"
        " from wal2lake.conflicts where subname = 'cf' order by commit_lsn, 1, 2, 3"
    )
    skipped = ("skip", "1", "t")
    assert sorted(listed) == sorted(
        [
            ("t", "update_missing", "(a)=(2)", *skipped),
            ("t", "update_missing", "(a)=(3)", *skipped),
            ("t", "delete_missing", "(a)=(4)", *skipped),
            ("t", "update_missing", "(a)=(2)", *skipped),
            ("t", "delete_missing", "(a)=(20)", *skipped),
            ("pair", "update_missing", "(y, x)=(one, 1)", *skipped),
            ("pair", "update_missing", "(y, x)=(it's, 2)", *skipped),
            ("pair", "delete_missing", "(y, x)=(it's, 2)", *skipped),
            ("plain", "update_missing", "(n, v)=(1, null)", *skipped),
            ("plain", "delete_missing", "(n, v)=(2, x)", *skipped),
        ]
    )
    xids = node.sql(
        "select count(distinct xid), count(distinct commit_lsn) from wal2lake.conflicts"
    )
    assert xids == [("6", "6")]

    # The server log has the words of PostgreSQL's, but for the replication origin's name.
    log = node.log_text()
    assert sorted(reports(log)) == sorted(reports(peer.server.log_text()))
    assert (
        "DETAIL:  Could not find the row to be updated.\n\t"
        "Remote row (2, 2, q); replica identity (a)=(2)."
    ) in log
    cut = "ü" * 32 + "..."
    assert f"Remote row (3, 3, {cut}); replica identity (a)=(3)." in log
    assert "Replica identity (a)=(4)." in log
    assert re.search(
        r'CONTEXT:  processing remote data for replication origin "pg_\d+" during message'
        r' type "DELETE" for replication target relation "cf\.t" in transaction \d+,'
        r" finished at [0-9A-F]+/[0-9A-F]+",
        log,
    )

    # What stops: the key is taken here, and there.
    for side in (node.sql, peer.psql):
        side("insert into cf.t values (50, 1, 'local'), (51, 1, 'local')")
    pg18.psql("insert into cf.t values (50, 2, 'remote')")
    (row,) = node.wait_for(
        "select error from wal2lake.subscription_errors"
        " where subname = 'cf' and worker = 'apply'"
    )
    assert 'conflict detected on relation "cf.t": conflict=insert_exists' in str(row[0])
    assert 'Key already exists in unique index "t_pkey"' in str(row[0])
    assert re.search(
        r'during message type "INSERT" for replication target relation "cf\.t"'
        r" in transaction \d+, finished at",
        str(row[0]),
    )
    node.wait_for(
        "select 1 from wal2lake.conflicts where conflict_type = 'insert_exists'"
        " and key = '(a)=(50)' and resolution = 'error'"
    )
    wait_until(
        lambda: (
            peer.psql(COUNTERS.format("cf_native")).split("|")[0]
            == node.sql(COUNTERS.format("cf"))[0][0]
            == "t"
        )
    )
    both_say(
        node,
        peer,
        'ERROR:  conflict detected on relation "cf.t": conflict=insert_exists',
        "\tKey (a)=(50); existing local row (50, 1, local); remote row (50, 2, remote).",
    )
    for side in (node.sql, peer.psql):
        side("delete from cf.t where a = 50")
    pg18.psql("update cf.t set a = 51 where a = 50")
    node.wait_for(
        "select 1 from wal2lake.conflicts where conflict_type = 'update_exists'"
        " and key = '(a)=(51)'"
    )
    both_say(
        node,
        peer,
        "\tKey (a)=(51); existing local row (51, 1, local); remote row (51, 2, remote);"
        " replica identity (a)=(50).",
    )
    for side in (node.sql, peer.psql):
        side("delete from cf.t where a = 51")
    mirror.caught_up()
    assert node.sql("select b, v from cf.t where a = 51") == [("2", "remote")]
    rows_are_quoted_to_those_who_may_read_them(pg18, node, peer)
    mirror.caught_up()
    # A restart keeps what was counted, and what is listed.
    before = node.sql(COUNTERS.format("cf"))
    node.kill("tree")
    node.start()
    assert node.sql(COUNTERS.format("cf")) == before
    node.sql("drop subscription cf")
    assert node.sql("select count(*) from wal2lake.conflicts") == [("0",)]


def rows_are_quoted_to_those_who_may_read_them(
    pg18: Database, node: Node, peer: Database
) -> None:
    """The table's owner applies the changes, and may insert what he may not read."""
    sides = (node.sql, peer.psql)
    for side in sides:
        side("create role cf_owner")
        side("grant usage on schema cf to cf_owner")
        side("alter table cf.t owner to cf_owner")
        side("revoke select on cf.t from cf_owner")
        side("insert into cf.t values (60, 1, 'secret')")
    pg18.psql("insert into cf.t values (60, 2, 'secret')")
    (row,) = node.wait_for(
        "select error from wal2lake.subscription_errors"
        " where subname = 'cf' and worker = 'apply' and error like '%t_pkey%'"
    )
    told = re.compile(r"\n[^\n]*DETAIL:  (Key already[^\n]*)\n(\t?)")
    # Those before had a second line.
    wait_until(lambda: told.findall(peer.server.log_text())[-1][1] == "")
    for log in (node.log_text(), peer.server.log_text()):
        text, goes_on = told.findall(log)[-1]
        assert text.startswith('Key already exists in unique index "t_pkey"')
        assert not goes_on, "no line with the key and the rows"
        assert "secret" not in log
    assert "secret" not in str(row[0])
    for side in sides:
        side("delete from cf.t where a = 60")
    node.wait_for("select 1 from cf.t where a = 60 and b = 2")
    wait_until(lambda: peer.psql("select b from cf.t where a = 60") == "2")
    for side in sides:
        side("alter table cf.t owner to current_user")
        side("revoke usage on schema cf from cf_owner")
        side("drop role cf_owner")
