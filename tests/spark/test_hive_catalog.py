"""Tables in a Hive metastore: a real server, and a Spark of its own that reads them by name."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from tests.fakes.metastore import metastore

from wal2lake.lake import FieldSpec
from wal2lake.lake.catalogs import (
    CatalogEntry,
    CatalogOptions,
    CatalogUnavailable,
    EntryRefused,
    EntryStep,
    entry_of,
    step_for,
)
from wal2lake.lake.jars import JarSource, locate_jars
from wal2lake.lake.spark.delta.deltatables import DeltaTables
from wal2lake.lake.spark.hive import HiveCatalog

FIELDS = (
    FieldSpec("Id", "int"),
    FieldSpec("name", "string"),
    FieldSpec("tags", "array<string>"),
)

READER = """
import json, sys
from pyspark.sql import SparkSession
uri, jars, *statements = sys.argv[1:]
spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.memory", "768m")
    .config("spark.jars", jars)
    .config("spark.sql.extensions", "io.delta.sql.DeltaSparkSessionExtension")
    .config(
        "spark.sql.catalog.spark_catalog",
        "org.apache.spark.sql.delta.catalog.DeltaCatalog",
    )
    .config("spark.hadoop.hive.metastore.uris", uri)
    .enableHiveSupport()
    .getOrCreate()
)
for statement in statements:
    rows = spark.sql(statement).collect()
    print("ROWS " + json.dumps([list(row) for row in rows]))
spark.stop()
"""


@pytest.fixture(scope="module")
def uri(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with metastore(tmp_path_factory.mktemp("metastore")) as found:
        yield found


@pytest.fixture
def options(uri: str) -> CatalogOptions:
    return CatalogOptions("hive", uri, timeout_seconds=60)


@pytest.fixture
def hive(spark_session: SparkSession, options: CatalogOptions) -> Iterator[HiveCatalog]:
    catalog = HiveCatalog(spark_session, options)
    yield catalog
    catalog.close()


def entry(name: str, location: str, *fields: FieldSpec) -> CatalogEntry:
    return entry_of(7, "public", name, location, fields or FIELDS, prefix="lake_")


def read_by_name(uri: str, *statements: str) -> list[list[list[object]]]:
    """Rows of statements, as another program's Spark reads them."""
    jars = locate_jars(JarSource.from_environment(os.environ), os.environ)
    done = subprocess.run(
        [sys.executable, "-c", READER, uri, ",".join(map(str, jars)), *statements],
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    rows = [line for line in done.stdout.splitlines() if line.startswith("ROWS ")]
    assert len(rows) == len(statements), done.stderr[-3000:]
    return [json.loads(line.removeprefix("ROWS ")) for line in rows]


def test_an_entry_comes_changes_and_goes(hive: HiveCatalog, tmp_path: Path) -> None:
    wanted = entry("towns", f"{tmp_path}/a b/towns")
    assert hive.find(wanted.name) is None
    hive.create(wanted)
    found = hive.find(wanted.name)
    assert found is not None
    assert found.columns == (
        ("id", "int"),
        ("name", "string"),
        ("tags", "array<string>"),
    )
    assert found.properties["spark.sql.sources.provider"] == "delta"
    assert step_for(hive, wanted, found, ()) is EntryStep.KEEP
    with pytest.raises(EntryRefused, match="has changed in the hive catalog"):
        hive.create(wanted)
    found.original.getSd().getCols()[0].setComment("of the town")
    hive.change(wanted, found)
    found = hive.find(wanted.name)
    assert found is not None
    assert found.original.getSd().getCols()[0].getComment() == "of the town"
    changed = entry("towns", f"{tmp_path}/a b/towns", *FIELDS[:1])
    assert step_for(hive, changed, found, ()) is EntryStep.CHANGE
    hive.change(changed, found)
    again = hive.find(wanted.name)
    assert again is not None
    assert step_for(hive, changed, again, ()) is EntryStep.KEEP
    theirs = replace(again, properties={"made by": "them"})
    assert step_for(hive, changed, theirs, ()) is EntryStep.CONFLICT
    hive.remove(wanted.name, again)
    hive.remove(wanted.name, again)
    assert hive.find(wanted.name) is None


def test_an_entry_that_hive_refuses_leaves_the_connection(
    hive: HiveCatalog, tmp_path: Path
) -> None:
    wanted = entry("", f"{tmp_path}/nameless")
    with pytest.raises(EntryRefused, match="has refused an entry") as caught:
        hive.create(wanted)
    assert caught.value.hint == (
        "The entry is tried again later. Rename the table, or correct the catalog."
    )
    assert hive.find(entry("towns", "/x").name) is None


def test_a_server_that_is_gone_is_unavailable(
    spark_session: SparkSession, options: CatalogOptions
) -> None:
    gone = replace(options, uri="thrift://127.0.0.1:1", timeout_seconds=2)
    hive = HiveCatalog(spark_session, gone)
    with pytest.raises(CatalogUnavailable, match="could not reach the hive catalog"):
        hive.find(entry("towns", "/x").name)


@pytest.mark.slow
def test_another_spark_reads_a_table_by_its_name(
    hive: HiveCatalog,
    lake: DeltaTables,
    spark_session: SparkSession,
    uri: str,
    tmp_path: Path,
) -> None:
    location = f"{tmp_path}/lake/public/parcels"
    lake.create(location, FIELDS)
    spark_session.sql(
        f"insert into delta.`{location}` values (1, 'Ulm', array('a')), (2, 'Bonn', null)"
    )
    hive.create(entry("parcels", location))
    rows = read_by_name(
        uri,
        "select * from lake_public.parcels order by id",
        "show tables in lake_public",
    )
    assert rows[0] == [[1, "Ulm", ["a"]], [2, "Bonn", None]]
    assert [row[1] for row in rows[1]] == ["parcels"]
