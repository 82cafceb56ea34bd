"""CREATE TABLE ... WITH (cluster_by = ...): a table whose rows are kept together by key."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable
from tests.conftest import Database
from tests.node.conftest import refused

from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node
from wal2lake.testing.waits import wait_until


def commits(table: Path) -> list[list[dict[str, Any]]]:
    """Of all versions, without those that make another definition."""
    logs = sorted((table / "_delta_log").glob(f"{'[0-9]' * 20}.json"))
    found = [list(map(json.loads, log.read_text().splitlines())) for log in logs]
    return [one for one in found if not any("metaData" in action for action in one)]


def has_more_commits(table: Path, than: int) -> bool:
    return len(commits(table)) > than


def word(commit: list[dict[str, Any]]) -> str | None:
    """What it was for."""
    found: str | None = commit[0]["commitInfo"].get("userMetadata")
    return found


@pytest.mark.slow
def test_a_clustered_table_is_copied_followed_written_and_clustered(
    pg18: Database,
    node: Node,
    subscribe: Callable[..., Mirror],
    psql: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    wide = ", ".join(f"c{n} int" for n in range(32))
    for columns, parameters, sqlstate in (
        ("a int", "cluster_by = 'x'", "42703"),
        ("a int", "cluster_by = 'a, a'", "42701"),
        ("a int, b int", "cluster_by = 'a', partition_columns = 'b'", "42P16"),
        ("a float8", "cluster_by = 'a'", "0A000"),
        ("a bool", "cluster_by = 'a'", "0A000"),
        ("a int[]", "cluster_by = 'a'", "0A000"),
        (f"{wide}, z int", "cluster_by = 'z'", "0A000"),
    ):
        found = refused(node, f"create table t ({columns}) with ({parameters})")
        assert found[0] == sqlstate, (columns, parameters)
    said = psql(
        node.conninfo(), "-c", "create table t (a float8) with (cluster_by = 'a')"
    ).stderr
    assert 'ERROR:  lake tables cannot be clustered by column "a"' in said
    assert "DETAIL:  Its values are stored as DOUBLE" in said
    assert "HINT:  Cluster by columns of a type" in said

    columns = '(id int primary key, "Größe" text, v text)'
    pg18.psql(
        f"create schema cl; create table cl.t {columns};"
        " insert into cl.t select n * 7919 % 5000, n % 50, 'copied'"
        " from generate_series(1, 4000) n;"
        " create publication cl for tables in schema cl"
    )
    node.sql("create schema cl")
    made = psql(
        node.conninfo(),
        "-c",
        f"create table cl.t {columns} with (cluster_by = 'id, \"Größe\"')",
    )
    assert made.stdout.strip() == "CREATE TABLE", made
    shown = psql(node.conninfo(), "-c", "\\d+ cl.t").stdout
    assert 'Options: cluster_by=id,"Größe"' in shown, shown
    mirror = subscribe(pg18, "cl")
    mirror.synced()
    mirror.assert_equal(["cl.t"])
    table = node.directory / "warehouse" / "cl" / "t"

    for i in range(1, 200):
        before = len(commits(table))
        pg18.psql(
            f"update cl.t set v = 'changed' where id % 50 = {i % 50};"
            f" delete from cl.t where id % 1000 = {i};"
            f" insert into cl.t select {i} * 10000 + n, 'n', 'new' from"
            " generate_series(1, 20) n"
        )
        wait_until(partial(has_more_commits, table, before))
        compactions = [one for one in commits(table) if word(one) == "compaction"]
        if compactions:
            break
    else:
        raise AssertionError("the table is not clustered")
    mirror.assert_equal(["cl.t"])
    assert all(
        one[0]["commitInfo"]["engineInfo"] == "wal2lake" for one in commits(table)
    )
    added = [action["add"] for action in compactions[-1] if "add" in action]
    assert {one["clusteringProvider"] for one in added} == {"liquid"}
    assert json.loads(added[0]["tags"]["ZCUBE_ZORDER_BY"]) == ["id", "`Größe`"]

    # Local writes and transactions, and rows that come meanwhile.
    node.sql("update cl.t set v = 'ours' where id = 555")
    assert refused(node, "insert into cl.t values (555, '', '')")[0] == "23505"
    assert node.sql("select v from cl.t where id = 555") == [("ours",)]
    node.sql("update cl.t set v = (select v from cl.t where id = 556) where id = 555")
    pg18.psql("update cl.t set v = 'theirs' where id in (555, 556)")
    mirror.assert_equal(["cl.t"])

    # A column of the clustering may have another type or name, and does not go.
    assert refused(node, "alter table cl.t drop column id")[0] == "0A000"
    retype = 'alter table cl.t alter "Größe" type float8 using 1'
    assert refused(node, retype)[0] == "0A000"
    for side in (pg18.psql, node.sql):
        side("alter table cl.t alter id type bigint")
    for side in (pg18.psql, node.sql):
        side('alter table cl.t rename "Größe" to size')
        side("alter table cl.t add n int default 5")
    assert node.sql("select reloptions from pg_class where oid = 'cl.t'::regclass") == [
        ('{"cluster_by=id,size"}',)
    ]
    pg18.psql(
        "insert into cl.t values (-1, 'x', 'y', 6); delete from cl.t where id = 6"
    )
    mirror.assert_equal(["cl.t"])
    last = commits(table)[-1]
    assert last[0]["commitInfo"]["engineInfo"] == "wal2lake"
    checksums = sorted((table / "_delta_log").glob("*.crc"))
    summed = json.loads(checksums[-1].read_text())
    (domain,) = summed["domainMetadata"]
    assert json.loads(domain["configuration"])["clusteringColumns"] == [
        ["id"],
        ["Größe"],
    ]
    pg18.psql("truncate cl.t; insert into cl.t values (1, 'x', 'y', 1)")
    mirror.assert_equal(["cl.t"])
    assert {"clustering", "domainMetadata"} <= set(
        DeltaTable(str(table)).protocol().writer_features or ()
    )
