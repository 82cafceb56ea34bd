"""Converts the types of a Delta schema to their names in Spark's DDL, and back.

Comes in: a type of the schema's JSON, or a name like ``array<int>``. Goes out: the other one.
Called by ``fields`` for the columns of a version, by ``schemachange`` for new ones. The DDL is
that of Spark's ``DataType.simpleString``, which the node uses in all column definitions.

    JSON                                                     DDL
    "integer", "long", "short", "byte"                       int, bigint, smallint, tinyint
    "decimal(10,2)", "timestamp_ntz", "string", ...          the same
    {"type": "array", "elementType": ..., "containsNull"}    array<...>
    {"type": "map", "keyType": ..., "valueType": ...}        map<...,...>
    {"type": "struct", "fields": [...]}                      struct<name:...,...>

A name that is not in the protocol is passed on: a table of another writer may have a type that the
node does not read, and the error arises where the column is used.

Sources: Delta transaction log protocol, "Schema Serialization Format"; Spark 4.1
``pyspark/sql/types.py`` (collations are in the field's metadata, by the path of the type).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pyarrow as pa

from wal2lake.pgtypes import arrow_from_ddl

JsonType = str | Mapping[str, Any]
"""A type as the schema's JSON has it: a name, or an object."""

_DDL: Final[Mapping[str, str]] = {
    "integer": "int",
    "long": "bigint",
    "short": "smallint",
    "byte": "tinyint",
    "decimal": "decimal(10,0)",
}
"""Names that differ."""

_COLLATIONS: Final = "__COLLATIONS"
"""Key of a field's metadata: collation by the path of a string type in the field."""

_JSON: Final[Mapping[pa.DataType, str]] = {
    pa.bool_(): "boolean",
    pa.int8(): "byte",
    pa.int16(): "short",
    pa.int32(): "integer",
    pa.int64(): "long",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.date32(): "date",
    pa.timestamp("us", "UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
    pa.time64("us"): "time(6)",
    pa.duration("us"): "interval day to second",
    pa.string(): "string",
    pa.binary(): "binary",
    pa.null(): "void",
}


def ddl_of(field: Mapping[str, Any]) -> str:
    """Return the DDL of a field's type; ``field`` is an object of the schema's ``fields``."""
    collations = (field.get("metadata") or {}).get(_COLLATIONS) or {}
    return _ddl(field["type"], str(field["name"]), collations)


def _ddl(kind: JsonType, path: str, collations: Mapping[str, str]) -> str:
    if isinstance(kind, str):
        if kind == "string" and path in collations:
            return f"string collate {collations[path].rpartition('.')[2]}"
        return _DDL.get(kind, kind)
    match kind["type"]:
        case "array":
            return f"array<{_ddl(kind['elementType'], f'{path}.element', collations)}>"
        case "map":
            key = _ddl(kind["keyType"], f"{path}.key", collations)
            return f"map<{key},{_ddl(kind['valueType'], f'{path}.value', collations)}>"
        case "struct":
            fields = ",".join(f"{f['name']}:{ddl_of(f)}" for f in kind["fields"])
            return f"struct<{fields}>"
        case name:
            return str(name)


def json_of(ddl: str) -> str | dict[str, Any]:
    """Return the JSON of a type that a table of the node can have.

    Raises UndefinedObjectError (42704) for other types.
    """
    if ddl.strip().lower() == "variant":
        return "variant"
    return _json(arrow_from_ddl(ddl))


def _json(arrow: pa.DataType) -> str | dict[str, Any]:
    if pa.types.is_decimal(arrow):
        return f"decimal({arrow.precision},{arrow.scale})"
    if pa.types.is_map(arrow):
        return {
            "type": "map",
            "keyType": _json(arrow.key_type),
            "valueType": _json(arrow.item_type),
            "valueContainsNull": True,
        }
    if pa.types.is_list(arrow):
        return {
            "type": "array",
            "elementType": _json(arrow.value_type),
            "containsNull": True,
        }
    if pa.types.is_struct(arrow):
        fields = [field_json(field.name, _json(field.type), {}) for field in arrow]
        return {"type": "struct", "fields": fields}
    return _JSON[arrow]


def field_json(
    name: str, kind: JsonType, metadata: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the object of a nullable field."""
    return {"name": name, "type": kind, "nullable": True, "metadata": dict(metadata)}
