"""CREATE TABLE ... WITH: Delta's properties of one table, and that replication goes on into it."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import pytest
from deltalake import DeltaTable
from tests.conftest import Database
from tests.node.conftest import refused

from wal2lake.testing.mirror import Mirror
from wal2lake.testing.node import Node


@pytest.mark.slow
def test_a_table_has_properties_of_its_own(
    pg18: Database,
    node: Node,
    subscribe: Callable[..., Mirror],
    psql: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    assert refused(node, "create table t (a int) with (fill = 1)") == (
        "22023",
        'unrecognized parameter "fill"',
    )
    assert refused(
        node, "create table t (a int) with (delta.checkpointInterval = 0)"
    ) == (
        "22023",
        'invalid value for storage parameter "delta.checkpointInterval": "0"',
    )
    node.sql("create schema wp")
    node.sql(
        "create table wp.t (id int primary key, v text) with"
        " (\"delta.enableDeletionVectors\" = false, delta.logRetentionDuration = '7 days')"
    )
    node.sql(
        "create table wp.u (id int primary key, v text)"
        " with (delta.checkpointInterval = 5, delta.deletedFileRetentionDuration ="
        " 'interval 2 weeks')"
    )
    assert node.sql(
        "select relname, reloptions from pg_class where relname in ('t', 'u', 't_pkey')"
        " and relnamespace = 'wp'::regnamespace order by 1"
    ) == [
        (
            "t",
            '{delta.enableDeletionVectors=false,"delta.logRetentionDuration=interval 7'
            ' days"}',
        ),
        ("t_pkey", None),
        (
            "u",
            '{delta.checkpointInterval=5,"delta.deletedFileRetentionDuration=interval 2'
            ' weeks"}',
        ),
    ]
    shown = psql(node.conninfo(), "-c", "\\d+ wp.u")
    assert "Options: delta.checkpointInterval=5" in shown.stdout, shown

    pg18.psql(
        "create schema wp;"
        " create table wp.t (id int primary key, v text);"
        " create table wp.u (id int primary key, v text);"
        " insert into wp.t select n, 'copied' from generate_series(1, 100) n;"
        " insert into wp.u select * from wp.t;"
        " create publication wp for tables in schema wp"
    )
    mirror = subscribe(pg18, "wp")
    mirror.synced()
    for i in range(1, 8):
        pg18.psql(
            f"update wp.t set v = 'changed' where id = {i};"
            f" delete from wp.u where id = {i}; insert into wp.u values ({1000 + i}, 'new')"
        )
        mirror.synced()
    node.sql("update wp.t set v = 'ours' where id = 50")
    node.sql("update wp.t set v = 'copied' where id = 50")
    mirror.assert_equal(["wp.t", "wp.u"])

    tables = {
        name: DeltaTable(str(node.directory / "warehouse" / "wp" / name))
        for name in "tu"
    }
    configuration = tables["t"].metadata().configuration
    assert configuration["delta.logRetentionDuration"] == "interval 7 days"
    assert configuration["delta.enableDeletionVectors"] == "false"
    # Readers that know nothing of deletion vectors read it.
    assert tables["t"].to_pyarrow_table().num_rows == 100
    configuration = tables["u"].metadata().configuration
    assert configuration["delta.checkpointInterval"] == "5"
