"""Tables in Unity Catalog, as its OpenAPI description has them."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tests.fakes.unityserver import UnityServer

from wal2lake.lake import FieldSpec
from wal2lake.lake.catalogs import (
    CatalogEntry,
    CatalogOptions,
    CatalogUnavailable,
    EntryColumn,
    EntryRefused,
    EntryStep,
    UnityCatalog,
    entry_of,
    step_for,
    unity_column,
)

FIELDS = (
    FieldSpec("Id", "bigint"),
    FieldSpec("weight", "decimal(6,2)"),
    FieldSpec("tags", "array<string>"),
    FieldSpec("doc", "variant"),
)


@pytest.fixture
def server() -> Iterator[UnityServer]:
    with UnityServer(token="the-secret") as server:
        yield server
    assert server.wrong == []


@pytest.fixture
def options(server: UnityServer) -> CatalogOptions:
    return CatalogOptions(
        "unity", server.uri, "lake", token="the-secret", timeout_seconds=30
    )


def entry(name: str, *fields: FieldSpec) -> CatalogEntry:
    return entry_of(7, "public", name, f"s3://lake/public/{name}", fields or FIELDS)


def test_an_entry_comes_changes_and_goes(
    server: UnityServer, options: CatalogOptions
) -> None:
    unity, wanted = UnityCatalog(options), entry("towns")
    assert unity.find(wanted.name) is None
    unity.create(wanted)
    assert server.schemas["lake.public"]["properties"] == {"wal2lake.node": "7"}
    table = server.tables["lake.public.towns"]
    assert (table["table_type"], table["data_source_format"]) == ("EXTERNAL", "DELTA")
    assert table["storage_location"] == "s3://lake/public/towns"
    assert table["properties"] == {
        "wal2lake.node": "7",
        "wal2lake.table": "public.towns",
    }
    found = unity.find(wanted.name)
    assert found is not None
    assert step_for(unity, wanted, found, ()) is EntryStep.KEEP

    # ---- another column; what others have added stays
    table["comment"] = "all towns"
    table["properties"]["team"] = "blue"
    changed = entry("towns", FieldSpec("Id", "bigint"), FieldSpec("extra", "date"))
    found = unity.find(wanted.name)
    assert found is not None
    assert step_for(unity, changed, found, ()) is EntryStep.CHANGE
    unity.change(changed, found)
    again = unity.find(wanted.name)
    assert again is not None
    assert step_for(unity, changed, again, ()) is EntryStep.KEEP
    table = server.tables["lake.public.towns"]
    assert (table["comment"], table["properties"]["team"]) == ("all towns", "blue")

    unity.remove(wanted.name, again)
    unity.remove(wanted.name, again)
    assert server.tables == {}


def test_an_entry_of_others_is_a_conflict(
    server: UnityServer, options: CatalogOptions
) -> None:
    unity, wanted = UnityCatalog(options), entry("towns")
    unity.create(wanted)
    server.tables["lake.public.towns"]["properties"] = {}
    assert step_for(unity, wanted, unity.find(wanted.name), ()) is EntryStep.CONFLICT
    with pytest.raises(EntryRefused, match="has changed in the unity catalog"):
        unity.create(wanted)


def test_a_catalog_that_does_not_exist_is_named(
    server: UnityServer, options: CatalogOptions
) -> None:
    with pytest.raises(EntryRefused, match="no such catalog") as caught:
        UnityCatalog(replace(options, name="sea")).create(entry("towns"))
    assert caught.value.hint == (
        "The entry is tried again later. Check catalog.name, rename the table, or correct"
        " the catalog."
    )


def test_a_command_prints_the_token_and_is_asked_again(
    server: UnityServer, options: CatalogOptions, tmp_path: Path
) -> None:
    (tmp_path / "token").write_text("old\n")
    command = f"cat {tmp_path}/token"
    unity = UnityCatalog(replace(options, token="", command=command))
    with pytest.raises(CatalogUnavailable, match="has refused the node: no such token"):
        unity.find(entry("towns").name)
    (tmp_path / "token").write_text("the-secret\n")
    assert unity.find(entry("towns").name) is None


def test_a_command_that_fails_is_an_error(options: CatalogOptions) -> None:
    unity = UnityCatalog(replace(options, token="", command="exit 3"))
    with pytest.raises(CatalogUnavailable, match="its exit code is 3"):
        unity.find(entry("towns").name)


def test_a_server_that_is_gone_is_unavailable(options: CatalogOptions) -> None:
    unity = UnityCatalog(replace(options, uri="http://127.0.0.1:1"))
    with pytest.raises(CatalogUnavailable, match="could not reach the unity catalog"):
        unity.find(entry("towns").name)


@pytest.mark.parametrize(
    ("status", "body", "words"),
    [
        (503, b"<html>", "503 Service Unavailable"),
        (429, b'{"message": "slowly"}', "slowly"),
        (200, b"<html>", "its answer is not JSON"),
        (200, b"[1]", "its answer is not a JSON object"),
        (404, b"<html>", "404 Not Found"),
    ],
)
def test_an_answer_of_something_else_is_unavailable(
    options: CatalogOptions, status: int, body: bytes, words: str
) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Handler) as other:
        thread = threading.Thread(target=other.handle_request)
        thread.start()
        uri = f"http://127.0.0.1:{other.server_address[1]}"
        with pytest.raises(CatalogUnavailable, match=words):
            UnityCatalog(replace(options, uri=uri)).find(entry("towns").name)
        thread.join()


def test_a_redirect_takes_the_token_nowhere(options: CatalogOptions) -> None:
    seen: list[str | None] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.headers.get("Authorization"))
            self.send_error(404)

        def log_message(self, format: str, *arguments: object) -> None:
            return

    with HTTPServer(("127.0.0.1", 0), Elsewhere) as other:
        target = f"http://127.0.0.1:{other.server_address[1]}/"

        class Redirecting(Elsewhere):
            def do_GET(self) -> None:
                self.send_response(307)
                self.send_header("Location", target)
                self.send_header("Content-Length", "0")
                self.end_headers()

        with HTTPServer(("127.0.0.1", 0), Redirecting) as first:
            threads = [
                threading.Thread(target=each.serve_forever) for each in (other, first)
            ]
            for thread in threads:
                thread.start()
            uri = f"http://127.0.0.1:{first.server_address[1]}"
            try:
                with pytest.raises(CatalogUnavailable, match="redirects to another"):
                    UnityCatalog(replace(options, uri=uri)).find(entry("towns").name)
            finally:
                first.shutdown()
                other.shutdown()
                for thread in threads:
                    thread.join()
    assert seen == []


def test_a_table_that_is_not_allowed_is_refused_alone(
    server: UnityServer, options: CatalogOptions
) -> None:
    unity = UnityCatalog(options)
    server.forbidden.add("lake.public.towns")
    with pytest.raises(EntryRefused, match="does not allow the node to") as caught:
        unity.find(entry("towns").name)
    assert caught.value.sqlstate == "42501"
    assert caught.value.hint == (
        "Grant the rights in the catalog; SELECT pg_reload_conf() tries at once."
    )
    unity.create(entry("lakes"))
    assert list(server.tables) == ["lake.public.lakes"]


def test_an_entry_that_a_server_writes_otherwise_is_kept(
    server: UnityServer, options: CatalogOptions
) -> None:
    """Removing it and making it again would lose what was granted on it."""
    unity, wanted = UnityCatalog(options), entry("towns")
    unity.create(wanted)
    words = {"bigint": "LONG", "array<string>": "array< string >"}
    for column in server.tables["lake.public.towns"]["columns"]:
        column["name"] = column["name"].lower()
        column["type_text"] = words.get(column["type_text"], column["type_text"])
    found = unity.find(wanted.name)
    assert step_for(unity, wanted, found, ()) is EntryStep.KEEP
    for fields in ((FieldSpec("Id", "int"), *FIELDS[1:]), FIELDS[:3]):
        other = entry("towns", *fields)
        assert step_for(unity, other, found, ()) is EntryStep.CHANGE


def test_an_entry_comes_back_if_the_new_one_is_refused(
    server: UnityServer, options: CatalogOptions
) -> None:
    unity = UnityCatalog(options)
    unity.create(entry("towns"))
    table = server.tables["lake.public.towns"]
    table["comment"] = "all towns"
    table["columns"][0]["comment"] = "of the town"
    before = json.loads(json.dumps(table))
    found = unity.find(entry("towns").name)
    assert found is not None
    server.refused_columns.add("extra")
    changed = entry("towns", *FIELDS, FieldSpec("extra", "date"))
    with pytest.raises(EntryRefused, match="no such column, please"):
        unity.change(changed, found)
    assert server.tables["lake.public.towns"] == before
    server.refused_columns.clear()
    unity.change(changed, found)
    table = server.tables["lake.public.towns"]
    assert [c.get("comment") for c in table["columns"]] == ["of the town", *[None] * 4]


def test_what_a_command_prints_must_be_a_token(options: CatalogOptions) -> None:
    for command in ("true", "echo a b", "printf 'the\\nsecret'"):
        unity = UnityCatalog(replace(options, token="", command=command))
        with pytest.raises(CatalogUnavailable, match="its output is not a token"):
            unity.find(entry("towns").name)


def test_an_old_token_is_replaced_before_a_table_is_refused(
    server: UnityServer,
    options: CatalogOptions,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "token").write_text("the-secret")
    command = f"cat {tmp_path}/token"
    unity = UnityCatalog(replace(options, token="", command=command))
    assert unity.find(entry("towns").name) is None
    server.token = "another"
    (tmp_path / "token").write_text("another")
    monkeypatch.setattr("wal2lake.lake.catalogs.jsonservice._TOKEN_SECONDS", 0.0)
    assert unity.find(entry("towns").name) is None


@pytest.mark.parametrize(
    ("ddl", "name", "kind"),
    [
        ("int", "INT", "integer"),
        ("bigint", "LONG", "long"),
        ("smallint", "SHORT", "short"),
        ("timestamp_ntz", "TIMESTAMP_NTZ", "timestamp_ntz"),
        ("decimal(6,2)", "DECIMAL", "decimal(6,2)"),
        ("variant", "VARIANT", "variant"),
        ("no such type", "STRING", "string"),
    ],
)
def test_types_in_unitys_words(ddl: str, name: str, kind: str) -> None:
    column = unity_column(EntryColumn("a", ddl, False), 3)
    assert (column["type_name"], column["position"]) == (name, 3)
    assert json.loads(column["type_json"]) == {
        "name": "a",
        "type": kind,
        "nullable": False,
        "metadata": {},
    }
    assert column.get("type_precision") == (6 if name == "DECIMAL" else None)
