"""Type names, mappings and result types: the tables of pgtypes."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wal2lake.errors import (
    SqlSyntaxError,
    UndefinedObjectError,
    UsageError,
    Wal2LakeError,
)
from wal2lake.model import Oid
from wal2lake.pgtypes import (
    BUILT_IN,
    ConversionKind,
    arrow_from_ddl,
    ddl_from_arrow,
    format_type,
    mapping_for,
    numeric_precision_scale,
    numeric_typmod,
    parse_type_name,
    result_type,
    type_by_name,
    zone_for,
)


@pytest.mark.parametrize("oid", [o for o, t in BUILT_IN.items() if t.kind != "p"])
def test_every_type_can_be_spelled_as_it_is_printed(oid: int) -> None:
    if BUILT_IN[oid].name in ("_cstring",):
        return
    assert parse_type_name(format_type(oid, -1))[0] == oid


@settings(deadline=None)
@given(st.integers(1, 1000), st.integers(-1000, 1000))
def test_numeric_modifiers_pack_and_unpack(precision: int, scale: int) -> None:
    assert numeric_precision_scale(numeric_typmod(precision, scale)) == (
        precision,
        scale,
    )


@settings(deadline=None)
@given(st.text(max_size=30))
def test_any_text_is_a_type_or_a_clear_error(text: str) -> None:
    try:
        oid, typmod = parse_type_name(text)
    except Wal2LakeError as error:
        assert error.sqlstate in ("42601", "42704", "22023", "0A000")
    else:
        assert oid in BUILT_IN
        assert typmod >= -1


def test_a_syntax_error_points_at_its_place() -> None:
    with pytest.raises(SqlSyntaxError) as caught:
        parse_type_name("varchar(x)")
    assert caught.value.position == 9


def test_serial_is_a_word_of_column_definitions_and_no_type() -> None:
    with pytest.raises(UndefinedObjectError, match='type "bigserial" does not exist'):
        parse_type_name("bigserial")


DEFAULTS = {
    "boolean": "BOOLEAN",
    "smallint": "SMALLINT",
    "integer": "INT",
    "bigint": "BIGINT",
    "real": "FLOAT",
    "double precision": "DOUBLE",
    "date": "DATE",
    "timestamp(3)": "TIMESTAMP_NTZ",
    "timestamptz": "TIMESTAMP",
    "text": "STRING",
    "varchar(3)": "STRING",
    "char(3)": "STRING",
    "name": "STRING",
    '"char"': "STRING",
    "bytea": "BINARY",
    "uuid": "STRING",
    "numeric(10,2)": "DECIMAL(10,2)",
    "numeric(38,38)": "DECIMAL(38,38)",
    "numeric(39,2)": "STRING",
    "numeric(3,-2)": "STRING",
    "numeric(2,5)": "STRING",
    "numeric": "STRING",
    "json": "STRING",
    "jsonb": "STRING",
    "time": "STRING",
    "interval": "STRING",
    "inet": "STRING",
    "int4range": "STRING",
    "oid": "STRING",
    "money": "STRING",
    "int[]": "ARRAY<INT>",
    "numeric(4,1)[]": "ARRAY<DECIMAL(4,1)>",
    "timestamptz[]": "ARRAY<TIMESTAMP>",
    "json[]": "ARRAY<STRING>",
}


@pytest.mark.parametrize(("name", "ddl"), DEFAULTS.items())
def test_each_type_has_its_default_mapping(name: str, ddl: str) -> None:
    oid, typmod = parse_type_name(name)
    found = mapping_for(oid, typmod)
    assert found.spark_ddl == ddl
    assert arrow_from_ddl(ddl) == found.arrow_type
    assert pickle.loads(pickle.dumps(found)) == found
    assert found.lossless_text == (ddl == "STRING" and found.note is not None)


def test_types_of_the_user_are_text_except_hstore() -> None:
    assert mapping_for(90001, type_name="public.mood").lossless_text
    assert mapping_for(90001).spark_ddl == "STRING"
    assert (
        mapping_for(90001, type_name="public.hstore").spark_ddl == "MAP<STRING,STRING>"
    )
    citext = mapping_for(90001, type_name="citext")
    assert (citext.kind, citext.lossless_text) == (ConversionKind.TEXT, False)


def test_an_array_declared_with_several_dimensions_is_text() -> None:
    assert mapping_for(1007, attndims=1).spark_ddl == "ARRAY<INT>"
    assert mapping_for(1007, attndims=2).spark_ddl == "STRING"


@pytest.mark.parametrize(
    ("name", "overrides", "ddl"),
    [
        ("numeric", {"numeric": "decimal(38,10)"}, "DECIMAL(38,10)"),
        ("numeric", {"decimal": "double"}, "DOUBLE"),
        ("numeric(10,2)", {"numeric(9,2)": "string"}, "DECIMAL(10,2)"),
        ("numeric(10,2)", {"numeric": "double", "numeric(10,2)": "string"}, "STRING"),
        ("numeric[]", {"numeric": "decimal(20,0)"}, "ARRAY<DECIMAL(20,0)>"),
        ("int[]", {"int[]": "string"}, "STRING"),
        ("oid", {"oid": "bigint"}, "BIGINT"),
        ("timestamptz", {"timestamp with time zone": "string"}, "STRING"),
        ("integer", {"bigint": "string", "mood": "string"}, "INT"),
    ],
)
def test_an_override_replaces_the_default(
    name: str, overrides: dict[str, str], ddl: str
) -> None:
    assert mapping_for(*parse_type_name(name), overrides=overrides).spark_ddl == ddl


@pytest.mark.parametrize(
    ("name", "ddl"),
    [("text", "int"), ("numeric", "float"), ("date", "timestamp"), ("int[]", "int")],
)
def test_an_impossible_override_is_refused(name: str, ddl: str) -> None:
    with pytest.raises(UsageError, match="cannot be stored as"):
        mapping_for(*parse_type_name(name), overrides={name: ddl})


def test_an_unknown_spark_type_is_refused() -> None:
    with pytest.raises(UndefinedObjectError, match="VARIANT"):
        mapping_for(3802, overrides={"jsonb": "VARIANT"})


@pytest.mark.parametrize(
    ("ddl", "oid", "typmod"),
    [
        ("BIGINT", 20, -1),
        ("decimal(10,2)", 1700, numeric_typmod(10, 2)),
        ("STRING", 25, -1),
        ("ARRAY<INT>", 1007, -1),
        ("array<decimal(4,1)>", 1231, numeric_typmod(4, 1)),
        ("DOUBLE", 701, -1),
        ("float", 700, -1),
        ("tinyint", 21, -1),
        ("DATE", 1082, -1),
        ("timestamp", 1184, -1),
        ("timestamp_ntz", 1114, -1),
        ("binary", 17, -1),
        ("void", 25, -1),
        ("map<string,int>", 25, -1),
        ("array<array<int>>", 25, -1),
        ("struct<a:int,`b c`:array<map<string,decimal(3,1)>>>", 2249, -1),
        ("interval day to second", 1186, -1),
        ("varchar(20)", 25, -1),
    ],
)
def test_a_result_without_metadata_gets_postgresqls_type(
    ddl: str, oid: int, typmod: int
) -> None:
    assert result_type(ddl) == (Oid(oid), typmod)
    assert result_type(arrow_from_ddl(ddl)) == (Oid(oid), typmod)


_DDL = st.recursive(
    st.sampled_from(
        [
            "INT",
            "STRING",
            "DECIMAL(10,2)",
            "TIMESTAMP",
            "TIMESTAMP_NTZ",
            "BINARY",
            "VOID",
        ]
    ),
    lambda inner: (
        inner.map(lambda d: f"ARRAY<{d}>")
        | st.tuples(inner.filter(lambda d: d != "VOID"), inner).map(
            lambda d: f"MAP<{d[0]},{d[1]}>"
        )
        | st.lists(inner, min_size=1, max_size=3).map(
            lambda ds: (
                "STRUCT<" + ",".join(f"`f, <{n}`:{d}" for n, d in enumerate(ds)) + ">"
            )
        )
    ),
    max_leaves=5,
)


@settings(deadline=None)
@given(_DDL)
def test_spark_types_survive_the_way_through_arrow(ddl: str) -> None:
    assert ddl_from_arrow(arrow_from_ddl(ddl)) == ddl


def test_time_zones_are_named_as_postgresql_names_them() -> None:
    assert zone_for("europe/berlin")[0] == "Europe/Berlin"
    assert zone_for("UTC")[0] == "UTC"
    assert zone_for("-7")[0] == "<-07>+07"
    assert zone_for("5.5")[0] == "<+05:30>-05:30"
    for wrong in ("Mars/Olympus", "", "../etc/passwd", "99", "EST5EDT4,M3.2.0,M11.1.0"):
        with pytest.raises(UsageError, match="TimeZone"):
            zone_for(wrong)


def test_array_types_know_their_elements() -> None:
    box = type_by_name("_box")
    assert box is not None
    assert (box.delimiter, BUILT_IN[box.element_oid].name) == (";", "box")
    assert type_by_name("integer") is None
    assert isinstance(mapping_for(1007).arrow_type, pa.ListType)
