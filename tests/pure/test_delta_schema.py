"""Types of a Delta schema and their DDL, beside PySpark's own reading of both."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from wal2lake.errors import UndefinedObjectError
from wal2lake.lake.delta.fields import metadata_of, read_field
from wal2lake.lake.delta.schema import ddl_of, field_json, json_of
from wal2lake.lake.port import FieldSpec
from wal2lake.model import Domain, Oid

_PLAIN = st.sampled_from(
    [
        BinaryType(),
        BooleanType(),
        ByteType(),
        DateType(),
        DayTimeIntervalType(),
        DoubleType(),
        FloatType(),
        IntegerType(),
        LongType(),
        NullType(),
        ShortType(),
        StringType(),
        TimestampNTZType(),
        TimestampType(),
    ]
)
_DECIMAL = st.integers(1, 38).flatmap(
    lambda precision: st.integers(0, precision).map(
        lambda scale: DecimalType(precision, scale)
    )
)
_NAME = st.from_regex(r"[a-z_]\w{0,5}", fullmatch=True)
_KEY = st.sampled_from([IntegerType(), StringType()])


def _struct(kinds: list[DataType], names: list[str]) -> StructType:
    pairs = zip(dict.fromkeys(names), kinds, strict=False)
    return StructType([StructField(name, kind) for name, kind in pairs])


_TYPE = st.recursive(
    _PLAIN | _DECIMAL,
    lambda inner: (
        inner.map(ArrayType)
        | st.builds(MapType, _KEY, inner)
        | st.builds(
            _struct,
            st.lists(inner, min_size=1, max_size=3),
            st.lists(_NAME, min_size=3, max_size=3),
        )
    ),
    max_leaves=6,
)
_COLLATED = st.recursive(
    _PLAIN | st.just(StringType("UNICODE")) | st.just(VariantType()),
    lambda inner: inner.map(ArrayType) | st.builds(MapType, _KEY, inner),
    max_leaves=3,
)


def _field(kind: DataType) -> dict[str, Any]:
    field: dict[str, Any] = json.loads(StructField("c", kind).json())
    return field


@given(_TYPE | _COLLATED)
def test_the_ddl_of_a_type_is_sparks(kind: DataType) -> None:
    assert ddl_of(_field(kind)) == kind.simpleString()


@given(_TYPE)
def test_the_json_of_a_ddl_is_sparks(kind: DataType) -> None:
    made = field_json("c", json_of(kind.simpleString()), {})
    assert made == _field(kind)
    assert StructField.fromJson(made).dataType == kind


@pytest.mark.parametrize("ddl", ["VARIANT", "variant"])
def test_a_variant_is_one(ddl: str) -> None:
    assert json_of(ddl) == "variant"


def test_a_type_of_another_writer_is_passed_on() -> None:
    field = {"name": "shape", "type": "geometry(OGC:CRS84)", "nullable": False}
    assert read_field(field) == FieldSpec("shape", "geometry(OGC:CRS84)", False)
    with pytest.raises(UndefinedObjectError):
        json_of("geometry(OGC:CRS84)")


def test_a_field_keeps_its_postgresql_type() -> None:
    spec = FieldSpec(
        "mood",
        "string",
        True,
        Oid(16400),
        -1,
        "shop.mood",
        Domain("shop.mood_or_null", Oid(16400), -1),
    )
    field = field_json(spec.name, json_of(spec.spark_ddl), metadata_of(spec))
    assert read_field(json.loads(json.dumps(field))) == spec
