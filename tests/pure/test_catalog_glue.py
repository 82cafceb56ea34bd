"""Tables in AWS Glue's Data Catalog, as moto's server has it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import boto3
import pytest
from tests.fakes.objectstores import s3_server

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.lake import FieldSpec
from wal2lake.lake.catalogs import (
    CatalogEntry,
    CatalogOptions,
    CatalogUnavailable,
    EntryName,
    EntryRefused,
    EntryStep,
    GlueCatalog,
    entry_of,
    step_for,
)

FIELDS = (
    FieldSpec("Id", "bigint"),
    FieldSpec("name", "string"),
    FieldSpec("weight", "decimal(6,2)"),
    FieldSpec("tags", "array<string>"),
    FieldSpec("doc", "variant"),
)

CREDENTIALS = '{"Version": 1, "AccessKeyId": "key", "SecretAccessKey": "the-secret"}'


@pytest.fixture(scope="module")
def options() -> Iterator[CatalogOptions]:
    with s3_server() as server:
        yield CatalogOptions(
            "glue",
            f"http://127.0.0.1:{server.port}",
            region="eu-central-1",
            command=f"echo '{CREDENTIALS}'",
            timeout_seconds=30,
        )


@pytest.fixture
def glue(options: CatalogOptions) -> Iterator[GlueCatalog]:
    catalog = GlueCatalog(options)
    yield catalog
    catalog.close()


@pytest.fixture
def client(options: CatalogOptions) -> Iterator[Any]:
    """Another program."""
    client = boto3.client(
        "glue",
        endpoint_url=options.uri,
        region_name="eu-central-1",
        aws_access_key_id="them",
        aws_secret_access_key="x",
    )
    yield client
    client.close()


def entry(name: str, *fields: FieldSpec) -> CatalogEntry:
    return entry_of(7, "glued", name, f"s3://lake/glued/{name}", fields or FIELDS)


def test_a_table_looks_as_spark_athena_and_trino_expect(
    glue: GlueCatalog, client: Any
) -> None:
    wanted = entry("parcels")
    assert glue.find(wanted.name) is None
    glue.create(wanted)
    table = client.get_table(DatabaseName="glued", Name="parcels")["Table"]
    assert table["TableType"] == "EXTERNAL_TABLE"
    assert table["Parameters"] == {
        "EXTERNAL": "TRUE",
        "spark.sql.sources.provider": "delta",
        "table_type": "DELTA",
        "wal2lake.node": "7",
        "wal2lake.table": "glued.parcels",
    }
    assert table["PartitionKeys"] == []
    storage = table["StorageDescriptor"]
    assert storage["Location"] == "s3://lake/glued/parcels"
    assert storage["SerdeInfo"]["Parameters"]["path"] == "s3://lake/glued/parcels"
    assert [(c["Name"], c["Type"]) for c in storage["Columns"]] == [
        ("id", "bigint"),
        ("name", "string"),
        ("weight", "decimal(6,2)"),
        ("tags", "array<string>"),
        ("doc", "string"),
    ]
    database = client.get_database(Name="glued")["Database"]
    assert database["Parameters"] == {"wal2lake.node": "7"}
    found = glue.find(wanted.name)
    assert step_for(glue, wanted, found, ()) is EntryStep.KEEP


def test_columns_change_and_what_others_have_added_stays(
    glue: GlueCatalog, client: Any
) -> None:
    wanted = entry("changing")
    glue.create(wanted)
    table = client.get_table(DatabaseName="glued", Name="changing")["Table"]
    given = {k: table[k] for k in ("Name", "TableType", "StorageDescriptor")}
    client.update_table(
        DatabaseName="glued",
        TableInput={
            **given,
            "Description": "ours",
            "Parameters": {**table["Parameters"], "team": "blue"},
        },
    )
    found = glue.find(wanted.name)
    assert step_for(glue, wanted, found, ()) is EntryStep.KEEP
    changed = entry("changing", FieldSpec("Id", "bigint"), FieldSpec("extra", "date"))
    assert found is not None
    assert step_for(glue, changed, found, ()) is EntryStep.CHANGE
    glue.change(changed, found)
    assert step_for(glue, changed, glue.find(wanted.name), ()) is EntryStep.KEEP
    table = client.get_table(DatabaseName="glued", Name="changing")["Table"]
    assert table["Description"] == "ours"
    assert table["Parameters"]["team"] == "blue"


def test_a_table_of_another_program_is_a_conflict(
    glue: GlueCatalog, client: Any
) -> None:
    glue.create(entry("first"))
    client.create_table(DatabaseName="glued", TableInput={"Name": "theirs"})
    wanted = entry("theirs")
    assert step_for(glue, wanted, glue.find(wanted.name), ()) is EntryStep.CONFLICT
    with pytest.raises(EntryRefused):
        glue.create(wanted)


def test_a_removal_is_done_once(glue: GlueCatalog) -> None:
    wanted = entry("leaving")
    glue.create(wanted)
    found = glue.find(wanted.name)
    assert found is not None
    glue.remove(wanted.name, found)
    glue.remove(wanted.name, found)
    assert glue.find(wanted.name) is None


def test_a_server_that_is_gone_is_unavailable(options: CatalogOptions) -> None:
    glue = GlueCatalog(replace(options, uri="http://127.0.0.1:1", timeout_seconds=1))
    with pytest.raises(CatalogUnavailable, match="could not reach the glue") as caught:
        glue.find(EntryName("a", "b"))
    assert caught.value.hint == "Check catalog.uri, and that its server runs."
    glue.close()


def test_a_command_that_fails_is_named_and_its_output_is_not(
    options: CatalogOptions,
) -> None:
    glue = GlueCatalog(replace(options, command="echo the-secret"))
    with pytest.raises(CatalogUnavailable) as caught:
        glue.find(EntryName("a", "b"))
    assert "the command for the catalog's credentials has failed" in str(caught.value)
    assert caught.value.hint == (
        "Run catalog.credentials_command by hand, as the node's user."
    )
    assert "the-secret" not in caught.value.describe()
    assert "the-secret" not in repr(replace(options, command="echo the-secret"))


def test_errors_of_glue_are_of_one_entry_or_of_all(
    glue: GlueCatalog, monkeypatch: pytest.MonkeyPatch
) -> None:
    from botocore.exceptions import (
        ClientError,
        NoCredentialsError,
        ParamValidationError,
    )

    def answer(error: Exception) -> Any:
        class Client:
            def get_table(self, **parameters: str) -> Any:
                raise error

            def close(self) -> None:
                return

        return Client()

    def find(error: Exception) -> Any:
        monkeypatch.setattr(glue, "_connected", lambda: answer(error))
        glue.find(EntryName("a", "b"))

    def coded(code: str) -> ClientError:
        return ClientError({"Error": {"Code": code, "Message": "no"}}, "GetTable")

    with pytest.raises(
        CatalogUnavailable, match="could not reach the glue catalog: no"
    ):
        find(coded("ThrottlingException"))
    for error in (coded("ExpiredTokenException"), NoCredentialsError()):
        with pytest.raises(CatalogUnavailable, match="has refused the node") as caught:
            find(error)
        assert caught.value.hint == "Check the credentials of [catalog]."
    with pytest.raises(EntryRefused, match="does not allow the node to") as denied:
        find(coded("AccessDeniedException"))
    assert denied.value.sqlstate == "42501"
    with pytest.raises(EntryRefused, match="has refused an entry: no") as refused:
        find(coded("InvalidInputException"))
    assert refused.value.hint == (
        "The entry is tried again later. Rename the table, or correct the catalog."
    )
    with pytest.raises(EntryRefused, match="has refused an entry: Parameter"):
        find(ParamValidationError(report="a name is too short"))
    with pytest.raises(EntryRefused, match="has changed in the glue catalog"):
        find(coded("ConcurrentModificationException"))


def test_one_client_serves_all_requests(
    options: CatalogOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, session = [], boto3.session.Session

    def counted(**parameters: Any) -> Any:
        made.append(parameters)
        return session(**parameters)

    monkeypatch.setattr(boto3.session, "Session", counted)
    glue = GlueCatalog(options)
    for name in ("a", "b", "c"):
        assert glue.find(EntryName("nowhere", name)) is None
    assert len(made) == 1
    glue.close()


def test_comments_that_others_have_given_to_columns_stay(
    glue: GlueCatalog, client: Any
) -> None:
    wanted = entry("commented")
    glue.create(wanted)
    table = client.get_table(DatabaseName="glued", Name="commented")["Table"]
    given = {k: table[k] for k in ("Name", "TableType", "Parameters")}
    storage = table["StorageDescriptor"]
    storage["Columns"][0]["Comment"] = "of the town"
    client.update_table(
        DatabaseName="glued", TableInput={**given, "StorageDescriptor": storage}
    )
    found = glue.find(wanted.name)
    assert found is not None
    glue.change(entry("commented", *FIELDS, FieldSpec("extra", "date")), found)
    table = client.get_table(DatabaseName="glued", Name="commented")["Table"]
    columns = table["StorageDescriptor"]["Columns"]
    assert columns[0] == {"Name": "id", "Type": "bigint", "Comment": "of the town"}
    assert "Comment" not in columns[-1]


def test_boto3_is_asked_for_if_it_is_missing(
    options: CatalogOptions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(FeatureNotSupportedError) as caught:
        GlueCatalog(options)
    assert caught.value.hint == 'pip install "wal2lake[glue]" brings it.'
