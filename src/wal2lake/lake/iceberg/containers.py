"""Reads and writes manifests and manifest lists: Avro files whose fields have Iceberg's ids.

Comes in: entries of manifests. Goes out: the content of a file, and the entries again. Called by
``manifests``; pure.

``fastavro`` writes the containers. Its records are dicts in the order and under the names of the
schema. It converts dates, timestamps and decimals of a schema with logical types to Python's, which
end in the year 9999; so entries are read by the schema without these, as the numbers they are.

Sources: Iceberg table specification, "Manifests", "Manifest Lists", "Appendix A: Avro"; Apache
Avro 1.12 specification, "Object Container Files".
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import fastavro
import pyarrow as pa

from wal2lake.lake.iceberg.bounds import unscaled_bytes
from wal2lake.lake.iceberg.columns import PARTITION_IDS, Json, MirroredColumns

Record = dict[str, Any]
"""A record of an Avro file."""

_CODEC: Final = "deflate"

_PARTITION_AVRO: Final[Mapping[pa.DataType, Json | str]] = {
    pa.bool_(): "boolean",
    pa.int8(): "int",
    pa.int16(): "int",
    pa.int32(): "int",
    pa.int64(): "long",
    pa.date32(): {"type": "int", "logicalType": "date"},
    pa.timestamp("us"): {
        "type": "long",
        "logicalType": "timestamp-micros",
        "adjust-to-utc": False,
    },
    pa.timestamp("us", "UTC"): {
        "type": "long",
        "logicalType": "timestamp-micros",
        "adjust-to-utc": True,
    },
}


def _field(name: str, field_id: int, kind: Any) -> Json:
    return {"name": name, "type": kind, "field-id": field_id}


def _optional(name: str, field_id: int, kind: Any) -> Json:
    return {
        "name": name,
        "type": ["null", kind],
        "default": None,
        "field-id": field_id,
    }


def _by_id(key: int, value: int, kind: str) -> Json:
    """Return the type of a map from field ids, which Avro's own maps cannot be."""
    return {
        "type": "array",
        "logicalType": "map",
        "items": {
            "type": "record",
            "name": f"k{key}_v{value}",
            "fields": [_field("key", key, "int"), _field("value", value, kind)],
        },
    }


def _list(element: int, kind: Any) -> Json:
    return {"type": "array", "element-id": element, "items": kind}


_LIST_FIELDS: Final = [
    _field("manifest_path", 500, "string"),
    _field("manifest_length", 501, "long"),
    _field("partition_spec_id", 502, "int"),
    _field("content", 517, "int"),
    _field("sequence_number", 515, "long"),
    _field("min_sequence_number", 516, "long"),
    _field("added_snapshot_id", 503, "long"),
    _field("added_files_count", 504, "int"),
    _field("existing_files_count", 505, "int"),
    _field("deleted_files_count", 506, "int"),
    _field("added_rows_count", 512, "long"),
    _field("existing_rows_count", 513, "long"),
    _field("deleted_rows_count", 514, "long"),
    _optional(
        "partitions",
        507,
        _list(
            508,
            {
                "type": "record",
                "name": "r508",
                "fields": [
                    _field("contains_null", 509, "boolean"),
                    _optional("contains_nan", 518, "boolean"),
                    _optional("lower_bound", 510, "bytes"),
                    _optional("upper_bound", 511, "bytes"),
                ],
            },
        ),
    ),
]
_FIRST_ROW_ID: Final = _optional("first_row_id", 520, "long")


def manifest_schema(columns: MirroredColumns, format_version: int) -> Json:
    """Return the Avro schema of a manifest's entries."""
    file_fields = [
        _field("content", 134, "int"),
        _field("file_path", 100, "string"),
        _field("file_format", 101, "string"),
        _field("partition", 102, _partition_schema(columns)),
        _field("record_count", 103, "long"),
        _field("file_size_in_bytes", 104, "long"),
        _optional("value_counts", 109, _by_id(119, 120, "long")),
        _optional("null_value_counts", 110, _by_id(121, 122, "long")),
        _optional("lower_bounds", 125, _by_id(126, 127, "bytes")),
        _optional("upper_bounds", 128, _by_id(129, 130, "bytes")),
        _optional("sort_order_id", 140, "int"),
        _optional("referenced_data_file", 143, "string"),
    ]
    if format_version >= 3:
        file_fields += [
            _optional("first_row_id", 142, "long"),
            _optional("content_offset", 144, "long"),
            _optional("content_size_in_bytes", 145, "long"),
        ]
    return {
        "type": "record",
        "name": "manifest_entry",
        "fields": [
            _field("status", 0, "int"),
            _optional("snapshot_id", 1, "long"),
            _optional("sequence_number", 3, "long"),
            _optional("file_sequence_number", 4, "long"),
            _field(
                "data_file", 2, {"type": "record", "name": "r2", "fields": file_fields}
            ),
        ],
    }


def _partition_schema(columns: MirroredColumns) -> Json:
    fields = []
    for place, column in enumerate(columns.partition):
        kind = column.arrow
        if pa.types.is_decimal(kind):
            avro: Any = {
                "type": "fixed",
                "name": f"decimal_{PARTITION_IDS + place}",
                "size": _decimal_size(kind.precision),
                "logicalType": "decimal",
                "precision": kind.precision,
                "scale": kind.scale,
            }
        else:
            avro = _PARTITION_AVRO[kind]
        fields.append(_optional(_avro_name(column.name), PARTITION_IDS + place, avro))
    return {"type": "record", "name": "r102", "fields": fields}


def _decimal_size(precision: int) -> int:
    """Return the bytes that hold any value of this precision."""
    return len(unscaled_bytes(10**precision - 1))


def _avro_name(name: str) -> str:
    """Return a column's name in Avro, as Iceberg's own writers change it."""
    changed = [
        character
        if (character.isascii() and character.isalnum()) or character == "_"
        else f"_x{ord(character):X}"
        for character in name
    ]
    if name[:1].isdigit():
        changed[0] = f"_{name[0]}"
    return "".join(changed)


def partition_record(columns: MirroredColumns, values: tuple[Any, ...]) -> Record:
    """Return a partition's values as a record of ``manifest_schema``."""
    record: Record = {}
    for column, value in zip(columns.partition, values, strict=True):
        if value is not None and pa.types.is_decimal(column.arrow):
            size = _decimal_size(column.arrow.precision)
            value = int(value).to_bytes(size, "big", signed=True)
        record[_avro_name(column.name)] = value
    return record


def partition_values(columns: MirroredColumns, record: Record) -> tuple[Any, ...]:
    """Return the values of ``partition_record``."""
    return tuple(
        int.from_bytes(value, "big", signed=True) if isinstance(value, bytes) else value
        for value in record.values()
    )


def write_manifest(
    columns: MirroredColumns,
    schema_id: int,
    format_version: int,
    entries: Iterable[Record],
    *,
    deletes: bool,
) -> bytes:
    """Return the content of a manifest."""
    metadata = {
        "schema": _text(columns.schema(schema_id)),
        "schema-id": str(schema_id),
        "partition-spec": _text(columns.spec()["fields"]),
        "partition-spec-id": "0",
        "format-version": str(format_version),
        "content": "deletes" if deletes else "data",
    }
    return _write(manifest_schema(columns, format_version), entries, metadata)


def write_manifest_list(
    records: Iterable[Record], format_version: int, metadata: Mapping[str, str]
) -> bytes:
    """Return the content of a snapshot's manifest list."""
    fields = [*_LIST_FIELDS, _FIRST_ROW_ID] if format_version >= 3 else _LIST_FIELDS
    schema = {"type": "record", "name": "manifest_file", "fields": fields}
    return _write(schema, records, {**metadata, "format-version": str(format_version)})


def read_records(content: bytes) -> Iterator[Record]:
    """Yield the records of a file that this module wrote."""
    blocks = fastavro.block_reader(io.BytesIO(content))
    schema = fastavro.parse_schema(_numbers(blocks.writer_schema))
    for block in blocks:
        data = block.bytes_  # type: ignore[attr-defined]
        for _ in range(block.num_records):
            record = fastavro.schemaless_reader(data, schema, None)
            assert isinstance(record, dict)
            yield record


def _numbers(schema: Any) -> Any:
    """Return a schema without logical types."""
    if isinstance(schema, list):
        return [_numbers(part) for part in schema]
    if isinstance(schema, Mapping):
        return {
            name: _numbers(part)
            for name, part in schema.items()
            if name != "logicalType" and not name.startswith("__")
        }
    return schema


def _write(
    schema: Json, records: Iterable[Record], metadata: Mapping[str, str]
) -> bytes:
    content = io.BytesIO()
    fastavro.writer(
        content, fastavro.parse_schema(schema), records, _CODEC, metadata=dict(metadata)
    )
    return content.getvalue()


def _text(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
