"""The metadata of a table whose columns change. Pure: Delta's JSON in, Delta's JSON out.

Comes in: the ``metaData`` action of a version, and the columns that the next one is to have, each
with the name that it had. Goes out: the next one's action; before, whether the table needs
column mapping for it.

    a column that stays       keeps its physical name and its id, whatever it is called now
    a new one                 has a physical name that no file has: under column mapping a fresh
                              one, without it its own, which no column had before
    one of another type       is a new one, for all files are written anew with it
    one that goes             is not there; files have it still, and nobody reads it

Called by ``tables``. Source: Delta transaction log protocol, "Column Mapping".
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from typing import Any, Final

from wal2lake.errors import FeatureNotSupportedError
from wal2lake.lake.delta.fields import (
    DOMAIN,
    TYPE_NAME,
    TYPE_OID,
    TYPMOD,
    metadata_of,
    spark_type,
)
from wal2lake.lake.delta.log.place import Object
from wal2lake.lake.port import NextField, TableState, can_cluster

ID: Final = "delta.columnMapping.id"
PHYSICAL_NAME: Final = "delta.columnMapping.physicalName"
MODE: Final = "delta.columnMapping.mode"
MOST_ID: Final = "delta.columnMapping.maxColumnId"

UNSAFE_IN_NAMES: Final = frozenset(" ,;{}()\n\t=")
"""Delta refuses these in a column's name unless column mapping is on."""

_OURS: Final = (TYPE_OID, TYPMOD, TYPE_NAME, DOMAIN)


def needs_mapping(state: TableState, fields: Sequence[NextField]) -> bool:
    """Whether the names in files can no longer be those of the columns."""
    if state.column_mapping:
        return False
    kept = [(one.source, one.field.name) for one in fields if one.source is not None]
    return (
        [source for source, _ in kept] != [field.name for field in state.fields]
        or any(source != name for source, name in kept)
        or any(UNSAFE_IN_NAMES & set(one.field.name) for one in fields)
    )


_FEATURES: Final = {"timestamp_ntz": "timestampNtz", "variant": "variantType"}
"""Feature that a table's protocol must name for a column of a type."""


def missing_features(protocol: Object, fields: Sequence[NextField]) -> list[str]:
    """Features of Delta's that a table needs for its new columns."""
    there = protocol.get("writerFeatures") or ()
    needed = {
        feature
        for one in fields
        if one.source is None or one.anew
        for kind, feature in _FEATURES.items()
        if kind in one.field.spark_ddl.lower()
    }
    return sorted(needed.difference(there))


def next_metadata(metadata: Object, fields: Sequence[NextField]) -> dict[str, Any]:
    """The ``metaData`` object of a version with these columns."""
    schema = json.loads(metadata["schemaString"])
    before = {field["name"]: field for field in schema["fields"]}
    properties = dict(metadata["configuration"])
    mapped = properties.get(MODE, "none") != "none"
    most = max(
        (int(f["metadata"].get(ID, 0)) for f in before.values()),
        default=0,
    )
    most = max(most, int(properties.get(MOST_ID, 0)))
    made = []
    for one in fields:
        field = before.get(one.source) if one.source is not None else None
        own = {} if field is None else dict(field["metadata"])
        for name in _OURS:
            own.pop(name, None)
        own.update(metadata_of(one.field))
        kind: Any = None if field is None else field["type"]
        if field is None or one.anew:
            kind = spark_type(one.field.spark_ddl).jsonValue()
            if mapped:
                most += 1
                own[ID] = most
                own[PHYSICAL_NAME] = f"col-{uuid.uuid4()}"
        made.append(
            {
                "name": one.field.name,
                "type": kind,
                "nullable": True if field is None else field["nullable"],
                "metadata": own,
            }
        )
    if mapped:
        properties[MOST_ID] = str(most)
    return {
        **metadata,
        "schemaString": json.dumps({**schema, "fields": made}),
        "configuration": properties,
    }


def refuse_unless_plain(state: TableState, fields: Sequence[NextField]) -> None:
    """0A000 for a table whose columns mean something to Delta, which its constraints and
    generated columns name, and for a change of columns by which it is partitioned."""
    if not state.is_plain:
        raise FeatureNotSupportedError(
            f'columns of the table at "{state.location}" cannot be changed',
            detail="It has constraints, generated columns, row tracking of Delta's own, or"
            " partitions by a type that this node does not write.",
            hint="Create another table without them, and copy the rows.",
        )
    kept = {
        one.source for one in fields if one.source == one.field.name and not one.anew
    }
    mapped = state.column_mapping or needs_mapping(state, fields)
    # A new type is another column of the files, unless that is called as it was.
    stay = {
        one.source
        for one in fields
        if not one.anew or (can_cluster(one.field.spark_ddl) and not mapped)
    }
    for name in state.clustering:
        if name not in stay:
            raise FeatureNotSupportedError(
                f'cannot drop column "{name}" or alter its type because the table is'
                " clustered by it",
                hint="Create another table WITH (cluster_by = ...), and copy the rows;"
                " or end the clustering with Spark: ALTER TABLE ... CLUSTER BY NONE.",
            )
    for name in state.partition_columns:
        if name not in kept:
            raise FeatureNotSupportedError(
                f'cannot alter column "{name}" because the table is partitioned by it',
                detail="Each data file is of one value of that column, by its name.",
                hint="Create another table WITH (partition_columns = ...), and copy the"
                " rows.",
            )
    if state.partition_columns and len(fields) == len(state.partition_columns):
        raise FeatureNotSupportedError(
            "cannot drop the last column by which the table is not partitioned",
            hint="Create another table without partitions, and copy the rows.",
        )
