"""Mirrors in Iceberg's own REST catalog and in a Hive metastore, read through them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.table import StaticTable
from pyspark.sql import SparkSession
from tests.fakes.iceberg_rest import ICEBERG, IcebergRestServer
from tests.fakes.metastore import metastore
from tests.fakes.mirror_registering import RegisteringNode, ids, names

from wal2lake.catalog import EntryState
from wal2lake.lake.catalogs import CatalogOptions, IcebergForm, RestIcebergCatalog
from wal2lake.lake.jars import JarSource, locate_jars
from wal2lake.lake.spark.hive import HiveCatalog
from wal2lake.settings import IcebergCatalogSettings, IcebergSettings

pytestmark = pytest.mark.usefixtures("no_fsync")

READER = """
import json, sys
from pyspark.sql import SparkSession
jars, conf, *statements = sys.argv[1:]
builder = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "768m")
    .config("spark.jars", jars)
    .config("spark.sql.catalog.lake", "org.apache.iceberg.spark.SparkCatalog")
)
for name, value in json.loads(conf).items():
    builder = builder.config("spark.sql.catalog.lake." + name, value)
spark = builder.getOrCreate()
for statement in statements:
    print("ROWS " + json.dumps([list(row) for row in spark.sql(statement).collect()]))
spark.stop()
"""


def read_by_spark(conf: dict[str, str], *statements: str) -> list[list[list[object]]]:
    """Rows of statements, as another program's Spark reads them."""
    jars = locate_jars(JarSource.from_environment(os.environ), os.environ, [ICEBERG])
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            READER,
            ",".join(map(str, jars)),
            json.dumps(conf),
            *statements,
        ],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    rows = [line for line in done.stdout.splitlines() if line.startswith("ROWS ")]
    assert len(rows) == len(statements), done.stderr[-3000:]
    return [json.loads(line.removeprefix("ROWS ")) for line in rows]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[IcebergRestServer]:
    with IcebergRestServer(tmp_path_factory.mktemp("rest")) as server:
        yield server


def world(directory: Path, server: IcebergRestServer, prefix: str) -> RegisteringNode:
    settings = IcebergCatalogSettings(type="rest", uri=server.uri, prefix=prefix)
    return RegisteringNode(
        directory, settings, lambda s: RestIcebergCatalog(CatalogOptions.of_iceberg(s))
    )


def reader_of(server: IcebergRestServer) -> RestCatalog:
    return RestCatalog("lake", uri=server.uri)


def commits(requests: list[str]) -> list[str]:
    return [r for r in requests if not r.startswith(("GET", "HEAD"))]


def test_all_tables_of_a_round_are_committed_in_one_request(
    tmp_path: Path, server: IcebergRestServer
) -> None:
    node, reader = world(tmp_path, server, "one_"), reader_of(server)
    first, second = node.table(1), node.table(2)
    node.round()
    assert ids(reader, "t1", "one_public") == [1]
    first.append({"id": [7], "name": ["b"]})
    second.append({"id": [8], "name": ["c"]})
    second.delete({next(iter(second.files)): [0]})
    server.requests()
    node.round()
    assert server.requests() == ["POST /v1/p/transactions/commit"]
    assert ids(reader, "t1", "one_public") == [1, 7]
    assert ids(reader, "t2", "one_public") == [8]
    server.requests()
    node.round()
    assert server.requests() == []
    first.define([("id", "bigint"), ("name", "string"), ("more", "int")])
    first.append({"id": [9], "name": ["d"], "more": [1]})
    node.rename(second, "other")
    node.round()
    assert ids(reader, "t1", "one_public") == [1, 7, 9]
    loaded = reader.load_table("one_public.t1")
    assert [field.name for field in loaded.schema().fields] == ["id", "name", "more"]
    assert loaded.properties["write.metadata.delete-after-commit.enabled"] == "true"
    assert names(reader, "one_public") == ["other", "t1"]
    node.drop(second)
    node.round()
    assert names(reader, "one_public") == ["t1"]


def test_snapshots_that_the_mirror_gives_up_leave_the_server(
    tmp_path: Path, server: IcebergRestServer
) -> None:
    node, reader = world(tmp_path, server, "old_"), reader_of(server)
    table = node.table(1)
    for number in range(4):
        column = f"c{number}"
        table.define([("id", "bigint"), ("name", "string"), (column, "int")])
        table.append({"id": [10 + number], "name": ["b"], column: [number]})
        node.round()
    assert len(reader.load_table("old_public.t1").snapshots()) == 4
    # The mirror forgets schemas with their snapshots; the server keeps its own numbers of them.
    node.settings.iceberg = IcebergSettings(history_ms=0)
    node.worker.reload(node.settings)
    for columns in ([("id", "bigint"), ("name", "string")], [("id", "bigint")]):
        table.define(columns)
        table.append({name: [5] if name == "id" else ["x"] for name, _ in columns})
        node.round()
    loaded = reader.load_table("old_public.t1")
    mirror = StaticTable.from_metadata(f"{table.location}/_iceberg")
    kept = {snapshot.snapshot_id for snapshot in mirror.snapshots()}
    assert {snapshot.snapshot_id for snapshot in loaded.snapshots()} == kept
    assert len(kept) <= 2
    assert [field.name for field in loaded.schema().fields] == ["id"]
    assert ids(reader, "t1", "old_public") == [1, 5, 5, 10, 11, 12, 13]
    assert node.registered("t1").state is EntryState.REGISTERED


def test_a_commit_whose_answer_is_lost_is_not_repeated(
    tmp_path: Path, server: IcebergRestServer
) -> None:
    node, reader = world(tmp_path, server, "lost_"), reader_of(server)
    tables = [node.table(1), node.table(2)]
    node.round()
    for table in tables:
        table.append({"id": [7], "name": ["b"]})
    server.fail(1)
    node.round()
    assert node.registered("t1").state is EntryState.PENDING
    error = node.registered("t1").error
    assert error is not None
    assert error.startswith("could not reach the rest catalog")
    server.requests()
    node.round()
    assert commits(server.requests()) == []
    assert node.registered("t1").state is EntryState.REGISTERED
    assert ids(reader, "t2", "lost_public") == [2, 7]


def test_a_commit_of_others_is_told_and_not_overwritten(
    tmp_path: Path, server: IcebergRestServer
) -> None:
    node, reader = world(tmp_path, server, "theirs_"), reader_of(server)
    node.settings.iceberg = IcebergSettings(format_version=2)
    tables = [node.table(1), node.table(2)]
    node.round()
    with reader.load_table("theirs_public.t1").transaction() as change:
        change.set_properties({"team": "blue"})
    with reader.load_table("theirs_public.t2").update_schema() as schema:
        schema.update_column("name", doc="of the town")
    for table in tables:
        table.append({"id": [7], "name": ["b"]})
    node.round()
    assert ids(reader, "t1", "theirs_public") == [1, 7]
    assert reader.load_table("theirs_public.t1").properties["team"] == "blue"
    noted = node.registered("t2")
    assert noted.state is EntryState.CONFLICT
    assert noted.error == (
        'another program has changed "theirs_public.t2" in the catalog: its schema is not the'
        " node's"
    )
    assert ids(reader, "t2", "theirs_public") == [2]
    reader.drop_table("theirs_public.t2")
    node.round(600)
    assert ids(reader, "t2", "theirs_public") == [2, 7]


def test_a_mirror_that_begins_anew_is_registered_anew(
    tmp_path: Path, server: IcebergRestServer
) -> None:
    node, reader = world(tmp_path, server, "anew_"), reader_of(server)
    table = node.table(1)
    node.round()
    table.define([("id", "bigint"), ("name", "int")])
    table.append({"id": [7], "name": [1]})
    node.restart()
    node.round()
    names_of = [f.name for f in reader.load_table("anew_public.t1").schema().fields]
    assert names_of == ["id", "name"]
    assert (
        str(reader.load_table("anew_public.t1").schema().fields[1].field_type) == "int"
    )
    assert node.registered("t1").state is EntryState.REGISTERED


@pytest.mark.slow
def test_a_server_without_transactions_takes_one_table_after_the_other(
    tmp_path: Path,
) -> None:
    with IcebergRestServer(tmp_path, transactions=False) as server:
        node, reader = world(tmp_path, server, ""), reader_of(server)
        tables = [node.table(1), node.table(2)]
        node.round()
        for table in tables:
            table.append({"id": [7], "name": ["b"]})
        server.requests()
        node.round()
        assert commits(server.requests()) == [
            "POST /v1/p/namespaces/public/tables/t1",
            "POST /v1/p/namespaces/public/tables/t2",
        ]
        assert ids(reader, "t2") == [2, 7]
        # Spark reads vectors, which other programs read from the same entry.
        tables[0].delete({next(iter(tables[0].files)): [0]})
        node.round()
        rows = read_by_spark(
            {"type": "rest", "uri": server.uri},
            "select id from lake.public.t1",
            "select count(*) from lake.public.t1.snapshots",
        )
        assert rows == [[[7]], [[3]]]
    node.table(3)
    node.round()
    assert node.registered("t3").state is EntryState.PENDING


@pytest.mark.slow
def test_spark_reads_mirrors_through_a_hive_metastore(
    tmp_path: Path, spark_session: SparkSession
) -> None:
    with metastore(tmp_path) as uri:
        settings = IcebergCatalogSettings(type="hive", uri=uri, prefix="ice_")
        directory = tmp_path / "node"
        directory.mkdir()
        node = RegisteringNode(
            directory,
            settings,
            lambda s: HiveCatalog(
                spark_session, CatalogOptions.of_iceberg(s), IcebergForm()
            ),
        )
        table = node.table(1)
        node.round()
        table.append({"id": [7], "name": ["b"]})
        node.round()
        assert node.registered("t1").state is EntryState.REGISTERED
        gone = node.table(2)
        node.round()
        node.drop(gone)
        node.round()
        rows = read_by_spark(
            {"type": "hive", "uri": uri},
            "select id, name from lake.ice_public.t1 order by id",
            "show tables in lake.ice_public",
        )
        assert rows[0] == [[1, "a"], [7, "b"]]
        assert [row[1] for row in rows[1]] == ["t1"]
        assert node.registering is not None
        node.registering.close()
