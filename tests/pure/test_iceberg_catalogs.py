"""Mirrors in SQL and Glue catalogs of others, read by pyiceberg through these catalogs."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyiceberg.catalog import Catalog as PyIcebergCatalog
from pyiceberg.catalog.glue import GlueCatalog as PyIcebergGlue
from pyiceberg.catalog.sql import SqlCatalog
from structlog.testing import capture_logs
from tests.fakes.mirror_registering import RegisteringNode, ids, names
from tests.fakes.objectstores import Server, s3_server

from wal2lake.catalog import EntryState
from wal2lake.errors import FeatureNotSupportedError
from wal2lake.lake.catalogs import (
    CatalogOptions,
    ExternalCatalog,
    GlueCatalog,
    IcebergForm,
    SqlIcebergCatalog,
)
from wal2lake.settings import IcebergCatalogSettings, IcebergSettings

pytestmark = pytest.mark.usefixtures("no_fsync")

CREDENTIALS = '{"Version": 1, "AccessKeyId": "key", "SecretAccessKey": "the-secret"}'


@pytest.fixture(scope="module")
def glue_server() -> Iterator[Server]:
    with s3_server() as server:
        yield server


class World:
    """A node, and another program that reads the catalog."""

    def __init__(self, node: RegisteringNode, reader: PyIcebergCatalog) -> None:
        self.node = node
        self.reader = reader


@pytest.fixture(params=["sql", "glue"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    reader: PyIcebergCatalog
    if request.param == "sql":
        uri = f"sqlite:///{tmp_path}/others.sqlite"
        settings = IcebergCatalogSettings(type="sql", uri=uri, name="lake")
        reader = SqlCatalog("lake", uri=uri, init_catalog_tables="false")
        open_catalog: Callable[..., ExternalCatalog] = lambda s: SqlIcebergCatalog(  # noqa: E731
            CatalogOptions.of_iceberg(s)
        )
    else:
        server = request.getfixturevalue("glue_server")
        uri = f"http://127.0.0.1:{server.port}"
        prefix = f"n{abs(hash(tmp_path.name)) % 100_000}_"
        settings = IcebergCatalogSettings(
            type="glue",
            uri=uri,
            region="eu-central-1",
            prefix=prefix,
            credentials_command=f"echo '{CREDENTIALS}'",
        )
        reader = PyIcebergGlue(
            "lake",
            **{
                "glue.endpoint": uri,
                "glue.region": "eu-central-1",
                "glue.access-key-id": "them",
                "glue.secret-access-key": "x",
            },
        )
        open_catalog = lambda s: GlueCatalog(  # noqa: E731
            CatalogOptions.of_iceberg(s), IcebergForm()
        )
    node = RegisteringNode(tmp_path, settings, open_catalog)
    yield World(node, reader)
    assert node.registering is not None
    node.registering.close()
    if isinstance(reader, SqlCatalog):
        reader.engine.dispose()


def space(world: World) -> str:
    return f"{world.node.catalog_settings.prefix}public"


def test_an_entry_follows_its_mirror(world: World) -> None:
    node, reader, public = world.node, world.reader, space(world)
    first, second = node.table(1), node.table(2)
    node.round()
    assert names(reader, public) == ["t1", "t2"]
    assert ids(reader, "t1", public) == [1]
    first.append({"id": [7], "name": ["b"]})
    second.append({"id": [8], "name": ["c"]})
    before = reader.load_table(f"{public}.t1").metadata_location
    node.round()
    assert ids(reader, "t1", public) == [1, 7]
    assert ids(reader, "t2", public) == [2, 8]
    assert reader.load_table(f"{public}.t1").metadata_location != before
    assert node.registered("t1").state is EntryState.REGISTERED
    first.define([("id", "bigint"), ("name", "string"), ("more", "int")])
    first.append({"id": [9], "name": ["d"], "more": [1]})
    node.rename(second, "other")
    node.round()
    assert ids(reader, "t1", public) == [1, 7, 9]
    schema = reader.load_table(f"{public}.t1").schema()
    assert [field.name for field in schema.fields] == ["id", "name", "more"]
    assert names(reader, public) == ["other", "t1"]
    assert ids(reader, "other", public) == [2, 8]
    node.drop(second)
    node.round()
    assert names(reader, public) == ["t1"]
    assert (second.root / "_iceberg").exists()


def test_a_table_that_is_mirrored_no_more_leaves(world: World) -> None:
    node, reader, public = world.node, world.reader, space(world)
    table = node.table(1)
    node.round()
    node.catalog.set_parameters(node.definition(table).oid, {"iceberg": "false"})
    node.round()
    assert names(reader, public) == []


def test_a_commit_of_others_is_told_and_not_overwritten(world: World) -> None:
    node, reader, public = world.node, world.reader, space(world)
    # pyiceberg writes no metadata of format 3.
    node.settings.iceberg = IcebergSettings(format_version=2)
    table = node.table(1)
    node.round()
    theirs = reader.load_table(f"{public}.t1")
    with theirs.transaction() as transaction:
        transaction.set_properties({"theirs": "yes"})
    taken = reader.load_table(f"{public}.t1").metadata_location
    table.append({"id": [7], "name": ["b"]})
    node.round()
    noted = node.registered("t1")
    assert noted.state is EntryState.CONFLICT
    assert noted.error == (
        f'another program has changed "{public}.t1" in the catalog: its metadata is now'
        f" {taken}"
    )
    assert reader.load_table(f"{public}.t1").metadata_location == taken
    assert noted.hint == (
        "The entry is not touched. Drop it in the catalog, without its files: then the next"
        " look registers the table as the node has it."
    )
    reader.drop_table(f"{public}.t1")
    node.round(600)
    assert ids(reader, "t1", public) == [1, 7]
    assert node.registered("t1").state is EntryState.REGISTERED


def test_a_name_of_others_is_told_and_not_touched(world: World, tmp_path: Path) -> None:
    node, reader, public = world.node, world.reader, space(world)
    node.table(1)
    node.round()
    elsewhere = reader.load_table(f"{public}.t1").metadata_location
    reader.register_table(f"{public}.t2", elsewhere)
    node.table(2)
    node.round()
    noted = node.registered("t2")
    assert noted.state is EntryState.CONFLICT
    assert noted.error == (
        f'the name "{public}.t2" of the catalog is in use by table "public.t1" of this node'
    )
    assert noted.hint == (
        "The entry is not touched. Rename the table, drop the entry in the catalog, or set"
        " iceberg.catalog.prefix: then the next look registers the table."
    )
    assert reader.load_table(f"{public}.t2").metadata_location == elsewhere
    reader.drop_table(f"{public}.t2")
    node.round(600)
    assert ids(reader, "t2", public) == [2]


def test_a_mirror_that_begins_anew_keeps_its_entry(world: World) -> None:
    node, reader, public = world.node, world.reader, space(world)
    table = node.table(1)
    node.round()
    uuid = reader.load_table(f"{public}.t1").metadata.table_uuid
    table.define([("id", "bigint"), ("name", "int")])
    table.append({"id": [7], "name": [1]})
    node.round()
    read = reader.load_table(f"{public}.t1")
    assert read.metadata.table_uuid != uuid
    assert node.registered("t1").state is EntryState.REGISTERED


def test_what_was_missed_before_a_restart_is_made_up_for(world: World) -> None:
    node, reader, public = world.node, world.reader, space(world)
    first, second = node.table(1), node.table(2)
    node.round()
    for number in range(3):
        first.append({"id": [10 + number], "name": ["b"]})
        node.worker.round()
    node.drop(second)
    node.settings.iceberg_registered_file.write_text("{")
    node.restart()
    node.round()
    assert ids(reader, "t1", public) == [1, 10, 11, 12]
    # Only the file has known that this one was the node's.
    assert names(reader, public) == ["t1", "t2"]


def test_a_catalog_that_is_down_holds_up_no_mirror(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/gone/others.sqlite"
    settings = IcebergCatalogSettings(type="sql", uri=uri, name="lake")
    node = RegisteringNode(
        tmp_path, settings, lambda s: SqlIcebergCatalog(CatalogOptions.of_iceberg(s))
    )
    table = node.table(1)
    node.round()
    noted = node.registered("t1")
    assert noted.state is EntryState.PENDING
    assert (
        noted.error == "could not reach the sql catalog: unable to open database file"
    )
    assert noted.hint == "Check iceberg.catalog.uri, and that its server runs."
    table.append({"id": [7], "name": ["b"]})
    node.round()
    (tmp_path / "gone").mkdir()
    node.round(600)
    assert node.registered("t1").state is EntryState.REGISTERED
    reader = SqlCatalog("lake", uri=uri)
    assert ids(reader, "t1") == [1, 7]
    reader.engine.dispose()
    assert node.registering is not None
    node.registering.close()


def test_an_entry_that_follows_is_not_logged_each_time(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/others.sqlite"
    settings = IcebergCatalogSettings(type="sql", uri=uri, name="lake")
    node = RegisteringNode(
        tmp_path, settings, lambda s: SqlIcebergCatalog(CatalogOptions.of_iceberg(s))
    )
    with capture_logs() as lines:
        table = node.table(1)
        node.round()
        for number in range(3):
            table.append({"id": [7 + number], "name": ["b"]})
            node.round()
        node.drop(table)
        node.round()
    states = [line["state"] for line in lines if line["event"] == "catalog entry"]
    assert states == ["pending", "leaving"]
    assert node.registering is not None
    node.registering.close()


def test_all_tables_of_a_round_change_in_one_transaction(tmp_path: Path) -> None:
    """A row that another program has changed leaves all rows as they were, until each table is
    looked at alone."""
    uri = f"sqlite:///{tmp_path}/others.sqlite"
    catalog = SqlIcebergCatalog(CatalogOptions("sql", uri, "lake"))
    settings = IcebergCatalogSettings(type="sql", uri=uri, name="lake")
    node = RegisteringNode(tmp_path, settings, lambda s: catalog)
    tables = [node.table(number) for number in (1, 2, 3)]
    node.round()
    for table in tables:
        table.append({"id": [7], "name": ["b"]})
    done: list[list[str]] = []
    change_all = catalog.change_all

    def spoilt(changes: object) -> None:
        if not done:
            with sqlite3.connect(f"{tmp_path}/others.sqlite") as others:
                others.execute(
                    "update iceberg_tables set metadata_location = '/theirs/1.json'"
                    " where table_name = 't2'"
                )
            others.close()
        try:
            change_all(changes)  # type: ignore[arg-type]
        finally:
            with sqlite3.connect(f"{tmp_path}/others.sqlite") as others:
                rows = others.execute(
                    "select metadata_location from iceberg_tables order by table_name"
                ).fetchall()
            others.close()
            done.append([row[0].rpartition("/")[2] for row in rows])

    catalog.change_all = spoilt  # type: ignore[method-assign]
    node.round()
    assert done[0] == ["v1.metadata.json", "1.json", "v1.metadata.json"]
    assert done[-1] == ["v2.metadata.json", "1.json", "v2.metadata.json"]
    assert node.registered("t2").state is EntryState.CONFLICT
    catalog.close()


def test_sqlalchemy_may_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(FeatureNotSupportedError) as caught:
        SqlIcebergCatalog(CatalogOptions("sql", "sqlite://", "lake"))
    assert caught.value.hint == 'pip install "wal2lake[sqlcatalog]" brings it.'
