"""The section [catalog]: what goes together, and what no message shows."""

from __future__ import annotations

from pathlib import Path

import pytest

from wal2lake.errors import ConfigurationError
from wal2lake.settings import Settings, changes, load


def read(directory: Path, text: str) -> Settings:
    (directory / "wal2lake.toml").write_text(f"[catalog]\n{text}\n")
    return load(directory, {})


def test_no_catalog_is_the_default(tmp_path: Path) -> None:
    catalog = read(tmp_path, "").catalog
    assert (catalog.type, catalog.target) == ("none", "")


def test_glue_needs_nothing_more(tmp_path: Path) -> None:
    catalog = read(tmp_path, 'type = "glue"').catalog
    assert (catalog.shown, catalog.target) == ("glue", "glue||||")


def test_a_uri_is_one_of_the_type(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, 'type = "glue"\nuri = "thrift://h:9083"')
    assert (
        caught.value.hint == "For the catalog glue it begins with http:// or https://."
    )


def test_a_uri_has_no_password(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, 'type = "glue"\nuri = "https://me:pass@h/"')
    assert caught.value.hint == "Allowed is a URL without user and password."


def test_hive_needs_its_servers(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, 'type = "hive"')
    assert (
        str(caught.value) == 'parameter "catalog.uri" must be set for the catalog hive'
    )
    assert caught.value.hint == 'Set "uri" of [catalog], or "type" to none.'
    text = 'type = "hive"\nuri = "thrift://a:9083,thrift://b:9083"'
    assert (
        read(tmp_path, text).catalog.shown == "hive at thrift://a:9083,thrift://b:9083"
    )


def test_unity_needs_its_server_and_its_name(tmp_path: Path) -> None:
    for text, missing in (("", "uri"), ('uri = "http://h:8080"', "name")):
        with pytest.raises(ConfigurationError, match=f"catalog.{missing}"):
            read(tmp_path, f'type = "unity"\n{text}')


def test_a_token_and_a_command_exclude_each_other(tmp_path: Path) -> None:
    text = 'type = "unity"\nuri = "http://h:8080"\nname = "lake"\ntoken = "t"'
    assert read(tmp_path, text).catalog.token == "t"
    with pytest.raises(ConfigurationError) as caught:
        read(tmp_path, f'{text}\ncredentials_command = "c"')
    assert caught.value.hint == "Remove one of the two from [catalog]."


def test_the_token_is_on_no_command_line(tmp_path: Path) -> None:
    read(tmp_path, "")
    with pytest.raises(ConfigurationError, match="cannot be set on the command line"):
        load(tmp_path, {}, {"catalog.token": "t"})


def test_the_command_is_not_shown(tmp_path: Path) -> None:
    before = read(tmp_path, "")
    after = read(tmp_path, 'credentials_command = "echo secret"')
    (change,) = changes(before, after)
    assert (change.value, change.secret, change.restart) == (None, True, False)


def iceberg(directory: Path, text: str) -> Settings:
    (directory / "wal2lake.toml").write_text(f"[iceberg.catalog]\n{text}\n")
    return load(directory, {})


def test_an_iceberg_catalog_says_what_it_needs(tmp_path: Path) -> None:
    assert iceberg(tmp_path, "").iceberg_catalog.target == ""
    with pytest.raises(ConfigurationError) as caught:
        iceberg(tmp_path, 'type = "sql"\nuri = "sqlite:////x"')
    assert caught.value.hint == 'Set "name" of [iceberg.catalog], or "type" to none.'
    with pytest.raises(ConfigurationError) as caught:
        iceberg(tmp_path, 'type = "rest"\nuri = "thrift://h"')
    assert (
        caught.value.hint == "For the catalog rest it begins with http:// or https://."
    )


def test_an_iceberg_catalog_has_one_kind_of_credentials(tmp_path: Path) -> None:
    begins = 'type = "rest"\nuri = "http://h"\n'
    text = begins + 'token = "a"\ncredentials_command = "b"'
    with pytest.raises(ConfigurationError) as caught:
        iceberg(tmp_path, text)
    assert caught.value.hint == "Remove one of the two from [iceberg.catalog]."
    with pytest.raises(ConfigurationError) as caught:
        iceberg(tmp_path, begins + 'token = "a"\ncredential = "id:secret"')
    assert (
        caught.value.hint == "Remove all but one of the three from [iceberg.catalog]."
    )
    with pytest.raises(ConfigurationError) as caught:
        iceberg(tmp_path, begins + 'credential = "secret"')
    assert (
        caught.value.hint == "It is the id, a colon and the secret of an OAuth client."
    )
    assert "secret" not in caught.value.message
    settings = iceberg(tmp_path, begins + 'credential = "id:secret"')
    assert settings.iceberg_catalog.shown == "rest at http://h"
