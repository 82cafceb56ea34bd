"""SET, SHOW, RESET: values, scopes and what the client is told."""

from __future__ import annotations

import codecs
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from wal2lake.errors import Wal2LakeError
from wal2lake.pg import OUTPUT_SETTINGS
from wal2lake.pgtypes import zone_for
from wal2lake.settings import Settings
from wal2lake.sql.parameters import (
    ParameterContext,
    ParameterDefinition,
    ParameterKind,
    Parameters,
    convert_column,
    decode_text,
)
from wal2lake.sql.parameters.encodings import _CODECS, canonical_encoding
from wal2lake.sql.parameters.node import node_parameters


def test_a_node_accepts_what_another_node_sets_as_it_connects():
    parameters = Parameters()
    for name, value in OUTPUT_SETTINGS.items():
        parameters.set(name, value)
    shown = {name: parameters[name] for name in OUTPUT_SETTINGS}
    assert shown == {**OUTPUT_SETTINGS, "datestyle": "ISO, MDY"}


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("statement_timeout", "0", "0"),
        ("statement_timeout", "1000", "1s"),
        ("statement_timeout", " 90 s ", "90s"),
        ("statement_timeout", "1.5min", "90s"),
        ("statement_timeout", "120000ms", "2min"),
        ("statement_timeout", "1d", "1d"),
        ("statement_timeout", "0x10", "16ms"),
        ("work_mem", "1024", "1MB"),
        ("work_mem", "3000kB", "3000kB"),
        ("extra_float_digits", "-15", "-15"),
        ("random_page_cost", "1.1", "1.1"),
        ("random_page_cost", "0x10", "16"),
        ("jit_above_cost", "1e10", "1e+10"),
        ("geqo_seed", "  0.5 ", "0.5"),
        ("effective_cache_size", "10000", "80000kB"),
        ("effective_cache_size", "7GB", "7GB"),
        ("temp_buffers", "101", "808kB"),
        (
            "restrict_nonsystem_relation_kind",
            "view, foreign-table",
            "view, foreign-table",
        ),
        ("bytea_output", "ESCAPE", "escape"),
        ("synchronous_commit", "false", "off"),
        ("jit", "FALSE", "off"),
        ("jit", "y", "on"),
        ("DateStyle", "german", "German, DMY"),
        ("datestyle", "sql, european", "SQL, DMY"),
        ("datestyle", "ISO", "ISO, MDY"),
        ("timezone", "europe/berlin", "Europe/Berlin"),
        ("timezone", "utc", "UTC"),
        ("timezone", "-7", "<-07>+07"),
        ("timezone", "+05:30", "+05:30"),
        ("timezone", "1.5", "<+01:30>-01:30"),
        ("timezone", "GMT+02:00", "GMT+02:00"),
        ("client_encoding", "utf-8", "UTF8"),
        ("client_encoding", "iso-8859-1", "LATIN1"),
        ("client_encoding", "sql_ascii", "SQL_ASCII"),
        ("application_name", "ä\n" + "x" * 80, "\\xc3\\xa4\\x0a" + "x" * 51),
        ("wal2lake.anything", "x y", "x y"),
    ],
)
def test_a_value_is_shown_as_postgresql_shows_it(name, value, shown):
    parameters = Parameters()
    parameters.set(name, value)
    assert parameters[name] == shown
    parameters.set(name, parameters[name])
    assert parameters[name] == shown


@pytest.mark.parametrize(
    ("name", "value", "sqlstate", "message"),
    [
        ("nosuch", "1", "42704", 'unrecognized configuration parameter "nosuch"'),
        ("jit", "maybe", "22023", 'parameter "jit" requires a Boolean value'),
        (
            "statement_timeout",
            "5 parsecs",
            "22023",
            'invalid value for parameter "statement_timeout": "5 parsecs"',
        ),
        (
            "statement_timeout",
            "-1",
            "22023",
            '-1 ms is outside the valid range for parameter "statement_timeout" '
            "(0 ms .. 2147483647 ms)",
        ),
        (
            "extra_float_digits",
            "4",
            "22023",
            '4 is outside the valid range for parameter "extra_float_digits" (-15 .. 3)',
        ),
        (
            "bytea_output",
            "no",
            "22023",
            'invalid value for parameter "bytea_output": "no"',
        ),
        (
            "timezone",
            "Nowhere/Land",
            "22023",
            'invalid value for parameter "TimeZone": "Nowhere/Land"',
        ),
        (
            "timezone",
            "../../etc/passwd",
            "22023",
            'invalid value for parameter "TimeZone": "../../etc/passwd"',
        ),
        ("timezone", "", "22023", 'invalid value for parameter "TimeZone": ""'),
        (
            "timezone",
            "XYZ+24",
            "22023",
            'invalid value for parameter "TimeZone": "XYZ+24"',
        ),
        (
            "datestyle",
            "ISO, SQL",
            "22023",
            'invalid value for parameter "DateStyle": "ISO, SQL"',
        ),
        (
            "client_encoding",
            "klingon",
            "22023",
            'invalid value for parameter "client_encoding": "klingon"',
        ),
        (
            "seq_page_cost",
            "-1",
            "22023",
            '-1 is outside the valid range for parameter "seq_page_cost"'
            " (0 .. 1.79769e+308)",
        ),
        (
            "random_page_cost",
            "1.1x",
            "22023",
            'invalid value for parameter "random_page_cost": "1.1x"',
        ),
        (
            "seq_page_cost",
            "1e400",
            "22023",
            'invalid value for parameter "seq_page_cost": "1e400"',
        ),
        (
            "restrict_nonsystem_relation_kind",
            "x",
            "22023",
            'invalid value for parameter "restrict_nonsystem_relation_kind": "x"',
        ),
        (
            "server_version",
            "9",
            "55P02",
            'parameter "server_version" cannot be changed',
        ),
        (
            "standard_conforming_strings",
            "off",
            "0A000",
            '"standard_conforming_strings" cannot be set to off',
        ),
        ("array_nulls", "off", "0A000", '"array_nulls" cannot be set to off'),
        (
            "1a.b",
            "x",
            "42602",
            'invalid configuration parameter name "1a.b"',
        ),
    ],
)
def test_a_bad_value_is_refused_in_postgresqls_words(name, value, sqlstate, message):
    parameters = Parameters()
    before = dict(parameters.items())
    with pytest.raises(Wal2LakeError) as caught:
        parameters.set(name, value)
    assert (caught.value.sqlstate, caught.value.message) == (sqlstate, message)
    assert dict(parameters.items()) == before


@pytest.mark.parametrize(
    ("value", "hours_east"),
    [
        ("UTC", 0),
        ("-7", -7),
        ("5.5", 5.5),
        ("+5", 5),
        ("+05:30", -5.5),
        ("-05:30", 5.5),
        ("<+05:30>-05:30", 5.5),
        ("GMT+02:00", -2),
        ("XYZ-3", 3),
    ],
)
def test_a_time_zone_is_what_postgresql_takes_it_for(value, hours_east):
    parameters = Parameters()
    parameters.set("timezone", value)
    offset = zone_for(parameters["timezone"])[1].utcoffset(None)
    assert offset == timedelta(hours=hours_east)


def test_set_is_undone_by_rollback_and_kept_by_commit():
    parameters = Parameters()
    parameters.set("TimeZone", "Asia/Tokyo")
    parameters.rollback()
    assert parameters["TimeZone"] == "UTC"
    parameters.set("TimeZone", "Asia/Tokyo")
    parameters.commit()
    parameters.rollback()
    assert parameters["TimeZone"] == "Asia/Tokyo"


def test_set_local_ends_with_the_transaction_and_leaves_the_set_before_it():
    parameters = Parameters()
    parameters.set("work_mem", "1MB")
    parameters.set("work_mem", "2MB", local=True)
    assert parameters["work_mem"] == "2MB"
    parameters.commit()
    assert parameters["work_mem"] == "1MB"
    parameters.set("work_mem", "3MB", local=True)
    parameters.set("work_mem", "4MB")
    parameters.commit()
    assert parameters["work_mem"] == "4MB"


def test_reset_returns_to_what_the_startup_packet_said():
    parameters = Parameters()
    parameters.set_at_startup("application_name", "psql")
    parameters.set("application_name", "other")
    parameters.reset("application_name")
    assert parameters["application_name"] == "psql"
    parameters.set("TimeZone", "Asia/Tokyo")
    parameters.set("my.own", "x")
    parameters.reset_all()
    assert parameters["TimeZone"] == "UTC"
    assert parameters["my.own"] == ""


def test_a_transactions_mode_is_the_default_until_it_is_set():
    parameters = Parameters()
    parameters.set("default_transaction_isolation", "serializable")
    assert parameters["transaction_isolation"] == "serializable"
    parameters.set("transaction_isolation", "read committed", local=True)
    assert parameters["transaction_isolation"] == "read committed"
    parameters.commit()
    assert parameters["transaction_isolation"] == "serializable"


def test_the_client_is_told_everything_once_and_then_changes():
    parameters = Parameters(facts={"is_superuser": "on"})
    told = dict(parameters.changes())
    assert told == {
        "application_name": "",
        "client_encoding": "UTF8",
        "DateStyle": "ISO, MDY",
        "default_transaction_read_only": "off",
        "in_hot_standby": "off",
        "integer_datetimes": "on",
        "IntervalStyle": "postgres",
        "is_superuser": "on",
        "scram_iterations": "4096",
        "search_path": '"$user", public',
        "server_encoding": "UTF8",
        "server_version": "18.0",
        "session_authorization": "",
        "standard_conforming_strings": "on",
        "TimeZone": "UTC",
    }
    assert parameters.changes() == []
    parameters.set("timezone", "Asia/Tokyo")
    parameters.set("work_mem", "1MB")
    assert parameters.changes() == [("TimeZone", "Asia/Tokyo")]
    parameters.rollback()
    assert parameters.changes() == [("TimeZone", "UTC")]


# What pg_dump 18, pg_restore, psqlODBC, pgjdbc, asyncpg and libpq's environment SET at connect.
SET_AT_CONNECT = (
    ("DATESTYLE", "ISO"),
    ("INTERVALSTYLE", "POSTGRES"),
    ("extra_float_digits", "3"),
    ("synchronize_seqscans", "off"),
    ("statement_timeout", "0"),
    ("lock_timeout", "0"),
    ("idle_in_transaction_session_timeout", "0"),
    ("transaction_timeout", "0"),
    ("quote_all_identifiers", "true"),
    ("row_security", "off"),
    ("restrict_nonsystem_relation_kind", "view, foreign-table"),
    ("client_encoding", "UTF8"),
    ("standard_conforming_strings", "on"),
    ("search_path", ""),
    ("check_function_bodies", "false"),
    ("xmloption", "content"),
    ("client_min_messages", "warning"),
    ("escape_string_warning", "off"),
    ("default_tablespace", ""),
    ("default_toast_compression", "pglz"),
    ("default_table_access_method", "heap"),
    ("bytea_output", "escape"),
    ("application_name", "it"),
    ("jit", "off"),
    ("geqo", "off"),
    ("enable_seqscan", "off"),
    ("max_parallel_workers_per_gather", "0"),
    ("maintenance_work_mem", "1GB"),
    ("plan_cache_mode", "force_custom_plan"),
)


@pytest.mark.parametrize(("name", "value"), SET_AT_CONNECT)
def test_what_clients_set_at_connect_is_known(name, value):
    parameters = Parameters()
    parameters.set(name, value)
    otherwise = {
        "ISO": "ISO, MDY",
        "POSTGRES": "postgres",
        "true": "on",
        "false": "off",
    }
    assert parameters[name] == otherwise.get(value, value)


def test_a_session_has_its_own_value_of_a_node_setting_until_it_is_reset():
    setting = Settings(Path("/node"))
    parameters = Parameters(node=lambda: node_parameters(setting))
    assert parameters["wal_sender_timeout"] == "1min"
    parameters.set("wal_sender_timeout", "5min")
    parameters.rollback()
    assert parameters["wal_sender_timeout"] == "1min"
    parameters.set("wal_sender_timeout", "5min")
    parameters.set("logical_decoding_work_mem", "1MB")
    parameters.commit()
    assert parameters.number("wal_sender_timeout") == 300_000
    assert parameters.number("logical_decoding_work_mem") == 1024
    setting = replace(
        setting, publish=replace(setting.publish, wal_sender_timeout_ms=7)
    )
    assert parameters["wal_sender_timeout"] == "5min"
    parameters.reset_all()
    assert parameters["wal_sender_timeout"] == "7ms"
    assert parameters["logical_decoding_work_mem"] == "64MB"
    parameters.set_at_startup("wal_sender_timeout", "2s")
    parameters.set("wal_sender_timeout", "0")
    parameters.reset("wal_sender_timeout")
    assert parameters["wal_sender_timeout"] == "2s"
    assert parameters.reset_value("wal_sender_timeout") == "2s"


def test_the_nodes_own_settings_are_shown_and_not_set():
    port = ParameterDefinition(
        "port", ParameterKind.INTEGER, "5480", "The port.", ParameterContext.POSTMASTER
    )
    parameters = Parameters(node=lambda: [port])
    assert parameters["port"] == "5480"
    assert "port" in list(parameters)
    with pytest.raises(Wal2LakeError, match="without restarting the server"):
        parameters.set("port", "1")


def test_a_node_shows_the_replication_settings_of_postgresql(tmp_path):
    settings = Settings(tmp_path)
    parameters = Parameters(node=lambda: node_parameters(settings))
    workers = str(settings.subscription.max_logical_replication_workers)
    shown = {
        "max_worker_processes": workers,
        "max_parallel_apply_workers_per_subscription": "0",
        "max_active_replication_origins": "65534",
        "sync_replication_slots": "off",
        "synchronized_standby_slots": "",
    }
    assert {name: parameters[name] for name in shown} == shown


def test_a_superuser_chooses_whether_replication_commands_are_logged():
    boss = Parameters(facts={"is_superuser": "on"})
    boss.set_at_startup("log_replication_commands", "true")
    boss.set("log_replication_commands", "off")
    boss.reset_all()
    assert boss["log_replication_commands"] == "on"
    other = Parameters()
    for change in (
        lambda: other.set_at_startup("log_replication_commands", "on"),
        lambda: other.set("log_replication_commands", "on"),
        lambda: other.reset("log_replication_commands"),
    ):
        with pytest.raises(Wal2LakeError) as caught:
            change()
        assert (caught.value.sqlstate, caught.value.message) == (
            "42501",
            'permission denied to set parameter "log_replication_commands"',
        )
    other.reset_all()
    assert other["log_replication_commands"] == "off"


def test_custom_parameters_are_bounded():
    parameters = Parameters()
    with pytest.raises(Wal2LakeError, match="custom parameters"):
        for number in range(2000):
            parameters.set(f"a.b{number}", "x")


@pytest.mark.parametrize("encoding", sorted(_CODECS))
def test_every_client_encoding_is_a_superset_of_ascii(encoding):
    ascii_bytes = bytes(range(1, 128))
    assert codecs.decode(ascii_bytes, _CODECS[encoding]) == ascii_bytes.decode("ascii")
    assert codecs.encode(ascii_bytes.decode(), _CODECS[encoding]) == ascii_bytes
    assert canonical_encoding(encoding.lower().replace("_", "-")) == encoding


def test_values_are_converted_or_refused():
    assert convert_column([b"a", None, "é".encode()], "LATIN1") == [b"a", None, b"\xe9"]
    with pytest.raises(Wal2LakeError) as caught:
        convert_column(["€".encode()], "LATIN1")
    assert caught.value.sqlstate == "22P05"
    assert caught.value.message == (
        'character with byte sequence 0xe2 0x82 0xac in encoding "UTF8" has no '
        'equivalent in encoding "LATIN1"'
    )


def test_bytes_that_are_no_text_are_refused():
    assert decode_text(b"\xe9", "LATIN1") == "é"
    with pytest.raises(Wal2LakeError) as caught:
        decode_text(b"a\xff", "UTF8")
    assert caught.value.sqlstate == "22021"
    assert caught.value.message == 'invalid byte sequence for encoding "UTF8": 0xff'


def test_the_port_is_the_one_that_the_node_listens_on():
    setting = Settings(Path("/node"))
    chosen = Parameters(node=lambda: node_parameters(setting, 40_001))
    assert chosen["port"] == "40001"
    given = Parameters(node=lambda: node_parameters(setting))
    assert given["port"] == str(setting.node.port)
