"""Writes types of columns as catalogs have them.

Comes in: a type in Spark's DDL. Goes out: its name in Hive's words, which Glue uses, too, or a
column as Unity Catalog has it. A type that the catalog does not have (Hive: VARIANT, intervals,
times) is shown as string: readers take the type from the table's own log. Pure.

Sources: Hive language manual, "Data Types"; unitycatalog, ``api/all.yaml``, ColumnInfo, whose
``type_json`` is a field as Spark's StructField writes it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from wal2lake.errors import UndefinedObjectError
from wal2lake.lake.catalogs.port import EntryColumn
from wal2lake.lake.delta.schema import field_json, json_of
from wal2lake.pgtypes import arrow_from_ddl

_UNKNOWN: Final = "string"

_PLAIN_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
"""Names in a struct that every reader of Hive's types parses."""

_HIVE: Final[Mapping[pa.DataType, str]] = {
    pa.bool_(): "boolean",
    pa.int8(): "tinyint",
    pa.int16(): "smallint",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp",
    pa.string(): "string",
    pa.binary(): "binary",
}

_UNITY: Final[Mapping[str, str]] = {
    "boolean": "BOOLEAN",
    "byte": "BYTE",
    "short": "SHORT",
    "integer": "INT",
    "long": "LONG",
    "float": "FLOAT",
    "double": "DOUBLE",
    "date": "DATE",
    "timestamp": "TIMESTAMP",
    "timestamp_ntz": "TIMESTAMP_NTZ",
    "string": "STRING",
    "binary": "BINARY",
    "variant": "VARIANT",
    "array": "ARRAY",
    "map": "MAP",
    "struct": "STRUCT",
}
"""ColumnTypeName by the name of a type in Delta's schema."""

_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")


def hive_type(spark_ddl: str) -> str:
    """Return Hive's name of a type."""
    arrow = _arrow(spark_ddl)
    return (_UNKNOWN if arrow is None else _hive(arrow)) or _UNKNOWN


def _arrow(spark_ddl: str) -> pa.DataType | None:
    try:
        return arrow_from_ddl(spark_ddl)
    except UndefinedObjectError:
        return None


def _hive(arrow: pa.DataType) -> str | None:
    """Return the name; None if a part of the type has none."""
    if pa.types.is_decimal(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    if pa.types.is_map(arrow):
        return _of("map", (_hive(arrow.key_type), _hive(arrow.item_type)))
    if pa.types.is_list(arrow):
        return _of("array", (_hive(arrow.value_type),))
    if pa.types.is_struct(arrow):
        if not all(_PLAIN_NAME.fullmatch(field.name) for field in arrow):
            return None
        parts = [(field.name, _hive(field.type)) for field in arrow]
        return _of("struct", tuple(kind and f"{name}:{kind}" for name, kind in parts))
    return _HIVE.get(arrow)


def _of(name: str, parts: tuple[str | None, ...]) -> str | None:
    names = [part for part in parts if part is not None]
    return f"{name}<{','.join(names)}>" if len(names) == len(parts) else None


def unity_column(column: EntryColumn, position: int) -> dict[str, Any]:
    """Return a column as ColumnInfo."""
    text = column.spark_ddl
    try:
        kind = json_of(text)
    except (UndefinedObjectError, LookupError):
        text, kind = _UNKNOWN, _UNKNOWN
    column_info = {
        "name": column.name,
        "type_text": text,
        "type_json": json.dumps(
            {**field_json(column.name, kind, {}), "nullable": column.nullable}
        ),
        "position": position,
        "nullable": column.nullable,
    }
    name = kind if isinstance(kind, str) else str(kind["type"])
    decimal = _DECIMAL.fullmatch(name)
    if decimal is None:
        return {**column_info, "type_name": _UNITY.get(name, "STRING")}
    precision, scale = map(int, decimal.groups())
    return {
        **column_info,
        "type_name": "DECIMAL",
        "type_precision": precision,
        "type_scale": scale,
    }
