"""Settings: every source, every check, and the default file."""

from __future__ import annotations

import contextlib
import re
import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wal2lake.errors import ConfigurationError
from wal2lake.settings import (
    FILE_NAME,
    Settings,
    changes,
    fixed_at_start,
    load,
    parameter_names,
    render_default_toml,
)
from wal2lake.settings.sections import SECTIONS


def write(directory: Path, text: str) -> Path:
    (directory / FILE_NAME).write_text(text)
    return directory


def refused(directory: Path, environ=None, overrides=None) -> ConfigurationError:
    with pytest.raises(ConfigurationError) as caught:
        load(directory, environ or {}, overrides)
    return caught.value


def test_the_default_file_gives_the_defaults(tmp_path):
    found = load(write(tmp_path, render_default_toml()), {})
    assert found == Settings(directory=tmp_path)


def test_the_default_file_shows_every_setting_with_its_unit_and_default():
    text = render_default_toml()
    uncommented = re.sub(r"^# (\w+ = )", r"\1", text, flags=re.MULTILINE)
    shown = {}
    document = tomllib.loads(uncommented)
    document["iceberg.catalog"] = document["iceberg"].pop("catalog")
    for section, table in document.items():
        shown.update({f"{section}.{key}": value for key, value in table.items()})
    tables = {"spark.conf", "iceberg.reader_properties"}
    assert set(shown) == set(parameter_names()) - tables
    defaults = Settings(directory=Path("/"))
    for name, value in shown.items():
        section, _, key = name.rpartition(".")
        assert getattr(defaults.section(section), key) == value
    assert all(f"# [{name}]" in text for name in tables)
    assert "(milliseconds, 1 to 2147483647, default 250)" in text.replace("\n# ", " ")


def test_a_section_in_a_section_is_read_from_every_source(tmp_path):
    text = '[iceberg]\ninterval_ms = 2000\n[iceberg.catalog]\nprefix = "lake_"\n'
    environ = {
        "WAL2LAKE_ICEBERG_CATALOG_TYPE": "glue",
        "WAL2LAKE_ICEBERG_FORMAT_VERSION": "2",
    }
    overrides = {"iceberg.catalog.region": "eu-central-1"}
    settings = load(write(tmp_path, text), environ, overrides)
    assert (settings.iceberg.interval_ms, settings.iceberg.format_version) == (2000, 2)
    catalog = settings.iceberg_catalog
    assert catalog.target == "glue||eu-central-1||lake_"
    (change,) = changes(settings, load(write(tmp_path, ""), environ, overrides))[1:]
    assert change.name == "iceberg.catalog.prefix"


def test_an_unknown_setting_of_a_section_in_a_section_is_refused(tmp_path):
    error = refused(write(tmp_path, "[iceberg.catalog]\nurl = 'x'\n"))
    assert '"iceberg.catalog.url"' in error.message
    assert error.hint is not None
    assert 'Perhaps you meant "iceberg.catalog.uri"' in error.hint


def test_every_setting_has_a_sentence_and_a_range_that_holds_its_default():
    for section, kind in SECTIONS.items():
        for f in fields(kind):
            assert f.metadata["doc"].rstrip("'").endswith("."), f"{section}.{f.name}"
            if f.type == "int":
                assert f.metadata["minimum"] <= f.default <= f.metadata["maximum"]
            if f.metadata["choices"]:
                assert f.default in f.metadata["choices"]


def test_later_sources_win(tmp_path):
    write(tmp_path, "[node]\nport = 1001\nmax_connections = 7\n")
    environ = {"WAL2LAKE_NODE_PORT": "1002", "WAL2LAKE_LOG_SEGMENT_INTERVAL_MS": "9"}
    assert load(tmp_path, {}).node.port == 1001
    assert load(tmp_path, environ).node.port == 1002
    found = load(tmp_path, environ, {"node.port": "1003"})
    assert (found.node.port, found.node.max_connections) == (1003, 7)
    assert found.log.segment_interval_ms == 9


def test_what_is_fixed_at_the_start_stays_whatever_the_file_says_later(tmp_path):
    path = tmp_path / FILE_NAME
    path.write_text('[spark.conf]\n"a.b" = "c \\"d\\""\n[log]\ndirectory = "l"\n')
    first = load(tmp_path, {})
    fixed = fixed_at_start(first)
    assert load(tmp_path, fixed) == first
    path.write_text('[log]\ndirectory = "m"\nsegment_interval_ms = 77\n')
    later = load(tmp_path, fixed)
    assert (later.log_directory, later.spark.conf) == (tmp_path / "l", {"a.b": 'c "d"'})
    assert [(c.name, c.restart) for c in changes(first, load(tmp_path, {}))] == [
        ("log.directory", True),
        ("log.segment_interval_ms", False),
        ("spark.conf", True),
    ]
    assert changes(first, later)[0].receivers


def test_paths_default_to_the_directory_and_urls_stay(tmp_path):
    found = load(write(tmp_path, ""), {})
    assert found.log_directory == tmp_path / "log"
    assert found.warehouse == str(tmp_path / "warehouse")
    write(tmp_path, '[spark]\nwarehouse = "s3a://b/w/"\n[log]\ndirectory = "/x"')
    found = load(tmp_path, {})
    assert found.log_directory == Path("/x")
    assert found.warehouse == "s3a://b/w"


def test_a_file_url_is_its_path(tmp_path):
    text = (
        '[spark]\nwarehouse = "file:///a%20b/w/"\n[log]\ndirectory = "file:///a%20b/l"'
    )
    found = load(write(tmp_path, text), {})
    assert found.warehouse == "/a b/w"
    assert found.log_directory == Path("/a b/l")
    assert found.exchange_directory == tmp_path / "run"
    for url in ("s3a://b/log", "file://elsewhere/log"):
        with pytest.raises(ConfigurationError, match=r"log\.directory") as caught:
            load(write(tmp_path, f'[log]\ndirectory = "{url}"'), {})
        assert "mounted" in str(caught.value.detail)


def test_a_cluster_wants_log_and_warehouse_in_a_place_of_all(tmp_path):
    cluster = '[spark]\nmaster = "spark://m:7077"\n'
    for text, missing in (
        ("", "log.directory"),
        ('warehouse = "/s/w"\n', "log.directory"),
        ('[log]\ndirectory = "/s/l"\n', "spark.warehouse"),
    ):
        with pytest.raises(ConfigurationError, match=missing):
            load(write(tmp_path, cluster + text), {})
    text = f'{cluster}warehouse = "/s/w"\n[log]\ndirectory = "/s/l"\n'
    found = load(write(tmp_path, text), {})
    assert not found.spark.is_local
    assert found.exchange_directory == Path("/s/l/spark")
    assert found.executors_store is None


def test_a_cluster_reads_the_log_in_an_object_store(tmp_path):
    cluster = '[spark]\nmaster = "spark://m:7077"\n'
    for text, store in (
        ('warehouse = "s3://b/w"\n', "s3://b/w-log"),
        ('warehouse = "s3://b/w"\n[log]\nstore = "s3://b/l"\n', "s3://b/l"),
        ('warehouse = "/s/w"\n[log]\nstore = "s3://b/l"\n', "s3://b/l"),
    ):
        found = load(write(tmp_path, cluster + text), {})
        assert found.executors_store == found.log_store == store
        assert found.exchange_directory == tmp_path / "run"
    # The root of a bucket has no place beside it, and a directory may be the node's alone.
    for text in (
        'warehouse = "s3://b"\n',
        'warehouse = "/s/w"\n[log]\nstore = "/s/l"\n',
    ):
        with pytest.raises(ConfigurationError, match=r"log\.directory"):
            load(write(tmp_path, cluster + text), {})
    alone = load(write(tmp_path, '[spark]\nwarehouse = "s3://b/w"\n'), {})
    assert alone.executors_store is None
    assert alone.log_store is None


def test_spark_properties_pass_through_however_they_are_quoted(tmp_path):
    write(
        tmp_path,
        '[spark.conf]\n"spark.a.b" = "1"\nspark.c.d = 2\n"spark.e" = true\n',
    )
    wanted = {"spark.a.b": "1", "spark.c.d": "2", "spark.e": "true"}
    assert dict(load(tmp_path, {}).spark.conf) == wanted
    environ = {"WAL2LAKE_SPARK_CONF": '{ "spark.x" = "y" }'}
    assert dict(load(tmp_path, environ).spark.conf) == {"spark.x": "y"}


def test_variables_that_are_no_settings_are_left_alone(tmp_path):
    environ = {"WAL2LAKE_FAILPOINTS": "/x", "WAL2LAKE_LISTEN_FD": "3", "PATH": "y"}
    assert load(write(tmp_path, ""), environ) == Settings(directory=tmp_path)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        (
            "[node]\nprot = 1",
            'unrecognized configuration parameter "node.prot" in file',
            'Perhaps you meant "node.port". Allowed are: node.listen_addresses,',
        ),
        ("[nod]\n", 'unrecognized section "nod" in file', 'you meant "node"'),
        ("port = 1", 'unrecognized section "port" in file', "The sections are: node"),
        (
            "[node]\nport = 70000",
            '70000 is outside the valid range for parameter "node.port" (0 .. 65535)',
            "from 0 to 65535",
        ),
        (
            '[node]\nport = "x"',
            'invalid value for parameter "node.port" in file',
            "a whole number from 0 to 65535",
        ),
        ("[node]\nport = true", 'invalid value for parameter "node.port"', "number"),
        ("[node]\nport = 1.5", 'invalid value for parameter "node.port"', "number"),
        (
            '[node]\nauthentication = "md5"',
            'invalid value for parameter "node.authentication"',
            "Allowed is scram-sha-256 or trust.",
        ),
        (
            "[spark]\nmaster = 3",
            'invalid value for parameter "spark.master"',
            "text in quotes",
        ),
        (
            '[spark]\ndriver_memory = "2 gigs"',
            'invalid value for parameter "spark.driver_memory"',
            "a number followed by k, m, g or t",
        ),
        ("[spark]\nconf = 3", 'invalid value for parameter "spark.conf"', "a table"),
        (
            "[spark.conf]\na = [1]",
            'invalid value for parameter "spark.conf.a"',
            "a table of texts",
        ),
        ("[node\n", "syntax error in file", "Write text in quotes"),
        # At a reload, these two ended the node.
        (f"x = {'[' * 5000}", "syntax error in file", "Write text in quotes"),
        (f"x = {'1' * 5000}", "syntax error in file", "Write text in quotes"),
    ],
)
def test_a_bad_file_is_refused_with_what_is_allowed(tmp_path, text, message, hint):
    error = refused(write(tmp_path, text))
    assert error.message.startswith(message)
    assert str(tmp_path / FILE_NAME) in error.message
    assert hint in (error.hint or "")


def test_bad_variables_and_overrides_name_their_source(tmp_path):
    write(tmp_path, "")
    error = refused(tmp_path, {"WAL2LAKE_NODE_PRT": "1"})
    assert "in environment variable WAL2LAKE_NODE_PRT" in error.message
    error = refused(tmp_path, {"WAL2LAKE_NODE_PORT": "one"})
    assert "in environment variable WAL2LAKE_NODE_PORT: 'one'" in error.message
    error = refused(tmp_path, {}, {"node.port": "-1"})
    assert "(0 .. 65535) in the command line" in error.message
    error = refused(tmp_path, {}, {"nothing": "1"})
    assert 'parameter "nothing" in the command line' in error.message


SECRET = "S3CRET"
SECRETS = [
    ("alerts.webhook_url", f'"ftp://u:{SECRET}@h"', f'"https://u:{SECRET}@h/x"'),
    ("alerts.command", "[5, 31415]", f'"curl -H {SECRET} h"'),
    ("store.access_key_id", "31415", None),
    ("store.secret_access_key", "31415", None),
    ("store.credentials_command", f'"{SECRET}\\nx"', f'"vault {SECRET}"'),
    ("spark.conf", f'{{ "fs.key" = "{SECRET}", a = [1] }}', f'{{ k = "{SECRET}" }}'),
]
"""Settings that no message shows: a value that is refused, and another one that is not."""


@pytest.mark.parametrize(("name", "wrong", "right"), SECRETS)
def test_no_message_shows_a_secret(tmp_path, name, wrong, right):
    section, _, key = name.partition(".")
    error = refused(write(tmp_path, f"[{section}]\n{key} = {wrong}\n"))
    assert name in error.message and error.message.endswith(": (not shown)")
    assert SECRET not in error.describe() and "31415" not in error.describe()
    if right is None:
        return
    before = load(write(tmp_path, ""), {})
    after = load(write(tmp_path, f"[{section}]\n{key} = {right}\n"), {})
    (change,) = changes(before, after)
    assert change.name == name and change.secret and SECRET not in repr(change)


def test_a_change_that_is_no_secret_has_its_value(tmp_path):
    before = load(write(tmp_path, ""), {})
    after = load(write(tmp_path, "[log]\nsegment_interval_ms = 77\n"), {})
    (change,) = changes(before, after)
    assert (change.value, change.secret) == (77, False)


@pytest.mark.parametrize("key", ["webhook_url", "command"])
def test_settings_of_alerts_may_be_on_the_command_line(tmp_path, key):
    found = load(write(tmp_path, ""), {}, {f"alerts.{key}": "https://h/x"})
    assert getattr(found.alerts, key) == "https://h/x"


def test_a_directory_without_settings_is_not_a_node(tmp_path):
    error = refused(tmp_path)
    assert "could not access the server configuration file" in error.message
    assert f"wal2lake init -D {tmp_path}" in (error.hint or "")


@given(st.text(max_size=60))
def test_any_text_is_settings_or_a_configuration_error(tmp_path_factory, text):
    directory = tmp_path_factory.getbasetemp()
    (directory / FILE_NAME).write_text(text, encoding="utf-8", errors="replace")
    with contextlib.suppress(ConfigurationError):
        assert load(directory, {}).directory == directory
