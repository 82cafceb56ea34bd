"""Conversion between Spark's type names and Arrow's types.

Comes in: Spark DDL (``decimal(10,2)``, ``array<string>``) or an Arrow type. Goes out: the
equivalent in the other form. Called by the mapping (overrides name a DDL type) and by
``result_type``. Covered are the types of lake tables and of query results. Spark is not imported,
because the names are a stable, documented text format.

Child fields are called ``element``, ``key`` and ``value``, as in Parquet's specification
and in Spark.

Source: Spark SQL reference, "Data Types".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from types import MappingProxyType

import pyarrow as pa

from wal2lake.errors import UndefinedObjectError

_SIMPLE: Mapping[str, pa.DataType] = MappingProxyType(
    {
        "BOOLEAN": pa.bool_(),
        "TINYINT": pa.int8(),
        "BYTE": pa.int8(),
        "SMALLINT": pa.int16(),
        "SHORT": pa.int16(),
        "INT": pa.int32(),
        "INTEGER": pa.int32(),
        "BIGINT": pa.int64(),
        "LONG": pa.int64(),
        "FLOAT": pa.float32(),
        "REAL": pa.float32(),
        "DOUBLE": pa.float64(),
        "DATE": pa.date32(),
        "TIMESTAMP": pa.timestamp("us", "UTC"),
        "TIMESTAMP_LTZ": pa.timestamp("us", "UTC"),
        "TIMESTAMP_NTZ": pa.timestamp("us"),
        "STRING": pa.string(),
        "BINARY": pa.binary(),
        "VOID": pa.null(),
        "DECIMAL": pa.decimal128(10, 0),
        "DEC": pa.decimal128(10, 0),
        "NUMERIC": pa.decimal128(10, 0),
    }
)
_DECIMAL = re.compile(r"(?:DECIMAL|DEC|NUMERIC)\s*\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\)\Z")
_CHARACTER = re.compile(r"(?:VARCHAR|CHAR)\s*\(\s*\d+\s*\)\Z|STRING\s+COLLATE\s+\w+\Z")
_TIME = re.compile(r"TIME(?:\s*\(\s*[0-6]\s*\))?\Z")
_INTERVAL = re.compile(
    r"INTERVAL (?:DAY|HOUR|MINUTE|SECOND)( TO (?:HOUR|MINUTE|SECOND))?\Z"
)


def list_of(element: pa.DataType) -> pa.DataType:
    """Build ARRAY<...> whose elements may be null."""
    return pa.list_(pa.field("element", element, nullable=True))


def map_of(key: pa.DataType, value: pa.DataType) -> pa.DataType:
    """Build MAP<...> whose values may be null."""
    return pa.map_(
        pa.field("key", key, nullable=False),
        pa.field("value", value, nullable=True),
    )


def arrow_from_ddl(ddl: str) -> pa.DataType:
    """Return the Arrow type of a Spark type name in any case.

    Raises UndefinedObjectError (42704) for an unknown name, or a type that the node does not
    support (VARIANT, year-month intervals).
    """
    text = ddl.strip()
    upper = text.upper()
    simple = _SIMPLE.get(upper)
    if simple is not None:
        return simple
    decimal = _DECIMAL.match(upper)
    if (
        decimal
        and 1 <= int(decimal[1]) <= 38
        and int(decimal[2] or 0) <= int(decimal[1])
    ):
        return pa.decimal128(int(decimal[1]), int(decimal[2] or 0))
    if _CHARACTER.match(upper):
        return pa.string()
    if _TIME.match(upper):
        return pa.time64("us")
    if _INTERVAL.match(upper):
        return pa.duration("us")
    head, bracket, _ = upper.partition("<")
    if bracket and text.endswith(">"):
        parts = _split(text[len(head) + 1 : -1])
        match head.strip(), len(parts):
            case "ARRAY", 1:
                return list_of(arrow_from_ddl(parts[0]))
            case "MAP", 2 if parts[0].upper() != "VOID":
                return map_of(arrow_from_ddl(parts[0]), arrow_from_ddl(parts[1]))
            case "STRUCT", _:
                return pa.struct([_struct_field(p) for p in parts])
            case _:
                pass
    raise UndefinedObjectError(f'Spark type "{text}" is not supported')


def ddl_from_arrow(arrow: pa.DataType) -> str:
    """Return the Spark type name of an Arrow type, in upper case.

    Raises UndefinedObjectError (42704) if Spark has no such type.
    """
    types = pa.types
    if types.is_decimal(arrow):
        return f"DECIMAL({arrow.precision},{arrow.scale})"
    if types.is_timestamp(arrow):
        return "TIMESTAMP_NTZ" if arrow.tz is None else "TIMESTAMP"
    if types.is_map(arrow):
        key, value = ddl_from_arrow(arrow.key_type), ddl_from_arrow(arrow.item_type)
        return f"MAP<{key},{value}>"
    if types.is_list(arrow) or types.is_large_list(arrow):
        return f"ARRAY<{ddl_from_arrow(arrow.value_type)}>"
    if types.is_struct(arrow):
        fields = ",".join(f"{_quoted(f.name)}:{ddl_from_arrow(f.type)}" for f in arrow)
        return f"STRUCT<{fields}>"
    if types.is_string(arrow) or types.is_large_string(arrow):
        return "STRING"
    if types.is_binary(arrow) or types.is_large_binary(arrow):
        return "BINARY"
    if types.is_time(arrow):
        return "TIME(6)"
    if types.is_duration(arrow):
        return "INTERVAL DAY TO SECOND"
    for ddl, simple in _SIMPLE.items():
        if simple == arrow:
            return ddl
    raise UndefinedObjectError(f'Arrow type "{arrow}" has no Spark type')


def identifier(name: str) -> str:
    """Quote one identifier for Spark SQL."""
    return "`" + name.replace("`", "``") + "`"


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else identifier(name)


def _split(text: str) -> list[str]:
    """Split at commas that are not inside brackets or back quotes."""
    parts, depth, start, quoted = [], 0, 0, False
    for index, char in enumerate(text):
        if char == "`":
            quoted = not quoted
        elif quoted:
            continue
        elif char in "<(":
            depth += 1
        elif char in ">)":
            depth -= 1
        elif char == "," and depth == 0:
            parts.append(text[start:index].strip())
            start = index + 1
    parts.append(text[start:].strip())
    return parts


_STRUCT_FIELD = re.compile(r"(`(?:[^`]|``)+`|\w+)\s*(?::|\s)\s*(.+)\Z", re.DOTALL)
_FIELD_TAIL = re.compile(r"\s+(?:NOT\s+NULL|COMMENT\s+'.*')\s*\Z", re.IGNORECASE)


def _struct_field(text: str) -> pa.Field:
    match = _STRUCT_FIELD.match(text)
    if match is None:
        raise UndefinedObjectError(f'Spark type "{text}" is not supported')
    name = match[1]
    if name.startswith("`"):
        name = name[1:-1].replace("``", "`")
    ddl = match[2]
    while (shorter := _FIELD_TAIL.sub("", ddl)) != ddl:
        ddl = shorter
    return pa.field(name, arrow_from_ddl(ddl))
