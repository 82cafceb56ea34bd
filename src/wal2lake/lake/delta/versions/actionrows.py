"""Converts actions of Delta's log to the rows of a checkpoint. Pure.

In: actions as JSON objects. Out: record batches in which each action is a struct in the column of
its kind, and all other columns are null. What a later protocol adds to an action and this module
does not know is left out; a table with such a feature is not written (``protocol.features``).

Called by ``checkpoints``. Source: Delta transaction log protocol, "Checkpoint Schema".
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from wal2lake.lake.delta.log.place import Object
from wal2lake.lake.delta.versions.checkpointfiles import MAPS
from wal2lake.lake.delta.versions.structstats import StructStats
from wal2lake.lake.port import TableState

_AS_JSON: Final = "delta.checkpoint.writeStatsAsJson"
_AS_STRUCT: Final = "delta.checkpoint.writeStatsAsStruct"

_GROUP: Final = 20_000
"""Actions that are converted at once, at about a kilobyte each."""

_TEXTS: Final = pa.map_(pa.string(), pa.string())

_VECTOR: Final = pa.struct(
    [
        ("storageType", pa.string()),
        ("pathOrInlineDv", pa.string()),
        ("offset", pa.int32()),
        ("sizeInBytes", pa.int32()),
        ("cardinality", pa.int64()),
        ("maxRowIndex", pa.int64()),
    ]
)

_ROW_NUMBERS: Final = [
    ("baseRowId", pa.int64()),
    ("defaultRowCommitVersion", pa.int64()),
]

_ADD: Final = [
    ("path", pa.string()),
    ("partitionValues", _TEXTS),
    ("size", pa.int64()),
    ("modificationTime", pa.int64()),
    ("dataChange", pa.bool_()),
    ("tags", _TEXTS),
    ("deletionVector", _VECTOR),
    *_ROW_NUMBERS,
    ("clusteringProvider", pa.string()),
]

_REMOVE: Final = pa.struct(
    [
        ("path", pa.string()),
        ("deletionTimestamp", pa.int64()),
        ("dataChange", pa.bool_()),
        ("extendedFileMetadata", pa.bool_()),
        ("partitionValues", _TEXTS),
        ("size", pa.int64()),
        ("deletionVector", _VECTOR),
        *_ROW_NUMBERS,
    ]
)

_OTHERS: Final[Mapping[str, pa.StructType]] = {
    "protocol": pa.struct(
        [
            ("minReaderVersion", pa.int32()),
            ("minWriterVersion", pa.int32()),
            ("readerFeatures", pa.list_(pa.string())),
            ("writerFeatures", pa.list_(pa.string())),
        ]
    ),
    "metaData": pa.struct(
        [
            ("id", pa.string()),
            ("name", pa.string()),
            ("description", pa.string()),
            (
                "format",
                pa.struct([("provider", pa.string()), ("options", _TEXTS)]),
            ),
            ("schemaString", pa.string()),
            ("partitionColumns", pa.list_(pa.string())),
            ("configuration", _TEXTS),
            ("createdTime", pa.int64()),
        ]
    ),
    "txn": pa.struct(
        [
            ("appId", pa.string()),
            ("version", pa.int64()),
            ("lastUpdated", pa.int64()),
        ]
    ),
    "domainMetadata": pa.struct(
        [
            ("domain", pa.string()),
            ("configuration", pa.string()),
            ("removed", pa.bool_()),
        ]
    ),
}
"""Actions that are not of files."""

Rows = Mapping[str, Sequence[Object]]
"""Actions by kind."""


def schemas_of(state: TableState) -> dict[str, pa.StructType]:
    """Return the types of the columns of a table's checkpoint."""
    add = list(_ADD)
    if _has_texts(state):
        add.append(("stats", pa.string()))
    if _has_structs(state):
        add += StructStats(state).fields
    return {**_OTHERS, "add": pa.struct(add), "remove": _REMOVE}


def batches(
    state: TableState, schema: pa.Schema, kind: str, rows: Sequence[Object]
) -> Iterator[pa.RecordBatch]:
    """Yield actions of one kind."""
    structs = StructStats(state) if kind == "add" and _has_structs(state) else None
    wanted = schema.field(kind).type
    for start in range(0, len(rows), _GROUP):
        group = [_row(row) for row in rows[start : start + _GROUP]]
        if structs is not None:
            group = [{**row, **structs.of(row)} for row in group]
        column = pa.array(group, wanted)
        yield pa.record_batch(
            [
                column if field.name == kind else pa.nulls(len(group), field.type)
                for field in schema
            ],
            schema=schema,
        )


def _has_texts(state: TableState) -> bool:
    return state.properties.get(_AS_JSON, "true").lower() == "true"


def _has_structs(state: TableState) -> bool:
    # Statistics are in one form at least unless the table wants neither: Delta's default is true,
    # the protocol's false.
    default = "false" if _has_texts(state) else "true"
    return state.properties.get(_AS_STRUCT, default).lower() == "true"


def _row(value: Mapping[str, Any]) -> dict[str, Any]:
    """Return an action with its maps as Arrow takes them."""
    row: dict[str, Any] = {}
    for name, field in value.items():
        # The configuration of a domain is a text.
        if name in MAPS and isinstance(field, Mapping):
            row[name] = list(field.items())
        elif isinstance(field, Mapping):
            row[name] = _row(field)
        else:
            row[name] = field
    return row
